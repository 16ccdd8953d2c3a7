# mypy: disallow-untyped-defs=False
"""Causal attention with a score for each distance on a GPU, and its gradients, in four kernels.

Forward: `forward_kernel`. Backward: `products_kernel`, then `keys_kernel`, which writes the gradient of the position
scores, then `queries_kernel`, which reads it. Every gradient is summed in one program, in a fixed order.

Position scores are sorted by distance: column c of every query belongs to the distance K − 1 − c. Query i is at
position K − Q + i, so the score of key j is in column j + Q − 1 − i. To the kernels, these are rows of keys that begin
with column Q − 1 of the first query; each next row begins one column less than a row of scores later, or one column
earlier where all queries share one row. A pair is live where 0 ≤ distance < span; no other is read.

Shapes: B batch, H heads, Q queries, K keys of which the last Q are the queries' own, D head width (WIDTH). A program
has BQ queries, or BK keys, of one head. The gradient of the position scores (B, H, Q, K) and what is kept of each query
(B, H, Q) are contiguous. Offsets inside a head have 32 bits: tables of 64-bit addresses would fill the registers.
"""

import triton
import triton.language as tl

from recurrify.attention.kernels import rows_of_head

LOG2_E = tl.constexpr(1.4426950408889634)
LOWEST = tl.constexpr(-1e30)
"""Below every score, but finite: the difference of two infinities is NaN."""

# Lengths change from batch to batch; compiling a kernel for each kind of length would stall training.
LENGTHS = ["queries", "keys", "span"]


@triton.jit
def _program(length, heads, BLOCK: tl.constexpr):
    """The first of `length` rows of this program; its pair of sequence and head, as one number and as two."""
    blocks = tl.cdiv(length, BLOCK)
    pair = tl.program_id(0) // blocks
    return tl.program_id(0) % blocks * BLOCK, pair, pair // heads, pair % heads


