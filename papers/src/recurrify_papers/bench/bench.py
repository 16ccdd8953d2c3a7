"""`recurrify bench`: parts that each measure groups of rows. Every group is saved as soon as it is measured."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

import torch
from torch.utils.benchmark import Timer

from recurrify.console import say
from recurrify.results import provenance, save_result
from recurrify_papers.bench.sizes import Size
from recurrify_papers.bench.timing import Row


class Part(NamedTuple):
    purpose: str
    function: str
    """`module:function` in this package; takes a `Bench` and yields groups."""


PARTS = {
    "training": Part("training steps compared with transformers", "training:measure_training"),
    "start": Part("the first training step, with and without a compiler's cache", "training:measure_start"),
    "lengths": Part("memory and speed of a step by the length of a sequence", "training:measure_lengths"),
    "generation": Part("time per generated token by the length of the text", "inference:measure_generation"),
    "batching": Part("generation by transformers' continuous batching", "inference:measure_batching"),
    "reading": Part("scoring documents", "inference:measure_reading"),
    "naive": Part("the paper's carry compared with a naive loop", "training:measure_naive"),
    "peers": Part("training compared with other packages", "peers:measure_peers"),
}


@dataclass
class Bench:
    """What is measured."""

    size: Size
    device: torch.device
    memories: tuple[str, ...]
    modes: tuple[str, ...]
    batches: tuple[int, ...]
    ceiling: float | None = None
    """Measured FLOP/s of matrix products."""
    checkpoints: bool = True
    """Whether checkpointed steps are measured, too."""

    def share(self, flops_per_second: float | None) -> float | None:
        """The share of the ceiling."""
        return None if flops_per_second is None or not self.ceiling else flops_per_second / self.ceiling


def measure_ceiling(size: Size, device: torch.device) -> float:
    """FLOP/s of the fastest square matrix product: bf16 on a GPU, float32 on a CPU."""
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    best = 0.0
    for side in size.matrices:
        left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
        timer = Timer("left @ right", globals={"left": left, "right": right}, num_threads=torch.get_num_threads())
        best = max(best, 2 * side**3 / timer.blocked_autorange(min_run_time=0.3).median)
    return best


def run_bench(bench: Bench, parts: Sequence[str], out: Path) -> list[str]:
    """Measure these parts, replacing their earlier results in `out`; return the names of failed checks."""
    config = {
        "size": bench.size.name,
        "device": torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else "cpu",
        "memories": list(bench.memories),
        "modes": list(bench.modes),
    }
    torch.set_float32_matmul_precision("high")
    say("measuring the fastest matrix product")
    bench.ceiling = measure_ceiling(bench.size, bench.device)
    failed: list[str] = []
    for name in parts:
        say(f"{name}: {PARTS[name].purpose}")
        started, groups = time.time(), []
        for group in measure(bench, name):
            groups.append(group)
            result = {
                "kind": "bench",
                "part": name,
                "ceiling_flops_per_second": bench.ceiling,
                "groups": groups,
                "provenance": provenance(config, seed=0, started=started),
            }
            save_result(out / f"{name}.json", result)
        failed += [check["name"] for group in groups for check in group["checks"] if not check["passed"]]
    return failed


def measure(bench: Bench, name: str) -> Iterator[Row]:
    """The groups of a part, one after the other."""
    module, _, function = PARTS[name].function.partition(":")
    groups: Iterator[Row] = getattr(import_module(f"recurrify_papers.bench.{module}"), function)(bench)
    return groups
