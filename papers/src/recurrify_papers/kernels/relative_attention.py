"""Attention by content and by distance as one differentiable function: eager, compiled or captured.

Imports Triton, so import it only where it is needed. Nothing here waits for the device.

Shapes: B batch, H heads, Q queries, K keys of which the last Q are the queries' own, D head width.
"""

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable

from recurrify.attention.kernels import unit_stride
from recurrify_papers.kernels.relative_attention_kernels import (
    forward_kernel,
    keys_kernel,
    products_kernel,
    queries_kernel,
)


class Tile(NamedTuple):
    """The block of one program, and how it is compiled."""

    queries: int
    keys: int
    warps: int
    stages: int
    """Iterations of the loop whose loads overlap."""
    registers: int | None = None
    """Limit of registers per thread, so that more programs fit onto a multiprocessor; None: no limit."""

    @property
    def options(self) -> dict[str, int]:
        options = {"BQ": self.queries, "BK": self.keys, "num_warps": self.warps, "num_stages": self.stages}
        # Only the compiler for NVIDIA GPUs has such a limit.
        return options | {"maxnreg": self.registers} if self.registers and torch.version.cuda else options


class Tiles(NamedTuple):
    """A tile for each kernel."""

    forward: Tile
    keys: Tile
    queries: Tile


USUAL = Tiles(forward=Tile(64, 64, 4, 2, 128), keys=Tile(32, 64, 4, 3, 168), queries=Tile(64, 64, 4, 3, 128))
WIDE = Tiles(forward=Tile(64, 64, 4, 2), keys=Tile(32, 64, 8, 2), queries=Tile(64, 64, 4, 2))
"""For wide heads, which need more registers and shared memory."""
EXACT = Tiles(forward=Tile(32, 32, 8, 1), keys=Tile(32, 32, 8, 1), queries=Tile(32, 32, 8, 1))
"""For 32 bits, whose products do not use the matrix units."""
WIDEST_USUAL = 64
PRODUCT_ROWS, PRODUCT_WARPS = 64, 4


def _tiles(query_BHQD: Tensor) -> Tiles:
    if query_BHQD.element_size() > 2:
        return EXACT
    return USUAL if query_BHQD.shape[-1] <= WIDEST_USUAL else WIDE


def _with_strides(tensor: Tensor) -> tuple[Any, ...]:
    return tensor, *tensor.stride()[:3]


def _with_shared(scores: Tensor) -> tuple[Any, ...]:
    """Dimensions of size 1 are shared by all sequences, heads or queries: their stride is 0."""
    scores = unit_stride(scores)
    return scores, *(stride if size > 1 else 0 for size, stride in zip(scores.shape[:3], scores.stride(), strict=False))


def _new_rows(like_BHND: Tensor) -> Tensor:
    """A tensor of the same shape with adjacent heads in memory, as the layers before and after have them."""
    batch, heads, length, width = like_BHND.shape
    return like_BHND.new_empty(batch, length, heads, width).transpose(1, 2)


def _new_results(query_BHQD: Tensor) -> tuple[Tensor, Tensor]:
    return _new_rows(query_BHQD), query_BHQD.new_empty(query_BHQD.shape[:3], dtype=torch.float32)


def _launch_forward(
    query_BHQD: Tensor, scores_BHQK: Tensor, key_BHKD: Tensor, value_BHKD: Tensor, span: int
) -> tuple[Tensor, Tensor]:
    """The output, and the logarithm of each query's softmax sum, (B, H, Q)."""
    output_BHQD, log_sums_BHQ = _new_results(query_BHQD)
    batch, heads, queries, width = query_BHQD.shape
    tile = _tiles(query_BHQD).forward
    query_BHQD, key_BHKD, value_BHKD = (unit_stride(tensor) for tensor in (query_BHQD, key_BHKD, value_BHKD))
    with torch.cuda.device_of(query_BHQD):
        forward_kernel[(batch * heads * triton.cdiv(queries, tile.queries),)](
            *_with_strides(query_BHQD), *_with_strides(key_BHKD), *_with_strides(value_BHKD),
            *_with_shared(scores_BHQK), *_with_strides(output_BHQD), log_sums_BHQ,
            heads, queries, key_BHKD.shape[2], span, 1 / math.sqrt(width), WIDTH=width, **tile.options,
        )  # fmt: skip
    return output_BHQD, log_sums_BHQ


