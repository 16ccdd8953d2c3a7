"""Training and validation curves of models from scratch, against steps and against time."""

import math
from functools import partial
from itertools import chain

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from recurrify.pages import numbers
from recurrify.pages.plots import Draw, Palette, dress
from recurrify_papers.report.experiments_plots import shown
from recurrify_papers.report.scratch_runs import Group, Point, Variant

STYLES = {  # colour of the palette, line, marker
    "xl": ("plain", "--", "s"),
    "rsa-xl": ("recurrent", "-", "o"),
    "brt": ("best", "-.", "^"),
    "rsa-brt": ("xlnet", "-", "D"),
    "transformer": ("xlnet", ":", "X"),
    "rsa": ("best", "-", "v"),
    "lstm": ("ink", "-", "P"),
    "gru": ("ink", "--", "h"),
}
OTHER_LINES = (":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)))
"""For a second, third and fourth variant of one architecture."""


def _place(point: Point, along: str) -> float | None:
    return point.step if along == "steps" else point.minutes


def curves(group: Group, which: str, along: str) -> dict[str, list[list[tuple[float, float]]]]:
    """By variant, a line of places and bits for each of its runs."""
    found: dict[str, list[list[tuple[float, float]]]] = {}
    for variant in group.variants:
        for run in variant.runs:
            line = [(place, point.bits) for point in run.curve(which) if (place := _place(point, along)) is not None]
            if line:
                found.setdefault(variant.label, []).append(line)
    return found


def _style(group: Group, variant: Variant) -> tuple[str, object, str]:
    colour, line, marker = STYLES.get(variant.first.arch, ("ink", ":", "."))
    earlier = [one for one in group.variants if one.first.arch == variant.first.arch].index(variant)
    return colour, line if earlier == 0 else OTHER_LINES[(earlier - 1) % len(OTHER_LINES)], marker


def _draw(axes: Axes, group: Group, palette: Palette, *, which: str, along: str) -> bool:
    found = curves(group, which, along)
    for variant in group.variants:
        colour, line_style, marker = _style(group, variant)
        for number, line in enumerate(found.get(variant.label, [])):
            axes.plot(
                [place for place, _ in line],
                [bits for _, bits in line],
                linestyle=line_style,
                marker=marker if which == "validation" or len(line) == 1 else None,
                markersize=4,
                color=palette.models.get(colour, palette.ink),
                linewidth=1.1 if which == "training" else 1.5,
                # One entry in the legend for all seeds.
                label=shown(variant.label) if number == 0 else None,
            )
    if not found:
        return False
    if which == "validation":
        _draw_published(axes, group, palette)
    _dress(axes, group, palette, which, along)
    return True


def _draw_published(axes: Axes, group: Group, palette: Palette) -> None:
    """Levels that lie where the curves are; others would squash them, and stand in the table."""
    corpus = group.conditions.data
    if group.published_unit != "symbol":
        return
    low, high = axes.get_ylim()
    for variant in group.variants:
        known = variant.first.published
        bits = None if known is None else known.bits(corpus)
        if known is not None and bits is not None and low - (high - low) / 3 <= bits <= high:
            colour = palette.models.get(_style(group, variant)[0], palette.ink)
            axes.axhline(bits, color=colour, linewidth=0.8, linestyle=(0, (6, 4)), zorder=1)
            axes.annotate(
                shown(f"{known.model}, reproduction {bits:g}"),
                # On the left, where the curves are still far above.
                (0, bits),
                xycoords=("axes fraction", "data"),
                xytext=(4, 2),
                textcoords="offset points",
                ha="left",
                va="bottom",
                fontsize=8,
                color=colour,
            )


def _dress(axes: Axes, group: Group, palette: Palette, which: str, along: str) -> None:
    title = "Training loss" if which == "training" else "Validation"
    against = "step" if along == "steps" else "minutes of training"
    scale = " (log scale)" if which == "training" else ""
    dress(
        axes, palette, f"{title} against {'steps' if along == 'steps' else 'time'}", f"{against}{scale}", _bits(group)
    )
    if which == "training":
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.tick(value)))
    below = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.19), "columnspacing": 1.2}
    axes.legend(frameon=False, labelcolor=palette.ink, fontsize=9, handlelength=2.8, ncols=_columns(group), **below)


def _columns(group: Group) -> int:
    """Of the legend."""
    longest = max(len(variant.label) for variant in group.variants)
    return 1 if longest > 28 else 2 if longest > 15 or len(group.variants) == 4 else 3


def height(group: Group) -> float:
    """Of a plot, in inches: the legend below it has so many lines."""
    return 3.9 + 0.21 * math.ceil(len(group.variants) / _columns(group))


def _bits(group: Group) -> str:
    return f"bits per {group.unit}"


draw_training_by_step: Draw = partial(_draw, which="training", along="steps")
draw_training_by_time: Draw = partial(_draw, which="training", along="time")
draw_validation_by_step: Draw = partial(_draw, which="validation", along="steps")
draw_validation_by_time: Draw = partial(_draw, which="validation", along="time")


def describe_curves(group: Group, which: str, along: str) -> str:
    """The plot in words: where each line begins, and where it ends."""
    told = []
    for label, lines in curves(group, which, along).items():
        ends = [(line[0], line[-1]) for line in lines]
        places = ", then ".join(
            f"{_told_places([pair[index][0] for pair in ends], along)} {_told_bits([pair[index][1] for pair in ends])}"
            for index in ((0, 1) if any(first != last for first, last in ends) else (0,))
        )
        told.append(f"{label}: {places}")
    title = "the training loss" if which == "training" else "the validation score"
    return f"Line plot of {title} in bits per {group.unit} against {along}. {'; '.join(told)}."


def _told_places(places: list[float], along: str) -> str:
    if along == "steps":
        return f"at step {numbers.count(max(places))}"
    return f"after {numbers.fixed(max(places), 2)} min"


def _told_bits(values: list[float]) -> str:
    low, high = (numbers.bits(value) for value in (min(values), max(values)))
    return low if low == high else f"{low} to {high} over seeds"


def has_times(group: Group) -> bool:
    """Whether all points say when they were reached; results of older versions do not."""
    points = chain.from_iterable(run.curve("training") for run in group.runs)
    return all(point.minutes is not None for point in points)
