"""Compiled windows, CUDA graphs and fused losses: switching them off changes no result."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recurrify.speed.backends import leave_out_cudnn
    from recurrify.speed.capturing import as_graph, device_seconds
    from recurrify.speed.compiled import compile_windows

__all__ = ["as_graph", "compile_windows", "device_seconds", "leave_out_cudnn"]
_HOMES = {
    "as_graph": "capturing",
    "compile_windows": "compiled",
    "device_seconds": "capturing",
    "leave_out_cudnn": "backends",
}


def _load(name: str) -> Any:
    """`compiled` needs the models, which need other modules of this package: names are imported when first used."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


if not TYPE_CHECKING:
    __getattr__ = _load
