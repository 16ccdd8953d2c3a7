# mypy: disallow-untyped-defs=False
"""Cross entropies of logits together with their gradients, in Triton: one read and one write of device memory.

Imports Triton, so import this module only where it is needed. Nothing here waits for the device.

One program handles one row. It reads the row once for the largest logit and the sum of exponentials, and again, from
the end to the start, for the gradients: few rows are active at a time, so the cache still holds what was read last.
Every thread keeps its own maximum and sum until the row ends, because reductions across threads have to wait.

Shapes: R rows, V logits each: the vocabulary, then padding that is ignored.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK, WARPS = 8192, 32
"""Logits per step of a program, and its warps: the fastest setting on an H200, with two rows active per
multiprocessor."""
FIRST_READ = "evict_last"
"""Eviction policy of the first read, so that the second pass finds the row in the cache."""
IGNORE = -100
"""The target of rows that have no loss."""
LANES_OF_WARP, LOAD_BYTES = 32, 16
"""Threads per warp, and bytes per load of a thread."""
LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-3.4028234663852886e38)
"""Not above any logit, and finite: the difference of two infinities is NaN."""


@triton.jit
def _columns(PARTS: tl.constexpr, LANES: tl.constexpr, NEIGHBOURS: tl.constexpr):
    """(LANES, PARTS, NEIGHBOURS): each lane has neighbours in memory, PARTS times. In this order of dimensions the
    compiler makes every lane one thread's."""
    lane, neighbour = tl.arange(0, LANES)[:, None, None] * NEIGHBOURS, tl.arange(0, NEIGHBOURS)[None, None, :]
    return lane + tl.arange(0, PARTS)[None, :, None] * (LANES * NEIGHBOURS) + neighbour


@triton.jit
def _load_end(logits, columns, VOCABULARY: tl.constexpr, WIDTH: tl.constexpr):
    """Columns among which the vocabulary ends; filler is read with them, for whole groups of neighbours load faster."""
    block = tl.load(logits + columns, mask=columns < WIDTH, other=0.0).to(tl.float32)
    return tl.where(columns < VOCABULARY, block, float("-inf"))


@triton.jit
def _powers(logits, highest):
    """exp(logits − highest). The difference comes first: it is exact where powers count, however large the logits."""
    return tl.exp2((logits - highest) * LOG2_E)


@triton.jit
def _softmax(logits, highest, log2_total):
    """Divided by the sum in the exponent, where that comes with the multiplication."""
    return tl.exp2((logits - highest) * LOG2_E - log2_total)


@triton.jit
def _seen(highest, total, logits):
    """Each thread's maximum and its sum of exponentials relative to that maximum, after more logits."""
    above = tl.maximum(highest, tl.max(tl.max(logits, axis=2), axis=1))
    more = tl.sum(tl.sum(_powers(logits, above[:, None, None]), axis=2), axis=1)
    return above, total * _powers(highest, above) + more


