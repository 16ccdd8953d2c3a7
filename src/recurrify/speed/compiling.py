"""torch's compiler, without what it gets wrong."""

import re
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch

MIXED_SUMS = "mix_order_reduction"
"""Sums over rows and over columns of the same numbers as one kernel, from torch 2.10 on and for more than five million
numbers. In 2.10, 2.11 and 2.13 it leaves some gradients unwritten, or adds what lies in memory to them (its issues
193061 and 190796): gradients of a window of 32 or 64 rows of GPT-2 were off by 2 %, other ones in each run."""
BARRIER = "tl.debug_barrier()"
USES = re.compile(r"tl\.(load|store)\((\w+)")


def faultless() -> dict[str, Any]:
    """Options of the compiler, among them a mark on graphs in whose kernels it writes barriers."""
    from torch._inductor import config  # takes a second, and few commands compile

    write_barriers()
    mixed = {f"triton.{MIXED_SUMS}": False} if hasattr(config.triton, MIXED_SUMS) else {}
    return {"post_grad_custom_post_pass": mark(), **mixed}


@cache
def mark() -> Any:
    """A pass over graphs that does nothing. By its name torch keeps what it compiles, forward and backward: what was
    compiled without barriers is not found again. Other people's compilations do not have it, and stay as they are."""
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Mark(CustomGraphPass):
        def __call__(self, graph: Any) -> None:
            pass

        def uuid(self) -> str:
            return "recurrify, with barriers"

    return Mark()


def compile_alone() -> None:
    """For a process that has others beside it: in each the compiler would start as many more as there are cores."""
    from torch._inductor import config

    config.compile_threads = 1


def compiled(function: Callable[..., Any], **choices: Any) -> Callable[..., Any]:
    return torch.compile(function, options=faultless(), **choices)


@cache
def write_barriers() -> None:
    """Have kernels of marked graphs wait for their own writes.

    A loop of theirs may read what an earlier loop wrote, and where one of them has to do with numbers of 16 bits,
    threads read what others have written, for which they do not wait (torch's issue 190517; in 2.11 and 2.13): the
    first norm of windows that look back came out wrong, in other places each time, and gradients by up to 26 %. By
    default these are all kernels that read back; block pointers, descriptors and combined kernels are off."""
    try:
        from torch._inductor import config
        from torch._inductor.codegen.triton import TritonKernel

        codegen_kernel = TritonKernel.codegen_kernel
    except (ImportError, AttributeError):
        return  # where another torch writes kernels elsewhere, it is later than its own mending of this

    @wraps(codegen_kernel)
    def waiting(self: Any, *args: Any, **kwargs: Any) -> str:
        source: str = codegen_kernel(self, *args, **kwargs)
        return with_barriers(source) if config.post_grad_custom_post_pass is mark() else source

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
