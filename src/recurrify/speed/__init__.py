"""Compiled windows, CUDA graphs and fused losses: switching them off changes no result."""

from typing import TYPE_CHECKING

from recurrify.lazy import lazily

if TYPE_CHECKING:
    from recurrify.speed.backends import leave_out_cudnn, with_cudnn
    from recurrify.speed.capturing import capture, on_side_stream
    from recurrify.speed.compiled import Choices, compile_windows
    from recurrify.speed.compiling import compile_function, compiler_options
    from recurrify.speed.graphed import NOT_CAPTURED, graph_steps
    from recurrify.speed.graphed_generation import captured, graph_generation
    from recurrify.speed.products import quick_products
    from recurrify.speed.verify import Step, compare_steps, take_step, verify_step, verify_windows, warn_of

__all__ = [
    "NOT_CAPTURED",
    "Choices",
    "Step",
    "capture",
    "captured",
    "compare_steps",
    "compile_function",
    "compile_windows",
    "compiler_options",
    "graph_generation",
    "graph_steps",
    "leave_out_cudnn",
    "on_side_stream",
    "quick_products",
    "take_step",
    "verify_step",
    "verify_windows",
    "warn_of",
    "with_cudnn",
]
if not TYPE_CHECKING:  # or every name would seem to exist
    __getattr__ = lazily(__name__)
