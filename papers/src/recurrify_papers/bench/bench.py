"""`recurrify bench`: parts that each measure groups of rows, saved as they finish and skipped when they are there."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.benchmark import Timer

from recurrify import UserError
from recurrify.results import load_result, provenance, save_result
from recurrify_papers.bench.sizes import Size
from recurrify_papers.bench.timing import OUT_OF_TIME, Row

Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]
IDENTITY = ("batch", "tokens", "documents", "prompt", "packages")
"""What names a group of a part."""


class Part(NamedTuple):
    purpose: str
    function: str
    """`module:function` below this package; yields groups."""


PARTS = {
    "training": Part("training steps beside transformers", "training:measure_training"),
    "lengths": Part("memory and speed of a step by the length of a sequence", "training:measure_lengths"),
    "generation": Part("time per generated token by the length of the text", "inference:measure_generation"),
    "reading": Part("scoring documents", "inference:measure_reading"),
    "naive": Part("the paper's carry beside a naive loop", "training:measure_naive"),
    "peers": Part("training beside other packages", "peers:measure_peers"),
}


@dataclass
class Bench:
    """What every part is given."""

    size: Size
    device: torch.device
    memories: tuple[str, ...]
    modes: tuple[str, ...]
    batches: tuple[int, ...]
    say: Callable[[str], None]
    progress: Progress
    deadline: float | None = None
    """By `time.monotonic()`."""
    ceiling: float | None = None
    """Measured FLOP/s of matrix products."""
    groups: list[Row] = field(default_factory=list)
    """What the current part has measured."""

    def has(self, **identity: Any) -> bool:
        """Whether this group is measured, or there is no time left for it."""
        measured = any(all(group.get(key) == value for key, value in identity.items()) for group in self.groups)
        return measured or (self.deadline is not None and time.monotonic() > self.deadline)

    def share(self, flops_per_second: float | None) -> float | None:
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


def run_bench(bench: Bench, parts: Sequence[str], out: Path, again: bool = False) -> list[str]:
    """Measure what is missing; return the names of failed checks. Raises UserError for results of another machine."""
    config = {
        "size": bench.size.name,
        "device": torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else "cpu",
        "memories": list(bench.memories),
        "modes": list(bench.modes),
    }
    torch.set_float32_matmul_precision("high")
    bench.say("measuring the fastest matrix product")
    bench.ceiling = measure_ceiling(bench.size, bench.device)
    failed: list[str] = []
    for name in parts:
        path = out / f"{name}.json"
        bench.groups = [] if again else _earlier(path, config)
        bench.say(f"{name}: {PARTS[name].purpose}")
        started = time.time()
        for group in _measure(bench, name):
            bench.groups.append(group)
            result = {
                "kind": "bench",
                "part": name,
                "ceiling_flops_per_second": bench.ceiling,
                "groups": bench.groups,
                "provenance": provenance(config, seed=0, started=started),
            }
            save_result(path, result)
        failed += [check["name"] for group in bench.groups for check in group["checks"] if not check["passed"]]
    return failed


def _measure(bench: Bench, name: str) -> Iterator[Row]:
    module, _, function = PARTS[name].function.partition(":")
    groups: Iterator[Row] = getattr(import_module(f"recurrify_papers.bench.{module}"), function)(bench)
    for group in groups:
        if all(row["problem"] == OUT_OF_TIME for row in group["rows"]):
            return
        yield group


def _earlier(path: Path, config: dict[str, Any]) -> list[Row]:
    """Groups of an unfinished run of the same command."""
    if not path.exists():
        return []
    result = load_result(path)
    held = (result.get("provenance") or {}).get("config") or {}
    for key, value in config.items():
        if held.get(key) != value:
            raise UserError(
                f"{path} was measured with {key} {held.get(key)}, not {value}: choose another --out, or add --again."
            )
    groups: list[Row] = result["groups"]
    return [group for group in groups if not any(row["problem"] == OUT_OF_TIME for row in group["rows"])]
