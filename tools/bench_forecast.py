"""How long a training step takes: ours in several ways, beside a straightforward port of Informer's published layout.

    python tools/bench_forecast.py ETTh1.csv --precision bf16 --out bench.json

The port has what the published code does in each step: a data set that cuts windows one by one in numpy and a loader
that stacks them, a copy of every batch to the device, ProbSparse attention that gathers a copy of the sampled keys for
every query, new masks, and a look at the loss after each step. Model, sizes and optimiser are the same in all.

Before the clock starts, the captured step is compared with the plain one: loss and gradients of one batch.
"""

import argparse
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from recurrify.results import provenance, save_result
from recurrify_papers.forecast.candidates import new_network
from recurrify_papers.forecast.data import Scaling, WindowedSeries, split_rows
from recurrify_papers.forecast.reading import Series, read_series
from recurrify_papers.forecast.settings import ForecastSettings
from recurrify_papers.forecast.training import STEPS_BEFORE_CAPTURE, Step, epoch_starts, precision_context
from recurrify_papers.models import prob_sparse
from recurrify_papers.models.informer import SelfAttention

LENGTHS = ((672, 288, 288), (168, 168, 336), (168, 168, 168), (96, 48, 48), (48, 48, 24))
"""Past, label and horizon: the longest of ETTm1, and ETTh1's own."""
WAYS = ("plain", "graph")
"""Of a step: the `speed` of its settings."""
STILL = 1e-30
"""A learning rate that leaves all weights where they are."""
LARGEST_DIFFERENCE = {"bf16": 3e-2, "auto": 1e-2}
"""Between captured and plain gradients, of their size."""


class PortedAttention(SelfAttention):
    """ProbSparse as published: every query gets a copy of its sampled keys, and the choice is part of the graph."""

    def forward(self, hidden_BTW: Tensor) -> Tensor:
        query, key, value = self.split(hidden_BTW, hidden_BTW)
        batch, heads, rows, width = query.shape
        count = prob_sparse.sparse_count(rows, self.config.factor)
        copied = key.unsqueeze(-3).expand(batch, heads, rows, rows, width)
        sample = torch.randint(rows, (rows, count))
        sampled = copied[:, :, torch.arange(rows).unsqueeze(1), sample, :]
        scores = torch.matmul(query.unsqueeze(-2), sampled.transpose(-2, -1)).squeeze(-2)
        measure = scores.max(-1)[0] - torch.div(scores.sum(-1), rows)
        chosen = measure.topk(count, sorted=False)[1]
        of_batch, of_head = torch.arange(batch)[:, None, None], torch.arange(heads)[None, :, None]
        weights = query[of_batch, of_head, chosen, :] @ key.transpose(-2, -1) / math.sqrt(width)
        if self.causal:
            mask = torch.ones(rows, rows, dtype=torch.bool).triu(1)[None, None].expand(batch, heads, rows, rows)
            weights.masked_fill_(mask[of_batch, of_head, chosen.cpu(), :].to(weights.device), -np.inf)
            context = value.cumsum(dim=-2)
        else:
            context = value.mean(dim=-2).unsqueeze(-2).expand(batch, heads, rows, width).clone()
        attention = torch.softmax(weights, dim=-1)
        context[of_batch, of_head, chosen, :] = (attention @ value).type_as(context)
        return self.join(context)


class PortedWindows(Dataset[tuple[np.ndarray, ...]]):
    """Windows cut from numpy arrays, one by one."""

    def __init__(self, data: WindowedSeries) -> None:
        rows = data.split.train_end
        self.values, self.times = (part[:rows].cpu().numpy() for part in (data.values_TC, data.times_TF))
        self.past, self.horizon = data.past, data.horizon

    def __len__(self) -> int:
        return len(self.values) - self.past - self.horizon + 1

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        middle, end = index + self.past, index + self.past + self.horizon
        return self.values[index:middle], self.times[index:middle], self.values[middle:end], self.times[middle:end]


