"""Probes as tables, a picture and a small page: accuracy against distance, with chance and full context beside it."""

import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from recurrify.report import html_parts as parts
from recurrify.report import numbers, plots
from recurrify.report.plots import Palette
from recurrify.report.tables import Table
from recurrify.results import write_whole

PAGE, PICTURE = "index.html", "probe.png"
TITLE = "recurrify probe"
LINES = ("-", "--", "-.", ":")
COLUMNS = 3
COLOURS = ("recurrent", "plain", "best", "xlnet")
"""Of the palette, in this order, whatever the models are."""
MARKERS = ("o", "s", "^", "D", "v", "P")
TERMS = [
    ("distance", "windows from what is said to what is asked; 1 is the next window."),
    ("accuracy", "how often the right one of the candidates is the likeliest, with its 95 % interval."),
    ("probability", "what the right candidate gets on average, all candidates together getting 1."),
    ("chance", "how often a reader who remembers nothing is right."),
    ("full (context)", "the same model with what is said and what is asked in one window."),
]

Result = Mapping[str, Any]


def probe_tables(results: Sequence[Result]) -> list[Table]:
    """One table for each task."""
    return [_table(task, found) for task, found in _by_task(results).items()]


def _by_task(results: Sequence[Result]) -> dict[str, list[tuple[str, Mapping[str, Any], Result]]]:
    """Each task's scores with the name of who was asked."""
    named = _names(results)
    tasks: dict[str, list[tuple[str, Mapping[str, Any], Result]]] = {}
    for name, result in zip(named, results, strict=True):
        for task in result.get("tasks") or []:
            tasks.setdefault(str(task.get("task")), []).append((name, task, result))
    return tasks


def _names(results: Sequence[Result]) -> list[str]:
    """Told apart where two have the same name."""
    names = [str(result.get("name")) for result in results]
    return [
        f"{name} ({names[: index + 1].count(name)})" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]


def _table(task: str, found: Sequence[tuple[str, Mapping[str, Any], Result]]) -> Table:
    rows = []
    for name, scores, _ in found:
        lines = [("full", scores.get("full_context"))]
        lines += [(numbers.count(row.get("distance")), row) for row in scores.get("rows") or []]
        rows += [[name, *_cells(distance, row)] for distance, row in lines if row]
    chance = numbers.percent(numbers.finite(found[0][1].get("chance")))
    header = ["model", "distance", "accuracy", "95 % interval", "probability", "answers"]
    return Table(f"{task} (chance {chance})", header, rows, text_columns=1)


def _cells(distance: str, row: Mapping[str, Any]) -> list[str]:
    return [
        distance,
        numbers.percent(numbers.finite(row.get("accuracy"))),
        numbers.percent_range(numbers.finite_pair(row.get("interval"))),
        numbers.fixed(numbers.finite(row.get("probability"))),
        numbers.count(row.get("answers")),
    ]


def draw_accuracy(axes: Axes, found: Any, palette: Palette) -> bool:
    """Accuracy against distance, one line for each model; a hollow mark at 0 is full context."""
    task, entries = found
    distances: set[float] = set()
    for number, (name, scores, _) in enumerate(entries):
        rows = [row for row in scores.get("rows") or [] if numbers.finite(row.get("accuracy")) is not None]
        if not rows:
            continue
        colours = [palette.models[model] for model in COLOURS]
        colour = colours[number % len(colours)]
        # More models than colours: the line tells them apart.
        line, marker = LINES[number // len(colours) % len(LINES)], MARKERS[number % len(MARKERS)]
        at = [row["distance"] for row in rows]
        distances |= set(at)
        axes.plot(at, [row["accuracy"] for row in rows], line, marker=marker, color=colour, markersize=4, label=name)
        spans = [numbers.finite_pair(row.get("interval")) or (row["accuracy"],) * 2 for row in rows]
        axes.fill_between(at, [low for low, _ in spans], [high for _, high in spans], color=colour, alpha=0.15, lw=0)
        full = numbers.finite((scores.get("full_context") or {}).get("accuracy"))
        if full is not None:
            axes.plot([0], [full], marker=marker, color=colour, markersize=7, markerfacecolor="none", linestyle="none")
    if not distances:
        return False
    chance = numbers.finite(entries[0][1].get("chance"))
    if chance is not None:
        axes.axhline(chance, linestyle="--", color=palette.ink, linewidth=1, label="chance")
    trained = {result.get("trained_up_to") for _, _, result in entries} - {None}
    if len(trained) == 1:
        axes.axvline(trained.pop(), linestyle=":", color=palette.ink, linewidth=1, label="trained up to here")
    plots.dress(axes, palette, str(task), "distance in windows (hollow at 0: full context)", "accuracy")
    axes.set_xscale("symlog", linthresh=1, linscale=0.25)
    axes.set_xticks([0, *sorted(distances)])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_xlim(-0.6, 1.15 * max(distances))
    axes.set_ylim(-0.03, 1.03)
    return plots.legend(axes, palette)


def write_probe_page(results: Sequence[Result], folder: Path) -> None:
    """`index.html` and `probe.png` in the folder."""
    tasks = _by_task(results)
    _write_picture(tasks, folder / PICTURE)
    body = [parts.terms(TERMS)]
    for (task, found), table in zip(tasks.items(), probe_tables(results), strict=True):
        svg = plots.svg(draw_accuracy, (task, found), task)
        figure = parts.figure(svg, _described(task, found), "Bands: 95 % intervals.") if svg else ""
        body.append(
            parts.section(task, [parts.paragraph(str(found[0][1].get("asks") or "")), figure, parts.table(table)])
        )
    body.append(_models(results))
    write_whole(folder / PAGE, parts.document(TITLE, body).encode("utf-8", errors="replace"))


def _write_picture(tasks: Mapping[str, Any], path: Path) -> None:
    """All tasks on white, so many side by side."""
    columns = min(len(tasks), COLUMNS)
    lines = math.ceil(len(tasks) / columns)
    figure = Figure(figsize=(5.2 * columns, 3.9 * lines), layout="constrained", facecolor="white")
    for place, found in enumerate(tasks.items(), start=1):
        axes = figure.add_subplot(lines, columns, place)
        axes.set_visible(draw_accuracy(axes, found, plots.ON_WHITE))
    content = BytesIO()
    figure.savefig(content, format="png", dpi=120, metadata={"Software": None})
    write_whole(path, content.getvalue())


def _described(task: str, found: Sequence[tuple[str, Mapping[str, Any], Result]]) -> str:
    told = []
    for name, scores, _ in found:
        rows = [
            f"{numbers.percent(numbers.finite(row.get('accuracy')))} at {row.get('distance')}" for row in scores["rows"]
        ]
        told.append(f"{name}: {', '.join(rows)}")
    return f"Line plot of the accuracy on {task} against the distance in windows. {'; '.join(told)}."


def _models(results: Sequence[Result]) -> str:
    header = ["model", "mechanism", "window", "trained up to", "state, numbers"]
    rows = [
        [
            name,
            str(result.get("mechanism")),
            numbers.count(result.get("window")),
            numbers.count(result.get("trained_up_to")),
            numbers.count((result.get("memory") or {}).get("state_floats")),
        ]
        for name, result in zip(_names(results), results, strict=True)
    ]
    return parts.section("Models", [parts.table(Table("What was asked", header, rows, text_columns=2))])
