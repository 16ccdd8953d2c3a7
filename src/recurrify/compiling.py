"""torch's compiler, without what it gets wrong."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

MIXED_SUMS = "mix_order_reduction"
"""Sums over rows and over columns of the same numbers as one kernel, from torch 2.10 on and for more than five million
numbers. In 2.10, 2.11 and 2.13 it leaves some gradients unwritten, or adds what lies in memory to them (its issues
193061 and 190796): gradients of a window of 32 or 64 rows of GPT-2 were off by 2 %, other ones in each run."""


def faultless() -> dict[str, Any]:
    """Options of the compiler."""
    from torch._inductor import config  # takes a second, and few commands compile

    return {f"triton.{MIXED_SUMS}": False} if hasattr(config.triton, MIXED_SUMS) else {}


def faultless_compiler() -> AbstractContextManager[Any]:
    """Meanwhile all that anybody compiles is compiled with these options."""
    from torch._inductor import config

    return config.patch(faultless())


def compile_alone() -> None:
    """For a process that has others beside it: in each the compiler would start as many more as there are cores."""
    from torch._inductor import config

    config.compile_threads = 1


def compiled(function: Callable[..., Any], **choices: Any) -> Callable[..., Any]:
    return torch.compile(function, options=faultless(), **choices)
