"""Rows of a padded batch, aligned at their first real token, after the open tokens of their state.

Padding on either side, rows in the middle of a window and new documents get the same layout: every row starts at the
first token of a window. Shapes: B rows, N columns of the input, P packed columns.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from recurrify.state import State
from recurrify.windows import completed


class Packed(NamedTuple):
    tokens: Tensor
    """(B, P): the open window's tokens, then the new ones, then padding."""
    lengths: list[int]
    """Real tokens in each row."""
    columns: Tensor | slice
    """The place of each input column in the packed rows: (B, N), or a slice if it is the same for all rows. Padding has
    the place of the row's first token."""
    real: Tensor | None
    """(B, N) bool: which input columns are real; None means all."""

    def spread(self, values: Tensor, fill: int) -> Tensor:
        """Values of input columns at the places of the packed tokens, and `fill` elsewhere."""
        packed = values.new_full(self.tokens.shape, fill)
        if isinstance(self.columns, slice):
            packed[:, self.columns] = values
            return packed
        return _scatter(packed, self.columns, self.real, values)

    def collect(self, values: Tensor, keep: int = 0, blank: float | None = None) -> Tensor:
        """The packed values (B, P, …) of the input columns, or of the last `keep` columns. Padding gets `blank`, or the
        value of the row's first token."""
        if isinstance(self.columns, slice):
            return values[:, self.columns][:, -keep:]
        columns = self.columns[:, -keep:]
        found = values[torch.arange(len(columns), device=values.device)[:, None], columns]
        if blank is None:
            return found
        assert self.real is not None, "columns that differ between rows come with a mask"
        return found.masked_fill(~self.real[:, -keep:], blank)


def pack(tokens: Tensor, mask: Tensor | None, state: State) -> Packed:
    """Lay out new `tokens` (B, N), of which `mask` says which are real, behind the state's open windows."""
    rows, width = tokens.shape
    real = None
    if mask is not None:
        real = mask.bool()
        if bool(real.all()):
            real = None
    before = state.lengths.tolist()
    if real is None and len(set(before)) == 1:
        start = before[0]
        packed = torch.cat([state.tokens[:, :start], tokens], dim=1) if start else tokens
        return Packed(packed, [start + width] * rows, slice(start, start + width), None)
    if real is None:
        real = torch.ones_like(tokens, dtype=torch.bool)
    order = real.long().cumsum(1) - 1 + state.lengths.to(tokens.device)[:, None]
    added = real.sum(1).tolist()
    lengths = [old + new for old, new in zip(before, added, strict=True)]
    packed = tokens.new_zeros(rows, max(lengths))
    held = min(state.tokens.shape[1], packed.shape[1])
    packed[:, :held] = state.tokens[:, :held]
    columns = order.masked_fill(~real, 0)
    return Packed(_scatter(packed, columns, real, tokens), lengths, columns, real)


def _scatter(packed: Tensor, columns: Tensor, real: Tensor | None, values: Tensor) -> Tensor:
    rows = torch.arange(len(columns), device=columns.device)[:, None].expand_as(columns)
    assert real is not None, "columns that differ between rows come with a mask"
    packed[rows[real], columns[real]] = values[real]
    return packed


def open_windows(packed: Packed, window: int, overlap: int) -> tuple[Tensor, list[int]]:
    """The tokens of each row's open window, and their number."""
    stride = window - overlap
    starts = [completed(length, window, overlap) * stride for length in packed.lengths]
    lengths = [length - start for length, start in zip(packed.lengths, starts, strict=True)]
    longest = max(lengths)
    if len(set(starts)) == 1:
        # A copy: a part of a long text would keep all of it in memory.
        return packed.tokens[:, starts[0] : starts[0] + longest].clone(), lengths
    columns = torch.tensor(starts)[:, None] + torch.arange(longest)[None]
    columns = columns.clamp(max=packed.tokens.shape[1] - 1).to(packed.tokens.device)
    return packed.tokens.gather(1, columns), lengths
