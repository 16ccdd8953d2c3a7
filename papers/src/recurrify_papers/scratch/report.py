"""The page of runs from scratch: validation curves against steps and time, and final scores with published ones."""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recurrify import UserError
from recurrify.pages import Column, Page, Section, Table, Text, Verdict, line_chart, numbers, write_page
from recurrify.records import RESULT_FILE, RUN_FILE
from recurrify.results import load_result
from recurrify_papers.scratch.published import PUBLISHED, published_for

PAGE = "index.html"
SAME_TEXT = ("data", "data_checksum", "symbols")
"""Settings of runs whose scores compare."""
NOT_IN_LABELS = (*SAME_TEXT, "arch", "out", "max_minutes", "seed", "valid_every", "text_field")

Run = dict[str, Any]


def find_runs(paths: Sequence[Path]) -> tuple[list[Run], list[str]]:
    """Results of finished runs in folders, or one level below them, and the names of unfinished runs."""
    runs, unfinished = [], []
    for path in paths:
        folders = [path] if (path / RUN_FILE).is_file() else sorted(file.parent for file in path.glob(f"*/{RUN_FILE}"))
        for folder in folders:
            result = load_result(folder / RESULT_FILE) if (folder / RESULT_FILE).is_file() else {"kind": "scratch"}
            if result.get("kind") == "scratch":
                runs.append(result | {"name": folder.name}) if "test" in result else unfinished.append(str(folder))
    if not runs:
        raise UserError(f"There is no finished run of `scratch train` in {', '.join(map(str, paths))}: name its --out.")
    return runs, unfinished


def write_report(paths: Sequence[Path], out: Path) -> tuple[list[Table], list[str]]:
    """Write the page of runs; returns its tables and the names of runs that are not finished."""
    runs, unfinished = find_runs(paths)
    texts: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        texts.setdefault(tuple(_config(run)[name] for name in SAME_TEXT), []).append(run)
    sections = [_section(own) for own in texts.values()]
    best = min(runs, key=lambda run: run["test"]["bits_per_symbol"])
    verdict = Verdict(
        f"{best['name']} has the lowest score, in bits per {best['unit']} of the test part of {_config(best)['data']}.",
        number=numbers.bits(best["test"]["bits_per_symbol"]),
    )
    notes = [Text(f"Not finished: {', '.join(unfinished)}.", kind="note")] if unfinished else []
    write_page(out / PAGE, Page("Language models trained from scratch", verdict, [*sections, *notes, _published()]))
    return [next(block for block in section.blocks if isinstance(block, Table)) for section in sections], unfinished


def _config(run: Run) -> Mapping[str, Any]:
    config: Mapping[str, Any] = run["provenance"]["config"]
    return config


def _labels(runs: Sequence[Run]) -> list[str]:
    """The architecture and the settings in which runs of one architecture differ; the seed makes no difference."""
    flat = [
        {name: str(value) for name, value in {**_config(run), **_config(run)["settings"]}.items() if name != "settings"}
        for run in runs
    ]
    labels = []
    for run, own in zip(runs, flat, strict=True):
        others = [one for one in flat if one["arch"] == own["arch"]]
        names = [name for name in own if name not in NOT_IN_LABELS and len({one.get(name) for one in others}) > 1]
        labels.append(", ".join([run["arch"], *(f"{name}={own[name]}" for name in names)]))
    return labels


def _section(runs: Sequence[Run]) -> Section:
    config, unit = _config(runs[0]), runs[0]["unit"]
    by_label: dict[str, list[Run]] = {}
    for label, run in zip(_labels(runs), runs, strict=True):
        by_label.setdefault(label, []).append(run)
    points = [
        {
            "model": label,
            "step": point["step"],
            "minutes": point["training_seconds"] / 60,
            "bits": point["loss"] / math.log(2),
        }
        for label, own in by_label.items()
        for point in own[0]["history"]["validation"]
    ]
    words: dict[str, Any] = {
        "y": "bits",
        "series": "model",
        "y_title": f"validation, bits per {unit}",
        "y_format": ".3f",
    }
    charts = [
        line_chart(points, x="step", title="Validation by step", **words),
        line_chart(points, x="minutes", title="Validation by training time", **words),
    ]
    title = f"{config['data']} as {config['symbols']}"
    return Section(title, [*charts, _table(by_label, f"Scores on {title}, in bits per {unit}")])


def _table(by_label: Mapping[str, Sequence[Run]], caption: str) -> Table:
    rows = []
    for label, own in by_label.items():
        first, scores = own[0], [run["test"]["bits_per_symbol"] for run in own]
        rows.append(
            [
                label,
                statistics.mean(scores),
                statistics.stdev(scores) if len(scores) > 1 else None,
                len(own),
                statistics.mean(run["validation"]["bits_per_symbol"] for run in own),
                published_for(_config(first), first["model"]),
                first["parameters"],
                first["steps"],
                first["training_seconds"] / 60,
                first["tokens_per_second"],
            ]
        )
    columns: list[str | Column] = [
        "model",
        Column("test", numbers.bits),
        Column("± (seeds)", numbers.fixed, meaning="standard deviation over the seeds"),
        Column("seeds", numbers.count),
        Column("validation", numbers.bits),
        Column("published", numbers.bits, meaning="the reproduction's test score of the same model"),
        Column("parameters", numbers.count),
        Column("steps", numbers.count),
        Column("minutes", lambda value: numbers.fixed(value, 1), meaning="of training alone"),
        Column("symbols/s", numbers.large),
    ]
    return Table(caption, columns, rows)


def _published() -> Section:
    scores = [Column(corpus, numbers.bits) for corpus in ("enwik8", "text8")]
    entries = {(one.model, one.source): one for one in PUBLISHED}.values()
    rows = [[one.model, one.source, one.steps, one.enwik8, one.text8] for one in entries]
    return Section(
        "Published", [Table("Published scores, in bits per character", ["model", "source", "steps", *scores], rows)]
    )
