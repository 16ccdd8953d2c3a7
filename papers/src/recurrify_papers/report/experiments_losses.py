"""The plots of losses: by position in the window, by window of the document, and during training."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from recurrify.pages import numbers
from recurrify.pages.plots import Draw, Palette, dress, legend, points
from recurrify_papers.report.experiments_data import Experiment, SizeResults, curve_runs, entries, facts, kind_name
from recurrify_papers.report.experiments_plots import LINES, colour, shown, split_name

TITLES = {"position": "Loss by position in the window", "window": "Loss by window of the document"}


def _losses(experiment: Experiment, along: str) -> dict[str, list[tuple[int, float]]]:
    found = {}
    for row in experiment.disjoint():
        score = row.scores.get(experiment.split)
        if score is not None:
            values = points(score.loss_by_position if along == "position" else score.loss_by_window)
            if values:
                found[row.kind] = [(index + 1, loss) for index, loss in values]
    return found


def _draw_losses(axes: Axes, experiment: Experiment, palette: Palette, *, along: str) -> bool:
    losses = _losses(experiment, along)
    for kind, values in losses.items():
        axes.plot(
            [place for place, _ in values],
            [loss for _, loss in values],
            LINES.get(kind, "-"),
            # A line of one point is no line.
            marker="o" if len(values) == 1 else None,
            color=colour(palette, kind),
            linewidth=1.5,
            label=shown(kind_name(kind)),
        )
    if not losses:
        return False
    x_label = (
        "position in the window (log scale)" if along == "position" else "window, counted from the document's first"
    )
    dress(axes, palette, TITLES[along], x_label, f"loss (nats per token), {split_name(experiment)}")
    if along == "position":
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return legend(axes, palette)


draw_by_position: Draw = partial(_draw_losses, along="position")
draw_by_window_index: Draw = partial(_draw_losses, along="window")


def describe_losses(experiment: Experiment, along: str) -> str:
    """The same plot in words."""
    told = [f"Line plot: {TITLES[along].lower()}, without overlap, {split_name(experiment)}."]
    for kind, values in _losses(experiment, along).items():
        told.append(f"{kind_name(kind)}: {values[0][1]:.2f} at the start, {values[-1][1]:.2f} at {values[-1][0]}.")
    return " ".join(told)


def training_curves(results: SizeResults, experiment: Experiment) -> dict[str, list[list[tuple[float, float]]]]:
    """Validation loss by tokens trained on: for each kind without overlap a curve a run.

    Nothing where fewer than two kinds were validated more than once: single points are in the tables.
    """
    found: dict[str, list[list[tuple[float, float]]]] = {}
    for kind, name in _named_runs(experiment):
        curve = _curve(results.run(name))
        if curve:
            found.setdefault(kind, []).append(curve)
    drawn = [kind for kind, curves in found.items() if any(len(curve) > 1 for curve in curves)]
    return found if len(drawn) > 1 else {}


def _named_runs(experiment: Experiment) -> list[tuple[str, str]]:
    """Kind and name; a table of costs names the runs of both kinds in its rows."""
    pairs = [(row.kind, name) for row in experiment.disjoint() for name in row.runs]
    for row in experiment.raw_rows:
        pairs += [(kind, name) for kind, runs in curve_runs(row).items() for name in runs]
    return list(dict.fromkeys(pairs))


def _curve(run: Mapping[str, Any]) -> list[tuple[float, float]]:
    pairs = [
        (_tokens_seen(run, facts(entry)), numbers.finite(facts(entry).get("eval_loss")))
        for entry in entries(run.get("history"))
    ]
    return [(tokens, loss) for tokens, loss in pairs if tokens is not None and loss is not None]


def _tokens_seen(run: Mapping[str, Any], entry: Mapping[str, Any]) -> float | None:
    """As counted at that step; in a history that did not count them, as if all steps were alike."""
    seen = numbers.finite(entry.get("num_input_tokens_seen"))
    if seen is not None:
        return seen
    step, tokens, steps = (numbers.finite(value) for value in (entry.get("step"), run.get("tokens"), run.get("steps")))
    return None if step is None or not tokens or not steps else step * tokens / steps


def draw_training(axes: Axes, curves: Mapping[str, list[list[tuple[float, float]]]], palette: Palette) -> bool:
    if not curves:
        return False
    for kind, runs in curves.items():
        for number, curve in enumerate(runs):
            axes.plot(
                [tokens for tokens, _ in curve],
                [loss for _, loss in curve],
                LINES.get(kind, "-"),
                marker="o" if len(curve) == 1 else None,
                color=colour(palette, kind),
                linewidth=1.2,
                # One entry in the legend for all runs of a model.
                label=shown(kind_name(kind)) if number == 0 else None,
            )
    dress(axes, palette, "Validation loss during training", "training tokens", "loss (nats per token), validation")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.tick(value)))
    return legend(axes, palette)


def describe_training(curves: Mapping[str, list[list[tuple[float, float]]]]) -> str:
    told = [
        f"{kind_name(kind)}, run {number}: from {curve[0][1]:.2f} to {curve[-1][1]:.2f}"
        for kind, runs in curves.items()
        for number, curve in enumerate(runs, start=1)
    ]
    return f"Line plot of the validation loss during training. {'; '.join(told)}."
