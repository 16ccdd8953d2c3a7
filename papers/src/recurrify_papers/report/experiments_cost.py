"""What recurrence costs: the table, the bars, and which model is better where the measurements can tell."""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes

from recurrify.pages import numbers
from recurrify.pages.plots import Palette, dress, svg
from recurrify_papers.report.experiments_blocks import Block, Paragraph, Plot, Plots, TableBlock
from recurrify_papers.report.experiments_data import Experiment, curve_runs, words
from recurrify_papers.report.experiments_plots import colour, shown
from recurrify_papers.report.experiments_tables import LinkedTable, Linker, filled_table, linked

COLOURS = {"plain": "orange", "recurrent": "blue"}


@dataclass(frozen=True)
class CostRow:
    content: Mapping[str, Any]
    ratio: float | None
    """Recurrent to plain."""
    spread: tuple[float, float] | None
    """Of the ratio, where it was measured repeatedly."""
    runs: Mapping[str, list[str]]
    """By kind; none where the row measures models and does not compare their training."""

    @property
    def ahead(self) -> str | None:
        """The model with the better number, whether or not that means anything; None where the row does not say."""
        better = words(self.content.get("better"))
        if self.ratio is None or better not in ("higher", "lower"):
            return None
        return "recurrent" if (self.ratio > 1) == (better == "higher") else "plain"

    @property
    def doubt(self) -> str:
        """Why neither model is better by this row; empty where one is.

        Rows of weights and memory have no range either, but no runs: chance has no part in them.
        """
        if numbers.fixed(self.ratio) == numbers.fixed(1.0):
            return "both are equal"
        if self.spread is not None and self.spread[0] <= 1 <= self.spread[1]:
            return "within the range of repeated measurements"
        if self.ahead is None:
            return "neither is called better"
        return f"{self.ahead} is ahead in {run_count([self])}" if self.is_unrepeated else ""

    @property
    def is_unrepeated(self) -> bool:
        return self.spread is None and bool(self.runs)

    @property
    def winner(self) -> str | None:
        return None if self.doubt else self.ahead

    @property
    def verdict(self) -> str:
        if self.ratio is None:
            return numbers.MISSING
        return self.doubt or f"{self.ahead} is better"


def cost_rows(experiment: Experiment) -> list[CostRow]:
    return [
        CostRow(row, numbers.finite(row.get("ratio")), numbers.finite_pair(row.get("spread")), curve_runs(row))
        for row in experiment.raw_rows
    ]


def run_count(rows: Sequence[CostRow]) -> str:
    counts = sorted({len(names) for row in rows for names in row.runs.values()})
    if counts == [1]:
        return "one run of each model"
    return f"{' to '.join(str(count) for count in dict.fromkeys((counts[0], counts[-1])))} runs of each model"


def cost_blocks(experiment: Experiment, linker: Linker, training: Plot | None) -> list[Block]:
    """The table and the bars, and beside them the learning curves that convergence was read off."""
    rows = cost_rows(experiment)
    table = cost_table(rows, linker)
    if table is None:
        return []
    blocks: list[Block] = []
    unrepeated = [row for row in rows if row.is_unrepeated]
    if unrepeated:
        blocks.append(
            Paragraph(
                f"These ratios rest on {run_count(unrepeated)} and have no range: other seeds could change them, and "
                "which model is ahead."
            )
        )
    blocks.append(TableBlock(table.table, table.files))
    drawn = svg(draw_cost, rows, f"{experiment.anchor}-cost", 1.2 + 0.55 * max(1, len(_ratios(rows))))
    bars = None if drawn is None else Plot(drawn, describe_cost(rows), cost_caption(rows))
    plots = [plot for plot in (bars, training) if plot is not None]
    return [*blocks, Plots(plots)] if plots else blocks


