# mypy: disallow-untyped-defs=False
"""How outstanding each query of ProbSparse attention is, in Triton, without writing scores to memory.

Imports Triton: import it only where needed.

Shapes: B batch, H heads, Q queries, K keys, N sampled keys of each query, D head width.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE, WIDE_TILE = 64, 32
"""Queries and keys per program; fewer for wide rows, since shared memory is small."""
WIDE_BYTES = 256
"""Rows with more bytes are wide."""
WARPS = 4


@triton.jit
def outstanding_kernel(
    query, query_batch, query_head, query_row, key, key_batch, key_head, key_row, counts, outstanding,
    heads, queries, keys, KEY_TILES: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One program handles a tile of queries of one head of one sequence, and loops over all keys."""
    batch, head = (tl.program_id(0) // heads).to(tl.int64), (tl.program_id(0) % heads).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    rows = tl.program_id(1) * TILE + tl.arange(0, TILE)
    live = rows < queries
    query += batch * query_batch + head * query_head
    key += batch * key_batch + head * key_head
    query_places = rows.to(tl.int64)[:, None] * query_row + columns[None, :]
    query_tile = tl.load(query + query_places, mask=live[:, None], other=0.0)
    largest = tl.full((TILE,), float("-inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    for number in range(KEY_TILES):
        seen = number * TILE + tl.arange(0, TILE)
        inside = seen < keys
        key_places = seen.to(tl.int64)[:, None] * key_row + columns[None, :]
        key_tile = tl.load(key + key_places, mask=inside[:, None], other=0.0)
        scores = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION)
        count_places = rows.to(tl.int64)[:, None] * keys + seen[None, :]
        times = tl.load(counts + count_places, mask=live[:, None] & inside[None, :], other=0).to(tl.float32)
        largest = tl.maximum(largest, tl.max(tl.where(times > 0, scores, float("-inf")), axis=1))
        total += tl.sum(scores * times, axis=1)
    tl.store(outstanding + tl.program_id(0).to(tl.int64) * queries + rows, largest - total / keys, mask=live)


def outstanding_queries(query_BHQD: Tensor, key_BHKD: Tensor, sample_QN: Tensor) -> Tensor:
    """(B, H, Q), float32: the largest score of a query over its sampled keys, minus their sum over the number of keys.

    The head width is a power of two and at least 16, and no key is sampled more than 255 times for one query.
    """
    batch, heads, queries, width = query_BHQD.shape
    keys = key_BHKD.shape[2]
    if query_BHQD.stride(-1) != 1 or key_BHKD.stride(-1) != 1:
        query_BHQD, key_BHKD = query_BHQD.contiguous(), key_BHKD.contiguous()
    # Counted in 32 bits, for which every device has an atomic sum; read in 8 bits, four times as fast.
    once_QN = torch.ones_like(sample_QN, dtype=torch.int32)
    counts_QK = once_QN.new_zeros(queries, keys).scatter_add_(1, sample_QN, once_QN).to(torch.uint8)
    outstanding_BHQ = query_BHQD.new_empty(batch, heads, queries, dtype=torch.float32)
    exact = query_BHQD.dtype == torch.float32 and torch.get_float32_matmul_precision() == "highest"
    tile = WIDE_TILE if width * query_BHQD.element_size() > WIDE_BYTES else TILE
    with torch.cuda.device_of(query_BHQD):
        outstanding_kernel[(batch * heads, triton.cdiv(queries, tile))](
            query_BHQD, *query_BHQD.stride()[:3], key_BHKD, *key_BHKD.stride()[:3], counts_QK, outstanding_BHQ,
            heads, queries, keys, KEY_TILES=triton.cdiv(keys, tile), WIDTH=width, TILE=tile,
            PRECISION="ieee" if exact else "tf32", num_warps=WARPS,
        )  # fmt: skip
    return outstanding_BHQ