@triton.jit
def _load_rows(base, first, stride, length, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """ROWS rows from `first` on, with 0 after the last."""
    row, column = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    places = row[:, None] * stride + column[None, :]
    return tl.load(base + tl.cast(first, tl.int64) * stride + places, mask=(first + row < length)[:, None], other=0.0)


@triton.jit
def _store_rows(base, first, stride, length, block, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row, column = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    places = base + tl.cast(first, tl.int64) * stride + row[:, None] * stride + column[None, :]
    tl.store(places, block.to(base.dtype.element_ty), mask=(first + row < length)[:, None])


@triton.jit
def _aligned(d_scores, pair, queries, keys):
    """The address of the first query's score of the first key; that of the next query is K − 1 further."""
    return d_scores + pair.to(tl.int64) * queries * keys + queries - 1


@triton.jit
def _live(query, key, queries, keys, span):
    """Which pairs are live; none with a query after the last, so none with a key after the last either."""
    place = tl.where(query < queries, keys - queries + query, -1)
    return (key <= place) & (key > place - span)


@triton.jit
def _seen_keys(first, queries, keys, span, BQ: tl.constexpr, BK: tl.constexpr):
    """Begin and end of the keys that a block of queries sees, in whole blocks from the first key."""
    first_place = keys - queries + first
    begin = tl.maximum(first_place - span + 1, 0) // BK * BK
    return begin, tl.minimum(first_place + BQ, keys)


@triton.jit(do_not_specialize=LENGTHS)
def forward_kernel(
    query, q_batch, q_head, q_row, key, k_batch, k_head, k_row, value, v_batch, v_head, v_row,
    scores, s_batch, s_head, s_row,
    output, o_batch, o_head, o_row, log_sums, heads, queries, keys, span, scale,
    WIDTH: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The output, and log2 Σ_j exp(score_j) of each query."""
    first, pair, batch, head = _program(queries, heads, BQ)
    query = rows_of_head(query, batch, q_batch, head, q_head)
    key = rows_of_head(key, batch, k_batch, head, k_head)
    value = rows_of_head(value, batch, v_batch, head, v_head)
    output = rows_of_head(output, batch, o_batch, head, o_head)
    scores = rows_of_head(scores, batch, s_batch, head, s_head) + queries - 1
    rows = first + tl.arange(0, BQ)
    q = _load_rows(query, first, q_row, queries, BQ, WIDTH)
    largest = tl.full((BQ,), LOWEST, tl.float32)
    total = tl.zeros((BQ,), tl.float32)
    attended = tl.zeros((BQ, WIDTH), tl.float32)
    begin, end = _seen_keys(first, queries, keys, span, BQ, BK)
    for start in range(begin, end, BK):
        seen = start + tl.arange(0, BK)
        live = _live(rows[:, None], seen[None, :], queries, keys, span)
        # Pairs that are not live have a score of −∞.
        places = rows[:, None] * (s_row - 1) + seen[None, :]
        position = tl.load(scores + places, mask=live, other=float("-inf"))
        k = _load_rows(key, start, k_row, keys, BK, WIDTH)
        v = _load_rows(value, start, v_row, keys, BK, WIDTH)
        content = tl.dot(q, tl.trans(k), input_precision="ieee")
        score = (content + position.to(tl.float32)) * (scale * LOG2_E)
        highest = tl.maximum(largest, tl.max(score, axis=1))
        weights = tl.exp2(score - highest[:, None])
        shrink = tl.exp2(largest - highest)
        total = total * shrink + tl.sum(weights, axis=1)
        attended = tl.dot(weights.to(v.dtype), v, attended * shrink[:, None], input_precision="ieee")
        largest = highest
    # Rows after the last query have seen nothing and are not stored; 1 avoids a division by 0.
    total = tl.where(rows < queries, total, 1.0)
    _store_rows(output, first, o_row, queries, attended / total[:, None], BQ, WIDTH)
    log_sums += pair.to(tl.int64) * queries
    tl.store(log_sums + rows, largest + tl.log2(total), mask=rows < queries)


@triton.jit(do_not_specialize=LENGTHS)
def products_kernel(
    output, o_batch, o_head, o_row, d_output, do_batch, do_head, do_row, products, heads, queries,
    WIDTH: tl.constexpr, BQ: tl.constexpr,
):  # fmt: skip
    """The product of each query's output and its gradient."""
    first, pair, batch, head = _program(queries, heads, BQ)
    output = rows_of_head(output, batch, o_batch, head, o_head)
    d_output = rows_of_head(d_output, batch, do_batch, head, do_head)
    out = _load_rows(output, first, o_row, queries, BQ, WIDTH).to(tl.float32)
    d_out = _load_rows(d_output, first, do_row, queries, BQ, WIDTH).to(tl.float32)
    rows = first + tl.arange(0, BQ)
    products += pair.to(tl.int64) * queries
    tl.store(products + rows, tl.sum(out * d_out, axis=1), mask=rows < queries)


@triton.jit(do_not_specialize=LENGTHS)
def keys_kernel(
    query, q_batch, q_head, q_row, key, k_batch, k_head, k_row, value, v_batch, v_head, v_row,
    scores, s_batch, s_head, s_row,
    d_output, do_batch, do_head, do_row, log_sums, products, d_scores,
    d_key, dk_batch, dk_head, dk_row, d_value, dv_batch, dv_head, dv_row, heads, queries, keys, span, scale,
    WIDTH: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Gradients of keys and values, and of the position scores of live pairs. Tiles are (keys, queries) here."""
    first, pair, batch, head = _program(keys, heads, BK)
    query = rows_of_head(query, batch, q_batch, head, q_head)
    key = rows_of_head(key, batch, k_batch, head, k_head)
    value = rows_of_head(value, batch, v_batch, head, v_head)
    d_output = rows_of_head(d_output, batch, do_batch, head, do_head)
    d_key = rows_of_head(d_key, batch, dk_batch, head, dk_head)
    d_value = rows_of_head(d_value, batch, dv_batch, head, dv_head)
    log_sums += pair.to(tl.int64) * queries
    products += pair.to(tl.int64) * queries
    scores = rows_of_head(scores, batch, s_batch, head, s_head) + queries - 1
    d_scores = _aligned(d_scores, pair, queries, keys)
    seen = first + tl.arange(0, BK)
    k = _load_rows(key, first, k_row, keys, BK, WIDTH)
    v = _load_rows(value, first, v_row, keys, BK, WIDTH)
    d_k = tl.zeros((BK, WIDTH), tl.float32)
    d_v = tl.zeros((BK, WIDTH), tl.float32)
    # The queries that see any of these keys.
    memory = keys - queries
    begin = tl.maximum(first - memory, 0) // BQ * BQ
    end = tl.minimum(first + BK - 1 - memory + span, queries)
    for start in range(begin, end, BQ):
        rows = start + tl.arange(0, BQ)
        live = _live(rows[None, :], seen[:, None], queries, keys, span)
        places = rows[None, :] * (s_row - 1) + seen[:, None]
        position = tl.load(scores + places, mask=live, other=float("-inf"))
        q = _load_rows(query, start, q_row, queries, BQ, WIDTH)
        d_out = _load_rows(d_output, start, do_row, queries, BQ, WIDTH)
        log_sum = tl.load(log_sums + rows, mask=rows < queries, other=0.0)
        product = tl.load(products + rows, mask=rows < queries, other=0.0)
        content = tl.dot(k, tl.trans(q), input_precision="ieee")
        score = (content + position.to(tl.float32)) * (scale * LOG2_E)
        weights = tl.exp2(score - log_sum[None, :])
        d_v = tl.dot(weights.to(d_out.dtype), d_out, d_v, input_precision="ieee")
        d_weights = tl.dot(v, tl.trans(d_out), input_precision="ieee")
        d_score = (weights * (d_weights - product[None, :]) * scale).to(q.dtype)
        tl.store(d_scores + rows[None, :] * (keys - 1) + seen[:, None], d_score, mask=live)
        d_k = tl.dot(d_score, q, d_k, input_precision="ieee")
    _store_rows(d_key, first, dk_row, keys, d_k, BK, WIDTH)
    _store_rows(d_value, first, dv_row, keys, d_v, BK, WIDTH)


@triton.jit(do_not_specialize=LENGTHS)
def queries_kernel(
    key, k_batch, k_head, k_row, d_scores, d_query, dq_batch, dq_head, dq_row, heads, queries, keys, span,
    WIDTH: tl.constexpr, BQ: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The gradient of the queries, and zeros for the position scores of pairs that are not live."""
    first, pair, batch, head = _program(queries, heads, BQ)
    key = rows_of_head(key, batch, k_batch, head, k_head)
    d_query = rows_of_head(d_query, batch, dq_batch, head, dq_head)
    _clear_dead(d_scores, first, pair, queries, keys, span, BQ, BK)
    d_scores = _aligned(d_scores, pair, queries, keys)
    rows = first + tl.arange(0, BQ)
    d_q = tl.zeros((BQ, WIDTH), tl.float32)
    begin, end = _seen_keys(first, queries, keys, span, BQ, BK)
    for start in range(begin, end, BK):
        seen = start + tl.arange(0, BK)
        live = _live(rows[:, None], seen[None, :], queries, keys, span)
        d_score = tl.load(d_scores + rows[:, None] * (keys - 1) + seen[None, :], mask=live, other=0.0)
        k = _load_rows(key, start, k_row, keys, BK, WIDTH)
        d_q = tl.dot(d_score.to(k.dtype), k, d_q, input_precision="ieee")
    _store_rows(d_query, first, dq_row, queries, d_q, BQ, WIDTH)


@triton.jit
def _clear_dead(d_scores, first, pair, queries, keys, span, BQ: tl.constexpr, BK: tl.constexpr):
    """Zeros in the columns of each query whose distance is at least its span, or is before the first key."""
    d_scores += pair.to(tl.int64) * queries * keys
    rows = first + tl.arange(0, BQ)
    dead = tl.where(rows < queries, tl.maximum(queries - 1 - rows, keys - span), 0)
    nothing = tl.zeros((BQ, BK), d_scores.dtype.element_ty)
    for start in range(0, tl.maximum(queries - 1 - first, keys - span), BK):
        columns = start + tl.arange(0, BK)
        tl.store(d_scores + rows[:, None] * keys + columns[None, :], nothing, mask=columns[None, :] < dead[:, None])
