"""Compiled windows, CUDA graphs and fused losses: switching them off changes no result."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recurrify.speed.backends import leave_out_cudnn, with_cudnn
    from recurrify.speed.capturing import (
        as_graph,
        capturable_optimizer,
        capture,
        device_seconds,
        on_side_stream,
        set_rate,
    )
    from recurrify.speed.compiled import Choices, compile_windows
    from recurrify.speed.compiling import compile_alone, compile_function, compiler_options
    from recurrify.speed.graphed import NOT_CAPTURED, graph_steps
    from recurrify.speed.graphed_generation import captured, graph_generation
    from recurrify.speed.products import quick_products
    from recurrify.speed.verify import verify_module, verify_windows

__all__ = [
    "NOT_CAPTURED",
    "Choices",
    "as_graph",
    "capturable_optimizer",
    "capture",
    "captured",
    "compile_alone",
    "compile_function",
    "compile_windows",
    "compiler_options",
    "device_seconds",
    "graph_generation",
    "graph_steps",
    "leave_out_cudnn",
    "on_side_stream",
    "quick_products",
    "set_rate",
    "verify_module",
    "verify_windows",
    "with_cudnn",
]
_HOMES = {
    "backends": ("leave_out_cudnn", "with_cudnn"),
    "capturing": ("as_graph", "capturable_optimizer", "capture", "device_seconds", "on_side_stream", "set_rate"),
    "compiled": ("Choices", "compile_windows"),
    "compiling": ("compile_alone", "compile_function", "compiler_options"),
    "graphed": ("NOT_CAPTURED", "graph_steps"),
    "graphed_generation": ("captured", "graph_generation"),
    "products": ("quick_products",),
    "verify": ("verify_module", "verify_windows"),
}


def _load(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{home}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


if not TYPE_CHECKING:  # or every name would seem to exist
    __getattr__ = _load
