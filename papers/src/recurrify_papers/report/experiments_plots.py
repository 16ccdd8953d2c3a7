"""The plots that compare models: perplexity against overlap, window and cost."""

import math
from collections.abc import Sequence
from functools import partial

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from recurrify.pages import numbers
from recurrify.pages.html_parts import NOT_IN_HTML
from recurrify.pages.plots import Draw, Palette, dress, legend
from recurrify_papers.report.experiments_data import SPLITS, Experiment, Row, kind_name, ordered_kinds
from recurrify_papers.report.experiments_front import Point, pareto_front, priced

LINES = {"plain": "--", "carry": "-", "best": "-.", "xlnet": ":"}
MARKERS = {"plain": "s", "carry": "o", "best": "^", "xlnet": "D"}
OVERLAP_MARKERS = ("s", "D", "v", "P", "X", "h")
BEYOND_THE_PICTURE = 3.0
"""Kinds so many times worse than plain windows are told in words: drawn, they would press all others into one line."""


def colour(palette: Palette, kind: str) -> str:
    return palette.models.get("recurrent" if kind == "carry" else kind, palette.ink)


def shown(text: str) -> str:
    """Text from a file as matplotlib can draw it: no formulas, no control characters, no half surrogate pairs."""
    drawable = text.translate(NOT_IN_HTML).encode("utf-8", errors="replace").decode("utf-8")
    return drawable.replace("$", r"\$")


def split_name(experiment: Experiment) -> str:
    return SPLITS.get(experiment.split, experiment.split)


def _value(row: Row, split: str, published: bool) -> float | None:
    return row.published.get(split) if published else row.perplexity(split)


def _series(experiment: Experiment, published: bool, axis: str) -> dict[str, list[tuple[int, float, Row]]]:
    """For each kind its points along the overlaps, or along the windows without overlap."""
    found: dict[str, list[tuple[int, float, Row]]] = {}
    for row in experiment.rows:
        place = row.overlap if axis == "overlap" else row.window
        value = _value(row, experiment.split, published)
        if place is not None and place >= 0 and value is not None and (axis == "overlap" or row.overlap == 0):
            found.setdefault(row.kind, []).append((place, value, row))
    return {kind: sorted(found[kind], key=lambda point: point[:2]) for kind in ordered_kinds(found)}


def _is_far(kind: str, series: dict[str, list[tuple[int, float, Row]]]) -> bool:
    plain = [value for _, value, _ in series.get("plain", [])]
    return bool(plain) and min(value for _, value, _ in series[kind]) > BEYOND_THE_PICTURE * max(plain)


def far_kinds(experiment: Experiment, axis: str) -> list[str]:
    """Names of those that our picture leaves out."""
    series = _series(experiment, False, axis)
    return [kind_name(kind) for kind in series if _is_far(kind, series)]


def _draw_lines(axes: Axes, experiment: Experiment, palette: Palette, *, published: bool, axis: str) -> bool:
    series = _series(experiment, published, axis)
    series = {kind: points for kind, points in series.items() if not _is_far(kind, series)}
    if not series:
        return False
    places = sorted({place for points in series.values() for place, _, _ in points})
    # Overlaps lie close together near 0, where most happens; their square roots do not.
    position = {place: math.sqrt(place) if axis == "overlap" else float(place) for place in places}
    step = 0.008 * ((max(position.values()) - min(position.values())) or 4.0)
    for index, (kind, points) in enumerate(series.items()):
        nudge = 0.0 if published else step * (index - (len(series) - 1) / 2)
        axes.errorbar(
            [position[place] + nudge for place, _, _ in points],
            [value for _, value, _ in points],
            yerr=None if published else _bars(points, experiment.split),
            fmt=LINES.get(kind, "-"),
            marker=MARKERS.get(kind, "."),
            color=colour(palette, kind),
            linewidth=1.5,
            markersize=4.5,
            elinewidth=1.0,
            capsize=2.0,
            label=shown(kind_name(kind)),
        )
    whose = "published" if published else "ours"
    x_label = "overlap in tokens (square-root scale)" if axis == "overlap" else "window in tokens"
    title = f"Perplexity against {'overlap' if axis == 'overlap' else 'window size'}: {whose}"
    dress(axes, palette, title, x_label, f"perplexity per word, {split_name(experiment)}")
    axes.set_xticks([position[place] for place in places], [str(place) for place in places])
    if len(places) == 1:
        axes.set_xlim(position[places[0]] - 1, position[places[0]] + 1)
    else:
        axes.margins(x=0.05)
    return legend(axes, palette)


