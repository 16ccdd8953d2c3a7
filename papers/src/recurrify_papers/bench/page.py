"""Tables and a page of benchmark results."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recurrify import UserError
from recurrify.pages import Block, Page, Table, Verdict, bar_chart, line_chart, write_page
from recurrify.results import load_result
from recurrify_papers.bench.bench import IDENTITY, PARTS


def load_parts(folder: Path) -> dict[str, dict[str, Any]]:
    """Results by part; raises UserError where there are none."""
    found = {name: load_result(folder / f"{name}.json") for name in PARTS if (folder / f"{name}.json").is_file()}
    for name, result in found.items():
        if result.get("kind") != "bench" or result.get("part") != name or "groups" not in result:
            raise UserError(f"{folder / name}.json is not a result of `recurrify bench`: choose another --out.")
    if not found:
        raise UserError(f"No benchmark results in {str(folder)!r}: run `recurrify bench --out {folder}` first.")
    return found


def bench_tables(parts: Mapping[str, Mapping[str, Any]]) -> list[Table]:
    """Rows and ratios of every part."""
    tables: list[Table] = []
    for name, result in parts.items():
        rows = [[_label(group, row), *_cells(row)] for group in result["groups"] for row in group["rows"]]
        tables.append(Table(f"{name}: {PARTS[name].purpose}", ["what", "tokens/s", "of the ceiling", "GiB"], rows))
        ratios = [
            [f"{one['name']}, {_identity(group)}", f"{one['ratio']:.2f}", f"{one['low']:.2f} to {one['high']:.2f}"]
            for group in result["groups"]
            for one in group["ratios"]
        ]
        if ratios:
            tables.append(Table(f"{name}: times as fast", ["what", "median", "range"], ratios))
    return tables


def write_bench_page(parts: Mapping[str, Mapping[str, Any]], folder: Path) -> Path:
    """Write `index.html` and return its path."""
    blocks: list[Block] = []
    training = [
        {"what": _label(group, row), "tokens per second": row["tokens_per_second"]}
        for group in (parts.get("training") or {}).get("groups", [])[-1:]
        for row in group["rows"]
    ]
    if training:
        title = "Training, the largest batch"
        blocks.append(bar_chart(training, x="tokens per second", y="what", title=title, x_format=",.0f"))
    lengths = [
        {"tokens": group["tokens"], "GiB": row["peak_bytes"] / 2**30, "model": _label({}, row)}
        for group in (parts.get("lengths") or {}).get("groups", [])
        for row in group["rows"]
        if row["peak_bytes"] is not None
    ]
    if lengths:
        title = "Peak memory of a training step by the length of the sequence"
        blocks.append(line_chart(lengths, x="tokens", y="GiB", series="model", title=title, x_scale="log", points=True))
    path = folder / "index.html"
    provenance = next(iter(parts.values()))["provenance"]
    page = Page("Speed and memory", _verdict(parts), [*blocks, *bench_tables(parts)], provenance=provenance)
    write_page(path, page)
    return path


def _verdict(parts: Mapping[str, Mapping[str, Any]]) -> Verdict:
    """Carry against plain windows in the best mode and the largest batch."""
    groups = (parts.get("training") or {}).get("groups", [])
    ratios = {one["name"]: one for group in groups for one in group["ratios"]}
    for mode in ("graphs", "compiled", "eager"):
        found = ratios.get(f"carry, {mode} / plain")
        if found is not None:
            text = f"the speed of plain windows with the paper's memory ({mode})"
            return Verdict(text, number=f"{found['ratio']:.2f}", interval=f"{found['low']:.2f} to {found['high']:.2f}")
    return Verdict("Training was not measured.")


def _identity(group: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {group[key]}" for key in IDENTITY if key in group and key != "packages")


def _label(group: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    parts = [row["model"], row.get("mode"), "checkpointed" if row.get("checkpoint") else None, _identity(group)]
    if row.get("rows"):
        parts.insert(1, f"{row['rows']} documents at once")
    return ", ".join(part for part in parts if part)


def _cells(row: Mapping[str, Any]) -> list[str]:
    if row["problem"] is not None:
        return [row["problem"], "", ""]
    share, peak = row.get("share_of_ceiling"), row.get("peak_bytes")
    return [
        f"{row['tokens_per_second']:,.0f}",
        "" if share is None else f"{100 * share:.0f} %",
        "" if peak is None else f"{peak / 2**30:.1f}",
    ]
