# mypy: disallow-untyped-defs=False
"""The parts that the RSA kernels are made of: functions on one program's tile.

A head of dilation d is d interleaved recurrences, its lanes: lane l holds the positions l, l + d, l + 2d, …, and
step k of a lane is its k-th position. In a lane the dilation is gone: h_k = z · (h_{k−1} + v_{k−1}). One program works
on one block of C steps of one lane, for several sequences of the batch one after the other.

A block that starts at step a and ends before step b knows of the others by two complex vectors:
- its past, H_a = Σ_{j<a} z^(a−j) v_j, which adds z^(k−a) · H_a to the outputs k of the block;
- its future, X_b = Σ_{k≥b} z^(k−b) e_k, the same from the other end, for the gradients e of the outputs, or, in a
  bidirectional scan, for the values themselves. It adds z^(b−j) · X_b to row j of the block.
Both are sums over the other blocks' own sums, which a first pass stores.

A complex number is two tensors, `…_re` and `…_im`. A cosine head reads Re(x), a sine head Im(x) = Re(−i·x). Angles are
in quarter turns.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
QUARTERS = tl.constexpr(0.6366197723675814)
"""Quarter turns in one radian."""
LOOK_BATCH = tl.constexpr(16)
NEGLIGIBLE_BITS = tl.constexpr(100.0)
"""Weights below 2^−100 are left out: added to any other term of the sum they vanish in float32."""
SMALLEST_DECAY = tl.constexpr(1e-30)


@triton.jit
def program(heads, blocks, GROUP: tl.constexpr, BD: tl.constexpr):
    """The block, head, sequences and columns of this program."""
    index = tl.program_id(0) % blocks
    row = tl.program_id(0) // blocks
    return index, row % heads, row // heads * GROUP, tl.program_id(1) * BD + tl.arange(0, BD)


@triton.jit
def place_in_lane(index, dilation, positions, C: tl.constexpr):
    """lane, block, number of blocks, first step, steps in the block, steps in the lane of a head's `index`-th block."""
    lane = index % dilation
    block = index // dilation
    count = tl.maximum(((positions + dilation - 1) // dilation + C - 1) // C, 1)
    lane_steps = (positions - lane + dilation - 1) // dilation
    start = block * C
    length = tl.minimum(tl.maximum(lane_steps - start, 0), C)
    return lane, block, count, start, length, lane_steps


@triton.jit
def rows_of_head(base, batch, batch_stride, head, head_stride):
    return base + batch.to(tl.int64) * batch_stride + head.to(tl.int64) * head_stride


@triton.jit
def gate_share(gate, MIX: tl.constexpr):
    if MIX:
        share = 1.0 / (1.0 + tl.exp(-tl.load(gate).to(tl.float32)))
    else:
        share = 1.0
    return share


@triton.jit
def eigenvalue(index, first, second, angles, first_count, RAW: tl.constexpr):
    """decay, its log2, angle and sign of z = sign · decay · e^(i · angle).

    RAW: `first` is η, `second` ν, `angles` θ, and `index` a place in "η, then ν". Otherwise `first` holds the decay
    of each head, `second` its sign, `angles` its angle, and `index` is a head.
    """
    if RAW:
        cyclical = index >= first_count
        eta = tl.load(first + index, mask=index < first_count, other=0.0).to(tl.float32)
        nu = tl.load(second + index - first_count, mask=cyclical, other=0.0).to(tl.float32)
        angle = tl.load(angles + index - first_count, mask=cyclical, other=0.0).to(tl.float32)
        # Through exp(−|x|), exact for both signs; near 1 the logarithm is a series, or rounding decay would spoil it.
        size = tl.abs(eta)
        small = tl.exp(-2.0 * size)
        series = size * (1.0 - size * size * (1.0 / 3.0 - size * size * (2.0 / 15.0 - size * size * (17.0 / 315.0))))
        tanh = tl.where(size < 0.2, series, (1.0 - small) / (1.0 + small))
        tanh_log = tl.where(small < 1e-3, -2.0 * small * LOG2_E, tl.log2(tl.maximum(tanh, SMALLEST_DECAY)))
        tail = tl.exp(-tl.abs(nu))
        sigmoid = tl.where(nu < 0, tail, 1.0) / (1.0 + tail)
        series_log = -tail * (1.0 - tail * (0.5 - tail * (1.0 / 3.0))) * LOG2_E
        sigmoid_log = tl.where((nu > 0) & (tail < 1e-2), series_log, tl.log2(tl.maximum(sigmoid, SMALLEST_DECAY)))
        decay = tl.where(cyclical, sigmoid, tanh)
        decay_log = tl.where(cyclical, sigmoid_log, tanh_log)
        sign = tl.where((eta < 0) & (index < first_count), -1.0, 1.0)
    else:
        decay = tl.load(first + index).to(tl.float32)
        decay_log = tl.log2(tl.maximum(decay, SMALLEST_DECAY))
        sign = tl.load(second + index).to(tl.float32)
        angle = tl.load(angles + index).to(tl.float32)
    return decay, decay_log, angle * QUARTERS, sign


@triton.jit
def unit(times, angle):
    """e^(i · times · angle). The library's functions take ten times the instructions, for angles of any size."""
    quarters = tl.floor(times * angle + 0.5)
    x = tl.fma(times, angle, -quarters) * 1.5707963267948966
    square = x * x
    sine = x * (1.0 - square * (1.0 / 6 - square * (1.0 / 120 - square * (1.0 / 5040 - square * (1.0 / 362880)))))
    cosine = 1.0 - square * (0.5 - square * (1.0 / 24 - square * (1.0 / 720 - square * (1.0 / 40320))))
    quadrant = quarters.to(tl.int32)
    odd = (quadrant & 1) == 1
    unit_re = tl.where(odd, sine, cosine)
    unit_im = tl.where(odd, cosine, sine)
    return tl.where(((quadrant + 1) & 2) == 2, -unit_re, unit_re), tl.where((quadrant & 2) == 2, -unit_im, unit_im)


@triton.jit
def rotation(steps, angle, sign):
    """(z / decay)^steps."""
    unit_re, unit_im = unit(steps.to(tl.float32), angle)
    flip = tl.where((steps & 1) == 1, sign, 1.0)
    return flip * unit_re, flip * unit_im


@triton.jit
def powers(steps, decay_log, angle, sign):
    """z^steps, for steps ≥ 0."""
    size = tl.exp2(steps.to(tl.float32) * decay_log)
    unit_re, unit_im = rotation(steps, angle, sign)
    return size * unit_re, size * unit_im


@triton.jit
def times(a_re, a_im, b_re, b_im):
    return a_re * b_re - a_im * b_im, a_re * b_im + a_im * b_re


@triton.jit
def spread(power_re, power_im, x_re, x_im, is_sine):
    """What is read of power · x, for each of the rows' powers and each column of x."""
    with_re, with_im = tl.where(is_sine, x_im, x_re), tl.where(is_sine, x_re, -x_im)
    return power_re[:, None] * with_re[None, :] + power_im[:, None] * with_im[None, :]


@triton.jit
def table_size(C: tl.constexpr):
    """Numbers in one head's table: four for z, four for each power 0 … 2C − 1, three for each lag −C … C − 1."""
    return 4 + 14 * C


@triton.jit
def write_table(table, decay, decay_log, angle, sign, is_sine, BOTH: tl.constexpr, C: tl.constexpr):
    """Everything about a head that all its blocks share.

    First z, then for k = 0 … 2C − 1 the parts of z^k and of k · z^k / decay, then for each lag from −C to C − 1 the
    weight p(lag), its derivative by the decay, and minus that by the angle over decay. Lags of no weight hold 0.
    """
    tl.store(table, decay)
    tl.store(table + 1, decay_log)
    tl.store(table + 2, angle)
    tl.store(table + 3, sign)
    k = tl.arange(0, 2 * C)
    power_re, power_im = powers(k, decay_log, angle, sign)
    tl.store(table + 4 + k, power_re)
    tl.store(table + 4 + 2 * C + k, power_im)
    unit_re, unit_im = rotation(k, angle, sign)
    slope = k.to(tl.float32) * tl.exp2((tl.maximum(k, 1) - 1).to(tl.float32) * decay_log)
    tl.store(table + 4 + 4 * C + k, slope * unit_re)
    tl.store(table + 4 + 6 * C + k, slope * unit_im)
    lag = k - C
    if BOTH:
        lag = tl.abs(lag)
    weighed = lag > 0
    lag = tl.where(weighed, lag, 1)
    unit_re, unit_im = rotation(lag, angle, sign)
    read_re, read_im = tl.where(is_sine, unit_im, unit_re), tl.where(is_sine, -unit_re, unit_im)
    size = tl.where(weighed, tl.exp2((lag - 1).to(tl.float32) * decay_log), 0.0)
    slope = size * lag.to(tl.float32)
    tl.store(table + 4 + 8 * C + k, size * decay * read_re)
    tl.store(table + 4 + 10 * C + k, slope * read_re)
    tl.store(table + 4 + 12 * C + k, slope * read_im)


@triton.jit
def load_powers(table, steps, SLOPE: tl.constexpr, C: tl.constexpr):
    """z^steps, or if SLOPE steps · z^steps / decay."""
    table += 4 + SLOPE * 4 * C
    return tl.load(table + steps), tl.load(table + 2 * C + steps)


@triton.jit
def lags(LATER_ROWS: tl.constexpr, C: tl.constexpr):
    """(C, C): how many steps of a block the column lies before the row if LATER_ROWS, else the other way round."""
    steps = tl.arange(0, C)
    if LATER_ROWS:
        lag = steps[:, None] - steps[None, :]
    else:
        lag = steps[None, :] - steps[:, None]
    return lag


@triton.jit
def load_weights(table, KIND: tl.constexpr, LATER_ROWS: tl.constexpr, C: tl.constexpr):
    """The weights (KIND 0) or their derivatives (1, 2) between the steps of a block.

    Rows are outputs and columns values if LATER_ROWS, else the other way round.
    """
    return tl.load(table + (4 + 9 * C + KIND * 2 * C) + lags(LATER_ROWS, C))


@triton.jit
def load_rows(base, stride, rows, columns, live, WIDTH: tl.constexpr):
    """Rows of a matrix; 0 where not live or beyond the width."""
    offsets = rows.to(tl.int64)[:, None] * stride + columns[None, :]
    return tl.load(base + offsets, mask=live[:, None] & (columns[None, :] < WIDTH), other=0.0)


@triton.jit
def store_rows(base, stride, rows, columns, live, WIDTH: tl.constexpr, block):
    offsets = rows.to(tl.int64)[:, None] * stride + columns[None, :]
    tl.store(base + offsets, block.to(base.dtype.element_ty), mask=live[:, None] & (columns[None, :] < WIDTH))


@triton.jit
def load_pair(base, apart, columns, WIDTH: tl.constexpr):
    """A complex vector whose imaginary part lies `apart` behind its real part."""
    inside = columns < WIDTH
    return tl.load(base + columns, mask=inside, other=0.0), tl.load(base + apart + columns, mask=inside, other=0.0)


@triton.jit
def store_pair(base, apart, columns, WIDTH: tl.constexpr, x_re, x_im):
    inside = columns < WIDTH
    tl.store(base + columns, x_re, mask=inside)
    tl.store(base + apart + columns, x_im, mask=inside)


@triton.jit
def clear_slots(carry, slot, dilation, slots, columns, WIDTH: tl.constexpr):
    """0 in the slots that a head of a smaller dilation than the largest leaves empty."""
    nothing = columns.to(tl.float32) * 0.0
    slot += dilation
    while slot < slots:
        store_pair(carry + slot * WIDTH, slots * WIDTH, columns, WIDTH, nothing, nothing)
        slot += dilation


@triton.jit
def weighted_rows(block, power_re, power_im):
    """Σ_rows power · row."""
    block = block.to(tl.float32)
    return tl.sum(block * power_re[:, None], axis=0), tl.sum(block * power_im[:, None], axis=0)


@triton.jit
def gather_sums(sums, first, step, count, columns, decay_log, angle, WIDTH: tl.constexpr, C: tl.constexpr):
    """Σ_{n<count} z^(C·n) · (the block sum at first + n · step); C is even, so the sign is gone."""
    block_log = decay_log * C
    block_angle = angle * C
    # Less whole turns, exactly; what is left loses no bits when it is multiplied.
    block_angle -= 4.0 * tl.floor(block_angle * 0.25 + 0.5)
    reach = tl.minimum(NEGLIGIBLE_BITS / tl.maximum(-block_log, 1e-6), 1e9).to(tl.int32) + 1
    count = tl.minimum(count, reach)
    n = tl.arange(0, LOOK_BATCH)
    size = tl.exp2(n.to(tl.float32) * block_log)
    unit_re, unit_im = unit(n.to(tl.float32), block_angle)
    weight_re, weight_im = (size * unit_re)[:, None], (size * unit_im)[:, None]
    jump = tl.exp2(LOOK_BATCH * block_log)
    jump_re, jump_im = unit(block_log * 0.0 + LOOK_BATCH, block_angle)
    jump_re, jump_im = jump * jump_re, jump * jump_im
    base_re, base_im = block_log * 0.0 + 1.0, block_log * 0.0
    total_re, total_im = columns.to(tl.float32) * 0.0, columns.to(tl.float32) * 0.0
    start = 0
    while start < count:
        offsets = (first + (start + n) * step).to(tl.int64)[:, None] * (2 * WIDTH) + columns[None, :]
        inside = (start + n < count)[:, None] & (columns[None, :] < WIDTH)
        sum_re = tl.load(sums + offsets, mask=inside, other=0.0)
        sum_im = tl.load(sums + offsets + WIDTH, mask=inside, other=0.0)
        part_re, part_im = times(weight_re, weight_im, sum_re, sum_im)
        part_re, part_im = times(base_re, base_im, tl.sum(part_re, axis=0), tl.sum(part_im, axis=0))
        total_re += part_re
        total_im += part_im
        base_re, base_im = times(base_re, base_im, jump_re, jump_im)
        start += LOOK_BATCH
    return total_re, total_im


@triton.jit
def meet(rows, x_re, x_im):
    """The product of each row with a complex vector."""
    return tl.sum(rows * x_re[None, :], axis=1), tl.sum(rows * x_im[None, :], axis=1)


@triton.jit
def across_gradient(
    table, out_re, out_im, in_re, in_im, both_re, both_im, out_scale, in_scale, length, C: tl.constexpr
):  # fmt: skip
    """What pairs of steps in different blocks, as far as they pass this block, add to the gradient of z.

    `out` are the products of rows with the past, `in` those with the future, `both` those of past and future, which
    meet over the block's whole length. Rows beyond the length are 0.
    """
    steps = tl.arange(0, C)
    slope_re, slope_im = load_powers(table, steps, 1, C)
    a_re, a_im = times(slope_re, slope_im, out_scale * out_re, out_scale * out_im)
    slope_re, slope_im = load_powers(table, tl.where(steps < length, length - steps, 0), 1, C)
    b_re, b_im = times(slope_re, slope_im, in_scale * in_re, in_scale * in_im)
    slope_re, slope_im = load_powers(table, length, 1, C)
    c_re, c_im = times(slope_re, slope_im, tl.sum(both_re, axis=0), tl.sum(both_im, axis=0))
    return tl.sum(a_re + b_re, axis=0) + c_re, tl.sum(a_im + b_im, axis=0) + c_im
