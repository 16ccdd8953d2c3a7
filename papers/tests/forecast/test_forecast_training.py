"""Training that learns, stops, goes on where it stopped, and keeps its best."""

import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from recurrify.errors import UserError
from recurrify.speed.capturing import set_rate
from recurrify_papers.forecast import training
from recurrify_papers.forecast.building import default_dilations, described, new_forecaster, rebuilt
from recurrify_papers.forecast.data import Scaling, Split, WindowedSeries
from recurrify_papers.forecast.evaluation import mean_squared_error
from recurrify_papers.forecast.settings import MODELS, ForecastSettings
from recurrify_papers.forecast.shapes import recurrence_shapes
from recurrify_papers.forecast.training import STATE_FILE, epoch_starts, fit, learning_rate, recurrence_parameters

SETTINGS = ForecastSettings(
    data="waves.csv", out="out", model="rsa-informer", past=30, label=12, horizon=6, width=16, heads=8, inner=16,
    encoder_layers=1, epochs=3, batch=8, learning_rate=3e-3, dropout=0.1, patience=0,
)  # fmt: skip


@pytest.fixture(scope="module")
def data(wave_series) -> WindowedSeries:
    return WindowedSeries(wave_series, Split(120, 180, 240), Scaling.of(wave_series.values[:120]), 30, 6)


def fitted(settings: ForecastSettings, data: WindowedSeries, folder: Path | None = None) -> torch.nn.Module:
    torch.manual_seed(settings.seed)
    model = new_forecaster(settings, data.channels, data.times_TF.shape[1], data.series.step)
    fit(model, data, settings, folder)
    return model


def same(first: torch.nn.Module, second: torch.nn.Module) -> bool:
    theirs = second.state_dict()
    return all(torch.equal(value, theirs[name]) for name, value in first.state_dict().items())


@pytest.fixture(scope="module")
def whole(data) -> tuple[torch.nn.Module, training.Outcome]:
    """What the settings give without any interruption."""
    torch.manual_seed(SETTINGS.seed)
    model = new_forecaster(SETTINGS, data.channels, data.times_TF.shape[1], data.series.step)
    return model, fit(model, data, SETTINGS)


@pytest.mark.parametrize("model", ["rsa-informer", "transformer", "lstm", "linear"])
def test_every_forecaster_learns_a_wave(model, data):
    settings = replace(SETTINGS, model=model, epochs=6, schedule="cosine", learning_rate=1e-2, dropout=0.0)
    naive = new_forecaster(replace(settings, model="last-value"), 2, 4, data.series.step)
    assert mean_squared_error(fitted(settings, data), data, "test") < 0.6 * mean_squared_error(naive, data, "test")


def test_a_run_that_goes_on_is_the_run_that_never_stopped(data, whole, tmp_path):
    for epochs in (1, 3):
        in_parts = fitted(replace(SETTINGS, epochs=epochs), data, tmp_path)
    assert same(whole[0], in_parts)
    assert not same(whole[0], fitted(replace(SETTINGS, seed=1, epochs=1), data))


def test_a_finished_run_takes_no_more_steps(data, tmp_path):
    settings = replace(SETTINGS, model="linear")
    first = fitted(settings, data, tmp_path)
    before = (tmp_path / STATE_FILE).read_bytes()
    assert same(first, fitted(settings, data, tmp_path))
    assert (tmp_path / STATE_FILE).read_bytes() == before


def test_a_spoilt_state_is_refused(data, tmp_path):
    (tmp_path / STATE_FILE).write_bytes(b"nothing of the kind")
    with pytest.raises(UserError, match="cannot be gone on from"):
        fitted(SETTINGS, data, tmp_path)


