"""Attention masks of windows with extra inputs in front and behind.

Masks (rows or 1, 1, queries or 1, keys) are boolean, or added to the scores, as eager attention expects them.
"""

import torch
from torch import Tensor

ALIGNMENT = 8
"""Numbers per row of an additive mask are padded to a multiple of this."""


def as_mask(allowed: Tensor, additive: bool, dtype: torch.dtype) -> Tensor:
    """A boolean mask in the form that the attention in use expects."""
    if not additive:
        return allowed
    return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)


def aligned(mask: Tensor) -> Tensor:
    """An additive mask with aligned rows, which fused attention would otherwise copy in each layer."""
    length = mask.shape[-1]
    room = mask.new_zeros(*mask.shape[:-1], -(-length // ALIGNMENT) * ALIGNMENT)
    room[..., :length] = mask
    return room[..., :length]


def widen(mask: Tensor, count: int, live: Tensor | None, seen: Tensor | None = None) -> Tensor:
    """Let every query see `count` more keys in front, or those of them that are `seen` (rows, count), except in rows
    that are not live."""
    allowed, forbidden = _marks(mask)
    rows = next(len(one) for one in (live, seen, mask) if one is not None)
    mask = mask.expand(rows, *mask.shape[1:])
    front = mask.new_full((*mask.shape[:-1], count), allowed)
    if live is not None:
        front = front.masked_fill(~live[:, None, None, None], forbidden)
    if seen is not None:
        front = front.masked_fill(~seen[:, None, None], forbidden)
    return torch.cat([front, mask], dim=-1)


def add_queries(mask: Tensor, count: int, causal: bool) -> Tensor:
    """Rows of the mask for the `count` inputs in front: in a causal model they see themselves and those before them, as
    without a mask; in others what the first position sees. In rows that are not live they are not seen."""
    if causal:
        allowed, forbidden = _marks(mask)
        top = mask.new_full((*mask.shape[:-2], count, mask.shape[-1]), forbidden)
        seen = torch.ones(count, mask.shape[-1], dtype=torch.bool, device=mask.device).tril()
        return torch.cat([top.masked_fill(seen, allowed), mask], dim=-2)
    if mask.shape[-2] == 1:  # all queries share it
        return mask
    return torch.cat([mask[..., :1, :].expand(*mask.shape[:-2], count, -1), mask], dim=-2)


def add_behind(mask: Tensor, count: int, queries: int, causal: bool) -> Tensor:
    """Let `count` inputs behind see what the last query sees and each other, in a causal model those before them;
    none of the `queries` sees them."""
    allowed, forbidden = _marks(mask)
    mask = mask.expand(*mask.shape[:-2], queries, -1)  # where all queries share one
    right = mask.new_full((*mask.shape[:-1], count), forbidden)
    below = mask[..., -1:, :].expand(*mask.shape[:-2], count, -1)
    seen = torch.ones(count, count, dtype=torch.bool, device=mask.device)
    corner = mask.new_full((*mask.shape[:-2], count, count), forbidden)
    corner = corner.masked_fill(seen.tril() if causal else seen, allowed)
    return torch.cat([torch.cat([mask, right], dim=-1), torch.cat([below, corner], dim=-1)], dim=-2)


def _marks(mask: Tensor) -> tuple[float, float]:
    """The values for allowed and forbidden in a boolean and in an additive mask."""
    return (True, False) if mask.dtype == torch.bool else (0.0, torch.finfo(mask.dtype).min)
