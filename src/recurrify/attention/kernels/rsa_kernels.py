# mypy: disallow-untyped-defs=False
"""Self-attention with recurrence on a GPU: out = (1 − g) · attended + g · P·V, and all its gradients, in four kernels.

Forward: `sums_kernel` (what each block passes on) and `outputs_kernel`. Backward: `sums_kernel` again, from the other
end, then `gradients_kernel`, and `parameters_kernel` for what has to be added up over all blocks. `rsa_parts` says what
lanes, steps and blocks are. Without MIX there is no attention and no gate: out = P·V.

Shapes: B batch, in groups of GROUP sequences, H heads of which the first R carry a REM, T positions of which the first
M are memory without queries, D head width (WIDTH), N blocks of the head that has the most (`blocks`), S largest
dilation (`slots`). Block sums (1 or 2 directions, B, R, N, 2, D), `one_way` numbers each; carries (B, R, 2S, D);
partial sums (4, B / GROUP, R, N, D blocks), `parts` of each kind.
"""

import triton
import triton.language as tl

from recurrify.attention.kernels.rsa_parts import (
    across_gradient,
    clear_slots,
    eigenvalue,
    gate_share,
    gather_sums,
    load_pair,
    load_powers,
    load_rows,
    load_weights,
    meet,
    place_in_lane,
    powers,
    program,
    rows_of_head,
    spread,
    store_pair,
    store_rows,
    table_size,
    times,
    weighted_rows,
    write_table,
)

# Lengths differ from batch to batch; compiling a kernel for each kind of length would stall training.
# (Loops run by `while`, because Triton's interpreter cannot take a range of loaded numbers with today's numpy.)
LENGTHS = ["positions", "memory", "blocks", "offset", "one_way", "parts"]


