"""What is carried from call to call: tensors in, tensors out, nothing kept on a module."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recurrify.errors import UserError


class State(NamedTuple):
    """What each row of a batch carries from call to call.

    `memory` is written by finished windows; `tokens` holds the tokens of the window that is still open, so that the
    next call can continue it. `live` and `lengths` control Python loops and therefore stay on the CPU.
    """

    memory: Tensor | None
    """(rows, …): None until some row has finished a window."""
    live: Tensor
    """(rows,) bool: whether the row has finished a window, so that its part of `memory` is valid."""
    tokens: Tensor
    """(rows, longest): the tokens of the open window, from the first column on."""
    lengths: Tensor
    """(rows,) int64: how many of a row's `tokens` are real."""
    settings: Mapping[str, Any] | None = None
    """The settings that `memory` was written with (`MechanismConfig.memory_settings`), if they are known."""

    @classmethod
    def fresh(cls, rows: int, device: torch.device | str | None = None) -> "State":
        return cls(
            memory=None,
            live=torch.zeros(rows, dtype=torch.bool),
            tokens=torch.zeros(rows, 0, dtype=torch.long, device=device),
            lengths=torch.zeros(rows, dtype=torch.long),
        )

    def __repr__(self) -> str:
        memory = None if self.memory is None else tuple(self.memory.shape)
        return f"State(memory={memory}, live={self.live.tolist()}, open tokens={self.lengths.tolist()})"

    @property
    def rows(self) -> int:
        return len(self.lengths)

    def detach(self) -> "State":
        """The same state without gradients, for training that continues from call to call."""
        return self._replace(memory=None if self.memory is None else self.memory.detach())

    def reset(self, rows: Sequence[int] | Tensor) -> "State":
        """Let these rows (indices, or a boolean mask) begin a new document; the others continue."""
        fresh = torch.zeros(self.rows, dtype=torch.bool)
        fresh[_index(rows, self.rows)] = True
        live, lengths = self.live & ~fresh, self.lengths.masked_fill(fresh, 0)
        memory = self.memory if live.any() else None
        if memory is not None:
            # NaN and infinity would survive the masking of rows without a memory.
            over = fresh.to(memory.device).view(-1, *[1] * (memory.dim() - 1))
            memory = memory.masked_fill(over, 0.0)
        return self._replace(
            memory=memory,
            live=live,
            tokens=self.tokens[:, : int(lengths.max())],
            lengths=lengths,
        )

    def select(self, rows: Sequence[int] | Tensor) -> "State":
        """The state of these rows, in this order; a row may be named more than once (beam search)."""
        index = _index(rows, self.rows)
        on_device = index.to(self.tokens.device)
        return self._replace(
            memory=None if self.memory is None else self.memory[on_device],
            live=self.live[index],
            tokens=self.tokens[on_device],
            lengths=self.lengths[index],
        )

    def check_readable(self, settings: Mapping[str, Any], size: int) -> None:
        """Raise `UserError` if another mechanism, or the same one with other settings, wrote the memory, or if a row of
        it does not have `size` numbers."""
        if self.memory is None:
            return
        if self.settings is None or self.settings == settings:
            if size and self.memory[:1].numel() != size:
                raise UserError(
                    f"`state` has {self.memory[:1].numel():,} numbers of memory per text, but this model has {size:,}: "
                    "another model wrote it; start new documents with state=None."
                )
            return
        names = [name for name in self.settings if self.settings[name] != settings.get(name)]
        names = ["mechanism"] if "mechanism" in names else names
        theirs, ours = (", ".join(f"{name}={one[name]!r}" for name in names) for one in (self.settings, settings))
        raise UserError(
            f"`state` was written with {theirs}, but this model has {ours}: start new documents with state=None."
        )

    def to(self, device: torch.device | str) -> "State":
        return self._replace(
            memory=None if self.memory is None else self.memory.to(device), tokens=self.tokens.to(device)
        )


def _index(rows: Sequence[int] | Tensor, count: int) -> Tensor:
    """Rows as an index; raises `UserError` for anything but numbers of rows or a mask of all rows."""
    try:
        index = torch.as_tensor(rows).cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"Rows must be whole numbers or a mask of {count} rows: got {rows!r}.") from error
    if index.numel() == 0 and index.dim() == 1 and index.dtype != torch.bool:
        return index.long()  # an empty list would be a float index
    is_mask = index.dtype == torch.bool and index.shape == (count,)
    is_whole = not (index.dtype == torch.bool or index.is_floating_point() or index.is_complex()) and index.dim() == 1
    if not is_mask and not (is_whole and -count <= int(index.min()) and int(index.max()) < count):
        raise UserError(f"Rows must be whole numbers below {count} or a mask of {count} rows: got {rows!r}.")
    return index if is_mask else index.long()
