"""The page of `recurrify probe`: what a model still recalls, and how far back, compared with chance and guessing."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from recurrify.errors import UserError
from recurrify.pages import numbers
from recurrify.pages.charts import line_chart, write_picture
from recurrify.pages.numbers import facts
from recurrify.pages.page import Chart, Column, Fold, Page, Section, Table, Terms, Text, Verdict, write_page

PAGE, PICTURE = "index.html", "probe.png"
TITLE = "recurrify probe"
TERMS = [
    ("distance", "windows between the statement and the question; 1 is the next window."),
    ("accuracy", "how often the right candidate is the most likely one, with its 95 % interval."),
    ("probability", "the mean probability of the right candidate; all candidates together have 1."),
    ("chance", "the accuracy of a reader who remembers nothing."),
    (
        "guessing",
        "the accuracy of a reader who remembers all answers that were given, but not which question they belong to, "
        "and rules out those already asked for; not shown where there is only one answer.",
    ),
    ("full context", "the same model with statement and question in one window."),
]

Result = Mapping[str, Any]


class Asked(NamedTuple):
    """What makes the scores of two results comparable: the same task with the same settings."""

    task: str
    form: str
    """Texts, or symbols that a model is trained on."""
    asks: str
    chance: float | None
    guess: float | None
    settings: tuple[tuple[str, str], ...]


Entries = list[tuple[str, Mapping[str, Any], Result]]
"""Scores of one task, each with the model's name and the result it is from."""


def probe_tables(results: Sequence[Result]) -> list[Table]:
    """One table for each task."""
    return [_table(title, asked, found) for title, asked, found in _by_task(results)]


def _by_task(results: Sequence[Result]) -> list[tuple[str, Asked, Entries]]:
    """Each task with a title of its own and its scores."""
    tasks: dict[Asked, Entries] = {}
    for name, result in zip(_names(results), results, strict=True):
        for scores in result.get("tasks") or []:
            tasks.setdefault(_asked(scores), []).append((name, scores, result))
    return [(title, *found) for title, found in zip(_titles(list(tasks)), tasks.items(), strict=True)]


def _asked(scores: Mapping[str, Any]) -> Asked:
    settings = facts(scores.get("settings")).items()
    return Asked(
        task=str(scores.get("task")),
        form=str(scores.get("form") or ""),
        asks=str(scores.get("asks") or ""),
        chance=numbers.finite(scores.get("chance")),
        guess=numbers.finite(scores.get("guess")),
        settings=tuple(sorted((str(name), str(value)) for name, value in settings)),
    )


def _titles(tasks: Sequence[Asked]) -> list[str]:
    """The task's name, followed by the settings, or else a number, where several tasks share it."""
    titles: list[str] = []
    for one in tasks:
        namesakes = [other for other in tasks if other.task == one.task]
        parts = [one.form] if one.form and len({other.form for other in namesakes}) > 1 else []
        alike = set.intersection(*(set(other.settings) for other in namesakes))
        parts += [f"{name} {value}" for name, value in one.settings if (name, value) not in alike]
        title = f"{one.task} ({', '.join(parts)})" if parts else one.task
        again = titles.count(title)
        titles.append(title if not again else f"{title}, {again + 1}")
    return titles


def _levels(asked: Asked) -> dict[str, float]:
    """Accuracies without a memory, and with a memory of the answers alone unless that is everything."""
    found = {"chance": asked.chance, "guessing": asked.guess}
    return {name: level for name, level in found.items() if level is not None and level < 1}


def _names(results: Sequence[Result]) -> list[str]:
    """The models' names, numbered where two are the same."""
    names = [str(result.get("name")) for result in results]
    return [
        f"{name} ({names[: index + 1].count(name)})" if names.count(name) > 1 else name
        for index, name in enumerate(names)
    ]


def _table(title: str, asked: Asked, found: Entries) -> Table:
    rows = []
    for name, scores, _ in found:
        lines = [("full context", scores.get("full_context"))]
        lines += [(row.get("distance"), row) for row in scores.get("rows") or []]
        rows += [[name, distance, *_values(row)] for distance, row in lines if row]
    levels = ", ".join(f"{name} {numbers.percent(level)}" for name, level in _levels(asked).items())
    columns: list[str | Column] = ["model", Column("distance", numbers.count), Column("accuracy", numbers.percent)]
    columns += [Column("95 % interval", numbers.percent_range), Column("probability", numbers.fixed)]
    return Table(f"{title} ({levels})" if levels else title, [*columns, Column("answers", numbers.count)], rows)


def _values(row: Mapping[str, Any]) -> list[Any]:
    accuracy, interval = numbers.finite(row.get("accuracy")), numbers.finite_pair(row.get("interval"))
    return [accuracy, interval, numbers.finite(row.get("probability")), numbers.finite(row.get("answers"))]