@triton.jit
def _summary(
    logits, VOCABULARY: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, LANES: tl.constexpr,
    NEIGHBOURS: tl.constexpr, FIRST_READ: tl.constexpr,
):  # fmt: skip
    """The largest logit of a row, and the sum of exponentials relative to it."""
    TILE: tl.constexpr = LANES * NEIGHBOURS
    FULL: tl.constexpr = VOCABULARY // BLOCK * BLOCK
    highest = tl.full((LANES,), LOWEST, tl.float32)
    total = tl.zeros((LANES,), tl.float32)
    columns = _columns(BLOCK // TILE, LANES, NEIGHBOURS)
    for start in range(0, FULL, BLOCK):
        block = tl.load(logits + start + columns, eviction_policy=FIRST_READ)
        highest, total = _seen(highest, total, block.to(tl.float32))
    for start in range(FULL, VOCABULARY, TILE):
        end_columns = start + _columns(1, LANES, NEIGHBOURS)
        highest, total = _seen(highest, total, _load_end(logits, end_columns, VOCABULARY, WIDTH))
    row_highest = tl.max(highest, axis=0)
    return row_highest, tl.sum(total * _powers(highest, row_highest), axis=0)


@triton.jit
def _write_softmax(
    logits, errors, highest, log2_total, VOCABULARY: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr,
    LANES: tl.constexpr, NEIGHBOURS: tl.constexpr,
):  # fmt: skip
    """Write the softmax, and zeros in the padding."""
    TILE: tl.constexpr = LANES * NEIGHBOURS
    FULL: tl.constexpr = VOCABULARY // BLOCK * BLOCK
    for start in range(FULL, WIDTH, TILE):
        end_columns = start + _columns(1, LANES, NEIGHBOURS)
        softmax = _softmax(_load_end(logits, end_columns, VOCABULARY, WIDTH), highest, log2_total)
        tl.store(errors + end_columns, softmax.to(errors.dtype.element_ty), mask=end_columns < WIDTH)
    columns = _columns(BLOCK // TILE, LANES, NEIGHBOURS)
    for behind in range(0, FULL, BLOCK):
        start = FULL - BLOCK - behind
        block = tl.load(logits + start + columns, eviction_policy="evict_first").to(tl.float32)
        softmax = _softmax(block, highest, log2_total).to(errors.dtype.element_ty)
        tl.store(errors + start + columns, softmax, cache_modifier=".cs")


@triton.jit
def _write_zeros(errors, WIDTH: tl.constexpr, LANES: tl.constexpr, NEIGHBOURS: tl.constexpr):
    for start in range(0, WIDTH, LANES * NEIGHBOURS):
        columns = start + tl.arange(0, LANES * NEIGHBOURS)
        tl.store(errors + columns, tl.zeros_like(columns).to(errors.dtype.element_ty), mask=columns < WIDTH)


@triton.jit
def errors_kernel(
    logits, row_stride, targets, losses, errors, IGNORE: tl.constexpr, VOCABULARY: tl.constexpr, WIDTH: tl.constexpr,
    BLOCK: tl.constexpr, LANES: tl.constexpr, NEIGHBOURS: tl.constexpr, FIRST_READ: tl.constexpr,
):  # fmt: skip
    """A row's loss and gradients (softmax − 1 at the target, softmax elsewhere), which may overwrite the logits."""
    row = tl.program_id(0).to(tl.int64)
    logits += row * row_stride
    errors += row * WIDTH
    target = tl.load(targets + row)
    if target == IGNORE:
        tl.store(losses + row, 0.0)
        _write_zeros(errors, WIDTH, LANES, NEIGHBOURS)
    else:
        known = (target >= 0) & (target < VOCABULARY)
        own = tl.load(logits + target, mask=known, other=float("nan")).to(tl.float32)
        highest, total = _summary(logits, VOCABULARY, WIDTH, BLOCK, LANES, NEIGHBOURS, FIRST_READ)
        tl.debug_barrier()  # all threads must have read before any writes
        tl.store(losses + row, tl.log(total) + (highest - own))
        log2_total = tl.log2(total)
        _write_softmax(logits, errors, highest, log2_total, VOCABULARY, WIDTH, BLOCK, LANES, NEIGHBOURS)
        # The target's gradient is written again after a barrier: cheaper than a comparison in every column.
        tl.debug_barrier()
        error = _softmax(own, highest, log2_total) - 1.0
        tl.store(errors + target, error.to(errors.dtype.element_ty), mask=known)


def _new_results(logits_RV: Tensor) -> tuple[Tensor, Tensor]:
    return logits_RV.new_empty(logits_RV.shape[0], dtype=torch.float32), logits_RV.new_empty(logits_RV.shape)


def _launch(logits_RV: Tensor, targets_R: Tensor, vocabulary: int, losses_R: Tensor, errors_RV: Tensor) -> None:
    assert logits_RV.stride(1) == 1, "the logits of a row must be contiguous"
    rows, width = logits_RV.shape
    if rows > 0:
        with torch.cuda.device_of(logits_RV):
            errors_kernel[(rows,)](
                logits_RV, logits_RV.stride(0), targets_R.contiguous(), losses_R, errors_RV,
                IGNORE=IGNORE, VOCABULARY=vocabulary, WIDTH=width, BLOCK=BLOCK, LANES=LANES_OF_WARP * WARPS,
                NEIGHBOURS=LOAD_BYTES // logits_RV.element_size(), FIRST_READ=FIRST_READ, num_warps=WARPS,
            )  # fmt: skip


def _to_new_memory(logits_RV: Tensor, targets_R: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    losses_R, errors_RV = _new_results(logits_RV)
    _launch(logits_RV, targets_R, vocabulary, losses_R, errors_RV)
    return losses_R, errors_RV


# For torch.compile the launch is an opaque operator.
_op = torch.library.custom_op(
    "recurrify::losses_and_errors",
    _to_new_memory,
    mutates_args=(),
    schema="(Tensor logits, Tensor targets, int vocabulary) -> (Tensor, Tensor)",
)


@_op.register_fake
def _(logits: Tensor, targets: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    return _new_results(logits)


def losses_and_errors(logits_RV: Tensor, targets_R: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """(R,) cross entropies in float32, and the gradient of their sum with respect to the logits, (R, V) in their dtype.

    Both are 0 in rows whose target is IGNORE; columns from `vocabulary` on are ignored. Logits have at most 32 bits and
    contiguous rows. A target outside the vocabulary gives a loss of NaN.
    """
    losses_R, errors_RV = (_op if torch.compiler.is_compiling() else _to_new_memory)(logits_RV, targets_R, vocabulary)
    return losses_R, errors_RV


def turn_into_errors(logits_RV: Tensor, targets_R: Tensor, vocabulary: int) -> Tensor:
    """The same losses; overwrites the contiguous logits with their gradients. Not for torch.compile."""
    assert logits_RV.is_contiguous(), "the logits must be contiguous"
    losses_R = logits_RV.new_empty(len(logits_RV), dtype=torch.float32)
    _launch(logits_RV, targets_R, vocabulary, losses_R, logits_RV)
    return losses_R
