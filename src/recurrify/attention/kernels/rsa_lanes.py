# mypy: disallow-untyped-defs=False
"""Self-attention with recurrence on a GPU, lane by lane: out = (1 − g) · attended + g · P·V, and all its gradients.

For causal scans with lanes enough to fill the chip. One program works through one whole lane of one sequence, block
after block, and keeps what a block has to know of the others: `forward_kernel` the past, from the first block to the
last, `backward_kernel` the future, from the last to the first. So no kernel waits for another one's sums, and what the
parameters' gradients need is added up once for a lane; `rsa_kernels.parameters_kernel` adds up the lanes. `rsa_parts`
says what lanes, steps and blocks are; here a lane's first block is the one that may be short, which nothing but an
incoming carry can tell.

There are more instructions than memory to wait for. So each sum over rows is a product that the matrix units make, what
pairs of steps have in common is worked out for each lag once, and the loads of blocks to come run ahead.

Programs: first lane 0 of every head of every sequence, then lane 1, and so on. A head of a small dilation has few lanes
and long ones; they are among the first to start. Behind the last lane come COPIED rows each of heads without a REM.

Shapes as in `rsa_kernels`, without groups: pasts (B, R, N, 2, D), partial sums (4, B, R, S, D blocks).
"""

import triton
import triton.language as tl

from recurrify.attention.kernels.rsa_parts import (
    clear_slots,
    eigenvalue,
    gate_share,
    lags,
    load_pair,
    load_powers,
    load_rows,
    powers,
    rows_of_head,
    spread,
    store_pair,
    store_rows,
    table_size,
    times,
    write_table,
)

# Lengths differ from batch to batch; a kernel compiled anew for each of their kinds would stall training.
LENGTHS = ["batches", "positions", "memory", "blocks", "parts"]


@triton.jit
def _program(batches, rem_heads, BD: tl.constexpr):
    """lane, sequence, head and columns of this program; from `slots` on there are no lanes, but rows to copy."""
    pairs = batches * rem_heads
    pair = tl.program_id(0) % pairs
    return tl.program_id(0) // pairs, pair // rem_heads, pair % rem_heads, tl.program_id(1) * BD + tl.arange(0, BD)


@triton.jit
def _plain_rows(batches, heads, rem_heads, slots, positions, COPIED: tl.constexpr):
    """sequence, head and rows of a program that copies."""
    index = tl.program_id(0) - slots * batches * rem_heads
    per_head = (positions + COPIED - 1) // COPIED
    pair = index // per_head
    others = heads - rem_heads
    return pair // others, rem_heads + pair % others, index % per_head * COPIED + tl.arange(0, COPIED)


@triton.jit
def _copy(
    source, from_batch, from_head, from_row, target, to_batch, to_head, to_row,
    batch, head, place, columns, count, WIDTH: tl.constexpr,
):  # fmt: skip
    source = rows_of_head(source, batch, from_batch, head, from_head)
    target = rows_of_head(target, batch, to_batch, head, to_head)
    rows = load_rows(source, from_row, place, columns, place < count, WIDTH)
    store_rows(target, to_row, place, columns, place < count, WIDTH, rows)


@triton.jit
def _blocks(positions, lane, dilation, C: tl.constexpr):
    """How many blocks a lane has, and how many steps the first one is short of C: all others are full."""
    steps = (positions - lane + dilation - 1) // dilation
    count = (steps + C - 1) // C
    return count, count * C - steps


@triton.jit
def _steps(block, short, lane, dilation, memory, C: tl.constexpr):
    """Where the steps of a block lie, which of them the lane has, and which of those are queries."""
    step = block * C - short + tl.arange(0, C)
    place = lane + step * dilation
    return place, step >= 0, (step >= 0) & (place >= memory)


@triton.jit
def _by_lag(numbers, LATER_ROWS: tl.constexpr, C: tl.constexpr):
    """A number for each pair of a block's steps, of those for the lags −C … C − 1.

    Rows are outputs and columns values if LATER_ROWS, else the other way round.
    """
    return tl.reshape(tl.gather(numbers, tl.reshape(lags(LATER_ROWS, C) + C, (C * C,)), 0), (C, C))


