"""How time and memory grow with length and width: exponents beside the theory, and the measurements on log scales."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from recurrify.pages import numbers
from recurrify.pages.plots import FAINT, Draw, Palette, dress, svg
from recurrify.pages.tables import Table
from recurrify_papers.report.experiments_blocks import Block, Fold, Paragraph, Plot, Plots, TableBlock
from recurrify_papers.report.experiments_data import Experiment, entries, facts, words
from recurrify_papers.report.experiments_plots import shown
from recurrify_papers.report.experiments_statement import listed

AXES = {"T": "length T", "D": "width D"}
STYLES = (("plain", "--", "s"), ("plain", ":", "D"), ("xlnet", "-.", "^"), ("recurrent", "-", "o"), ("best", "-", "v"))
"""Colour of the palette, line and marker, in the order of the parts."""
MEASURES = {
    "seconds": ("Time", "seconds, forward and backward"),
    "peak_bytes": ("Memory", "bytes beside input and weights"),
}


TOO_FEW = "too few sizes to fit"


@dataclass(frozen=True)
class GrowthRow:
    part: str
    theory: str
    axis: str
    theoretical: float | None
    counted: float | None
    exponents: Mapping[str, Any]
    at: Mapping[str, Any]
    points: list[Mapping[str, Any]]
    content: Mapping[str, Any]

    @property
    def name(self) -> str:
        return f"{self.part} along {AXES[self.axis]}"

    def left_out(self, measure: str) -> list[str]:
        """Sizes too near to what launching alone takes."""
        sizes = entries(facts(self.content.get("left_out")).get(measure))
        return [numbers.count(size) for size in sizes]

    def exponent(self, measure: str) -> float | None:
        return numbers.finite(facts(self.exponents.get(measure)).get("exponent"))

    def known(self, measure: str) -> list[tuple[float, float]]:
        """Sizes along the axis, and what was measured there."""
        pairs = [(numbers.finite(point.get(self.axis)), numbers.finite(point.get(measure))) for point in self.points]
        return sorted((size, value) for size, value in pairs if size and value and size > 0 and value > 0)


def growth_rows(experiment: Experiment) -> list[GrowthRow]:
    """The rows that have a part, an axis and a measurement."""
    found = [
        GrowthRow(
            part=words(row.get("part")),
            theory=words(row.get("theory")),
            axis=words(row.get("axis")),
            theoretical=numbers.finite(row.get("theoretical")),
            counted=numbers.finite(row.get("counted_exponent")),
            exponents=facts(row.get("exponents")),
            at=facts(row.get("at")),
            points=[facts(point) for point in entries(row.get("points"))],
            content=row,
        )
        for row in experiment.raw_rows
    ]
    return [row for row in found if row.part and row.axis in AXES and row.points]


def complexity_blocks(experiment: Experiment) -> list[Block]:
    rows = growth_rows(experiment)
    if not rows:
        return []
    blocks: list[Block] = [TableBlock(exponent_table(rows))]
    if not any(row.known("peak_bytes") for row in rows):
        blocks.append(Paragraph("Memory was not measured: nobody counts it on a CPU.", "note"))
    blocks += [Paragraph(told, "note") for told in (*_about_clocks(rows), *_about_floor(rows))]
    caption = (
        "Both scales logarithmic: a straight line is a power, its slope the exponent in the legend. Pale lines: fitted "
        "through the larger sizes of those that are fitted."
    )
    plots = []
    for measure in MEASURES:
        for axis in AXES:
            draw: Draw = partial(_draw_growth, measure=measure, axis=axis)
            drawn = svg(draw, rows, f"{experiment.anchor}-{measure}-{axis}", 5.0)
            if drawn is not None:
                plots.append(Plot(drawn, describe_growth(rows, measure, axis), caption))
    points = point_table(rows)
    return [*blocks, Plots(plots), Fold(f"All {len(points.rows)} measurements", [TableBlock(points)])]


def _about_clocks(rows: Sequence[GrowthRow]) -> list[str]:
    """By whose clock times were taken, where a GPU was there to be asked."""
    by_device = [row for row in rows if row.content.get("clock") == "device"]
    refused = [row for row in rows if words(row.content.get("not_captured"))]
    told = []
    if by_device:
        told.append("Times are those of captured CUDA graphs by the device's clock, so that no launch is among them.")
    if refused:
        which = "; ".join(f"{row.name} ({words(row.content.get('not_captured'))})" for row in refused)
        told.append(f"By the host's clock, launches included, since it could not be captured: {which}.")
    return told


def _about_floor(rows: Sequence[GrowthRow]) -> list[str]:
    """The sizes that were measured and not fitted."""
    times = next((times for row in rows if (times := facts(row.content.get("floor")).get("times"))), None)
    left_out = [told for row in rows if (told := _left_out(row))]
    if times is None:
        return []
    floor = f"{numbers.count(times)} times what the part takes for a single position, which is nearly all launching"
    if not left_out:
        return [f"Every size takes at least {floor}."]
    return [f"Left out of the fits, since they take less than {floor}: {'; '.join(left_out)}."]


def _left_out(row: GrowthRow) -> str:
    both, forward = row.left_out("seconds"), row.left_out("forward_seconds")
    floor = _milliseconds(facts(row.content.get("floor")).get("seconds"))
    told = [f"{row.axis} = {listed(both)} (single position {floor} ms)"] if both else []
    if forward and forward != both:
        told.append(f"in the forward pass alone {row.axis} = {listed(forward)}")
    return f"{row.name}, {', '.join(told)}" if told else ""


def exponent_table(rows: Sequence[GrowthRow]) -> Table:
    header = ["part", "theory", "along", "exponent in theory", "time", "time, forward alone", "memory", "operations"]
    cells = [
        [
            row.part,
            row.theory or numbers.MISSING,
            f"{AXES[row.axis]}{_fixed_size(row)}",
            numbers.fixed(row.theoretical, 0),
            *(_fit(row, measure) for measure in ("seconds", "forward_seconds", "peak_bytes")),
            numbers.fixed(row.counted, 2),
        ]
        for row in rows
    ]
    caption = (
        "Exponents ± standard errors, fitted over the larger sizes; operations as torch counts them in matrix products"
    )
    return Table(caption, header, cells, text_columns=3)


def _fixed_size(row: GrowthRow) -> str:
    told = [f"{name} = {numbers.count(size)}" for name, size in row.at.items()]
    return f", at {', '.join(told)}" if told else ""


def _fit(row: GrowthRow, measure: str) -> str:
    exponent = row.exponent(measure)
    if exponent is None:
        return TOO_FEW if row.known(measure) else numbers.MISSING
    error = numbers.finite(facts(row.exponents.get(measure)).get("standard_error"))
    told = numbers.fixed(exponent, 2)
    return told if error is None else f"{told} ± {numbers.fixed(error, 2)}"


def point_table(rows: Sequence[GrowthRow]) -> Table:
    cells = [
        [
            row.part,
            numbers.count(point.get("T")),
            numbers.count(point.get("D")),
            _milliseconds(point.get("forward_seconds")),
            _milliseconds(point.get("seconds")),
            numbers.large(numbers.finite(point.get("peak_bytes"))),
        ]
        for row in rows
        for point in row.points
    ]
    header = ["part", "T", "D", "forward, ms", "forward and backward, ms", "peak bytes"]
    return Table("Medians", header, cells, text_columns=1)


def _milliseconds(value: Any) -> str:
    seconds = numbers.finite(value)
    return numbers.MISSING if seconds is None else f"{1000 * seconds:,.3g}"


def _along(rows: Sequence[GrowthRow], measure: str, axis: str) -> list[tuple[int, GrowthRow]]:
    """The rows with a point to draw, each with the number of its part."""
    parts = list(dict.fromkeys(row.part for row in rows))
    return [(parts.index(row.part), row) for row in rows if row.axis == axis and row.known(measure)]


def _draw_growth(axes: Axes, rows: Sequence[GrowthRow], palette: Palette, *, measure: str, axis: str) -> bool:
    found = _along(rows, measure, axis)
    if not found:
        return False
    for number, row in found:
        colour, line, marker = STYLES[number % len(STYLES)]
        colour = palette.models[colour]
        points = row.known(measure)
        exponent = row.exponent(measure)
        slope = "" if exponent is None else f": {axis}^{exponent:.2f}"
        theory = "" if row.theoretical is None else f", in theory {axis}^{row.theoretical:.0f}"
        sizes, values = zip(*points, strict=True)
        label = shown(f"{row.part}{_fixed_size(row) if row.at != found[0][1].at else ''}{slope}{theory}")
        axes.plot(sizes, values, line, marker=marker, color=colour, linewidth=1.5, markersize=4.5, label=label)
        fitted = points[-int(numbers.finite(facts(row.exponents.get(measure)).get("points")) or 0) :]
        if exponent is not None and len(fitted) > 1:
            ends = [size for size, _ in fitted]
            axes.plot(ends, _line(fitted, exponent), "-", color=colour, alpha=FAINT, linewidth=4, zorder=1)
    title, y_label = MEASURES[measure]
    dress(axes, palette, f"{title} against {AXES[axis]}", f"{AXES[axis]}{_fixed_size(found[0][1])}", y_label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axes.tick_params(axis="x", labelsize=9)
    below = {"loc": "upper center", "bbox_to_anchor": (0.42, -0.17), "ncols": 1}
    axes.legend(frameon=False, labelcolor=palette.ink, fontsize=9, handlelength=2.6, **below)
    return True


def _line(points: Sequence[tuple[float, float]], exponent: float) -> list[float]:
    """The least-squares line of this slope, which goes through the mean of the logarithms."""
    middle = [sum(math.log(pair[place]) for pair in points) / len(points) for place in (0, 1)]
    return [math.exp(middle[1] + exponent * (math.log(size) - middle[0])) for size, _ in points]


def describe_growth(rows: Sequence[GrowthRow], measure: str, axis: str) -> str:
    title = MEASURES[measure][0]
    told = [
        f"{row.part}: {'exponent ' if row.exponent(measure) is not None else ''}{_fit(row, measure)}"
        for _, row in _along(rows, measure, axis)
    ]
    return f"Plot of {title.lower()} against {AXES[axis]}, both on logarithmic scales. {'; '.join(told)}."