def _new_gradients(
    query_BHQD: Tensor, scores_BHQK: Tensor, key_BHKD: Tensor, value_BHKD: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    d_scores_BHQK = scores_BHQK.new_empty(scores_BHQK.shape)
    return _new_rows(query_BHQD), d_scores_BHQK, _new_rows(key_BHKD), _new_rows(value_BHKD)


def _of_all_pairs(d_scores: Tensor, query_BHQD: Tensor) -> Tensor:
    """The gradient of each pair: that of the scores itself, if no pairs share a score."""
    whole = (*query_BHQD.shape[:3], d_scores.shape[3])
    return d_scores if d_scores.shape == whole else query_BHQD.new_empty(whole)


def _launch_backward(
    d_output_BHQD: Tensor,
    output_BHQD: Tensor,
    log_sums_BHQ: Tensor,
    query_BHQD: Tensor,
    scores_BHQK: Tensor,
    key_BHKD: Tensor,
    value_BHKD: Tensor,
    span: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of queries, position scores, keys and values."""
    d_query, d_scores, d_key, d_value = _new_gradients(query_BHQD, scores_BHQK, key_BHKD, value_BHKD)
    d_pairs_BHQK = _of_all_pairs(d_scores, query_BHQD)
    batch, heads, queries, width = query_BHQD.shape
    keys = key_BHKD.shape[2]
    pairs, tiles = batch * heads, _tiles(query_BHQD)
    products_BHQ = log_sums_BHQ.new_empty(log_sums_BHQ.shape)
    d_output, output, query, key, value = (
        unit_stride(tensor) for tensor in (d_output_BHQD, output_BHQD, query_BHQD, key_BHKD, value_BHKD)
    )
    with torch.cuda.device_of(query):
        products_kernel[(pairs * triton.cdiv(queries, PRODUCT_ROWS),)](
            *_with_strides(output), *_with_strides(d_output), products_BHQ, heads, queries,
            WIDTH=width, BQ=PRODUCT_ROWS, num_warps=PRODUCT_WARPS,
        )  # fmt: skip
        keys_kernel[(pairs * triton.cdiv(keys, tiles.keys.keys),)](
            *_with_strides(query), *_with_strides(key), *_with_strides(value),
            *_with_shared(scores_BHQK), *_with_strides(d_output), log_sums_BHQ, products_BHQ, d_pairs_BHQK,
            *_with_strides(d_key), *_with_strides(d_value),
            heads, queries, keys, span, 1 / math.sqrt(width), WIDTH=width, **tiles.keys.options,
        )  # fmt: skip
        queries_kernel[(pairs * triton.cdiv(queries, tiles.queries.queries),)](
            *_with_strides(key), d_pairs_BHQK, *_with_strides(d_query), heads, queries, keys, span,
            WIDTH=width, **tiles.queries.options,
        )  # fmt: skip
    if d_pairs_BHQK is not d_scores:
        shared = [place for place in range(3) if d_scores.shape[place] == 1]
        d_scores.copy_(d_pairs_BHQK.sum(shared, keepdim=True, dtype=torch.float32))
    return d_query, d_scores, d_key, d_value


# For torch.compile the launches are two opaque operators.
_ARGUMENTS = "Tensor query, Tensor scores, Tensor key, Tensor value, int span"
_forward_op = torch.library.custom_op(
    "recurrify::relative_attention_forward",
    _launch_forward,
    mutates_args=(),
    schema=f"({_ARGUMENTS}) -> (Tensor, Tensor)",
)
_backward_op = torch.library.custom_op(
    "recurrify::relative_attention_backward",
    _launch_backward,
    mutates_args=(),
    schema=f"(Tensor d_output, Tensor output, Tensor log_sums, {_ARGUMENTS}) -> (Tensor, Tensor, Tensor, Tensor)",
)


@_forward_op.register_fake
def _(query: Tensor, scores: Tensor, key: Tensor, value: Tensor, span: int) -> tuple[Tensor, Tensor]:
    return _new_results(query)


@_backward_op.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _new_gradients(*arguments[3:7])


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.span = inputs
    ctx.save_for_backward(*output, *tensors)
    ctx.set_materialize_grads(False)


def _gradients(launch: Any, ctx: Any, d_output: Tensor | None) -> tuple[Tensor | None, ...]:
    if d_output is None:
        return (None,) * 5
    return *launch(d_output, *ctx.saved_tensors, ctx.span), None


class _Eager(torch.autograd.Function):
    """Without the dispatcher, whose overhead is longer than a small kernel."""

    forward = staticmethod(_launch_forward)
    setup_context = staticmethod(_remember)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_output: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
        return _gradients(_launch_backward, ctx, d_output)


def _compiled_backward(ctx: Any, d_output: Tensor | None, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return _gradients(_backward_op, ctx, d_output)


_forward_op.register_autograd(_compiled_backward, setup_context=_remember)


def relative_attention(
    query_BHQD: Tensor, scores_BHQK: Tensor, key_BHKD: Tensor, value_BHKD: Tensor, *, span: int | None = None
) -> Tensor:
    """Σ_j softmax_j((q_i · k_j + s_i(distance of i and j)) / √D) · v_j, (B, H, Q, D) and of the keys' type.

    `scores_BHQK` holds s_i for the distances K − 1, …, 0; each of its first three dimensions may be 1, for shared
    scores. A query sees itself and earlier positions, up to distance `span` − 1. Head widths are 16, 32, 64 or 128,
    types have at most 32 bits, nothing is empty, and Q · K < 2³¹.
    """
    keys, dtype = key_BHKD.shape[2], key_BHKD.dtype
    function = _forward_op if torch.compiler.is_compiling() else _Eager.apply
    output_BHQD, _ = function(
        query_BHQD.to(dtype),
        scores_BHQK,
        key_BHKD,
        value_BHKD.to(dtype),
        keys if span is None else min(span, keys),
    )
    return output_BHQD
