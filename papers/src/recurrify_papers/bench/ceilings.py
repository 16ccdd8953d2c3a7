"""What the device can do at best: operations per second of matrix products, and bytes moved per second."""

from typing import Any

import torch

from recurrify_papers.bench.bench import Bench
from recurrify_papers.bench.timing import Entrant, Row

REPEATS = 3
"""Products or copies in one repeat, so that launching them does not count."""


def measure_ceilings(bench: Bench) -> dict[str, Any]:
    """The best of several sizes counts; copying reads and writes every byte once.

    They take seconds, and the shares of all else are of them: no limit of time cuts them short.
    """
    dtype = torch.bfloat16 if bench.device.type == "cuda" else torch.float32
    with bench.bar("ceilings", bench.turns_of(len(bench.size.matrices) + 1)) as advance:
        turns = bench.turns(advance, warm_ups=2, limited=False)
        products = [_product(bench, side, dtype) for side in bench.size.matrices]
        rows: list[Row] = []
        for side, timed in zip(bench.size.matrices, turns.take(products), strict=True):
            # The fastest turn, not the middle one: a ceiling is what nothing exceeds.
            best = min(timed.seconds, default=None)
            rate = None if best is None else REPEATS * 2 * side**3 / best
            rows.append({"what": f"matrix product, {side} × {side}", "flops_per_second": rate, **vars(timed)})
        copied = turns.take([_copy(bench)])[0]
    moved = REPEATS * 2 * bench.size.copied_bytes
    bandwidth = None if not copied.seconds else moved / min(copied.seconds)
    rows.append({"what": f"copy of {bench.size.copied_bytes >> 20} MiB", "bytes_per_second": bandwidth, **vars(copied)})
    return {
        "dtype": str(dtype).removeprefix("torch."),
        "flops_per_second": max((row["flops_per_second"] or 0 for row in rows[:-1]), default=0) or None,
        "bytes_per_second": bandwidth,
        "rows": rows,
        "checks": [],
    }


def _product(bench: Bench, side: int, dtype: torch.dtype) -> Entrant:
    generator = torch.Generator(bench.device).manual_seed(0)
    left, right = (torch.randn(side, side, device=bench.device, generator=generator).to(dtype) for _ in range(2))
    result = torch.empty_like(left)

    def run() -> None:
        for _ in range(REPEATS):
            torch.mm(left, right, out=result)

    return Entrant(f"product {side}", run)


def _copy(bench: Bench) -> Entrant:
    source = torch.ones(bench.size.copied_bytes, dtype=torch.uint8, device=bench.device)
    target = torch.zeros_like(source)

    def run() -> None:
        for _ in range(REPEATS):
            target.copy_(source)

    return Entrant("copy", run)