@triton.jit
def _weights(decay_log, angle, sign, is_sine, C: tl.constexpr):
    """p(lag) for the lags −C … C − 1."""
    lag = tl.arange(0, 2 * C) - C
    weight_re, weight_im = powers(tl.maximum(lag, 0), decay_log, angle, sign)
    return tl.where(lag > 0, tl.where(is_sine, weight_im, weight_re), 0.0)


@triton.jit
def _load_by_lag(table, KIND: tl.constexpr, LATER_ROWS: tl.constexpr, C: tl.constexpr):
    """As `rsa_parts.load_weights`, but each number is loaded once."""
    return _by_lag(tl.load(table + (4 + 8 * C + KIND * 2 * C) + tl.arange(0, 2 * C)), LATER_ROWS, C)


@triton.jit
def _factors(a_re, a_im, b_re, b_im, like, C: tl.constexpr):
    """Two complex numbers for each row, a and b, as columns of `like`'s type: see `_picked`.

    Each part is the sum of two columns, for one number of 16 bits would be too coarse. There are no fewer than 16.
    """
    column = tl.arange(0, 16)[None, :]
    a = tl.where((column & 1) == 0, a_re[:, None], a_im[:, None])
    b = tl.where((column & 1) == 0, b_re[:, None], b_im[:, None])
    exact = tl.where((column & 4) == 0, a, b)
    coarse = exact.to(like.dtype.element_ty)
    rest = (exact - coarse.to(tl.float32)).to(like.dtype.element_ty)
    return tl.where(column < 8, tl.where((column & 2) == 0, coarse, rest), 0.0).to(like.dtype.element_ty)


@triton.jit
def _picked(sums, WHICH: tl.constexpr):
    """Σ_rows a · row (WHICH = 0) or Σ_rows b · row (4) of rowsᵀ · factors."""
    column = tl.arange(0, 16)[None, :] & 5
    part_re, part_im = tl.where(column == WHICH, sums, 0.0), tl.where(column == WHICH + 1, sums, 0.0)
    return tl.sum(part_re, axis=1), tl.sum(part_im, axis=1)


@triton.jit
def _mirrored(x_re, x_im, is_sine):
    """conj(r · x), where r = 1, or −i for a sine. Twice, it is x again."""
    return tl.where(is_sine, x_im, x_re), tl.where(is_sine, x_re, -x_im)


