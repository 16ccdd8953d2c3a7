"""How long an epoch takes: ours beside a straightforward port of Informer's published layout.

    python tools/bench_forecast.py ETTh1.csv --out bench.json

The port has what the published code does in each step: a data set that cuts windows one by one in numpy and a loader
that stacks them, a copy of every batch to the device, ProbSparse attention that gathers a copy of the sampled keys for
every query, masks made anew, and a look at the loss after each step. Model, sizes and optimiser are the same in both.
"""

import argparse
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from recurrify.forecast.building import new_forecaster
from recurrify.forecast.calendar import time_features
from recurrify.forecast.data import Scaling, WindowedSeries, split_rows
from recurrify.forecast.reading import read_series
from recurrify.forecast.settings import ForecastSettings
from recurrify.forecast.training import Step, epoch_starts
from recurrify.models.informer import SelfAttention
from recurrify.models.prob_sparse import sparse_count
from recurrify.results import provenance, save_result


class PortedAttention(SelfAttention):
    """ProbSparse as published: every query gets a copy of its sampled keys, and the choice is part of the graph."""

    def forward(self, hidden_BTW: Tensor) -> Tensor:
        query, key, value = self.split(hidden_BTW, hidden_BTW)
        batch, heads, rows, width = query.shape
        count = sparse_count(rows, self.config.factor)
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
        self.values = data.scaling.apply(data.series.values[:rows])
        self.times = time_features(data.series.dates[:rows], data.series.step)
        self.past, self.horizon = data.past, data.horizon

    def __len__(self) -> int:
        return len(self.values) - self.past - self.horizon + 1

    def __getitem__(self, index: int) -> tuple[np.ndarray, ...]:
        middle, end = index + self.past, index + self.past + self.horizon
        return self.values[index:middle], self.times[index:middle], self.values[middle:end], self.times[middle:end]


def ported_epochs(settings: ForecastSettings, data: WindowedSeries, epochs: int, steps: int | None) -> list[float]:
    model = _model(settings, data)
    for module in model.modules():
        if isinstance(module, SelfAttention):
            module.__class__ = PortedAttention
    loader = DataLoader(PortedWindows(data), batch_size=settings.batch, shuffle=True, drop_last=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=settings.learning_rate)
    model.train()
    seconds = []
    for _ in range(epochs):
        losses = []
        begun = time.perf_counter()
        for number, batch in enumerate(loader):
            if number == steps:
                break
            past, past_time, future, future_time = (part.float().to(settings.device) for part in batch)
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(past, past_time, future_time), future)
            losses.append(loss.item())
            loss.backward()
            optimizer.step()
        _wait(settings.device)
        seconds.append(time.perf_counter() - begun)
    return seconds


def our_epochs(settings: ForecastSettings, data: WindowedSeries, epochs: int, steps: int | None) -> list[float]:
    model = _model(settings, data)
    model.train()
    step = Step(model, data, settings)
    seconds = []
    for epoch in range(epochs):
        begun = time.perf_counter()
        for starts_B in epoch_starts(data, settings, epoch)[:steps]:
            step(starts_B)
        _wait(settings.device)
        seconds.append(time.perf_counter() - begun)
    return seconds


def _model(settings: ForecastSettings, data: WindowedSeries) -> nn.Module:
    torch.manual_seed(0)
    return new_forecaster(settings, data.channels, data.times_TF.shape[1], data.series.step).to(settings.device)


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=3, help="the quickest one counts")
    parser.add_argument("--steps", type=int, help="of an epoch; default: all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    asked = parser.parse_args()
    started = time.time()
    series = read_series(asked.data)
    split = split_rows(series, "auto")
    rows: list[dict[str, Any]] = []
    for past, label, horizon in ((48, 48, 24), (96, 48, 48), (168, 168, 168), (168, 168, 336)):
        base = ForecastSettings(
            data=asked.data.name, out="", past=past, label=label, horizon=horizon, width=asked.width,
            inner=4 * asked.width, device=asked.device,
        )  # fmt: skip
        data = WindowedSeries(series, split, Scaling.of(series.values[: split.train_end]), past, horizon, asked.device)
        # Both with the same arithmetic: the port gets the quicker matrix products too.
        torch.set_float32_matmul_precision("high")
        port = min(ported_epochs(base, data, asked.epochs, asked.steps))
        row: dict[str, Any] = {"past": past, "label": label, "horizon": horizon, "port_seconds": port}
        for model in ("informer", "rsa-informer"):
            ours = min(our_epochs(replace(base, model=model), data, asked.epochs, asked.steps))
            row |= {f"{model}_seconds": ours, f"{model}_times_faster": port / ours}
        rows.append(row)
        print({name: round(value, 3) for name, value in row.items()}, flush=True)
    if asked.out:
        config = {"width": asked.width, "epochs": asked.epochs, "steps": asked.steps, "data": series.name}
        save_result(asked.out, {"rows": rows, "provenance": provenance(config, started=started)})


if __name__ == "__main__":
    main()
