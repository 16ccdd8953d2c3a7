"""RSA's Triton kernels as one differentiable function of PyTorch tensors: eager, compiled, and in CUDA graphs.

Shapes as in `rsa_kernels`. Nothing here waits for the device.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recurrify.attention.kernels.rsa_blocks import Blocks, Given, ceil, width_block, with_strides
from recurrify.attention.kernels.rsa_kernels import gradients_kernel, outputs_kernel, parameters_kernel, sums_kernel

BLOCK_LENGTHS = (16, 32, 64)
LARGEST_WIDTH_BLOCK = 64
LARGEST_GROUP, FEWEST_PROGRAMS = 4, 400
WARPS = 4


class _Grid(NamedTuple):
    """How the work is divided into programs, block by block."""

    blocks: Blocks
    groups: int
    group: int
    """Sequences of the batch in one program, one after the other: what they share is computed once."""
    width_blocks: int
    width_block: int

    @classmethod
    def of(cls, values: Tensor, dilations: Sequence[int]) -> "_Grid":
        batch, _, positions, width = values.shape
        blocks = Blocks.of(positions, dilations, BLOCK_LENGTHS)
        columns = width_block(width, LARGEST_WIDTH_BLOCK)
        width_blocks = ceil(width, columns)
        programs = len(dilations) * blocks.number * width_blocks
        group = LARGEST_GROUP
        while group > 1 and (batch % group or batch // group * programs < FEWEST_PROGRAMS):
            group //= 2
        return cls(blocks, batch // group, group, width_blocks, columns)

    def over(self, heads: int) -> tuple[int, int]:
        return self.blocks.number * self.groups * heads, self.width_blocks

    @property
    def tile(self) -> dict[str, int]:
        return {"GROUP": self.group, "C": self.blocks.length, "BD": self.width_block, "num_warps": WARPS}


def _launch_forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The output, the next carry (empty unless causal), and the blocks' sums and heads' tables for the gradients."""
    given = Given(*arguments)
    results = _new_results(given)
    with torch.cuda.device_of(given.values):
        _forward_kernels(given, *results)
    return results


def _forward_kernels(given: Given, output: Tensor, next_carry: Tensor, sums: Tensor, table: Tensor) -> None:
    values, attended, first, second, angles, gate, select, sine, dilation, carry, dilations, causal, memory = given
    batch, _, positions, width = values.shape
    rem_heads, mix = len(dilations), attended is not None
    grid = _Grid.of(values, dilations)
    blocks = grid.blocks
    one_way = batch * rem_heads * blocks.number * 2 * width
    # Where no block needs another's sums, the first kernel only writes the tables: one block of each head.
    alone = _Grid(blocks._replace(number=1), 1, 1, 1, grid.width_block)
    first_grid = grid if blocks.several else alone
    sums_kernel[first_grid.over(rem_heads)](
        values, *values.stride()[:3], sums, *(None, 0, 0, 0) * 2, None,
        table, first, second, angles, select, gate, dilation, len(first), sine,
        rem_heads, rem_heads, positions, 0, first_grid.blocks.number, one_way, 0,
        MIX=mix, GRADIENT=False, BOTH=not causal,
        LEFT=blocks.several, RIGHT=blocks.several and not causal, WIDTH=width, **first_grid.tile,
    )  # fmt: skip
    outputs_kernel[grid.over(given.heads)](
        values, *values.stride()[:3], *with_strides(attended), output, *output.stride()[:3],
        sums, carry, next_carry, table, gate, dilation, sine,
        given.heads, rem_heads, positions, memory, blocks.number, one_way, max(dilations),
        MIX=mix, BOTH=not causal, CARRY=carry is not None, STORED=blocks.several, WIDTH=width, **grid.tile,
    )  # fmt: skip


def _new_results(given: Given) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    values, attended, dilations = given.values, given.attended, given.dilations
    batch, _, positions, width = values.shape
    rem_heads = len(dilations)
    if attended is None:
        output = values.new_empty(batch, rem_heads, positions - given.memory, width)
    else:
        output = torch.empty_like(attended, dtype=given.dtype)
    slots = 2 * max(dilations) if given.causal else 0
    next_carry = values.new_empty(batch, rem_heads, slots, width, dtype=torch.float32)
    blocks = Blocks.of(positions, dilations, BLOCK_LENGTHS)
    table = values.new_empty(rem_heads, 4 + 14 * blocks.length, dtype=torch.float32)
    return output, next_carry, _new_sums(given, blocks), table


