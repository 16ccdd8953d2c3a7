"""torch's compiler, without what it gets wrong."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import torch
from torch.compiler import config as compiler_config

MIXED_SUMS = "mix_order_reduction"
"""Sums over rows and over columns of the same numbers as one kernel, from torch 2.10 on and for more than five million
numbers. In 2.10, 2.11 and 2.13 it leaves some gradients unwritten, or adds what lies in memory to them (its issues
193061 and 190796): gradients of a window of 32 or 64 rows of GPT-2 were off by 2 %, other ones in each run."""
BARRIER = "tl.debug_barrier()"
USES = re.compile(r"tl\.(load|store)\((?:tl\.make_block_ptr\()?(\w+)")


def faultless() -> dict[str, Any]:
    """Options of the compiler; from now on it also writes barriers."""
    from torch._inductor import config  # takes a second, and few commands compile

    write_barriers()
    return {f"triton.{MIXED_SUMS}": False} if hasattr(config.triton, MIXED_SUMS) else {}


@contextmanager
def faultless_compiler() -> Iterator[None]:
    """Meanwhile all that anybody compiles is compiled with these options."""
    from torch._inductor import config

    with config.patch(faultless()), kept_apart():
        yield


def kept_apart() -> Any:
    """Meanwhile torch does not find what was compiled without barriers."""
    tag = f"{compiler_config.cache_key_tag} with barriers"
    return compiler_config.patch(cache_key_tag=tag)  # type: ignore[attr-defined]


def compile_alone() -> None:
    """For a process that has others beside it: in each the compiler would start as many more as there are cores."""
    from torch._inductor import config

    config.compile_threads = 1


def compiled(function: Callable[..., Any], **choices: Any) -> Callable[..., Any]:
    run = torch.compile(function, options=faultless(), **choices)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        with kept_apart():
            return run(*args, **kwargs)

    return call


@cache
def write_barriers() -> None:
    """Have the compiler's kernels wait for their own writes.

    A loop of theirs may read what an earlier loop wrote, and where one of them has to do with numbers of 16 bits,
    threads read what others have written, for which they do not wait (torch's issue 190517; in 2.11 and 2.13): the
    first norm of windows that look back came out wrong, in other places each time, and gradients by 15 %."""
    try:
        from torch._inductor.codegen.triton import TritonKernel

        codegen_kernel = TritonKernel.codegen_kernel
    except (ImportError, AttributeError):
        return  # where another torch writes kernels elsewhere, it is later than its own mending of this

    @wraps(codegen_kernel)
    def waiting(self: Any, *args: Any, **kwargs: Any) -> str:
        return with_barriers(codegen_kernel(self, *args, **kwargs))

    TritonKernel.codegen_kernel = waiting  # type: ignore[method-assign]


def with_barriers(kernel: str) -> str:
    """A kernel's source with a barrier in front of each loop that reads what was written before it."""
    lines: list[str] = []
    written: set[str] = set()
    before_loop: set[str] = set()
    loop, depth = None, 0  # line and indentation of the outermost loop here
    for line in kernel.splitlines(keepends=True):
        indentation = len(line) - len(line.lstrip())
        if loop is not None and line.strip() and indentation <= depth:
            loop = None
        if loop is None:
            before_loop = set(written)
            if line.lstrip().startswith("for "):
                loop, depth = len(lines), indentation
        for use, pointer in USES.findall(line):
            if use == "store":
                written.add(pointer)
            elif pointer in before_loop:
                place = len(lines) if loop is None else loop
                lines.insert(place, " " * (indentation if loop is None else depth) + BARRIER + "\n")
                loop = None if loop is None else loop + 1
                before_loop = set()
        lines.append(line)
    return "".join(lines)
