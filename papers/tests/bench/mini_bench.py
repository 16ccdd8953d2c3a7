"""A benchmark that is too small to be worth timing."""

from dataclasses import replace
from typing import Any

import torch

from recurrify_papers.bench.bench import Bench
from recurrify_papers.bench.sizes import TINY, Size

CPU = torch.device("cpu")
MINI = replace(
    TINY,
    vocabulary=41,
    width=16,
    layers=2,
    heads=2,
    positions=40,
    window=8,
    windows=3,
    batches=(1, 2),
    keep=4,
    lengths=(2, 4),
    prompts=(1, 60),
    texts=(1, 2),
    most_prompt_tokens=100,
    documents=3,
    document_tokens=40,
    rounds=1,
    matrices=(32,),
)
LLAMA = replace(MINI, name="llama", family="llama", kv_heads=1, inner=24)


def mini_bench(size: Size = MINI, **changes: Any) -> Bench:
    settings = {"memories": ("plain", "carry"), "modes": ("eager",), "batches": (2,), "ceiling": 1e12, **changes}
    return Bench(size=size, device=CPU, **settings)
