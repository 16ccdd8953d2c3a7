"""torch.compile with workarounds for known faults of its versions.

`WORKAROUNDS` says which versions need which; other versions are compiled as they are. Training compares compiled with
eager steps in any case: see `recurrify.speed.verify`.
"""

import re
from collections.abc import Callable
from functools import cache, wraps
from typing import Any

import torch

from recurrify.speed.joined import join_products

BARRIERS, MIXED_SUMS = "barriers", "mix_order_reduction"
WORKAROUNDS: dict[str, tuple[str, ...]] = {
    "2.10": (MIXED_SUMS,),
    "2.11": (BARRIERS, MIXED_SUMS),
    "2.12": (BARRIERS, MIXED_SUMS),
    "2.13": (BARRIERS, MIXED_SUMS),
}
"""By torch version.

`mix_order_reduction` fuses sums over rows and over columns of more than five million numbers into one kernel, which
leaves some gradients unwritten (torch issues 193061 and 190796): gradients of GPT-2 windows of 32 or 64 rows were off
by 2 %. It is switched off.

`barriers`: a loop of a kernel may read what an earlier loop wrote in 16 bits before other threads have written it
(torch issue 190517): gradients were off by up to 26 %. A barrier is written in front of such loops."""
BARRIER = "tl.debug_barrier()"
USES = re.compile(r"tl\.(load|store)\((\w+)")


def workarounds(version: str = torch.__version__) -> tuple[str, ...]:
    """Those that this torch version needs."""
    return WORKAROUNDS.get(".".join(version.split(".")[:2]), ())


def compiler_options(variant: str = "", joins: bool = False) -> dict[str, Any]:
    """Options of the compiler. Graphs of different variants are compiled and cached separately. With `joins`, linear
    layers of the same input become one product."""
    from torch._inductor import config  # takes a second, and few commands compile

    needed = workarounds()
    if BARRIERS in needed:
        write_barriers()
    mixed = {f"triton.{MIXED_SUMS}": False} if MIXED_SUMS in needed and hasattr(config.triton, MIXED_SUMS) else {}
    join = {"pre_grad_custom_pass": _join()} if joins else {}
    mark = _mark(f"recurrify {' '.join(needed)} {variant}{', joined' * joins}".strip())
    return {"post_grad_custom_post_pass": mark, **join, **mixed}


@cache
def _mark_class() -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Mark(CustomGraphPass):
        """No-op graph pass. Its uuid is part of Inductor's cache key, so that kernels without barriers, or of another
        variant, are not reused. Compilations of other packages do not have it, and get no barriers."""

        def __init__(self, name: str) -> None:
            self.name = name

        def __call__(self, graph: Any) -> None:
            pass

        def uuid(self) -> str:
            return self.name

    return Mark


@cache
def _mark(name: str) -> Any:
    return _mark_class()(name)


@cache
def _join() -> Any:
    from torch._inductor.custom_graph_pass import CustomGraphPass

    class Join(CustomGraphPass):
        """`join_products` as a pass over the graph from which gradients are derived."""

        def __call__(self, graph: Any) -> None:
            join_products(graph)

        def uuid(self) -> str:
            return f"{join_products.__module__} 1"

        def __reduce__(self) -> Any:  # torch 2.11 pickles this option for its cache's key
            return _join, ()

    return Join()


def compile_function(
    function: Callable[..., Any], variant: str = "", joins: bool = False, **choices: Any
) -> Callable[..., Any]:
    """`torch.compile` with the workarounds that this version needs; `choices` are its other arguments."""
    return torch.compile(function, options=compiler_options(variant, joins), **choices)


@cache
def write_barriers() -> None:
    """Add barriers to the kernels of marked graphs, in Inductor's code generator."""
    try:
        from torch._inductor import config
        from torch._inductor.codegen.triton import TritonKernel

        codegen_kernel = TritonKernel.codegen_kernel
    except (ImportError, AttributeError):
        return  # a build without Triton writes no such kernels

    @wraps(codegen_kernel)
    def with_marks(self: Any, *args: Any, **kwargs: Any) -> str:
        source: str = codegen_kernel(self, *args, **kwargs)
        return with_barriers(source) if isinstance(config.post_grad_custom_post_pass, _mark_class()) else source

    TritonKernel.codegen_kernel = with_marks  # type: ignore[method-assign]


def with_barriers(kernel: str) -> str:
    """A kernel's source with a barrier in front of each loop that reads what an earlier one wrote."""
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