def accuracy_chart(title: str, asked: Asked, found: Entries) -> Chart:
    """Accuracy against distance, one line for each model, with the levels of chance and guessing."""
    records = []
    for name, scores, _ in found:
        full = scores.get("full_context")
        for row in [*([{**full, "distance": 0}] if full else []), *(scores.get("rows") or [])]:
            accuracy = numbers.finite(row.get("accuracy"))
            low, high = numbers.finite_pair(row.get("interval")) or (accuracy, accuracy)
            records.append(
                {"distance": row.get("distance"), "accuracy": accuracy, "low": low, "high": high, "model": name}
            )
    trained = {result.get("trained_up_to") for _, _, result in found} - {None}
    return line_chart(
        records,
        x="distance",
        y="accuracy",
        series="model",
        band=("low", "high"),
        levels=_levels(asked),
        marks={"trained up to here": float(trained.pop() or 0)} if len(trained) == 1 else {},
        points=True,
        title=title,
        x_title="distance in windows (0: full context)",
        x_scale="symlog",
        x_ticks=sorted({one["distance"] for one in records if numbers.finite(one["distance"]) is not None}),
        y_format="~%",
        y_from_zero=True,
        description=_described(title, found),
        caption="Bands: 95 % intervals.",
    )


class Recall(NamedTuple):
    """The farthest distance from which a model answers better than memory-free levels explain."""

    distance: float
    task: str
    model: str
    accuracy: float
    interval: tuple[float, float]
    level: float


def farthest_recall(tasks: Sequence[tuple[str, Asked, Entries]]) -> Recall | None:
    """Over all tasks and models; None where no interval lies above both chance and guessing."""
    found: list[Recall] = []
    for title, asked, entries in tasks:
        level = max(_levels(asked).values(), default=None)
        for name, scores, _ in entries:
            for row in scores.get("rows") or []:
                interval, distance = numbers.finite_pair(row.get("interval")), numbers.finite(row.get("distance"))
                accuracy = numbers.finite(row.get("accuracy"))
                if interval is None or distance is None or accuracy is None or level is None:
                    continue
                if interval[0] > level:
                    found.append(Recall(distance, title, name, accuracy, interval, level))
    return max(found, key=lambda one: (one.distance, one.accuracy), default=None)


def probe_verdict(results: Sequence[Result]) -> Verdict:
    """What the probes show: how far back something is recalled, or that there is no evidence of it."""
    tasks = _by_task(results)
    answers = sum(
        int(row.get("answers") or 0)
        for _, _, found in tasks
        for _, scores, _ in found
        for row in scores.get("rows") or []
    )
    sizes = [("tasks", numbers.count(len(tasks))), ("models", numbers.count(len(results)))]
    sizes.append(("answers", numbers.count(answers)))
    best = farthest_recall(tasks)
    if best is None:
        sentence = "No evidence of recall at any distance: no accuracy is clearly above both chance and guessing."
        interval = "all 95 % intervals reach down to chance or guessing"
        return Verdict(sentence, "none", "recall at any distance", interval, sizes, "worse")
    windows = "1 window" if best.distance == 1 else f"{numbers.count(best.distance)} windows"
    sentence = (
        f"{best.model} recalls from up to {windows} back ({best.task}): {numbers.percent(best.accuracy)} right there, "
        f"{numbers.percent(best.level)} without a memory."
    )
    what = f"back, as far as {best.model} recalls ({best.task})"
    interval = f"95 % interval of its accuracy there: {numbers.percent_range(best.interval)}"
    return Verdict(sentence, windows, what, interval, sizes, "better")


def write_probe_page(results: Sequence[Result], folder: Path) -> None:
    """Write `index.html` and `probe.png` into the folder."""
    tasks = _by_task(results)
    if not tasks:
        raise UserError("The results hold no tasks, so there is nothing to show: give what `recurrify probe` saved.")
    charts = [accuracy_chart(*task) for task in tasks]
    first = next((place for place, task in enumerate(tasks) if farthest_recall([task])), 0)
    write_picture(charts, folder / PICTURE)
    blocks = [
        Section(title, [Text(asked.asks), *([charts[place]] if place != first else []), _table(title, asked, found)])
        for place, (title, asked, found) in enumerate(tasks)
    ]
    ends = [Section("Models", [_models(results)]), Fold("What the numbers mean", [Terms(TERMS)])]
    provenance = facts(results[0].get("provenance")) if len(results) == 1 else {}
    write_page(folder / PAGE, Page(TITLE, probe_verdict(results), [*blocks, *ends], charts[first], provenance))


def _described(task: str, found: Entries) -> str:
    lines = []
    for name, scores, _ in found:
        rows = [
            f"{numbers.percent(numbers.finite(row.get('accuracy')))} at {row.get('distance')}"
            for row in scores.get("rows") or []
        ]
        lines.append(f"{name}: {', '.join(rows)}")
    return f"Accuracy on {task} against the distance in windows. {'; '.join(lines)}."


def _models(results: Sequence[Result]) -> Table:
    columns: list[str | Column] = [
        "model",
        "mechanism",
        Column("window", numbers.count),
        Column("trained up to", numbers.count),
    ]
    rows = [
        [
            name,
            str(result.get("mechanism")),
            numbers.finite(result.get("window")),
            numbers.finite(result.get("trained_up_to")),
            numbers.finite((result.get("memory") or {}).get("state_floats")),
        ]
        for name, result in zip(_names(results), results, strict=True)
    ]
    return Table("Models", [*columns, Column("state, numbers", numbers.count)], rows)
