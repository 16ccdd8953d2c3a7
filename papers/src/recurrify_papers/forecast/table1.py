"""Table 1 of the RSA paper: Informer and RSA-Informer on sixteen settings, published and ours.

Lengths and layers are those of Informer's published commands for multivariate forecasts; heads of each kind of
recurrence are those of the RSA authors, who give none for ETTm1-288 and WTH-336: these use those of the next shorter
horizon. Dilations were not published; ours are `default_dilations`.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import pandas as pd

from recurrify import UserError
from recurrify.results import load_result, provenance, save_result
from recurrify_papers.forecast.settings import NAIVE, ForecastSettings
from recurrify_papers.runner import Run, Say
from recurrify_papers.sweep import run_all

RESULT = Path(__file__).parents[3] / "results" / "rsa-table1.json"
"""Committed results of the table and of its variants, one row per run."""
PAIR = ("informer", "rsa-informer")
SIZES = ("horizon", "past", "label", "encoder_layers", "decoder_layers", "factor")
NAMES = {"informer": "Informer", "rsa-informer": "RSA-Informer"}
RECIPE: dict[str, Any] = {
    "epochs": 24,
    "patience": 4,
    "halve_every": 4,
    "epoch_windows": 2125,
    "valid_windows": 1000,
}
"""Of every model: an epoch is a quarter of ETTh1, since many runs are best before they have seen all windows once."""
Errors = tuple[float, float]
Row = dict[str, Any]


class Setting(NamedTuple):
    """One data set and horizon, with published (MSE, MAE) of Informer and RSA-Informer; None ran out of memory."""

    data: str
    """Name of the file, without .csv."""
    horizon: int
    past: int
    label: int
    encoder_layers: int
    decoder_layers: int
    factor: int
    counts: tuple[int, int, int, int, int, int]
    authors: tuple[Errors, Errors]
    students: tuple[Errors | None, Errors | None]

    @property
    def name(self) -> str:
        return f"{self.data}-{self.horizon}"


WAVES = (0, 2, 2, 0, 2, 2)
DILATED_WAVES = (0, 0, 0, 0, 4, 4)
DECAYS_AND_WAVES = (0, 2, 2, 2, 1, 1)
REGULAR_AND_WAVES = (4, 2, 2, 0, 0, 0)
REGULAR = (4, 0, 0, 4, 0, 0)
SETTINGS = (
    Setting("ETTh1", 24, 48, 48, 2, 1, 3, WAVES,
            ((0.762, 0.632), (0.414, 0.450)), ((0.679, 0.590), (0.632, 0.568))),
    Setting("ETTh1", 48, 96, 48, 2, 1, 5, DECAYS_AND_WAVES,
            ((1.006, 0.763), (0.467, 0.493)), ((0.935, 0.724), (0.908, 0.714))),
    Setting("ETTh1", 168, 168, 168, 2, 1, 5, DECAYS_AND_WAVES,
            ((1.141, 0.823), (0.753, 0.659)), ((1.464, 1.000), (1.265, 0.886))),
    Setting("ETTh1", 336, 168, 168, 2, 1, 5, REGULAR,
            ((1.416, 0.987), (0.895, 0.755)), ((1.645, 1.071), (1.902, 1.158))),
    Setting("ETTh2", 24, 48, 48, 2, 1, 5, REGULAR_AND_WAVES,
            ((2.558, 1.253), (1.264, 0.879)), ((0.951, 0.777), (1.091, 0.840))),
    Setting("ETTh2", 48, 96, 96, 2, 1, 5, WAVES,
            ((2.487, 1.268), (1.878, 1.067)), ((2.584, 1.300), (1.465, 0.970))),
    Setting("ETTh2", 168, 336, 336, 3, 2, 5, REGULAR_AND_WAVES,
            ((2.869, 1.324), (2.830, 1.301)), ((2.534, 1.259), (3.658, 1.559))),
    Setting("ETTh2", 336, 336, 168, 3, 2, 5, WAVES,
            ((2.055, 1.113), (2.113, 1.124)), ((2.292, 1.195), (2.331, 1.222))),
    Setting("ETTm1", 24, 672, 96, 2, 1, 5, DILATED_WAVES,
            ((0.536, 0.511), (0.534, 0.507)), ((0.695, 0.6114), (0.7411, 0.643))),
    Setting("ETTm1", 48, 96, 48, 2, 1, 5, WAVES,
            ((0.781, 0.633), (0.644, 0.612)), ((0.782, 0.648), (0.747, 0.744))),
    Setting("ETTm1", 96, 384, 384, 2, 1, 5, WAVES,
            ((0.823, 0.697), (0.732, 0.665)), ((1.088, 0.817), (1.313, 0.935))),
    Setting("ETTm1", 288, 672, 288, 2, 1, 5, WAVES,
            ((1.371, 0.945), (0.835, 0.710)), (None, None)),
    Setting("WTH", 24, 168, 168, 3, 2, 5, DILATED_WAVES,
            ((0.316, 0.371), (0.328, 0.380)), ((0.886, 0.720), (0.992, 0.765))),
    Setting("WTH", 48, 96, 96, 2, 1, 5, WAVES,
            ((0.606, 0.566), (0.432, 0.464)), ((0.555, 0.546), (0.490, 0.502))),
    Setting("WTH", 168, 336, 168, 3, 2, 5, WAVES,
            ((1.009, 0.771), (0.862, 0.702)), ((0.643, 0.598), (0.853, 0.699))),
    Setting("WTH", 336, 720, 168, 3, 2, 5, WAVES,
            ((1.096, 0.801), (0.846, 0.697)), (None, None)),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How the table is run."""

    models: tuple[str, ...]
    seeds: int = 3
    rates: tuple[float, ...] = (3e-5, 1e-4, 3e-4)
    """The first seed tries all; each model continues with the best on validation."""
    changed: dict[str, Any] = field(default_factory=dict)
    """Other settings than `RECIPE`."""
    device: str = "cpu"