def _new_sums(given: Given, blocks: Blocks) -> Tensor:
    """What each block passes to the others."""
    batch, _, _, width = given.values.shape
    shape = (1 if given.causal else 2, batch, len(given.dilations), blocks.number if blocks.several else 0, 2, width)
    return given.values.new_empty(shape, dtype=torch.float32)


def _launch_backward(
    d_output: Tensor, d_next_carry: Tensor | None, sums: Tensor, table: Tensor, *arguments: Any
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients of values, of `attended` and of the carry (empty where there is none), and of the parameters.

    The last holds all rates, then all angles, then the gate.
    """
    given = Given(*arguments)
    values, attended, first, second, angles, gate, select, _, dilation, carry, dilations, _, _ = given
    results = _new_gradients(values, attended, first, second, carry)
    rates, mix = results[3].shape[0] // 2, attended is not None
    grid = _Grid.of(values, dilations)
    blocks = grid.blocks
    with torch.cuda.device_of(values):
        partial = _backward_kernels(given, grid, results, d_output, d_next_carry, sums, table)
        parameters_kernel[(rates + mix,)](
            partial, results[3], first, second, angles, select, gate, dilation, len(first),
            len(dilations), values.shape[2], blocks.number, partial.shape[1], grid.width_blocks, rates,
            MIX=mix, C=blocks.length, WIDE=1024, num_warps=WARPS,
        )  # fmt: skip
    return results


def _backward_kernels(
    given: Given,
    grid: _Grid,
    results: tuple[Tensor, Tensor, Tensor, Tensor],
    d_output: Tensor,
    d_next_carry: Tensor | None,
    sums: Tensor,
    table: Tensor,
) -> Tensor:
    """Fill in all gradients but the parameters'; the blocks' shares in those."""
    values, attended, first, second, angles, gate, select, sine, dilation, carry, dilations, causal, memory = given
    d_values, d_attended, d_carry, _ = results
    batch, _, positions, width = values.shape
    rem_heads, mix, blocks = len(dilations), attended is not None, grid.blocks
    one_way = batch * rem_heads * blocks.number * 2 * width
    parts = grid.groups * rem_heads * blocks.number * grid.width_blocks
    partial = values.new_empty(4, parts, dtype=torch.float32)
    gradient_sums = _new_sums(given, blocks)
    if blocks.several or mix:
        sums_kernel[grid.over(given.heads)](
            d_output, *d_output.stride()[:3], gradient_sums,
            *with_strides(attended), *with_strides(d_attended if mix else None), partial,
            table, first, second, angles, select, gate, dilation, len(first), sine,
            given.heads, rem_heads, positions, memory, blocks.number, one_way, parts,
            MIX=mix, GRADIENT=True, BOTH=not causal, LEFT=blocks.several and not causal, RIGHT=blocks.several,
            WIDTH=width, **grid.tile,
        )  # fmt: skip
    gradients_kernel[grid.over(given.heads)](
        values, *values.stride()[:3], d_output, *d_output.stride()[:3], d_values, *d_values.stride()[:3],
        sums, gradient_sums, carry, d_carry, d_next_carry, partial, table, gate, dilation, sine,
        given.heads, rem_heads, positions, memory, blocks.number, one_way, parts, max(dilations),
        MIX=mix, BOTH=not causal, CARRY=carry is not None, NEXT=d_next_carry is not None, STORED=blocks.several,
        WIDTH=width, **grid.tile,
    )  # fmt: skip
    return partial


def _new_gradients(
    values: Tensor, attended: Tensor | None, first: Tensor, second: Tensor, carry: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    rates = len(first) if attended is None else len(first) + len(second)
    return (
        torch.empty_like(values),
        values.new_empty(0) if attended is None else torch.empty_like(attended),
        values.new_empty(0) if carry is None else torch.empty_like(carry),
        values.new_empty(2 * rates + 1, dtype=torch.float32),
    )


# For torch.compile the launches are two opaque operators.
_ARGUMENTS = (
    "Tensor values, Tensor? attended, Tensor first, Tensor second, Tensor angles, Tensor? gate, Tensor? select, "
    "Tensor sine, Tensor dilation, Tensor? carry, int[] dilations, bool causal, int memory"
)
_FOUR_TENSORS = "(Tensor, Tensor, Tensor, Tensor)"
_forward_op = torch.library.custom_op(
    "recurrify::rsa_forward",
    _launch_forward,
    mutates_args=(),
    schema=f"({_ARGUMENTS}) -> {_FOUR_TENSORS}",
)
_backward_op = torch.library.custom_op(
    "recurrify::rsa_backward",
    _launch_backward,
    mutates_args=(),
    schema=f"(Tensor d_output, Tensor? d_next_carry, Tensor sums, Tensor table, {_ARGUMENTS}) -> {_FOUR_TENSORS}",
)


@_forward_op.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _new_results(Given(*arguments))


@_backward_op.register_fake
def _(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _, _, _, _, values, attended, first, second, _, _, _, _, _, carry, *_ = arguments
    return _new_gradients(values, attended, first, second, carry)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.dilations, ctx.causal, ctx.memory = inputs
    ctx.save_for_backward(*output[2:], *tensors)
    ctx.output_like = output[0].shape, output[0].dtype
    ctx.set_materialize_grads(False)


def _gradients(
    launch: Any, ctx: Any, d_output: Tensor | None, d_next_carry: Tensor | None, *_: Tensor | None
) -> tuple[Tensor | None, ...]:
    sums, table, *tensors = ctx.saved_tensors
    values, attended, first, second, angles, gate, _, _, _, carry = tensors
    if d_output is None:
        shape, dtype = ctx.output_like
        d_output = values.new_zeros(shape, dtype=dtype)
    d_next_carry = d_next_carry.contiguous() if d_next_carry is not None and ctx.causal else None
    d_values, d_attended, d_carry, d_parameters = launch(
        unit_stride(d_output), d_next_carry, sums, table, *tensors, ctx.dilations, ctx.causal, ctx.memory
    )
    rates = d_parameters.shape[0] // 2
    if gate is None:
        d_second, d_gate, d_angles = None, None, d_parameters[rates : 2 * rates]
    else:
        d_second = d_parameters[len(first) : rates].to(second.dtype)
        d_gate = d_parameters[2 * rates :].to(gate.dtype)
        d_angles = d_parameters[rates + len(first) : 2 * rates]
    return (
        d_values,
        None if attended is None else d_attended,
        d_parameters[: len(first)].to(first.dtype),
        d_second,
        d_angles.to(angles.dtype),
        d_gate,
        *(None,) * 3,
        None if carry is None else d_carry,
        *(None,) * 3,
    )


def unit_stride(tensor: Tensor) -> Tensor:
    """`tensor` itself, or a contiguous copy if its last dimension has another stride than 1."""
    return tensor if tensor.stride(-1) == 1 else tensor.contiguous()


class _Eager(torch.autograd.Function):
    """Without the dispatcher, whose overhead for an operator is larger than a small kernel."""

    forward = staticmethod(_launch_forward)
    setup_context = staticmethod(_remember)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        return _gradients(_launch_backward, ctx, *gradients)


def _compiled_backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
    return _gradients(_backward_op, ctx, *gradients)


_forward_op.register_autograd(_compiled_backward, setup_context=_remember)


def recur(
    values: Tensor,
    first: Tensor,
    second: Tensor,
    angles: Tensor,
    *,
    sine: Tensor,
    dilation: Tensor,
    dilations: tuple[int, ...],
    causal: bool,
    memory: int,
    carry: Tensor | None = None,
    attended: Tensor | None = None,
    gate: Tensor | None = None,
    select: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """P·V of the first heads of `values` (B, ≥ R, T, D), and the next carry, (B, R, 2S, D) in float32.

    Without `attended`: `first`, `second` and `angles` are the decay, sign and angle of each head, and the output is
    (B, R, T − memory, D). With it, (B, H, T − memory, D): they are η, ν and θ, `gate` is the gate's logit and `select`
    each head's place in "η, then ν"; the output is (1 − g) · attended + g · P·V, and `attended` for the other heads.
    """
    function = _forward_op if torch.compiler.is_compiling() else _Eager.apply
    output, next_carry, _, _ = function(
        unit_stride(values),
        None if attended is None else unit_stride(attended),
        first,
        second,
        angles,
        gate,
        select,
        sine,
        dilation,
        None if carry is None else carry.float().contiguous(),
        dilations,
        causal,
        memory,
    )
    return output, next_carry
