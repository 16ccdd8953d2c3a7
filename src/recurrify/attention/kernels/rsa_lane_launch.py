"""When RSA's lanes are worked through one by one, and with which settings: the launches of `rsa_lanes`."""

from typing import NamedTuple

import torch
from torch import Tensor

from recurrify.attention.kernels.rsa_blocks import Blocks, Given, ceil, width_block, with_strides
from recurrify.attention.kernels.rsa_lanes import backward_kernel, forward_kernel


class LaneTile(NamedTuple):
    """What one program works on at a time, and how."""

    width: int
    """Most columns; wider rows are several programs' work."""
    warps: int
    stages: int
    """Blocks whose loads are under way at once, or worked on."""
    registers: int | None = None
    """The most that a thread may have, so that more programs fit onto a multiprocessor; None: as the compiler likes."""


class LaneTiles(NamedTuple):
    lengths: tuple[int, ...]
    """Steps of a block, in both kernels: the first number that takes a whole lane, or the last."""
    forward: LaneTile
    backward: LaneTile


USUAL = LaneTiles((16, 32, 64), forward=LaneTile(64, 4, 3), backward=LaneTile(64, 4, 3))
SHORT = LaneTiles((16, 32), forward=LaneTile(64, 4, 2), backward=LaneTile(64, 4, 2, 128))
"""For lanes in which many blocks would not be under way at once anyway."""
SHORT_LANE = 256
EXACT = LaneTiles((16, 32), forward=LaneTile(32, 4, 2), backward=LaneTile(32, 4, 2))
"""For 32 bits, whose products are not left to the matrix units."""
FEWEST_LANES, MOST_BLOCKS = 200, 16
"""Fewer lanes do not fill the chip; in a lane of more blocks the last one waits too long."""
COPIED_ROWS = 128


def _longest_lane(given: Given) -> int:
    return ceil(given.values.shape[2], min(given.dilations))


def _tiles(given: Given) -> LaneTiles:
    if given.dtype.itemsize > 2:
        return EXACT
    return SHORT if _longest_lane(given) <= SHORT_LANE else USUAL


def lane_blocks(given: Given) -> Blocks | None:
    """How the lanes fall into blocks if they are worked through one by one, or None if they are not."""
    batch, _, positions, width = given.values.shape
    tiles = _tiles(given)
    blocks = Blocks.of(positions, given.dilations, tiles.lengths)
    lanes = batch * sum(given.dilations) * ceil(width, tiles.forward.width)
    short = _longest_lane(given) <= MOST_BLOCKS * blocks.length
    return blocks if given.causal and lanes >= FEWEST_LANES and short else None


class _Grid(NamedTuple):
    """How the work falls into programs."""

    programs: int
    width_blocks: int
    options: dict[str, int]

    @classmethod
    def of(cls, given: Given, blocks: Blocks, tile: LaneTile) -> "_Grid":
        batch, _, positions, width = given.values.shape
        rem_heads, columns = len(given.dilations), width_block(width, tile.width)
        copies = (given.heads - rem_heads) * ceil(positions, COPIED_ROWS)
        programs = batch * (max(given.dilations) * rem_heads + copies)
        options = {"COPIED": COPIED_ROWS, "STAGES": tile.stages, "C": blocks.length, "BD": columns, "WIDTH": width}
        options |= {"num_warps": tile.warps}
        if tile.registers and torch.version.cuda:
            # Only the compiler for NVIDIA's GPUs knows such a limit.
            options |= {"maxnreg": tile.registers}
        return cls(programs, ceil(width, columns), options)


def forward_by_lanes(
    given: Given, blocks: Blocks, output: Tensor, next_carry: Tensor, pasts: Tensor, table: Tensor
) -> None:
    """Fill in the results, and for the gradients the blocks' pasts and the heads' tables."""
    values, attended, first, second, angles, gate, select, sine, dilation, carry, dilations, _, memory = given
    batch, _, positions, _ = values.shape
    grid = _Grid.of(given, blocks, _tiles(given).forward)
    forward_kernel[(grid.programs, grid.width_blocks)](
        values, *values.stride()[:3], *with_strides(attended), output, *output.stride()[:3],
        pasts, carry, next_carry, table, first, second, angles, select, gate, dilation, len(first), sine,
        batch, given.heads, len(dilations), positions, memory, blocks.number, max(dilations),
        MIX=attended is not None, CARRY=carry is not None, **grid.options,
    )  # fmt: skip


def backward_by_lanes(
    given: Given,
    blocks: Blocks,
    results: tuple[Tensor, Tensor, Tensor, Tensor],
    d_output: Tensor,
    d_next_carry: Tensor | None,
    pasts: Tensor,
    table: Tensor,
) -> tuple[Tensor, int]:
    """Fill in all gradients but the parameters'; the lanes' shares in those, and in how many parts a row has fallen."""
    values, attended, *_, gate, _, sine, dilation, carry, dilations, _, memory = given
    d_values, d_attended, d_carry, _ = results
    batch, _, positions, _ = values.shape
    rem_heads, mix, slots = len(dilations), attended is not None, max(dilations)
    grid = _Grid.of(given, blocks, _tiles(given).backward)
    partial = values.new_empty(4, batch * rem_heads * slots * grid.width_blocks, dtype=torch.float32)
    backward_kernel[(grid.programs, grid.width_blocks)](
        values, *values.stride()[:3], *with_strides(attended), d_output, *d_output.stride()[:3],
        d_values, *d_values.stride()[:3], *with_strides(d_attended if mix else None),
        pasts, d_carry, d_next_carry, partial, table, gate, dilation, sine,
        batch, given.heads, rem_heads, positions, memory, blocks.number, partial.shape[1], slots,
        MIX=mix, CARRY=carry is not None, NEXT=d_next_carry is not None, **grid.options,
    )  # fmt: skip
    return partial, grid.width_blocks