@triton.jit(do_not_specialize=LENGTHS)
def forward_kernel(
    values, v_batch, v_head, v_row, attended, at_batch, at_head, at_row, output, o_batch, o_head, o_row,
    pasts, carry, next_carry, table, first, second, angles, select, gate, dilations, first_count, sine,
    batches, heads, rem_heads, positions, memory, blocks, slots,
    MIX: tl.constexpr, CARRY: tl.constexpr,
    WIDTH: tl.constexpr, COPIED: tl.constexpr, STAGES: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """(1 − g) · attended + g · P·V, the next carry, and each block's past, for the gradients."""
    lane, batch, head, columns = _program(batches, rem_heads, BD)
    if MIX:  # noqa: SIM102 (this is known when compiling, the other is not)
        if lane >= slots:
            batch, head, place = _plain_rows(batches, heads, rem_heads, slots, positions, COPIED)
            _copy(
                attended, at_batch, at_head, at_row, output, o_batch, o_head, o_row,
                batch, head, place, columns, positions - memory, WIDTH,
            )  # fmt: skip
            return
    dilation = tl.load(dilations + head).to(tl.int32)
    parameter = head
    if MIX:
        parameter = tl.load(select + head).to(tl.int32)
        attended = rows_of_head(attended, batch, at_batch, head, at_head)
    if lane >= dilation:
        return
    values = rows_of_head(values, batch, v_batch, head, v_head)
    output = rows_of_head(output, batch, o_batch, head, o_head)
    pair = (batch * rem_heads + head).to(tl.int64)
    past_re, past_im = tl.zeros((BD,), tl.float32), tl.zeros((BD,), tl.float32)
    if CARRY:
        carry += (pair * 2 * slots + lane) * WIDTH
        past_re, past_im = load_pair(carry, slots * WIDTH, columns, WIDTH)
    is_sine = tl.load(sine + head) != 0
    decay, decay_log, angle, sign = eigenvalue(parameter, first, second, angles, first_count, MIX)
    if (lane == 0) & (batch == 0) & (tl.program_id(1) == 0):
        write_table(table + head * table_size(C), decay, decay_log, angle, sign, is_sine, False, C)
    share = gate_share(gate, MIX)
    weights = _by_lag(_weights(decay_log, angle, sign, is_sine, C), True, C).to(values.dtype.element_ty)
    steps = tl.arange(0, C)
    power_re, power_im = powers(tl.arange(0, 2 * C), decay_log, angle, sign)
    end_re, end_im = tl.gather(power_re, C - steps, 0), tl.gather(power_im, C - steps, 0)
    to_end = _factors(end_re, end_im, end_re, end_im, values, C)
    full_re, full_im = tl.gather(power_re, steps, 0), tl.gather(power_im, steps, 0)
    block_re, block_im = powers(dilation * 0 + C, decay_log, angle, sign)
    start_re, start_im, whole_re, whole_im = full_re, full_im, block_re, block_im
    count, short = _blocks(positions, lane, dilation, C)
    if CARRY:
        # To a carry it matters how long the first block is.
        start = tl.maximum(steps - short, 0)
        start_re, start_im = tl.gather(power_re, start, 0), tl.gather(power_im, start, 0)
        whole_re, whole_im = powers(C - short, decay_log, angle, sign)
    pasts += (pair * blocks + lane) * (2 * WIDTH)
    for block in tl.range(count, num_stages=STAGES):
        place, live, asked = _steps(block, short, lane, dilation, memory, C)
        v = load_rows(values, v_row, place, columns, live, WIDTH)
        store_pair(pasts, WIDTH, columns, WIDTH, past_re, past_im)
        mixed = tl.dot(weights, v, input_precision="ieee")
        own_re, own_im = _picked(tl.dot(tl.trans(v), to_end, input_precision="ieee"), 0)
        mixed += spread(start_re, start_im, past_re, past_im, is_sine)
        if MIX:
            plain = load_rows(attended, at_row, place - memory, columns, asked, WIDTH)
            mixed = (1.0 - share) * plain.to(tl.float32) + share * mixed
        store_rows(output, o_row, place - memory, columns, asked, WIDTH, mixed)
        past_re, past_im = times(whole_re, whole_im, past_re, past_im)
        past_re, past_im = own_re + past_re, own_im + past_im
        pasts += dilation * (2 * WIDTH)
        if CARRY:
            start_re, start_im, whole_re, whole_im = full_re, full_im, block_re, block_im
    slot = lane + (count * C - short) * dilation - positions
    next_carry += pair * 2 * slots * WIDTH
    store_pair(next_carry + slot * WIDTH, slots * WIDTH, columns, WIDTH, past_re, past_im)
    clear_slots(next_carry, slot, dilation, slots, columns, WIDTH)


@triton.jit
def _store_partial(
    partial, parts, table, products, share, is_sine, z_re, z_im, gate_re, gate_im, tally,
    MIX: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The lane's share in the gradients of z and gate: pairs of steps inside one block join those of different ones."""
    # The other way round than the weights: places worked out before the loop would be kept through it, in registers.
    inside_re = tl.sum(products * _load_by_lag(table, 1, True, C))
    inside_im = tl.sum(products * _load_by_lag(table, 2, True, C))
    z_re, z_im = tl.sum(z_re, axis=0), tl.sum(z_im, axis=0)
    tl.store(partial, share * inside_re + tl.where(is_sine, z_im, z_re))
    tl.store(partial + parts, share * inside_im + tl.where(is_sine, -z_re, z_im))
    if MIX:
        inside = tl.sum(products * _load_by_lag(table, 0, True, C))
        tl.store(partial + 2 * parts, inside + tl.sum(tl.where(is_sine, gate_im, gate_re), axis=0))
        tl.store(partial + 3 * parts, -tl.sum(tally))


@triton.jit
def _start_factors(table, steps, like, C: tl.constexpr):
    """For what rows add to the future before them, and for its derivative."""
    power_re, power_im = load_powers(table, steps, 0, C)
    slope_re, slope_im = load_powers(table, steps, 1, C)
    return _factors(power_re, power_im, slope_re, slope_im, like, C)


@triton.jit
def _lane_gradients(
    values, v_row, attended, at_row, d_output, do_row, d_values, dv_row, d_attended, da_row, pasts, partial, parts,
    table, gate, is_sine, lane, dilation, count, short, memory, columns, future_re, future_im,
    MIX: tl.constexpr, CARRY: tl.constexpr, WIDTH: tl.constexpr,
    STAGES: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Everything but the carries' gradients; given X at the lane's end, it returns X at its start."""
    share = gate_share(gate, MIX)
    steps = tl.arange(0, C)
    weights = _load_by_lag(table, 0, False, C).to(d_output.dtype.element_ty)
    end_re, end_im = load_powers(table, C - steps, 0, C)
    end_slope_re, end_slope_im = load_powers(table, C - steps, 1, C)
    to_end = _factors(end_slope_re, end_slope_im, end_slope_re, end_slope_im, d_output, C)
    from_start = _start_factors(table, steps, d_output, C)
    whole_re, whole_im = load_powers(table, C, 0, C)
    whole_slope_re, whole_slope_im = load_powers(table, C, 1, C)
    products, tally = tl.zeros((C, C), tl.float32), tl.zeros((C, BD), tl.float32)
    z_re, z_im = tl.zeros((BD,), tl.float32), tl.zeros((BD,), tl.float32)
    gate_re, gate_im = tl.zeros((BD,), tl.float32), tl.zeros((BD,), tl.float32)
    for turn in tl.range(count, num_stages=STAGES):
        block = count - 1 - turn
        place, live, asked = _steps(block, short, lane, dilation, memory, C)
        e = load_rows(d_output, do_row, place - memory, columns, asked, WIDTH)
        v = load_rows(values, v_row, place, columns, live, WIDTH).to(e.dtype)
        past_re, past_im = load_pair(pasts + (block * dilation + lane) * (2 * WIDTH), WIDTH, columns, WIDTH)
        if CARRY:  # noqa: SIM102 (this is known when compiling, the other is not)
            # To the carry it matters how long the first block is.
            if block == 0:
                from_start = _start_factors(table, tl.maximum(steps - short, 0), d_output, C)
                whole_re, whole_im = load_powers(table, C - short, 0, C)
                whole_slope_re, whole_slope_im = load_powers(table, C - short, 1, C)
        products = tl.dot(e, tl.trans(v), products, input_precision="ieee")
        d_v = share * tl.dot(weights, e, input_precision="ieee")
        d_v += spread(end_re, end_im, future_re, future_im, is_sine)
        store_rows(d_values, dv_row, place, columns, live, WIDTH, d_v)
        if MIX:
            e_rows = e.to(tl.float32)
            plain = load_rows(attended, at_row, place - memory, columns, asked, WIDTH)
            tally += plain.to(tl.float32) * e_rows
            store_rows(d_attended, da_row, place - memory, columns, asked, WIDTH, (1.0 - share) * e_rows)
        # Pairs of steps in different blocks, as far as they pass this one: from the past to an output, from a value to
        # the future, and from the one to the other.
        sums = tl.dot(tl.trans(e), from_start, input_precision="ieee")
        own_re, own_im = _picked(sums, 0)
        slope_re, slope_im = _picked(sums, 4)
        out_re, out_im = times(past_re, past_im, share * slope_re, share * slope_im)
        slope_re, slope_im = _picked(tl.dot(tl.trans(v), to_end, input_precision="ieee"), 0)
        both_re, both_im = times(whole_slope_re, whole_slope_im, past_re, past_im)
        in_re, in_im = times(slope_re + both_re, slope_im + both_im, future_re, future_im)
        z_re, z_im = z_re + out_re + in_re, z_im + out_im + in_im
        if MIX:
            out_re, out_im = times(past_re, past_im, own_re, own_im)
            gate_re, gate_im = gate_re + out_re, gate_im + out_im
        future_re, future_im = times(whole_re, whole_im, future_re, future_im)
        future_re, future_im = share * own_re + future_re, share * own_im + future_im
    _store_partial(partial, parts, table, products, share, is_sine, z_re, z_im, gate_re, gate_im, tally, MIX, C)
    return future_re, future_im


@triton.jit(do_not_specialize=LENGTHS)
def backward_kernel(
    values, v_batch, v_head, v_row, attended, at_batch, at_head, at_row,
    d_output, do_batch, do_head, do_row, d_values, dv_batch, dv_head, dv_row, d_attended, da_batch, da_head, da_row,
    pasts, d_carry, d_next_carry, partial, table, gate, dilations, sine,
    batches, heads, rem_heads, positions, memory, blocks, parts, slots,
    MIX: tl.constexpr, CARRY: tl.constexpr, NEXT: tl.constexpr,
    WIDTH: tl.constexpr, COPIED: tl.constexpr, STAGES: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Gradients of values, `attended` and the incoming carry, and each lane's share in those of gate, decay and angle.

    `rsa_kernels.gradients_kernel` says how a pair's share in the gradient of z falls to the blocks it passes.
    """
    lane, batch, head, columns = _program(batches, rem_heads, BD)
    if MIX:  # noqa: SIM102 (this is known when compiling, the other is not)
        if lane >= slots:
            batch, head, place = _plain_rows(batches, heads, rem_heads, slots, positions, COPIED)
            _copy(
                d_output, do_batch, do_head, do_row, d_attended, da_batch, da_head, da_row,
                batch, head, place, columns, positions - memory, WIDTH,
            )  # fmt: skip
            d_values = rows_of_head(d_values, batch, dv_batch, head, dv_head)
            nothing = tl.zeros((COPIED, BD), tl.float32)
            store_rows(d_values, dv_row, place, columns, place < positions, WIDTH, nothing)
            return
    dilation = tl.load(dilations + head).to(tl.int32)
    if MIX:
        attended = rows_of_head(attended, batch, at_batch, head, at_head)
        d_attended = rows_of_head(d_attended, batch, da_batch, head, da_head)
    if lane >= dilation:
        return
    values = rows_of_head(values, batch, v_batch, head, v_head)
    d_output = rows_of_head(d_output, batch, do_batch, head, do_head)
    d_values = rows_of_head(d_values, batch, dv_batch, head, dv_head)
    pair = (batch * rem_heads + head).to(tl.int64)
    count, short = _blocks(positions, lane, dilation, C)
    is_sine = tl.load(sine + head) != 0
    future_re, future_im = tl.zeros((BD,), tl.float32), tl.zeros((BD,), tl.float32)
    if NEXT:
        slot = lane + (count * C - short) * dilation - positions
        d_next_carry += (pair * 2 * slots + slot) * WIDTH
        end_re, end_im = load_pair(d_next_carry, slots * WIDTH, columns, WIDTH)
        future_re, future_im = _mirrored(end_re, end_im, is_sine)
    part = (pair * slots + lane) * tl.num_programs(1) + tl.program_id(1)
    future_re, future_im = _lane_gradients(
        values, v_row, attended, at_row, d_output, do_row, d_values, dv_row, d_attended, da_row,
        pasts + pair * blocks * (2 * WIDTH), partial + part, parts,
        table + head * table_size(C), gate, is_sine, lane, dilation, count, short, memory, columns, future_re,
        future_im, MIX, CARRY, WIDTH, STAGES, C, BD,
    )  # fmt: skip
    if CARRY:
        start_re, start_im = _mirrored(future_re, future_im, is_sine)
        d_carry += pair * 2 * slots * WIDTH
        store_pair(d_carry + lane * WIDTH, slots * WIDTH, columns, WIDTH, start_re, start_im)
        clear_slots(d_carry, lane, dilation, slots, columns, WIDTH)