def chosen_settings(names: list[str] | None) -> list[Setting]:
    """By name (ETTh1-24) or data set (ETTh1); None is all sixteen."""
    known = {name for setting in SETTINGS for name in (setting.name, setting.data)}
    for name in names or ():
        if name not in known:
            raise UserError(
                f"There is no setting {name!r} in Table 1: it has {', '.join(one.name for one in SETTINGS)}."
            )
    return [one for one in SETTINGS if not names or one.name in names or one.data in names]


def runs(
    data: Path,
    settings: Sequence[Setting],
    recipe: Recipe,
    seeds: range,
    rates: dict[tuple[str, str], float] | None = None,
) -> Iterator[Run]:
    """One run per setting, model, learning rate and seed; with `rates`, only at the chosen ones."""
    for setting in settings:
        own = {name: getattr(setting, name) for name in SIZES}
        own |= {"data": str(data / f"{setting.data}.csv"), "counts": ",".join(map(str, setting.counts))}
        shared = RECIPE | recipe.changed | own | {"device": recipe.device}
        for model in recipe.models:
            tried = (rates[setting.name, model],) if rates is not None else recipe.rates
            for rate in tried[:1] if model in NAIVE else tried:
                for seed in seeds[:1] if model in NAIVE else seeds:
                    config = shared | {"model": model, "learning_rate": rate, "seed": seed}
                    name = f"{setting.name}-{model}-{rate:g}-s{seed}"
                    yield Run(name=name, function="recurrify_papers.forecast.table1:train_one", settings=config)


def train_one(config: dict[str, Any], folder: Path, say: Say) -> dict[str, Any] | None:
    """Train, score on test; None if the training was stopped before its end."""
    import torch

    from recurrify_papers.forecast.candidates import new_network, resolved, train_candidate
    from recurrify_papers.forecast.forecaster import gates, windows_of
    from recurrify_papers.forecast.reading import read_series
    from recurrify_papers.forecast.scoring import backtest
    from recurrify_papers.forecast.training import chosen_precision

    started = time.time()
    series = read_series(config["data"])
    settings = resolved(ForecastSettings(out=str(folder), **config), series)
    data = windows_of(settings, series)
    torch.manual_seed(settings.seed)
    shape = (data.channels, data.times_TF.shape[1])
    start = gates(new_network(settings, *shape)) if settings.model.startswith("rsa-") else {}
    found = train_candidate(settings, data, folder)
    if not found.is_finished:
        return None
    with chosen_precision(settings):
        test = backtest(found.model, data, "test")
    say(f"{folder.name}: MSE {test.mse:.3f}")
    progress = found.progress
    row: Row = {
        "variant": "table",
        "setting": f"{series.name}-{settings.horizon}",
        **{name: config[name] for name in ("model", "learning_rate", "seed")},
        "recurrence_learning_rate": settings.recurrence_learning_rate if "rsa" in settings.model else None,
        "valid_mse": progress.best_loss if progress else None,
        "mse": test.mse,
        "mae": test.mae,
        "windows": len(test.truth),
        "best_epoch": progress.best_epoch if progress else 0,
        "epochs": len(progress.history) if progress else 0,
        "seconds": sum(epoch["seconds"] for epoch in progress.history) if progress else 0.0,
        "gates": {layer: [start[layer], gate] for layer, gate in gates(found.model).items()},
    }
    origin = provenance(settings.to_dict(), seed=settings.seed, data_checksum=series.checksum, started=started)
    return {"row": row, "provenance": origin}


def check_files(data: Path, settings: Sequence[Setting]) -> None:
    for path in (data / f"{one.data}.csv" for one in settings):
        if not path.is_file():
            raise UserError(f"{path} does not exist: --data must be a folder with it.")


