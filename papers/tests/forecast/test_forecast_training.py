"""Training of networks: it learns, resumes to the same weights, and keeps the best epoch."""

import os
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from recurrify.errors import UserError
from recurrify.train import last_whole_checkpoint
from recurrify_papers.forecast import training as training_module
from recurrify_papers.forecast.candidates import default_dilations, is_installed, new_network
from recurrify_papers.forecast.data import Scaling, Split, WindowedSeries
from recurrify_papers.forecast.settings import NETWORKS, ForecastSettings
from recurrify_papers.forecast.training import STATE_FILE, Training, epoch_starts, learning_rate

SETTINGS = ForecastSettings(
    data="waves.csv", out="out", model="rsa-informer", past=24, label=12, horizon=6, width=16, heads=4, inner=32,
    counts="1,1,1,1,0,0", encoder_layers=1, epochs=3, batch=8, learning_rate=3e-3, dropout=0.1, patience=0,
    epoch_windows=32, valid_windows=10, device="cpu",
)  # fmt: skip


@pytest.fixture(scope="module")
def data(wave_series) -> WindowedSeries:
    return WindowedSeries(wave_series, Split(120, 180, 240), Scaling.of(wave_series, 120), 24, 6)


def new_training(data, settings=SETTINGS, folder=None) -> Training:
    torch.manual_seed(settings.seed)
    return Training(new_network(settings, 2, data.times_TF.shape[1]), data, settings, folder)


@pytest.fixture(scope="module")
def whole(data):
    training = new_training(data)
    training.run()
    return training.model.state_dict()


def assert_same(model, weights) -> None:
    for name, value in model.state_dict().items():
        assert torch.equal(value, weights[name]), name


@pytest.mark.parametrize("model", filter(is_installed, NETWORKS))
def test_every_network_learns_and_is_rebuilt(model, data):
    settings = replace(SETTINGS, model=model, epochs=2, epoch_windows=None, dropout=0.0)
    training = new_training(data, settings)
    progress = training.run()
    assert progress.history[-1]["train_mse"] < progress.history[0]["train_mse"]
    assert progress.stops(settings)
    twin = type(training.model)(training.model.config)
    twin.load_state_dict(training.model.state_dict())
    batch = data.batch(data.starts("test", 2))
    inputs = batch.past, batch.past_time, batch.future_time
    assert torch.equal(twin.eval()(*inputs), training.model(*inputs))


@pytest.mark.parametrize("stop", ["epochs", "time", "SIGINT", "SIGTERM"])
def test_resumed_run_has_the_weights_of_an_uninterrupted_one(stop, data, whole, tmp_path, monkeypatch):
    if stop == "epochs":
        new_training(data, replace(SETTINGS, epochs=1), tmp_path).run()
    elif stop == "time":
        clock = iter(range(10_000))  # one second at each look, so time is up in the second epoch
        monkeypatch.setattr(training_module.time, "monotonic", lambda: next(clock))
        progress = new_training(data, replace(SETTINGS, max_minutes=0.2), tmp_path).run()
        assert progress.epoch
        assert not progress.stops(SETTINGS)
        monkeypatch.undo()
    else:
        training, steps = new_training(data, folder=tmp_path), []

        def tick(done):
            steps.append(done)
            if len(steps) == 6:
                os.kill(os.getpid(), getattr(signal, stop))

        with pytest.raises(KeyboardInterrupt):
            training.run(tick=tick)
    assert last_whole_checkpoint(tmp_path) is not None
    resumed = new_training(data, folder=tmp_path)
    resumed.run()
    assert_same(resumed.model, whole)
    assert not any(path.suffix == ".tmp" for path in tmp_path.iterdir())


