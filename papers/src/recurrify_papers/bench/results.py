"""Benchmark results: reading them, and their tables as text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from recurrify import UserError
from recurrify.results import load_result
from recurrify_papers.bench.bench import PARTS

IDENTITY = ("batch", "tokens", "documents", "prompt")
"""The names by which groups of a part differ."""


class TextTable(NamedTuple):
    caption: str
    header: list[str]
    rows: list[list[str]]


def load_parts(folder: Path) -> dict[str, dict[str, Any]]:
    """Results by part; raises UserError where there are none."""
    found = {name: load_result(folder / f"{name}.json") for name in PARTS if (folder / f"{name}.json").is_file()}
    for name, result in found.items():
        if result.get("kind") != "bench" or result.get("part") != name or "groups" not in result:
            raise UserError(f"{folder / name}.json is not a result of `recurrify bench`: choose another --out.")
    if not found:
        raise UserError(f"No benchmark results in {str(folder)!r}: run `recurrify bench --out {folder}` first.")
    return found


HEADER = ["what", "tokens/s", "of the ceiling", "GiB", "estimated"]


def bench_tables(parts: Mapping[str, Mapping[str, Any]]) -> list[TextTable]:
    """Rows and ratios of every part."""
    tables = []
    for name, result in parts.items():
        rows = [[row_name(group, row), *_cells(row)] for group in result["groups"] for row in group["rows"]]
        tables.append(TextTable(f"{name}: {PARTS[name].purpose}", HEADER, rows))
        ratios = [
            [f"{one['name']}, {_identity(group)}", f"{one['ratio']:.2f}", f"{one['low']:.2f} to {one['high']:.2f}"]
            for group in result["groups"]
            for one in group["ratios"]
        ]
        if ratios:
            tables.append(TextTable(f"{name}: times as fast", ["what", "median", "range"], ratios))
    return tables


def row_name(group: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """A row in words."""
    parts = [row["model"], row.get("mode"), "checkpointed" if row.get("checkpoint") else None, _identity(group)]
    if row.get("rows"):
        parts.insert(1, f"{row['rows']} documents at once")
    return ", ".join(part for part in parts if part)


def _identity(group: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {group[key]}" for key in IDENTITY if key in group)


def _cells(row: Mapping[str, Any]) -> list[str]:
    if row["problem"] is not None:
        return [row["problem"], *[""] * (len(HEADER) - 2)]
    share, sizes = row.get("share_of_ceiling"), (row.get("peak_bytes"), row.get("estimated_bytes"))
    return [
        f"{row['tokens_per_second']:,.0f}",
        "" if share is None else f"{100 * share:.0f} %",
        *("" if size is None else f"{size / 2**30:.1f}" for size in sizes),
    ]