def ported_steps(settings: ForecastSettings, data: WindowedSeries) -> Callable[[int], None]:
    model = _model(settings, data).train()
    for module in model.modules():
        if isinstance(module, SelfAttention):
            module.__class__ = PortedAttention
    loader = DataLoader(PortedWindows(data), batch_size=settings.batch, shuffle=True, drop_last=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    losses = []

    def run(steps: int) -> None:
        for _, batch in zip(range(steps), loader, strict=False):
            past, past_time, future, future_time = (part.float().to(settings.device) for part in batch)
            optimizer.zero_grad()
            with precision_context(settings):
                forecast = model(past, past_time, future_time)
            loss = nn.functional.mse_loss(forecast.float(), future)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()

    return run


def our_steps(settings: ForecastSettings, data: WindowedSeries, way: str) -> Callable[[int], None]:
    """Every way is measured from the same weights; a graph is captured in the first steps."""
    step = Step(_model(settings, data).train(), data, replace(settings, speed=way))
    batches = epoch_starts(data, settings, 0)

    def run(steps: int) -> None:
        for number in range(steps):
            step(batches[number % len(batches)])

    return run


def seconds_of_a_step(run: Callable[[int], None], steps: int, rounds: int, device: str) -> float:
    """The mean of the quickest round, after the steps that capture."""
    run(STEPS_BEFORE_CAPTURE + 2)
    found = []
    for _ in range(rounds):
        _wait(device)
        begun = time.perf_counter()
        run(steps)
        _wait(device)
        found.append((time.perf_counter() - begun) / steps)
    return min(found)


def gradients_apart(settings: ForecastSettings, data: WindowedSeries) -> float:
    """How far captured gradients lie from plain ones, of their size.

    Without dropout and at weights that stay; with full attention, for where queries are chosen a rounding error may
    choose another one.
    """
    settings = replace(settings, dropout=0.0, learning_rate=STILL, model="rsa-transformer")
    starts_B = epoch_starts(data, settings, 0)[0]
    found = []
    for speed in ("plain", "auto"):
        step = Step(_model(settings, data).train(), data, replace(settings, speed=speed))
        for _ in range(STEPS_BEFORE_CAPTURE + 2):
            loss = step(starts_B)
        gradients = [parameter.grad.flatten() for parameter in step.model.parameters() if parameter.grad is not None]
        found.append(torch.cat([loss.view(1), *gradients]).clone())
    apart = ((found[1] - found[0]).norm() / found[0].norm()).item()
    if not apart <= LARGEST_DIFFERENCE[settings.precision]:
        raise SystemExit(f"captured and plain gradients differ by {apart:.2g} of their size: stopped")
    return apart


def _model(settings: ForecastSettings, data: WindowedSeries) -> nn.Module:
    torch.manual_seed(0)
    return new_network(settings, data.channels, data.times_TF.shape[1]).to(settings.device)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def measure(base: ForecastSettings, series: Series, asked: argparse.Namespace) -> list[dict[str, Any]]:
    """The rows of one setting: the port and every way of ours, for Informer and RSA-Informer."""
    split = split_rows(series, "auto")
    scaling = Scaling.of(series, split.train_end)
    assert base.past and base.horizon  # noqa: PT018
    data = WindowedSeries(series, split, scaling, base.past, base.horizon, base.device)
    steps_of_epoch = len(epoch_starts(data, base, 0))
    apart = gradients_apart(base, data)
    print(f"\n{base.past} → {base.horizon}: gradients apart {apart:.2g}")
    rows = []
    for model in asked.models.split(","):
        settings = replace(base, model=model)
        ways = [way for way in WAYS if base.device.startswith("cuda") or way == "plain"]
        for way in [*ways, "port"] if asked.port and model == "informer" else ways:
            run = ported_steps(settings, data) if way == "port" else our_steps(settings, data, way)
            seconds = seconds_of_a_step(run, asked.steps, asked.rounds, base.device)
            row = {"past": base.past, "label": base.label, "horizon": base.horizon, "model": model, "way": way}
            times = {"ms_per_step": 1000 * seconds, "s_per_epoch": steps_of_epoch * seconds}
            rows.append(row | times | {"gradients_apart": apart})
            shown = f"{1000 * seconds:8.2f} ms a step {steps_of_epoch * seconds:8.2f} s an epoch"
            print(f"  {model:<13} {way:<6} {shown}", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--precision", choices=["auto", "bf16"], default="auto")
    parser.add_argument("--models", default="informer,rsa-informer", help="comma-separated")
    parser.add_argument("--lengths", help="only the settings with these pasts and horizons: 672/288, comma-separated")
    parser.add_argument("--steps", type=int, default=20, help="of one round")
    parser.add_argument("--rounds", type=int, default=2, help="the quickest one counts")
    parser.add_argument("--port", action="store_true", help="measure the port too, which is slow")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    started = time.time()
    series = read_series(asked.data)
    # All with the same arithmetic: the port gets the quicker matrix products too.
    torch.set_float32_matmul_precision("high")
    rows: list[dict[str, Any]] = []
    for past, label, horizon in LENGTHS:
        if asked.lengths and f"{past}/{horizon}" not in asked.lengths.split(","):
            continue
        base = ForecastSettings(
            data=asked.data.name, out="", past=past, label=label, horizon=horizon, width=asked.width,
            inner=4 * asked.width, device=asked.device, precision=asked.precision,
        )  # fmt: skip
        rows += measure(base, series, asked)
        if asked.out:  # after each setting, so that a run that is cut short leaves what it has
            config = {name: value for name, value in vars(asked).items() if name not in ("data", "out")}
            result = {"rows": rows, "provenance": provenance(config | {"data": series.name}, started=started)}
            save_result(asked.out, result)


if __name__ == "__main__":
    main()
