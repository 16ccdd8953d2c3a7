"""What the loop over windows does for the rows of a batch, of which some may have ended, or have no memory yet.

Shapes: B rows.
"""

import torch
from torch import Tensor
from torch.nn import functional

from recurrify.context import Past
from recurrify.packing import Packed
from recurrify.speed.head_loss import IGNORE
from recurrify.windows import Window


def past_of(memory: Tensor | None, live: Tensor, device: torch.device) -> Past:
    """The memory, and on the device the rows that have it. A memory without live rows is ignored."""
    if memory is None or not bool(live.any()):
        return Past(None, None)
    return Past(memory, None if bool(live.all()) else live.to(device))


def row_mask(packed: Packed, span: Window) -> Tensor | None:
    """Which positions of a window are real in each row: for attention that looks both ways."""
    lengths = torch.tensor(packed.lengths)
    if int(lengths.min()) >= span.stop:
        return None
    # A row that has already ended keeps one position: softmax over nothing is not a number.
    inside = (lengths - span.start).clamp(min=1)
    positions = torch.arange(span.stop - span.start)
    return (positions[None] < inside[:, None]).long().to(packed.tokens.device)


def overwrite(memory: Tensor | None, written: Tensor, finished: Tensor) -> Tensor:
    """Take the new memory in rows that finished the window, keep the old one in the others."""
    if bool(finished.all()):
        return written
    old = torch.zeros_like(written) if memory is None else memory.to(written.dtype)
    rows = finished.to(written.device).view(-1, *[1] * (written.ndim - 1))
    return torch.where(rows, written, old)


def shift_left(labels: Tensor) -> Tensor:
    """Labels that name each input's own token, to labels that name the token after it."""
    return functional.pad(labels[:, 1:], (0, 1), value=IGNORE)
