"""The page of runs from scratch: validation curves against steps and time, and final scores."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recurrify import UserError
from recurrify.pages import Column, Page, Section, Table, Text, Verdict, line_chart, numbers, write_page
from recurrify.records import RESULT_FILE, RUN_FILE
from recurrify.results import load_result

PAGE = "index.html"
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
        config = run["provenance"]["config"]
        text = config["data"], config["symbols"], config["data_checksum"], config.get("held_out_checksum")
        texts.setdefault(text, []).append(run)
    best = min(runs, key=lambda run: run["test"]["bits_per_symbol"])
    verdict = Verdict(
        f"{best['name']} has the lowest score, in bits per {best['unit']} of the test part of "
        f"{best['provenance']['config']['data']}.",
        number=numbers.bits(best["test"]["bits_per_symbol"]),
        what=f"bits per {best['unit']}, {best['name']}",
    )
    tables = [_table(own, f"Scores on {data} as {symbols}") for (data, symbols, *_), own in texts.items()]
    sections = [
        Section(f"{data} as {symbols}", [*_curves(own), table])
        for ((data, symbols, *_), own), table in zip(texts.items(), tables, strict=True)
    ]
    notes = [Text(f"Not finished: {', '.join(unfinished)}.", kind="note")] if unfinished else []
    write_page(out / PAGE, Page("Language models trained from scratch", verdict, [*sections, *notes]))
    return tables, unfinished


def _curves(runs: Sequence[Run]) -> list[Any]:
    points = [
        {
            "run": run["name"],
            "step": point["step"],
            "minutes": point["training_seconds"] / 60,
            "bits": point["loss"] / math.log(2),
        }
        for run in runs
        for point in run["history"]["validation"]
    ]
    words: dict[str, Any] = {"y": "bits", "series": "run", "y_format": ".3f"}
    words["y_title"] = f"validation, bits per {runs[0]['unit']}"
    return [
        line_chart(points, x="step", title="Validation by step", **words),
        line_chart(points, x="minutes", title="Validation by training time", **words),
    ]


def _table(runs: Sequence[Run], caption: str) -> Table:
    columns: list[str | Column] = [
        "run",
        "model",
        Column("test", numbers.bits, meaning=f"bits per {runs[0]['unit']}"),
        Column("validation", numbers.bits),
        Column("parameters", numbers.count),
        Column("steps", numbers.count),
        Column("minutes", lambda value: numbers.fixed(value, 1), meaning="of training alone"),
        Column("symbols/s", numbers.large),
    ]
    rows = [
        [
            run["name"],
            run["arch"],
            run["test"]["bits_per_symbol"],
            run["validation"]["bits_per_symbol"],
            run["parameters"],
            run["steps"],
            run["training_seconds"] / 60,
            run["tokens_per_second"],
        ]
        for run in runs
    ]
    return Table(caption, columns, rows)