def _bars(points: Sequence[tuple[int, float, Row]], split: str) -> list[list[float]]:
    """How far the 95 % interval of the gain reaches below and above each point; no length where there is none.

    Not the interval of the level: documents differ far more than models do, and all models read the same ones.
    """
    below, above = [], []
    for _, value, row in points:
        gain = row.gains.get(split)
        if gain is None or gain.interval is None or gain.relative >= 1:
            low = high = value
        else:
            plain = value / (1 - gain.relative)
            low, high = plain * (1 - gain.interval[1]), plain * (1 - gain.interval[0])
        below.append(max(0.0, value - low))
        above.append(max(0.0, high - value))
    return [below, above]


draw_by_overlap: Draw = partial(_draw_lines, published=False, axis="overlap")
draw_published_by_overlap: Draw = partial(_draw_lines, published=True, axis="overlap")
draw_by_window: Draw = partial(_draw_lines, published=False, axis="window")
draw_published_by_window: Draw = partial(_draw_lines, published=True, axis="window")


def describe_lines(experiment: Experiment, *, published: bool, axis: str) -> str:
    """The same plot in words."""
    whose = "Published" if published else "Our"
    told = [f"{whose} {split_name(experiment)} perplexity per word against {axis}."]
    series = _series(experiment, published, axis)
    for kind, points in series.items():
        values = ", ".join(f"{numbers.perplexity(value)} at {place}" for place, value, _ in points)
        told.append(f"{kind_name(kind)}: {values}{', beyond the picture' if _is_far(kind, series) else ''}.")
    return " ".join(told)


def _curves(points: Sequence[Point]) -> dict[tuple[str, int | None], list[Point]]:
    """A curve over the windows for each kind and overlap."""
    found: dict[tuple[str, int | None], list[Point]] = {}
    for point in points:
        found.setdefault((point.kind, point.overlap), []).append(point)
    kinds = ordered_kinds({kind for kind, _ in found})
    order = sorted(found, key=lambda key: (kinds.index(key[0]), key[1] or 0))
    return {key: sorted(found[key], key=lambda point: (point.window or 0, point.flops)) for key in order}


def draw_frontier(axes: Axes, experiment: Experiment, palette: Palette) -> bool:
    """Perplexity against FLOPs: a curve for each overlap, and the Pareto front behind them."""
    points = priced(experiment)
    if not points:
        return False
    front = pareto_front(points)
    costs, scores = [point.flops for point in front], [point.perplexity for point in front]
    # A step, since between two points nothing was run.
    axes.step(costs, scores, where="post", color=palette.ink, alpha=0.22, linewidth=6, label="Pareto front", zorder=1)
    seen: dict[str, int] = {}
    for (kind, overlap), curve in _curves(points).items():
        number = seen[kind] = seen.get(kind, -1) + 1
        own = MARKERS.get(kind, ".")
        axes.plot(
            [point.flops for point in curve],
            [point.perplexity for point in curve],
            LINES.get(kind, "-"),
            marker=OVERLAP_MARKERS[number % len(OVERLAP_MARKERS)] if kind == "plain" else own,
            color=colour(palette, kind),
            markerfacecolor="none" if number % 2 else colour(palette, kind),
            linewidth=1.2,
            markersize=4.5,
            label=shown(kind_name(kind) + ("" if overlap is None else f", overlap {overlap}")),
        )
    for point in front:
        if point.window is not None:
            axes.annotate(
                str(point.window),
                (point.flops, point.perplexity),
                xytext=(-4, -4),
                textcoords="offset points",
                ha="right",
                va="top",
                color=colour(palette, point.kind),
                fontsize=8,
            )
    dress(axes, palette, "Perplexity against cost", "FLOPs per token", f"perplexity per word, {split_name(experiment)}")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.tick(value)))
    axes.margins(x=0.08, y=0.1)
    return legend(axes, palette)


def describe_frontier(experiment: Experiment) -> str:
    points = priced(experiment)
    told = [
        f"{point.name}: {numbers.perplexity(point.perplexity)} at {numbers.large(point.flops)} FLOPs per token"
        for point in pareto_front(points)
    ]
    return (
        f"Plot of perplexity per word against FLOPs per token, {len(points)} points. On the front: {'; '.join(told)}."
    )