class Clock:
    """Stands still but for the steps that are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.steps = 0.0, 0
        monkeypatch.setattr(training.time, "monotonic", lambda: self.now)

    def tick(self, steps: int) -> None:
        """A minute for each step."""
        self.steps += steps
        self.now += 60.0 * steps


@pytest.mark.parametrize("minutes", [4.0, 14.0], ids=["in the first epoch", "in the second"])
def test_the_time_limit_ends_a_run_within_an_epoch_and_nothing_is_lost(data, whole, tmp_path, monkeypatch, minutes):
    clock = Clock(monkeypatch)
    assert len(epoch_starts(data, SETTINGS, 0)) == 10
    torch.manual_seed(0)
    model = new_forecaster(SETTINGS, data.channels, data.times_TF.shape[1], data.series.step)
    outcome = fit(model, data, replace(SETTINGS, max_minutes=minutes), tmp_path, tick=clock.tick)
    assert not outcome.finished
    assert clock.steps == minutes + 1
    epoch = 1 + int(minutes) // 10
    assert outcome.stopped == (f"in epoch {epoch}, after 5 of its 10 steps (an epoch takes about 10.0 minutes)")
    torch.manual_seed(5)  # where the random numbers stand by now must not matter
    again = new_forecaster(SETTINGS, data.channels, data.times_TF.shape[1], data.series.step)
    clock.steps = 0
    outcome = fit(again, data, SETTINGS, tmp_path, tick=clock.tick)
    assert clock.steps == 30  # 5 or 15 that were done before, and the others
    assert same(whole[0], again)
    assert [one["train_mse"] for one in outcome.history] == [one["train_mse"] for one in whole[1].history]


def test_the_time_limit_counts_from_when_the_caller_began(data, tmp_path, monkeypatch):
    clock = Clock(monkeypatch)
    clock.now = 90.0
    model = new_forecaster(SETTINGS, 2, 4, data.series.step)
    outcome = fit(model, data, replace(SETTINGS, max_minutes=1), tmp_path, tick=clock.tick, begun=0.0)
    assert (outcome.finished, outcome.history, clock.steps) == (False, [], 0)


@pytest.mark.parametrize(("share", "expected"), [(1e-9, [1, 3]), (float("inf"), [1, 2, 3])], ids=["seldom", "always"])
def test_short_epochs_are_not_all_saved_but_the_last_is(data, tmp_path, monkeypatch, share, expected):
    saved, save = [], training._save
    monkeypatch.setattr(training, "LARGEST_SHARE_OF_SAVING", share)
    monkeypatch.setattr(training, "_save", lambda *given: (saved.append(given[-1].epoch), save(*given)))
    torch.manual_seed(0)
    fit(new_forecaster(SETTINGS, 2, 4, data.series.step), data, SETTINGS, tmp_path)
    assert saved == expected
    assert training.how_far(tmp_path) == "after epoch 3"


def test_an_epoch_is_saved_before_it_is_told(data, tmp_path):
    """A run that is ended by what its watcher does at the first epoch has lost nothing."""

    def end(epoch: dict[str, float]) -> None:
        raise KeyboardInterrupt

    torch.manual_seed(0)
    model = new_forecaster(SETTINGS, data.channels, data.times_TF.shape[1], data.series.step)
    with pytest.raises(KeyboardInterrupt):
        fit(model, data, SETTINGS, tmp_path, end)
    told: list[float] = []
    fit(model, data, SETTINGS, tmp_path, lambda epoch: told.append(epoch["epoch"]))
    assert told == [2, 3]


def test_the_best_epoch_is_kept_and_patience_ends_the_run(data):
    # So large a learning rate makes later epochs worse.
    settings = replace(SETTINGS, model="linear", epochs=40, learning_rate=0.5, schedule="constant", patience=2)
    torch.manual_seed(0)
    model = new_forecaster(settings, 2, 4, data.series.step)
    outcome = fit(model, data, settings)
    losses = [epoch["valid_mse"] for epoch in outcome.history]
    assert len(losses) == outcome.best_epoch + 2 < 40
    assert min(losses) == losses[outcome.best_epoch - 1]
    assert mean_squared_error(model, data, "valid") == pytest.approx(min(losses), rel=1e-6)


def test_a_few_windows_may_do_for_validation(data):
    settings = replace(SETTINGS, model="linear", valid_windows=5)
    torch.manual_seed(0)
    model = new_forecaster(settings, 2, 4, data.series.step)
    outcome = fit(model, data, settings)
    assert outcome.valid_mse == pytest.approx(mean_squared_error(model, data, "valid", windows=5), rel=1e-6)
    assert outcome.valid_mse != pytest.approx(mean_squared_error(model, data, "valid"), rel=1e-3)


def test_the_first_interrupt_ends_a_run_within_an_epoch_and_nothing_is_lost(data, whole, tmp_path):
    steps: list[int] = []

    def interrupt(done: int) -> None:
        steps.append(done)
        if sum(steps) == 14:
            signal.raise_signal(signal.SIGINT)

    torch.manual_seed(0)
    model = new_forecaster(SETTINGS, data.channels, data.times_TF.shape[1], data.series.step)
    with pytest.raises(KeyboardInterrupt):
        fit(model, data, SETTINGS, tmp_path, tick=interrupt)
    assert sum(steps) == 14  # ten of the first epoch, four of the second
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    steps.clear()
    torch.manual_seed(5)
    again = new_forecaster(SETTINGS, data.channels, data.times_TF.shape[1], data.series.step)
    fit(again, data, SETTINGS, tmp_path, tick=steps.append)
    assert steps[0] == 14
    assert same(whole[0], again)


def test_the_second_interrupt_ends_a_run_at_once(data, tmp_path):
    def interrupt(done: int) -> None:
        if done:
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        fit(new_forecaster(SETTINGS, 2, 4, data.series.step), data, SETTINGS, tmp_path, tick=interrupt)
    assert not (tmp_path / STATE_FILE).exists()


def test_weights_that_the_last_step_spoils_are_not_the_result(data):
    """With one step in an epoch its loss is from before the weights went."""
    settings = replace(SETTINGS, learning_rate=1e37, batch=1000, epochs=1)
    with pytest.raises(UserError, match="validation loss is not finite in epoch 1"):
        fitted(settings, data)


def test_a_loss_that_is_not_finite_stops_the_run(data):
    settings = replace(SETTINGS, model="linear", learning_rate=1e30, schedule="constant")
    with pytest.raises(UserError, match="not finite in epoch"):
        fitted(settings, data)


def test_the_order_of_windows(data):
    windows = len(data.starts("train"))
    shuffled, other = epoch_starts(data, SETTINGS, 0).flatten(), epoch_starts(data, SETTINGS, 1).flatten()
    assert len(shuffled) == windows // 8 * 8
    assert len(shuffled.unique()) == len(shuffled)
    assert not torch.equal(shuffled, other)
    sequential = epoch_starts(data, replace(SETTINGS, order="sequential"), 0).flatten()
    assert torch.equal(sequential, sequential.sort().values)
    few = epoch_starts(data, replace(SETTINGS, epoch_windows=20), 0)
    assert few.shape == (2, 8)


@pytest.mark.parametrize("sized", [{}, {"epoch_windows": 60}], ids=["all", "some"])
def test_in_the_order_of_time_no_window_is_never_seen(data, sized):
    settings = replace(SETTINGS, order="sequential", batch=32, **sized)
    seen = torch.cat([epoch_starts(data, settings, epoch).flatten() for epoch in range(40)])
    assert set(seen.tolist()) == set(data.starts("train").tolist())


def recurrence(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in recurrence_parameters(model)])


def test_the_recurrence_learns_at_a_rate_of_its_own(data, tmp_path):
    torch.manual_seed(SETTINGS.seed)
    start = recurrence(new_forecaster(SETTINGS, 2, 4, data.series.step))
    slow = replace(SETTINGS, learning_rate=1e-4)
    fast = replace(slow, recurrence_learning_rate=1e-2)
    without, whole = fitted(slow, data), fitted(fast, data)
    moved, moved_fast = ((recurrence(model) - start).abs().mean() for model in (without, whole))
    assert moved_fast > 20 * moved
    for epochs in (1, 3):
        in_parts = fitted(replace(fast, epochs=epochs), data, tmp_path)
    assert same(whole, in_parts)


def test_none_and_the_same_rate_are_the_same_training(data, whole):
    assert same(whole[0], fitted(replace(SETTINGS, recurrence_learning_rate=SETTINGS.learning_rate), data))


@pytest.mark.parametrize(
    "device",
    [
        "cpu",
        pytest.param(
            "cuda",
            marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
        ),
    ],
)
def test_the_schedule_keeps_the_proportion_between_the_rates(data, device):
    settings = replace(SETTINGS, recurrence_learning_rate=6e-2)
    model = new_forecaster(settings, 2, 4, data.series.step).to(device)
    optimizer = training.Step(model, data, replace(settings, device=device)).optimizer
    for epoch in range(3):
        set_rate(optimizer, learning_rate(settings, epoch))
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        assert rates == pytest.approx([3e-3 / 2**epoch, 6e-2 / 2**epoch])
    numbers = [sum(one.numel() for one in group["params"]) for group in optimizer.param_groups]
    assert numbers[1] == len(recurrence(model)) > 0
    assert sum(numbers) == sum(one.numel() for one in model.parameters())


def test_learning_rates():
    rates = [
        [learning_rate(replace(SETTINGS, schedule=name), epoch) for epoch in range(4)]
        for name in ("halve", "published", "constant")
    ]
    # Informer's code calls the end of the first epoch 1 and takes that for no halving yet.
    expected = [[3e-3, 1.5e-3, 7.5e-4, 3.75e-4], [3e-3, 3e-3, 1.5e-3, 7.5e-4], [3e-3] * 4]
    assert np.allclose(rates, expected)
    assert learning_rate(replace(SETTINGS, schedule="cosine"), 0) == 3e-3
    short = replace(SETTINGS, halve_every=2)
    assert [learning_rate(short, epoch) for epoch in range(5)] == [3e-3, 3e-3, 1.5e-3, 1.5e-3, 7.5e-4]
    with pytest.raises(UserError, match="`halve_every` is for schedules that halve, and 'cosine' does not"):
        replace(short, schedule="cosine")


def test_a_graph_needs_cuda(data):
    with pytest.raises(UserError, match="needs a CUDA device"):
        fitted(replace(SETTINGS, speed="graph"), data)


@pytest.mark.parametrize("model", MODELS)
def test_every_forecaster_can_be_described_and_rebuilt(model, data):
    made = new_forecaster(replace(SETTINGS, model=model), 2, 4, data.series.step).eval()
    again = rebuilt(described(made)).eval()
    again.load_state_dict(made.state_dict())
    batch = data.batch(data.starts("test")[:3])
    inputs = (batch.past, batch.past_time, batch.future_time)
    torch.testing.assert_close(made(*inputs), again(*inputs), rtol=0, atol=0)


def test_settings_come_back_and_belong_to_one_run(tmp_path):
    settings = replace(SETTINGS, out=str(tmp_path), columns=("a", "b"))
    settings.write()
    there = ForecastSettings.read(tmp_path)
    assert there == settings
    replace(settings, max_minutes=1.0, device="cuda").check_same_run(there)
    with pytest.raises(UserError, match="batch=8 there, 9 now"):
        replace(settings, batch=9).check_same_run(there)


@pytest.mark.parametrize(
    "wrong",
    [{"model": "prophet"}, {"label": 31}, {"epochs": 0}, {"learning_rate": 0.0}, {"order": "random"}, {"dropout": 1.0}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_bad_settings_are_refused(wrong):
    with pytest.raises(UserError, match=f"`{next(iter(wrong))}`"):
        replace(SETTINGS, **wrong)


def test_dilations_pair_a_cosine_with_its_sine():
    assert default_dilations((0, 2, 2, 2, 1, 1)) == (3, 6, 3, 3)
    assert default_dilations((0, 0, 0, 0, 4, 4)) == (3, 6, 12, 24) * 2


def test_shapes_of_the_recurrence_are_its_parameters(data):
    model = new_forecaster(replace(SETTINGS, counts=(4, 0, 0, 0, 2, 2), dilations=(3, 6, 3, 6)), 2, 4, data.series.step)
    layers = recurrence_shapes(model)
    assert [layer["layer"] for layer in layers] == ["encoder.0", "decoder.0"]
    encoding = model.recurrence_encodings()["encoder.0"]
    assert layers[0]["gate"] == pytest.approx(torch.sigmoid(encoding.mu).item())
    regular, sine = layers[0]["heads"][1], layers[0]["heads"][7]
    decay = torch.tanh(encoding.eta[1]).item()
    assert regular["lambda"] == pytest.approx(decay)
    assert regular["weights"][:4] == pytest.approx([0, decay, decay**2, decay**3])
    gamma, theta = torch.sigmoid(encoding.nu[1]).item(), encoding.theta[1].item()
    assert (sine["dilation"], sine["gamma"], sine["theta"]) == (6, pytest.approx(gamma), pytest.approx(theta))
    assert sine["weights"][12] == pytest.approx(gamma**2 * np.sin(2 * theta))
    assert sine["weights"][11] == 0