def cost_table(rows: Sequence[CostRow], linker: Linker) -> LinkedTable | None:
    def told(key: str) -> list[str]:
        return [words(row.content.get(key)) or numbers.MISSING for row in rows]

    def measured(key: str) -> list[str]:
        return [numbers.large(numbers.finite(row.content.get(key))) for row in rows]

    ranges = [
        numbers.MISSING if row.spread is None else " to ".join(numbers.fixed(end) for end in row.spread) for row in rows
    ]
    columns = [
        ("measure", told("measure")),
        ("setting", told("setting")),
        ("plain", measured("plain")),
        ("recurrent", measured("recurrent")),
        ("unit", told("unit")),
        ("recurrent ÷ plain", [numbers.fixed(row.ratio) for row in rows]),
        ("range", ranges),
        ("better is", told("better")),
        ("published", told("published")),
        ("verdict", [row.verdict for row in rows]),
    ]
    files = [linker.files([name for runs in row.runs.values() for name in runs]) for row in rows]
    return linked(filled_table("What recurrence costs", columns, text_columns=2), files)


def _ratios(rows: Sequence[CostRow]) -> list[tuple[str, float, CostRow]]:
    """What can be drawn, each with a name of its own."""
    measures = [words(row.content.get("measure")) for row in rows]
    found = []
    for row, measure in zip(rows, measures, strict=True):
        if row.ratio is not None:
            # The setting, which is long, only where the measure does not tell the rows apart.
            name = measure if measures.count(measure) == 1 else f"{measure}, {words(row.content.get('setting'))}"
            found.append((name, row.ratio, row))
    return found


def draw_cost(axes: Axes, rows: Sequence[CostRow], palette: Palette) -> bool:
    """Each ratio as a bar from 1, in the colour of the model that is better by it, or in grey."""
    ratios = _ratios(rows)
    if not ratios:
        return False
    for index, (_, ratio, row) in enumerate(ratios):
        # The grey is that of the grid: its outline sets the bar off from the paper.
        fill, edge = (palette.grid, palette.ink) if row.winner is None else (colour(palette, row.winner), "none")
        axes.barh(index, ratio - 1, left=1, height=0.55, color=fill, edgecolor=edge, linewidth=0.8, zorder=2)
        low, high = row.spread or (ratio, ratio)
        if row.spread:
            reach = [[max(0.0, ratio - low)], [max(0.0, high - ratio)]]
            axes.errorbar(ratio, index, xerr=reach, color=palette.ink, elinewidth=1.0, capsize=2.5, zorder=3)
        outwards = ratio >= 1
        axes.annotate(
            f"×{numbers.fixed(ratio)}",
            (max(high, ratio) if outwards else min(low, ratio), index),
            xytext=(5 if outwards else -5, 0),
            textcoords="offset points",
            ha="left" if outwards else "right",
            va="center",
            color=palette.ink,
            fontsize=9,
        )
    axes.axvline(1, color=palette.ink, linewidth=1.0, zorder=3)
    dress(axes, palette, "Recurrent ÷ plain", "ratio (1 is equal)", "")
    labels = ["\n".join(textwrap.wrap(shown(name), 26)[:3]) for name, *_ in ratios]
    axes.set_yticks(range(len(ratios)), labels, fontsize=8.5)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.margins(x=0.3)
    return True


def cost_caption(rows: Sequence[CostRow]) -> str:
    """How to read the bars that are there, and nothing about others."""
    drawn = [row for _, _, row in _ratios(rows)]
    told = ["Each bar starts at 1, where both are equal."]
    winners = {row.winner for row in drawn}
    named = [f"{hue} for {model}" for model, hue in COLOURS.items() if model in winners]
    if named:
        told.append(f"Its colour is that of the model that is better by it: {', '.join(named)}.")
    if None in winners:
        told.append("Grey: undecided; the verdict in the table says why.")
    if any(row.spread for row in drawn):
        told.append("Whiskers: the range over repeated measurements, where there were any.")
    return " ".join(told)


def describe_cost(rows: Sequence[CostRow]) -> str:
    told = [f"{name}: {numbers.fixed(ratio)}, {row.verdict}" for name, ratio, row in _ratios(rows)]
    return f"Bars of the ratio of recurrent to plain. {'; '.join(told)}."
