"""Accuracy on recurrent rules against the length of the sequences: a table, a plot for each rule, and what it shows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullLocator

from recurrify.pages import numbers
from recurrify.pages.plots import FAINT, Palette, dress, svg
from recurrify.pages.tables import Table
from recurrify_papers.report.experiments_blocks import Block, Bullets, Fold, Paragraph, Plot, Plots, TableBlock
from recurrify_papers.report.experiments_data import Experiment, entries, names, words
from recurrify_papers.report.experiments_plots import shown
from recurrify_papers.report.experiments_statement import listed
from recurrify_papers.report.experiments_tables import Linker

TASKS = {"parity": "Parity", "counting": "Modular counting", "dyck": "Dyck-2", "copying": "Copying"}
MODELS = {
    "transformer": "transformer",
    "rsa": "RSA",
    "xl": "Transformer-XL",
    "brt": "Block-Recurrent",
    "lstm": "LSTM",
    "gru": "GRU",
}
STYLES = {  # colour of the palette, line, marker
    "transformer": ("plain", "--", "s"),
    "rsa": ("best", "-.", "^"),
    "xl": ("xlnet", ":", "D"),
    "brt": ("ink", "-", "v"),
    "lstm": ("recurrent", "-", "o"),
    "gru": ("recurrent", "--", "P"),
}
SOLVED = 0.95
"""The share of right answers from which a model is said to know a rule."""
CLEARLY = 0.02
"""How far above chance nobody comes by luck: the least, where the seeds hardly differ."""
MULTIPLES = (1, 3, 5, 10)
"""Of the training length: what the table shows; the plots show all lengths."""
NUDGE = 1.012
TICK_RATIO = 1.45
"""Ticks closer than this would run into each other on a phone."""


@dataclass(frozen=True)
class LengthRow:
    task: str
    arch: str
    length: int
    accuracy: float
    spread: float | None
    chance: float | None
    short_memory: float | None
    """What the last symbols alone allow, as many as the longest of training."""
    trained_to: int | None
    seeds: int
    content: Mapping[str, Any]


def length_rows(experiment: Experiment) -> list[LengthRow]:
    """The rows that can be shown."""
    found = []
    for row in experiment.raw_rows:
        length, accuracy = numbers.finite(row.get("length")), numbers.finite(row.get("accuracy"))
        if length is None or length <= 0 or accuracy is None:
            continue
        trained = numbers.finite(row.get("training_length"))
        found.append(
            LengthRow(
                task=words(row.get("task")),
                arch=words(row.get("arch")),
                length=int(length),
                accuracy=accuracy,
                spread=numbers.finite(row.get("spread")),
                chance=numbers.finite(row.get("chance")),
                short_memory=numbers.finite(row.get("short_memory")),
                trained_to=None if trained is None else int(trained),
                seeds=len(entries(row.get("seeds"))),
                content=row,
            )
        )
    return found


def length_blocks(experiment: Experiment, linker: Linker) -> list[Block]:
    rows = length_rows(experiment)
    if not rows:
        return []
    by_task = _grouped(rows, "task")
    caption = (
        "Right answers among the last of each sequence, in copying among all of a copy; mean over seeds, bars: their "
        "standard deviation. Dashed: the best constant guess. Points are nudged sideways."
    )
    if _short_sight(rows) is not None:
        caption += f" Pale: the best guess from the {_short_sight(rows)}."
    plots = [
        Plot(drawn, describe_accuracy(task, own), caption)
        for number, (task, own) in enumerate(by_task.items())
        if (drawn := svg(draw_accuracy, (task, own), f"{experiment.anchor}-{number}", 4.5)) is not None
    ]
    return [
        Bullets([finding(task, own) for task, own in by_task.items()]),
        TableBlock(
            accuracy_table(rows), [linker.files([], names(own[0].content.get("files"))) for own in _lines(rows)]
        ),
        *_about_short_sight(rows),
        Plots(plots),
        Fold("How large the models are, and how they read", [_about_rates(rows), TableBlock(model_table(rows))]),
    ]


def _grouped(rows: Sequence[LengthRow], key: str) -> dict[str, list[LengthRow]]:
    found: dict[str, list[LengthRow]] = {}
    for row in rows:
        found.setdefault(getattr(row, key), []).append(row)
    order = list(TASKS if key == "task" else MODELS)
    return {name: found[name] for name in sorted(found, key=lambda name: (_place(order, name), name))}


def _place(order: Sequence[str], name: str) -> int:
    return order.index(name) if name in order else len(order)


def _lines(rows: Sequence[LengthRow]) -> list[list[LengthRow]]:
    """The rows of each task and model, by length."""
    return [
        sorted(own, key=lambda row: row.length)
        for of_task in _grouped(rows, "task").values()
        for own in _grouped(of_task, "arch").values()
    ]


def model_name(arch: str) -> str:
    return MODELS.get(arch, arch or "unnamed")


def task_name(task: str) -> str:
    return TASKS.get(task, task or "unnamed")


# ---- tables and sentences --------------------------------------------------------------------------------


def accuracy_table(rows: Sequence[LengthRow]) -> Table:
    """Mean ± spread at the training length and its multiples; at every length where hardly any of these is there."""
    lengths = sorted({row.length for row in rows})
    trained = _trained_to(rows)
    chosen = [length for length in lengths if trained and length in {trained * times for times in MULTIPLES}]
    chosen = chosen if len(chosen) > 1 else lengths
    sight = _short_sight(rows)
    cells = []
    for own in _lines(rows):
        at = {row.length: row for row in own}
        farthest = at[max(at)]
        cells.append(
            [
                task_name(own[0].task),
                model_name(own[0].arch),
                *(_accuracy(at.get(length)) for length in chosen),
                numbers.percent(farthest.chance),
                *([] if sight is None else [numbers.percent(farthest.short_memory)]),
            ]
        )
    seeds = sorted({row.seeds for row in rows})
    told = f"{seeds[0]}" if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    over = "one seed" if seeds == [1] else f"mean ± standard deviation over {told} seeds"
    caption = f"Accuracy by length, {over}" + (f"; trained on lengths up to {trained}" if trained else "")
    header = ["rule", "model", *(str(length) for length in chosen), "chance", *([] if sight is None else [sight])]
    return Table(caption, header, cells, text_columns=2)


def _trained_to(rows: Sequence[LengthRow]) -> int | None:
    return next((row.trained_to for row in rows if row.trained_to), None)


def _short_sight(rows: Sequence[LengthRow]) -> str | None:
    """What somebody with a short memory sees, in words; None where nobody worked out how far that leads."""
    trained = _trained_to(rows)
    if trained is None or all(row.short_memory is None for row in rows):
        return None
    return f"last {trained} symbols alone"


def _about_short_sight(rows: Sequence[LengthRow]) -> list[Block]:
    sight = _short_sight(rows)
    if sight is None:
        return []
    return [
        Paragraph(
            f"Whoever knows a rule and sees the {sight}, as many as the longest sequence of training has, is at best "
            "right as often as that column says (at the greatest length): only what lies above it takes a memory "
            "that reaches beyond the trained length.",
            "note",
        )
    ]


def _accuracy(row: LengthRow | None) -> str:
    if row is None:
        return numbers.MISSING
    told = f"{100 * row.accuracy:.1f}"
    return f"{told} %" if row.spread is None else f"{told} ± {100 * row.spread:.1f} %"


def model_table(rows: Sequence[LengthRow]) -> Table:
    """What sets the models apart beside their names; the rates as they were chosen for each rule."""
    cells = []
    for arch, own in _grouped(rows, "arch").items():
        sizes = [size for row in own if (size := numbers.finite(row.content.get("parameters"))) is not None]
        rates = {task: numbers.rate(numbers.finite(of[0].content.get("learning_rate"))) for task, of in _tasks(own)}
        cells.append(
            [
                model_name(arch),
                words(own[0].content.get("reads")) or numbers.MISSING,
                ", ".join(f"{task_name(task)} {rate}" for task, rate in rates.items()),
                numbers.large(max(sizes)) if sizes else numbers.MISSING,
            ]
        )
    return Table("Models", ["model", "reads", "learning rate", "parameters"], cells, text_columns=3)


def _tasks(rows: Sequence[LengthRow]) -> list[tuple[str, list[LengthRow]]]:
    return list(_grouped(rows, "task").items())


def _about_rates(rows: Sequence[LengthRow]) -> Paragraph:
    trained = _trained_to(rows)
    length = "training length" if trained is None else f"length {trained}"
    told = f"Each took the learning rate with the lowest loss on validation sequences up to {length}"
    chosen = {
        (row.arch, row.task): (numbers.finite(row.content.get("learning_rate")), rates)
        for row in rows
        if (rates := [rate for one in row.content.get("rates") or () if (rate := numbers.finite(one)) is not None])
    }
    if not chosen:
        return Paragraph(f"{told}.", "note")
    tried = sorted({rate for _, rates in chosen.values() for rate in rates})
    at_the_edge = sum(numbers.is_at_the_edge(rate, rates) for rate, rates in chosen.values())
    told += f", of {', '.join(numbers.rate(rate) for rate in tried)}"
    if at_the_edge:
        told += f"; for {at_the_edge} of {len(chosen)} it is at the edge of these, and others might serve better"
    return Paragraph(f"{told}.", "note")


def finding(task: str, rows: Sequence[LengthRow]) -> str:
    """Who knows the rule where it was trained, and who still does at the greatest length."""
    trained, longest = _trained_to(rows), max(row.length for row in rows)
    at_longest = [row for row in rows if row.length == longest]
    best = max(at_longest, key=lambda row: row.accuracy)
    far = [row.arch for row in at_longest if row.accuracy >= SOLVED]
    near = [row.arch for row in rows if row.length == trained and row.accuracy >= SOLVED]
    told = f"{task_name(task)}: "
    if trained is not None:
        told += f"at {trained}, the training length, {_who(near)} at least {100 * SOLVED:.0f} % right"
        told += f"; at {longest}, {_who(far)}"
    else:
        told += f"at {longest}, {_who(far)} at least {100 * SOLVED:.0f} % right"
    if not any(_is_above_chance(row) for row in at_longest):
        assert best.chance is not None, "or it would count as above"
        return f"{told}. Nobody is clearly above chance there, which is {numbers.percent(best.chance)}."
    chance = "" if best.chance is None else f", where chance is {numbers.percent(best.chance)}"
    if chance and best.short_memory is not None and (sight := _short_sight(rows)) is not None:
        chance += f" and the {sight} allow {numbers.percent(best.short_memory)}"
    return f"{told}. The best there is {model_name(best.arch)} with {numbers.percent(best.accuracy)}{chance}."


def _is_above_chance(row: LengthRow) -> bool:
    """By more than its seeds differ. What nobody can tell counts as above."""
    return row.chance is None or row.accuracy - row.chance > max(CLEARLY, 2 * (row.spread or 0.0))


def _who(archs: Sequence[str]) -> str:
    if not archs:
        return "no model is"
    ordered = sorted(archs, key=lambda arch: (_place(list(MODELS), arch), arch))
    return f"{listed(model_name(arch) for arch in ordered)} {'is' if len(ordered) == 1 else 'are'}"


# ---- plots -----------------------------------------------------------------------------------------------


def draw_accuracy(axes: Axes, data: tuple[str, Sequence[LengthRow]], palette: Palette) -> bool:
    """One rule: a line for each model over all lengths."""
    task, rows = data
    by_model = _grouped(rows, "arch")
    for index, (arch, own) in enumerate(by_model.items()):
        colour, line, marker = STYLES.get(arch, ("ink", ":", "."))
        own = sorted(own, key=lambda row: row.length)
        nudge = NUDGE ** (index - (len(by_model) - 1) / 2)
        axes.errorbar(
            [row.length * nudge for row in own],
            [row.accuracy for row in own],
            yerr=_bars(own),
            fmt=line,
            marker=marker,
            color=palette.models.get(colour, palette.ink),
            linewidth=1.5,
            markersize=4.5,
            elinewidth=0.9,
            capsize=2.0,
            label=shown(model_name(arch)),
        )
    lengths = sorted({row.length for row in rows})
    guesses = sorted({(row.length, row.chance) for row in rows if row.chance is not None})
    if guesses:
        axes.plot(*zip(*guesses, strict=True), "--", color=palette.ink, linewidth=0.9, label="chance", zorder=1)
    sight = _short_sight(rows)
    allowed = sorted({(row.length, row.short_memory) for row in rows if row.short_memory is not None})
    if allowed and sight is not None:
        # Wide and pale, for it often runs along the top or along chance, where it would hide a line or be hidden.
        pale: dict[str, Any] = {"color": palette.ink, "alpha": FAINT, "linewidth": 5, "zorder": 0}
        axes.plot(*zip(*allowed, strict=True), "-", label=sight, **pale)
    trained = _trained_to(rows)
    if trained is not None:
        axes.axvline(trained, color=palette.ink, linewidth=0.9, linestyle=":", label=f"trained up to {trained}")
    dress(axes, palette, shown(task_name(task)), "length of the sequence (log scale)", "right answers")
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    ticks = _ticks(lengths, trained)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_ylim(-0.04, 1.05)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:.0f} %"))
    below = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.19), "ncols": 3, "columnspacing": 1.2}
    axes.legend(frameon=False, labelcolor=palette.ink, fontsize=9, handlelength=2.6, **below)
    return True


def _bars(rows: Sequence[LengthRow]) -> list[list[float]]:
    """How far the spread reaches below and above each point, within what a share can be."""
    spreads = [row.spread or 0.0 for row in rows]
    below = [min(spread, max(0.0, row.accuracy)) for row, spread in zip(rows, spreads, strict=True)]
    return [below, [min(spread, max(0.0, 1 - row.accuracy)) for row, spread in zip(rows, spreads, strict=True)]]


def _ticks(lengths: Sequence[int], trained: int | None) -> list[int]:
    """The training length, the greatest, and as many others as have room."""
    kept = [length for length in (trained, lengths[-1]) if length is not None and length > 0]
    for length in lengths:
        if all(max(length / other, other / length) >= TICK_RATIO for other in kept):
            kept.append(length)
    return sorted(set(kept))


def describe_accuracy(task: str, rows: Sequence[LengthRow]) -> str:
    """The plot in words: each model at its shortest, training and greatest length."""
    told = []
    trained = _trained_to(rows)
    for arch, own in _grouped(rows, "arch").items():
        lengths = sorted({own[0].length, own[-1].length, *(row.length for row in own if row.length == trained)})
        at = {row.length: row for row in own}
        points = ", ".join(f"{numbers.percent(at[length].accuracy)} at {length}" for length in lengths)
        told.append(f"{model_name(arch)}: {points}")
    sight = _short_sight(rows)
    allowed = {row.length: row.short_memory for row in rows if row.short_memory is not None}
    if sight is not None and allowed:
        told.append(f"the {sight} allow {numbers.percent(allowed[max(allowed)])} at {max(allowed)}")
    return f"Line plot of the share of right answers against length, {task_name(task)}. {'; '.join(told)}."