def test_run_resumes_from_the_checkpoint_before_a_damaged_one(data, whole, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(training_module, "LARGEST_SHARE_OF_SAVING", 1e9)  # every epoch is saved
    for epochs in (1, 2):
        new_training(data, replace(SETTINGS, epochs=epochs), tmp_path).run()
    state = tmp_path / "checkpoint-2" / STATE_FILE
    content = bytearray(state.read_bytes())
    content[len(content) // 2] ^= 1
    state.write_bytes(content)
    resumed = new_training(data, folder=tmp_path)
    assert resumed.progress.epoch == 1
    assert (tmp_path / "damaged-checkpoint-2").is_dir()
    assert "training.pt of" in capsys.readouterr().err
    resumed.run()
    assert_same(resumed.model, whole)


def test_state_of_another_model_raises(data, tmp_path):
    new_training(data, replace(SETTINGS, epochs=1), tmp_path).run()
    with pytest.raises(UserError, match="cannot be resumed"):
        new_training(data, replace(SETTINGS, width=32), tmp_path)


def test_best_epoch_is_kept_and_patience_stops(data, monkeypatch):
    losses = iter([0.5, 0.3, 0.4, 0.6, 0.1])
    monkeypatch.setattr(training_module, "backtest", lambda *_: SimpleNamespace(mse=next(losses)))
    training, seen = new_training(data, replace(SETTINGS, epochs=5, patience=2)), []
    progress = training.run(watch=lambda _: seen.append({n: v.clone() for n, v in training.model.state_dict().items()}))
    assert (progress.best_epoch, progress.epoch, progress.best_loss) == (2, 4, 0.3)
    assert_same(training.model, seen[1])


def test_loss_that_is_not_finite_raises(data, monkeypatch):
    monkeypatch.setattr(training_module, "backtest", lambda *_: SimpleNamespace(mse=float("nan")))
    with pytest.raises(UserError, match="not finite in epoch 1"):
        new_training(data).run()


def test_order_of_windows(data):
    settings = replace(SETTINGS, epoch_windows=None)
    shuffled, sequential = (
        epoch_starts(data, replace(settings, order=order), 1) for order in ("shuffled", "sequential")
    )
    assert shuffled.flatten().tolist() != sorted(shuffled.flatten().tolist()) == sequential.flatten().tolist()
    assert epoch_starts(data, SETTINGS, 0).shape == (4, 8)


def test_recurrence_has_its_own_learning_rate(data):
    for schedule in ("halve", "cosine"):
        step = new_training(data, replace(SETTINGS, schedule=schedule)).step
        training_module.set_rate(step.optimizer, learning_rate(replace(SETTINGS, schedule=schedule), 1))
        rates = [float(group["lr"]) for group in step.optimizer.param_groups]
        assert rates[1] / rates[0] == pytest.approx(3e-2 / 3e-3)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [("halve", [8, 4, 2, 1]), ("published", [8, 8, 4, 2]), ("constant", [8] * 4), ("cosine", [8, 6.828, 4, 1.172])],
)
def test_learning_rates(schedule, expected):
    settings = replace(SETTINGS, schedule=schedule, epochs=4, learning_rate=8)
    assert [learning_rate(settings, epoch) for epoch in range(4)] == pytest.approx(expected, abs=1e-3)
    assert learning_rate(replace(settings, schedule="halve", halve_every=4), 3) == 8


def test_dilations_pair_a_cosine_with_its_sine():
    assert default_dilations((0, 2, 2, 1, 2, 2)) == (3, 3, 6, 3, 6)


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": "prophet"}, {"past": 0}, {"label": 25}, {"dropout": 1.0}, {"speed": "graph"},
        {"seed": 2**32}, {"learning_rate": float("nan")}, {"max_minutes": 0.0}, {"schedule": "never"},
    ],
    ids=str,
)  # fmt: skip
def test_invalid_settings_raise(wrong):
    with pytest.raises(UserError, match=f"`{next(iter(wrong))}"):
        replace(SETTINGS, **wrong)


@pytest.mark.parametrize("wrong", [{"counts": "1,2"}, {"counts": "a"}, {"dilations": "a,b"}], ids=str)
def test_invalid_heads_raise(wrong):
    with pytest.raises(UserError, match=f"`{next(iter(wrong))}"):
        new_network(replace(SETTINGS, **wrong), 2, 4)
