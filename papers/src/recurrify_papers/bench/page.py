"""The page of benchmark results."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recurrify.pages import Block, Page, Table, Verdict, bar_chart, line_chart, write_page
from recurrify_papers.bench.results import bench_tables, row_name


def write_bench_page(parts: Mapping[str, Mapping[str, Any]], folder: Path) -> Path:
    """Write `index.html` and return its path."""
    blocks: list[Block] = []
    training = [
        {"what": row_name(group, row), "tokens per second": row["tokens_per_second"]}
        for group in _groups(parts, "training")[-1:]
        for row in group["rows"]
    ]
    if training:
        title = "Training, the largest batch"
        blocks.append(bar_chart(training, x="tokens per second", y="what", title=title, x_format=",.0f"))
    lengths = [
        {"tokens": group["tokens"], "GiB": row["peak_bytes"] / 2**30, "model": row_name({}, row)}
        for group in _groups(parts, "lengths")
        for row in group["rows"]
        if row["peak_bytes"] is not None
    ]
    if lengths:
        title = "Peak memory of a training step by the length of the sequence"
        blocks.append(line_chart(lengths, x="tokens", y="GiB", series="model", title=title, x_scale="log", points=True))
    blocks += [Table(*table) for table in bench_tables(parts)]
    provenance = next(iter(parts.values()))["provenance"]
    path = folder / "index.html"
    write_page(path, Page("Speed and memory", _verdict(parts), blocks, provenance=provenance))
    return path


def _groups(parts: Mapping[str, Mapping[str, Any]], name: str) -> list[dict[str, Any]]:
    groups: list[dict[str, Any]] = parts.get(name, {}).get("groups", [])
    return groups


def _verdict(parts: Mapping[str, Mapping[str, Any]]) -> Verdict:
    """Carry compared with plain windows, in the best mode and the largest batch."""
    ratios = {one["name"]: one for group in _groups(parts, "training") for one in group["ratios"]}
    for mode in ("graphs", "compiled", "eager"):
        found = ratios.get(f"carry, {mode} / plain")
        if found is not None:
            text = f"Training with the paper's memory, compared with plain windows ({mode}, largest batch)."
            interval = f"lowest and highest of the repeats: {found['low']:.2f} to {found['high']:.2f}"
            return Verdict(text, f"{found['ratio']:.2f} times", "as many tokens per second as plain windows", interval)
    return Verdict("Training was not measured.")
