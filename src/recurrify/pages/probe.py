"""Probes as tables, a picture and a small page: accuracy against distance, beside chance, guessing and full context."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from recurrify.data.probes import symbol_probe
from recurrify.errors import UserError
from recurrify.pages import html_parts as parts
from recurrify.pages import numbers, plots
from recurrify.pages.numbers import facts
from recurrify.pages.plots import Palette
from recurrify.pages.tables import Table
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
    (
        "guess",
        "how often one is right who remembers all answers that were said, but not whose they are, and strikes out "
        "those that were asked for; not told where only one is said.",
    ),
    ("full (context)", "the same model with what is said and what is asked in one window."),
]

Result = Mapping[str, Any]


class Asked(NamedTuple):
    """What makes two results' scores comparable: the same task with the same settings."""

    task: str
    form: str
    """Texts, or symbols that a model is trained on."""
    asks: str
    chance: float | None
    guess: float | None
    settings: tuple[tuple[str, str], ...]


Entries = list[tuple[str, Mapping[str, Any], Result]]
"""Scores of one task with the name of who was asked, and the result they are from."""


def probe_tables(results: Sequence[Result]) -> list[Table]:
    """One table for each task."""
    return [_table(title, asked, found) for title, asked, found in _by_task(results)]


def _by_task(results: Sequence[Result]) -> list[tuple[str, Asked, Entries]]:
    """Each task with a title of its own and its scores."""
    tasks: dict[Asked, Entries] = {}
    for name, result in zip(_names(results), results, strict=True):
        for scores in result.get("tasks") or []:
            tasks.setdefault(_asked(scores, result), []).append((name, scores, result))
    return [(title, *found) for title, found in zip(_titles(list(tasks)), tasks.items(), strict=True)]


def _asked(scores: Mapping[str, Any], result: Result) -> Asked:
    """Older results tell a task's settings only where they tell their own, and no level of guessing."""
    task, config = str(scores.get("task")), facts(facts(result.get("provenance")).get("config"))
    form = str(scores.get("form") or ("symbols" if "task_settings" in config else "text"))
    settings, guess = facts(scores.get("settings", config.get("task_settings"))), numbers.finite(scores.get("guess"))
    if form == "symbols" and guess is None:
        try:
            probe = symbol_probe(task, **settings)
        except UserError:
            pass  # a task that is no longer known: shown as far as it goes
        else:
            settings, guess = asdict(cast(Any, probe)), probe.guess_level
    told = tuple(sorted((str(name), str(value)) for name, value in settings.items()))
    return Asked(task, form, str(scores.get("asks") or ""), numbers.finite(scores.get("chance")), guess, told)


def _titles(tasks: Sequence[Asked]) -> list[str]:
    """The name where that is enough; else with what tells tasks of one name apart, and if nothing does a number."""
    titles: list[str] = []
    for one in tasks:
        namesakes = [other for other in tasks if other.task == one.task]
        parts = [one.form] if len({other.form for other in namesakes}) > 1 else []
        alike = set.intersection(*(set(other.settings) for other in namesakes))
        parts += [f"{name} {value}" for name, value in one.settings if (name, value) not in alike]
        title = f"{one.task} ({', '.join(parts)})" if parts else one.task
        again = titles.count(title)
        titles.append(title if not again else f"{title}, {again + 1}")
    return titles


def _levels(asked: Asked) -> dict[str, float]:
    """What no memory reaches, and what a memory of the answers alone does, unless that is everything."""
    found = {"chance": asked.chance, "guess": asked.guess}
    return {name: level for name, level in found.items() if level is not None and level < 1}


def _names(results: Sequence[Result]) -> list[str]:
    """Told apart where two have the same name."""
    names = [str(result.get("name")) for result in results]
    return [
        f"{name} ({names[: index + 1].count(name)})" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]


def _table(title: str, asked: Asked, found: Entries) -> Table:
    rows = []
    for name, scores, _ in found:
        lines = [("full", scores.get("full_context"))]
        lines += [(numbers.count(row.get("distance")), row) for row in scores.get("rows") or []]
        rows += [[name, *_cells(distance, row)] for distance, row in lines if row]
    levels = ", ".join(f"{name} {numbers.percent(level)}" for name, level in _levels(asked).items())
    header = ["model", "distance", "accuracy", "95 % interval", "probability", "answers"]
    return Table(f"{title} ({levels})" if levels else title, header, rows, text_columns=1)


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
    task, asked, entries = found
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
    for (name, level), dashes in zip(_levels(asked).items(), ("--", "-."), strict=False):
        axes.axhline(level, linestyle=dashes, color=palette.ink, linewidth=1, label=name)
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
    if not tasks:
        raise UserError("The results hold no tasks, so there is nothing to show: give what `recurrify probe` saved.")
    _write_picture(tasks, folder / PICTURE)
    body = [parts.terms(TERMS)]
    for title, asked, found in tasks:
        svg = plots.svg(draw_accuracy, (title, asked, found), title)
        figure = parts.figure(svg, _described(title, found), "Bands: 95 % intervals.") if svg else ""
        table = parts.table(_table(title, asked, found))
        body.append(parts.section(title, [parts.paragraph(asked.asks), figure, table]))
    body.append(_models(results))
    write_whole(folder / PAGE, parts.document(TITLE, body).encode("utf-8", errors="replace"))


def _write_picture(tasks: Sequence[tuple[str, Asked, Entries]], path: Path) -> None:
    """All tasks on white, so many side by side."""
    columns = min(len(tasks), COLUMNS)
    lines = math.ceil(len(tasks) / columns)
    figure = Figure(figsize=(5.2 * columns, 3.9 * lines), layout="constrained", facecolor="white")
    for place, found in enumerate(tasks, start=1):
        axes = figure.add_subplot(lines, columns, place)
        axes.set_visible(draw_accuracy(axes, found, plots.ON_WHITE))
    content = BytesIO()
    figure.savefig(content, format="png", dpi=120, metadata={"Software": None})
    write_whole(path, content.getvalue())


def _described(task: str, found: Entries) -> str:
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