@triton.jit
def _copy(
    source, from_batch, from_row, target, to_batch, to_row, index, columns, count,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """Rows of a head without a REM."""
    place = index * C + tl.arange(0, C)
    for _ in range(GROUP):
        rows = load_rows(source, from_row, place, columns, place < count, WIDTH)
        store_rows(target, to_row, place, columns, place < count, WIDTH, rows)
        source += from_batch
        target += to_batch


@triton.jit
def _clear(
    target, batch_stride, row_stride, place, columns, count,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """No gradient for the values of a head without a REM."""
    nothing = tl.zeros((C, BD), tl.float32)
    for _ in range(GROUP):
        store_rows(target, row_stride, place, columns, place < count, WIDTH, nothing)
        target += batch_stride


@triton.jit
def _moved(base, offset, USED: tl.constexpr):
    """A pointer that may be None where it is not used."""
    moved = base
    if USED:
        moved += offset
    return moved


@triton.jit(do_not_specialize=LENGTHS)
def sums_kernel(
    rows_in, in_batch, in_head, in_row, sums,
    attended, at_batch, at_head, at_row, d_attended, da_batch, da_head, da_row, partial,
    table, first, second, angles, select, gate, dilations, first_count, sine,
    heads, rem_heads, positions, offset, blocks, one_way, parts,
    MIX: tl.constexpr, GRADIENT: tl.constexpr, BOTH: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """What each block passes on: to later blocks (LEFT of them), to earlier ones (RIGHT of them), or both.

    The rows are values; then the first block of each head also writes the head's table for the kernels after this one.
    Or with GRADIENT they are the outputs' gradients, which start at position `offset`; they are multiplied by the gate,
    and with MIX the gradient of `attended` comes along, for it needs the same rows.
    """
    index, head, batch, columns = program(heads, blocks, GROUP, BD)
    rows_in = rows_of_head(rows_in, batch, in_batch, head, in_head)
    if GRADIENT and MIX:
        attended = rows_of_head(attended, batch, at_batch, head, at_head)
        d_attended = rows_of_head(d_attended, batch, da_batch, head, da_head)
        if head >= rem_heads:
            _copy(
                rows_in, in_batch, in_row, d_attended, da_batch, da_row, index, columns, positions - offset,
                GROUP, WIDTH, C,
            )  # fmt: skip
            return
    dilation = tl.load(dilations + head).to(tl.int32)
    lane, block, count, start, length, _ = place_in_lane(index, dilation, positions, C)
    if block >= count:
        return
    steps = tl.arange(0, C)
    place = lane + (start + steps) * dilation - offset
    live = (steps < length) & (place >= 0)
    share = gate_share(gate, GRADIENT and MIX)
    to_end = tl.where(live, length - steps, 0)
    table += head * table_size(C)
    if GRADIENT:
        left_re, left_im = load_powers(table, to_end, 0, C)
        right_re, right_im = load_powers(table, steps, 0, C)
    else:
        parameter = head
        if MIX:
            parameter = tl.load(select + head).to(tl.int32)
        decay, decay_log, angle, sign = eigenvalue(parameter, first, second, angles, first_count, MIX)
        if (index == 0) & (batch == 0) & (tl.program_id(1) == 0):
            write_table(table, decay, decay_log, angle, sign, tl.load(sine + head) != 0, BOTH, C)
        left_re, left_im = powers(to_end, decay_log, angle, sign)
        right_re, right_im = powers(steps, decay_log, angle, sign)
    tally = tl.zeros((C, BD), tl.float32)
    sums += ((batch * rem_heads + head).to(tl.int64) * blocks + index) * (2 * WIDTH)
    for _ in range(GROUP):
        rows = load_rows(rows_in, in_row, place, columns, live, WIDTH)
        if GRADIENT and MIX:
            plain = load_rows(attended, at_row, place, columns, live, WIDTH)
            tally += plain.to(tl.float32) * rows.to(tl.float32)
            store_rows(d_attended, da_row, place, columns, live, WIDTH, (1.0 - share) * rows.to(tl.float32))
            attended += at_batch
            d_attended += da_batch
        if LEFT:
            sum_re, sum_im = weighted_rows(rows, left_re, left_im)
            store_pair(sums, WIDTH, columns, WIDTH, share * sum_re, share * sum_im)
        if RIGHT:
            sum_re, sum_im = weighted_rows(rows, right_re, right_im)
            later = sums
            if LEFT:
                later += one_way
            store_pair(later, WIDTH, columns, WIDTH, share * sum_re, share * sum_im)
        rows_in += in_batch
        sums += rem_heads * blocks * (2 * WIDTH)
    if GRADIENT and MIX:
        part = ((batch // GROUP * rem_heads + head) * blocks + index) * tl.num_programs(1) + tl.program_id(1)
        tl.store(partial + 3 * parts + part, -tl.sum(tl.sum(tally, axis=1), axis=0))


@triton.jit
def _past(
    sums, carry, block, lane, dilation, slots, columns, decay_log, angle, sign,
    CARRY: tl.constexpr, STORED: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """H at the block's start: the earlier blocks' sums, and the carry that the lane came with."""
    past_re, past_im = columns.to(tl.float32) * 0.0, columns.to(tl.float32) * 0.0
    if STORED:
        nearest = (block - 1) * dilation + lane
        past_re, past_im = gather_sums(sums, nearest, -dilation, block, columns, decay_log, angle, WIDTH, C)
    if CARRY:
        carry_re, carry_im = load_pair(carry + lane * WIDTH, slots * WIDTH, columns, WIDTH)
        power_re, power_im = powers(block * C, decay_log, angle, sign)
        carry_re, carry_im = times(power_re, power_im, carry_re, carry_im)
        past_re += carry_re
        past_im += carry_im
    return past_re, past_im


@triton.jit
def _future(
    sums, block, count, lane, dilation, columns, decay_log, angle,
    STORED: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """X at the block's end: the later blocks' sums."""
    future_re, future_im = columns.to(tl.float32) * 0.0, columns.to(tl.float32) * 0.0
    if STORED:
        nearest, others = (block + 1) * dilation + lane, count - 1 - block
        future_re, future_im = gather_sums(sums, nearest, dilation, others, columns, decay_log, angle, WIDTH, C)
    return future_re, future_im


@triton.jit(do_not_specialize=LENGTHS)
def outputs_kernel(
    values, v_batch, v_head, v_row, attended, at_batch, at_head, at_row, output, o_batch, o_head, o_row,
    sums, carry, next_carry, table, gate, dilations, sine,
    heads, rem_heads, positions, memory, blocks, one_way, slots,
    MIX: tl.constexpr, BOTH: tl.constexpr, CARRY: tl.constexpr, STORED: tl.constexpr,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """(1 − g) · attended + g · P·V, and the carry behind the last position unless BOTH directions are scanned."""
    index, head, batch, columns = program(heads, blocks, GROUP, BD)
    output = rows_of_head(output, batch, o_batch, head, o_head)
    if MIX:
        attended = rows_of_head(attended, batch, at_batch, head, at_head)
        if head >= rem_heads:
            _copy(
                attended, at_batch, at_row, output, o_batch, o_row, index, columns, positions - memory, GROUP, WIDTH, C
            )
            return
    dilation = tl.load(dilations + head).to(tl.int32)
    lane, block, count, start, length, lane_steps = place_in_lane(index, dilation, positions, C)
    # Blocks of memory alone have no outputs; only the last one knows the next carry.
    if (block >= count) | ((block < count - 1) & (lane + (start + C - 1) * dilation < memory)):
        return
    table += head * table_size(C)
    decay_log, angle, sign = tl.load(table + 1), tl.load(table + 2), tl.load(table + 3)
    is_sine = tl.load(sine + head) != 0
    share = gate_share(gate, MIX)
    values = rows_of_head(values, batch, v_batch, head, v_head)
    sums += (batch * rem_heads + head).to(tl.int64) * blocks * (2 * WIDTH)
    steps = tl.arange(0, C)
    place = lane + (start + steps) * dilation
    live = steps < length
    asked = live & (place >= memory)
    weights = load_weights(table, 0, True, C).to(values.dtype.element_ty)
    from_start_re, from_start_im = load_powers(table, steps, 0, C)
    to_end_re, to_end_im = load_powers(table, tl.where(live, length - steps, 0), 0, C)
    for turn in range(GROUP):
        v = load_rows(values, v_row, place, columns, live, WIDTH)
        own_slots = ((batch + turn) * rem_heads + head).to(tl.int64) * 2 * slots * WIDTH
        past_re, past_im = _past(
            sums, _moved(carry, own_slots, CARRY), block, lane, dilation, slots, columns, decay_log, angle, sign,
            CARRY, STORED, WIDTH, C,
        )  # fmt: skip
        mixed = tl.dot(weights, v, input_precision="ieee")
        mixed += spread(from_start_re, from_start_im, past_re, past_im, is_sine)
        if BOTH:
            future_re, future_im = _future(
                sums + one_way, block, count, lane, dilation, columns, decay_log, angle, STORED, WIDTH, C
            )
            mixed += spread(to_end_re, to_end_im, future_re, future_im, is_sine)
        elif block == count - 1:
            slot = lane + lane_steps * dilation - positions
            lane_carry = next_carry + own_slots
            own_re, own_im = weighted_rows(v, to_end_re, to_end_im)
            whole_re, whole_im = load_powers(table, length, 0, C)
            aged_re, aged_im = times(whole_re, whole_im, past_re, past_im)
            store_pair(lane_carry + slot * WIDTH, slots * WIDTH, columns, WIDTH, own_re + aged_re, own_im + aged_im)
            clear_slots(lane_carry, slot, dilation, slots, columns, WIDTH)
        if MIX:
            plain = load_rows(attended, at_row, place - memory, columns, asked, WIDTH).to(tl.float32)
            mixed = (1.0 - share) * plain + share * mixed
            attended += at_batch
        store_rows(output, o_row, place - memory, columns, asked, WIDTH, mixed)
        values += v_batch
        output += o_batch
        sums += rem_heads * blocks * (2 * WIDTH)


@triton.jit
def _end_gradient(d_next_carry, slot, slots, rest, columns, decay_log, angle, sign, is_sine, WIDTH: tl.constexpr):
    """What the gradient of the next carry adds to the future of a block that ends `rest` steps before its lane.

    It is conj(gradient) / r, so that multiplying by r once, when X is read, is right for it too.
    """
    end_re, end_im = load_pair(d_next_carry + slot * WIDTH, slots * WIDTH, columns, WIDTH)
    power_re, power_im = powers(rest, decay_log, angle, sign)
    return times(power_re, power_im, tl.where(is_sine, end_im, end_re), tl.where(is_sine, end_re, -end_im))


@triton.jit
def _store_start_gradient(
    d_carry, table, lane, dilation, slots, columns, own_re, own_im, future_re, future_im, length, is_sine,
    WIDTH: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The gradient of the carry that a lane came with: conj(r · X) at its first step."""
    whole_re, whole_im = load_powers(table, length, 0, C)
    later_re, later_im = times(whole_re, whole_im, future_re, future_im)
    start_re, start_im = own_re + later_re, own_im + later_im
    d_re, d_im = tl.where(is_sine, start_im, start_re), tl.where(is_sine, start_re, -start_im)
    store_pair(d_carry + lane * WIDTH, slots * WIDTH, columns, WIDTH, d_re, d_im)
    clear_slots(d_carry, lane, dilation, slots, columns, WIDTH)


@triton.jit
def _ends(
    value_sums, gradient_sums, carry, d_next_carry, block, count, lane, dilation, positions, start, length, lane_steps,
    slots, columns, decay_log, angle, sign, is_sine,
    CARRY: tl.constexpr, NEXT: tl.constexpr, STORED: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The past of the values and the future of the gradients."""
    past_re, past_im = _past(
        value_sums, carry, block, lane, dilation, slots, columns, decay_log, angle, sign, CARRY, STORED, WIDTH, C
    )
    future_re, future_im = _future(
        gradient_sums, block, count, lane, dilation, columns, decay_log, angle, STORED, WIDTH, C
    )
    if NEXT:
        slot, rest = lane + lane_steps * dilation - positions, lane_steps - start - length
        end_re, end_im = _end_gradient(
            d_next_carry, slot, slots, rest, columns, decay_log, angle, sign, is_sine, WIDTH
        )  # fmt: skip
        future_re += end_re
        future_im += end_im
    return past_re, past_im, future_re, future_im


@triton.jit
def _meet_ends(out_rows, in_rows, past_re, past_im, future_re, future_im):
    """All products that `across_gradient` needs."""
    out_re, out_im = meet(out_rows, past_re, past_im)
    in_re, in_im = meet(in_rows, future_re, future_im)
    both_re, both_im = times(past_re, past_im, future_re, future_im)
    return out_re, out_im, in_re, in_im, both_re, both_im


@triton.jit
def _store_partial(
    partial, parts, table, products, length, share, is_sine,
    out_re, out_im, in_re, in_im, both_re, both_im, back_out_re, back_out_im, back_in_re, back_in_im,
    BOTH: tl.constexpr, C: tl.constexpr,
):  # fmt: skip
    """The block's share in the gradients of z and gate: pairs that cross its borders, then pairs inside it."""
    steps = tl.arange(0, C)
    z_re, z_im = across_gradient(table, out_re, out_im, in_re, in_im, both_re, both_im, share, 1.0, length, C)
    power_re, power_im = load_powers(table, steps, 0, C)
    gate_re, gate_im = times(power_re, power_im, out_re, out_im)
    if BOTH:
        nothing = both_re * 0.0
        back_re, back_im = across_gradient(
            table, back_out_re, back_out_im, back_in_re, back_in_im, nothing, nothing, 1.0, share, length, C
        )
        z_re += back_re
        z_im += back_im
        power_re, power_im = load_powers(table, tl.where(steps < length, length - steps, 0), 0, C)
        back_re, back_im = times(power_re, power_im, back_in_re, back_in_im)
        gate_re += back_re
        gate_im += back_im
    gate = tl.sum(tl.where(is_sine, gate_im, gate_re), axis=0)
    gate += tl.sum(tl.sum(products * load_weights(table, 0, False, C), axis=1), axis=0)
    inside_re = tl.sum(tl.sum(products * load_weights(table, 1, False, C), axis=1), axis=0)
    inside_im = tl.sum(tl.sum(products * load_weights(table, 2, False, C), axis=1), axis=0)
    tl.store(partial, share * inside_re + tl.where(is_sine, z_im, z_re))
    tl.store(partial + parts, share * inside_im + tl.where(is_sine, -z_re, z_im))
    tl.store(partial + 2 * parts, gate)


@triton.jit(do_not_specialize=LENGTHS)
def gradients_kernel(
    values, v_batch, v_head, v_row, d_output, do_batch, do_head, do_row, d_values, dv_batch, dv_head, dv_row,
    value_sums, gradient_sums, carry, d_carry, d_next_carry, partial, table, gate, dilations, sine,
    heads, rem_heads, positions, memory, blocks, one_way, parts, slots,
    MIX: tl.constexpr, BOTH: tl.constexpr, CARRY: tl.constexpr, NEXT: tl.constexpr, STORED: tl.constexpr,
    GROUP: tl.constexpr, WIDTH: tl.constexpr, C: tl.constexpr, BD: tl.constexpr,
):  # fmt: skip
    """Gradients of the values and of the incoming carry, and each block's share in those of gate, decay and angle.

    With L = Re(r · Σ_{j<k} z^(k−j) · e_k · v_j), r = 1 or −i, a pair's k − j falls into the steps it walks in each
    block: from j to the end of its block, whole blocks, and up to k. So each block adds its own part, exactly.
    """
    index, head, batch, columns = program(heads, blocks, GROUP, BD)
    steps = tl.arange(0, C)
    d_values = rows_of_head(d_values, batch, dv_batch, head, dv_head)
    if MIX:  # noqa: SIM102 (this is known when compiling, the other is not)
        if head >= rem_heads:
            _clear(d_values, dv_batch, dv_row, index * C + steps, columns, positions, GROUP, WIDTH, C, BD)
            return
    dilation = tl.load(dilations + head).to(tl.int32)
    lane, block, count, start, length, lane_steps = place_in_lane(index, dilation, positions, C)
    if block >= count:
        return
    table += head * table_size(C)
    decay_log, angle, sign = tl.load(table + 1), tl.load(table + 2), tl.load(table + 3)
    is_sine = tl.load(sine + head) != 0
    share = gate_share(gate, MIX)
    values = rows_of_head(values, batch, v_batch, head, v_head)
    d_output = rows_of_head(d_output, batch, do_batch, head, do_head)
    place = lane + (start + steps) * dilation
    live = steps < length
    weights = load_weights(table, 0, False, C).to(d_output.dtype.element_ty)
    from_start_re, from_start_im = load_powers(table, steps, 0, C)
    to_end_re, to_end_im = load_powers(table, tl.where(live, length - steps, 0), 0, C)
    products = tl.zeros((C, C), tl.float32)
    a_re, a_im = steps.to(tl.float32) * 0.0, steps.to(tl.float32) * 0.0
    b_re, b_im, c_re, c_im, d_re, d_im = a_re, a_im, a_re, a_im, a_re, a_im
    both_re, both_im = columns.to(tl.float32) * 0.0, columns.to(tl.float32) * 0.0
    for turn in range(GROUP):
        e = load_rows(d_output + turn * do_batch, do_row, place - memory, columns, live & (place >= memory), WIDTH)
        v = load_rows(values + turn * v_batch, v_row, place, columns, live, WIDTH).to(e.dtype)
        pair = ((batch + turn) * rem_heads + head).to(tl.int64)
        own_sums, own_slots = pair * blocks * (2 * WIDTH), pair * 2 * slots * WIDTH
        past_re, past_im, future_re, future_im = _ends(
            value_sums + own_sums, gradient_sums + own_sums + (one_way if BOTH else 0),
            _moved(carry, own_slots, CARRY), _moved(d_next_carry, own_slots, NEXT),
            block, count, lane, dilation, positions, start, length, lane_steps, slots, columns,
            decay_log, angle, sign, is_sine, CARRY, NEXT, STORED, WIDTH, C,
        )  # fmt: skip
        e_rows, v_rows = e.to(tl.float32), v.to(tl.float32)
        p_re, p_im, q_re, q_im, r_re, r_im = _meet_ends(e_rows, v_rows, past_re, past_im, future_re, future_im)
        a_re, a_im, b_re, b_im = a_re + p_re, a_im + p_im, b_re + q_re, b_im + q_im
        both_re, both_im = both_re + r_re, both_im + r_im
        products = tl.dot(v, tl.trans(e), products, input_precision="ieee")
        d_v = share * tl.dot(weights, e, input_precision="ieee")
        d_v += spread(to_end_re, to_end_im, future_re, future_im, is_sine)
        if BOTH:
            # The other direction: the past of the gradients, the future of the values.
            past_re, past_im, future_re, future_im = _ends(
                gradient_sums + own_sums, value_sums + own_sums + one_way, carry, d_next_carry,
                block, count, lane, dilation, positions, start, length, lane_steps, slots, columns,
                decay_log, angle, sign, is_sine, False, False, STORED, WIDTH, C,
            )  # fmt: skip
            d_v += spread(from_start_re, from_start_im, past_re, past_im, is_sine)
            p_re, p_im, q_re, q_im, r_re, r_im = _meet_ends(v_rows, e_rows, past_re, past_im, future_re, future_im)
            c_re, c_im, d_re, d_im = c_re + p_re, c_im + p_im, d_re + q_re, d_im + q_im
            both_re, both_im = both_re + r_re, both_im + r_im
        elif CARRY and block == 0:
            own_re, own_im = weighted_rows(share * e_rows, from_start_re, from_start_im)
            _store_start_gradient(
                d_carry + own_slots, table, lane, dilation, slots, columns, own_re, own_im, future_re, future_im,
                length, is_sine, WIDTH, C,
            )  # fmt: skip
        store_rows(d_values + turn * dv_batch, dv_row, place, columns, live, WIDTH, d_v)
    part = ((batch // GROUP * rem_heads + head) * blocks + index) * tl.num_programs(1) + tl.program_id(1)
    _store_partial(
        partial + part, parts, table, products, length, share, is_sine,
        a_re, a_im, b_re, b_im, both_re, both_im, c_re, c_im, d_re, d_im, BOTH, C,
    )  # fmt: skip


@triton.jit(do_not_specialize=LENGTHS)
def parameters_kernel(
    partial, d_parameters, first, second, angles, select, gate, dilations, first_count,
    rem_heads, positions, blocks, parts, width_blocks, count,
    MIX: tl.constexpr, C: tl.constexpr, WIDE: tl.constexpr,
):  # fmt: skip
    """One program for each parameter pair: the sum over its heads and blocks, through tanh or sigmoid where MIX.

    `d_parameters` holds the gradients of `count` rates (η then ν, or decays), of as many angles, and of the gate.
    """
    parameter = tl.program_id(0)
    z_re, z_im, both = tl.zeros((WIDE,), tl.float32), tl.zeros((WIDE,), tl.float32), tl.zeros((WIDE,), tl.float32)
    stride = blocks * width_blocks
    start = 0
    while start < parts:
        flat = start + tl.arange(0, WIDE)
        head = flat // stride % rem_heads
        dilation = tl.load(dilations + head).to(tl.int32)
        lane_blocks = tl.maximum(((positions + dilation - 1) // dilation + C - 1) // C, 1)
        # Heads with fewer blocks than the one that has the most leave the rest of their places unwritten.
        written = (flat < parts) & (flat % stride < dilation * lane_blocks * width_blocks)
        owner = head
        if MIX:
            owner = tl.load(select + head).to(tl.int32)
            of_gate = written & (parameter == count)
            both += tl.load(partial + 2 * parts + flat, mask=of_gate, other=0.0)
            both += tl.load(partial + 3 * parts + flat, mask=of_gate, other=0.0)
        z_re += tl.load(partial + flat, mask=written & (owner == parameter), other=0.0)
        z_im += tl.load(partial + parts + flat, mask=written & (owner == parameter), other=0.0)
        start += WIDE
    if parameter < count:
        decay, _, _, sign = eigenvalue(parameter, first, second, angles, first_count, MIX)
        slope = 1.0
        if MIX:
            # The derivatives of tanh η · sign η and of σ(ν).
            slope = tl.where(parameter < first_count, sign * (1.0 - decay * decay), decay * (1.0 - decay))
        tl.store(d_parameters + parameter, tl.sum(z_re, axis=0) * slope)
        tl.store(d_parameters + count + parameter, -tl.sum(z_im, axis=0) * decay)
    elif MIX:
        share = gate_share(gate, MIX)
        tl.store(d_parameters + 2 * count, tl.sum(both, axis=0) * share * (1.0 - share))