def run_table(data: Path, out: Path, settings: Sequence[Setting], recipe: Recipe, say: Say) -> list[Row]:
    """Run what is missing, write `table1.json` into `out` and return its rows."""
    started = time.time()
    tried = run_all(list(runs(data, settings, recipe, range(1))), out, say)
    rates = chosen_rates([result["row"] for result in tried.values()])
    begun = [one for one in settings if all((one.name, model) in rates for model in recipe.models)]
    tried |= run_all(list(runs(data, begun, recipe, range(recipe.seeds), rates)), out, say)
    rows = [result["row"] for result in tried.values()]
    checksums = {one["row"]["setting"].split("-")[0]: one["provenance"]["data_checksum"] for one in tried.values()}
    origin = provenance(RECIPE | recipe.changed | {"seeds": recipe.seeds}, started=started)
    save_result(out / "table1.json", {"rows": rows, "data_checksums": checksums, "provenance": origin})
    return rows


def committed_rows() -> list[Row]:
    return [row for row in load_result(RESULT)["rows"] if row["variant"] == "table"]


def chosen_rates(rows: Sequence[Row]) -> dict[tuple[str, str], float]:
    """By setting and model, the learning rate with the lowest validation MSE of the first seed."""
    return {(one["setting"], one["model"]): one["learning_rate"] for one in _best(rows).to_dict("records")}


def _best(rows: Sequence[Row]) -> pd.DataFrame:
    first = pd.DataFrame(rows).query("seed == 0").sort_values("valid_mse", kind="stable")
    return first.drop_duplicates(["setting", "model"])[["setting", "model", "learning_rate"]]


class Mean(NamedTuple):
    mean: float
    error: float
    """One standard error over seeds; NaN for one seed."""

    def __str__(self) -> str:
        return f"{self.mean:.3f}" if math.isnan(self.error) else f"{self.mean:.3f} ± {self.error:.3f}"


def means(rows: Sequence[Row], metric: str = "mse") -> dict[str, dict[str, Mean]]:
    """By setting and model, over the seeds at the chosen learning rate."""
    found = pd.DataFrame(rows).merge(_best(rows)).groupby(["setting", "model"], sort=False)[metric]
    table: dict[str, dict[str, Mean]] = {}
    for (setting, model), mean, error in found.agg(["mean", "sem"]).itertuples():
        table.setdefault(setting, {})[model] = Mean(mean, error)
    return table


def markdown(rows: Sequence[Row]) -> list[str]:
    """Both metrics as tables, and a summary."""
    lines: list[str] = []
    for place, metric in enumerate(("mse", "mae")):
        found = means(rows, metric)
        others = list(dict.fromkeys(model for models in found.values() for model in models if model not in PAIR))
        header = ["setting", *(f"{NAMES[model]}, {who}" for who in ("authors", "students", "ours") for model in PAIR)]
        lines += [f"**{metric.upper()} on scaled values**", "", f"| {' | '.join([*header, *others])} |"]
        lines.append(f"| --- |{' ---: |' * (6 + len(others))}")
        for setting in SETTINGS:
            if setting.name in found:
                own = found[setting.name]
                published = [(one and f"{one[place]:.3f}") or "–" for one in (*setting.authors, *setting.students)]
                shown = [f"{own[model]}{_star(own, model)}" if model in own else "–" for model in PAIR]
                shown += [str(own[model]) if model in own else "–" for model in others]
                lines.append(f"| {' | '.join([setting.name, *published, *shown])} |")
        lines.append("")
    return [*lines, summary(rows)]


def _star(own: dict[str, Mean], model: str) -> str:
    """Marks a mean that is lower than the other of the pair by more than one standard error of the difference."""
    if any(name not in own for name in PAIR):
        return ""
    mine, other = own[model], own[next(name for name in PAIR if name != model)]
    return " *" if other.mean - mine.mean > math.hypot(mine.error, other.error) else ""


def summary(rows: Sequence[Row]) -> str:
    pairs = [own for own in means(rows).values() if all(model in own for model in PAIR)]
    if not pairs:
        return "No setting has both models yet."
    plain, rsa = (fmean(own[model].mean for own in pairs) for model in PAIR)
    better = sum(own["rsa-informer"].mean < own["informer"].mean for own in pairs)
    starred = [sum(bool(_star(own, model)) for own in pairs) for model in reversed(PAIR)]
    return (
        f"Over {len(pairs)} settings the mean MSE is {plain:.3f} for Informer and {rsa:.3f} for RSA-Informer, which is "
        f"better in {better} settings, by more than one standard error in {starred[0]}, and worse in {starred[1]}. "
        "± is one standard error over seeds; * marks a difference above one standard error."
    )
