"""Compiled windows, CUDA graphs and fused losses: switching them off changes no result."""

from recurrify.speed.backends import leave_out_cudnn, with_cudnn
from recurrify.speed.capturing import as_graph, capturable_optimizer, capture, device_seconds, on_side_stream, set_rate
from recurrify.speed.compiled import compile_windows
from recurrify.speed.compiling import compile_alone, compiler_options
from recurrify.speed.compiling import compiled as compile_function
from recurrify.speed.graphed import NOT_CAPTURED, graph_steps
from recurrify.speed.graphed_generation import captured, graph_generation
from recurrify.speed.products import quick_products
from recurrify.speed.verify import verify_module, verify_windows

__all__ = [
    "NOT_CAPTURED",
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
