"""What recurrence costs: plain windows and the paper's memory in the parts of `recurrify bench`."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from recurrify.data import pick_device
from recurrify.results import provenance
from recurrify_papers.bench.bench import Bench, measure
from recurrify_papers.bench.results import row_name
from recurrify_papers.bench.sizes import size_for
from recurrify_papers.bench.timing import ratio
from recurrify_papers.runner import Say

PLAIN, RECURRENT = "plain", "carry"
MEASURES = {
    "training": ("training tokens per second", "published: 24 h became close to 30 h (guessed)"),
    "reading": ("reading throughput", "published: inference 5 % slower (guessed)"),
    "generation": ("generated tokens per second", None),
}
"""By part of the benchmark: what it measures, and what the thesis expected."""
MEMORY = "peak memory of a training step (GiB)"
EXPECTED_MEMORY = "published: 2 GB more (guessed)"


def cost_run(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """Measure both models with random weights; run it on a device that does nothing else."""
    device = pick_device()
    size = replace(size_for(settings["shape"], device), **settings["changes"])
    modes = ("graphs" if device.type == "cuda" else "eager",)
    bench = Bench(size=size, device=device, memories=(PLAIN, RECURRENT), modes=modes, batches=size.batches)
    numbers: list[dict[str, Any]] = []
    for part in MEASURES:
        for group in measure(bench, part):
            numbers += numbers_of(part, group)
        say(f"{folder.name}: {part} measured")
    return {"kind": "cost", "numbers": numbers, "provenance": provenance(settings)}


def numbers_of(part: str, group: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Both models, and the ratio of their speeds, wherever both were measured in the same way."""
    measure, expected = MEASURES[part]
    pairs: dict[str, dict[str, dict[str, Any]]] = {}
    for row in group["rows"]:
        pairs.setdefault(row_name(group, {**row, "model": None}), {})[row["model"]] = row
    for label, rows in pairs.items():
        if not {PLAIN, RECURRENT} <= rows.keys():
            continue
        for model in (PLAIN, RECURRENT):
            row, common = rows[model], {"label": label, "model": model}
            yield {**common, "metric": f"{measure} (tokens/s)", "value": row["tokens_per_second"]}
            if part == "training" and row["peak_bytes"] is not None:
                yield {**common, "metric": MEMORY, "value": row["peak_bytes"] / 2**30, "note": EXPECTED_MEMORY}
        for turns in ratio(label, rows[RECURRENT]["seconds"], rows[PLAIN]["seconds"]):
            note = "; ".join(filter(None, [expected, f"single turns {turns['low']:.3f} to {turns['high']:.3f}"]))
            yield {"label": label, "model": None, "metric": f"{measure}, ratio", "value": turns["ratio"], "note": note}
