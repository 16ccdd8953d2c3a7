"""A benchmark that is too small to be worth timing."""

from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from recurrify_papers.bench.bench import Bench
from recurrify_papers.bench.sizes import SIZES, Size

CPU = torch.device("cpu")
MINI = replace(
    SIZES["tiny"],
    vocabulary=41,
    width=16,
    layers=2,
    heads=2,
    positions=40,
    window=8,
    windows=3,
    batches=(1, 2),
    tail=4,
    keep=4,
    lengths=(2, 4),
    prompts=(1, 20, 100),
    documents=3,
    document_tokens=40,
    rounds=1,
    matrices=(32,),
    copied_bytes=2**16,
)


@contextmanager
def no_bar(name: str, total: int) -> Any:
    yield lambda done: None


def mini_bench(size: Size = MINI, **more: Any) -> Bench:
    more = {"ways": ("eager",), "ceiling": 1e12, "batches": size.batches, **more}
    return Bench(size, CPU, lambda text: None, no_bar, **more)
