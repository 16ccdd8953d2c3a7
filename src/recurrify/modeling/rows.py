"""What the loop over windows does for the rows of a batch, of which some may have ended, or have no memory yet.

Shapes: B rows.
"""

import torch
from torch import Tensor
from torch.nn import functional

from recurrify.context import Past, WindowJob
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


def in_rows(job: WindowJob, windows: int, window: int, chosen: Tensor | None) -> WindowJob:
    """The job of neighbouring windows as rows, text by text; the last one is padded, and padding is not scored.

    `chosen` (B,) is the window of each text whose memory is wanted; None: all of them.
    """
    scored = window - job.first
    # Windows begin where the part of the one before ends that only it scores.
    tokens = functional.pad(job.tokens, (0, job.first + windows * scored - job.tokens.shape[1]))
    rows = tokens.unfold(1, window, scored).flatten(0, 1).contiguous()
    targets = job.targets
    if targets is not None:
        targets = functional.pad(targets, (0, windows * scored - targets.shape[1]), value=IGNORE)
        targets = targets.unflatten(1, (windows, scored)).flatten(0, 1)
    place: int | Tensor | None = chosen
    if chosen is not None:
        same = int(chosen.min()) == int(chosen.max())
        place = int(chosen[0]) if same else chosen.to(tokens.device)
    return job._replace(tokens=rows, targets=targets, windows=windows, chosen=place)


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
