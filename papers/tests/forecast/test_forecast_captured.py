"""Training steps captured as one CUDA graph equal plain steps."""

from dataclasses import replace

import pytest
import torch

from recurrify_papers.forecast.candidates import new_network
from recurrify_papers.forecast.data import Scaling, Split, WindowedSeries
from recurrify_papers.forecast.settings import ForecastSettings
from recurrify_papers.forecast.training import Step, Training, epoch_starts
from recurrify_papers.graphs import STEPS_BEFORE_CAPTURE

SETTINGS = ForecastSettings(
    data="waves.csv", out="out", model="rsa-transformer", past=30, label=12, horizon=6, width=64, heads=8, inner=128,
    encoder_layers=2, epochs=3, batch=8, learning_rate=3e-3, dropout=0.0, patience=0, device="cuda",
)  # fmt: skip
STILL = 1e-30
"""A learning rate that leaves all weights where they are."""


def windows(series, device: str) -> WindowedSeries:
    return WindowedSeries(series, Split(120, 180, 240), Scaling.of(series, 120), 30, 6, device)


def new_step(data: WindowedSeries, settings: ForecastSettings) -> Step:
    torch.manual_seed(0)
    model = new_network(settings, 2, data.times_TF.shape[1]).to(settings.device)
    return Step(model.train(), data, settings)


@pytest.mark.gpu
def test_captured_graph_takes_the_plain_steps(wave_series):
    data = windows(wave_series, "cuda")
    settings = replace(SETTINGS, precision="fp32")
    losses, weights = [], []
    for speed in ("plain", "auto"):
        step = new_step(data, replace(settings, speed=speed))
        batches = torch.cat([epoch_starts(data, settings, epoch) for epoch in range(3)])
        losses.append(torch.stack([step(starts_B).clone() for starts_B in batches]))
        weights.append(step.model.state_dict())
        assert (step.captured is not None) == (speed == "auto")
    for name, plain in weights[0].items():
        torch.testing.assert_close(weights[1][name], plain, rtol=1e-3, atol=1e-5, msg=name)
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-6)


@pytest.mark.gpu
def test_resumed_captured_run_equals_an_uninterrupted_one(wave_series, tmp_path):
    """With dropout and a choice of queries, random numbers of both kinds; not to the bit, for sums on a GPU vary."""
    data = windows(wave_series, "cuda")
    settings = replace(SETTINGS, model="rsa-informer", dropout=0.1, precision="bf16", learning_rate=1e-4)
    losses = []
    for epochs, folder in ((3, None), (1, tmp_path), (3, tmp_path)):
        torch.manual_seed(0)
        model = new_network(settings, 2, data.times_TF.shape[1]).cuda()
        progress = Training(model, data, replace(settings, epochs=epochs), folder).run()
        losses.append([one["train_mse"] for one in progress.history])
    assert losses[2] == pytest.approx(losses[0], rel=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("model", ["rsa-informer", "transformer"])
def test_every_replay_drops_other_elements_and_a_seed_repeats_them(model, wave_series):
    data = windows(wave_series, "cuda")
    still = {"learning_rate": STILL, "recurrence_learning_rate": STILL}
    settings = replace(SETTINGS, model=model, dropout=0.2, precision="bf16", **still)
    step, starts_B = new_step(data, settings), epoch_starts(data, settings, 0)[0]
    for _ in range(STEPS_BEFORE_CAPTURE + 1):
        step(starts_B)
    runs = []
    for _ in range(2):
        torch.manual_seed(5)
        runs.append([step(starts_B).item() for _ in range(6)])
    assert len(set(runs[0])) == 6
    assert runs[0] == pytest.approx(runs[1], rel=1e-4)
