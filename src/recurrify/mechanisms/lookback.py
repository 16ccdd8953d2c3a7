"""Ours: keys and values of the previous window's last positions, seen by every layer of the next, for models with
absolute positions.

Such keys contain their position, and kept unchanged they would lie among the window's own tokens. But most of the
position's part in a key is the same for all tokens. So the mean key of the old position is subtracted, and that of a
position in front of the window added: a window that has a memory begins some positions later. Values differ between
early and late positions, and are shifted by one vector for all. In front of the kept keys is a sink: the key and value
of a first token, which takes the attention that has nowhere else to go. This remembers without any training; the
shifts, a map for each head, and the sink are learned. Shapes: B rows, L layers, H heads, D size of a head, C positions
kept, N positions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from recurrify.errors import UserError
from recurrify.families import family_of, has_absolute_positions, open_attention
from recurrify.mechanisms.base import CacheMechanism, CacheRecorder, Leave, Past
from recurrify.mechanisms.config import MechanismConfig
from recurrify.mechanisms.neutral import mean_keys_and_values
from recurrify.settings import setting

INITIAL_SCALE = 0.85
"""Initial scale of what distinguishes kept keys and values: at another position it is less certain."""
LEAST_ROOM = 2
EARLY = slice(2, 10)
"""Assumed positions of kept keys for a base that has no free positions."""


@dataclass(frozen=True, kw_only=True)
class LookbackConfig(MechanismConfig):
    """Windows that attend to keys and values of all layers of the previous window.

    It is made for its own window and overlap: if they are changed later, it assumes wrong old positions of what it
    keeps, and gains less until it is trained."""

    mechanism: ClassVar[str] = "lookback"
    decoders_only: ClassVar[bool] = True
    positions: ClassVar[Any] = "absolute"

    keep: int = setting(64, at_least=1)
    """How many positions of the previous window to keep: the last ones that the next window does not see itself."""
    room: int | None = setting(None, at_least=0)
    """Free positions in front of a window that has a memory, for the kept keys; None takes `keep` + 1, or as many as
    the base has besides the window. With less than half of `keep` it may do harm until it is trained."""
    sink: bool = True
    """Whether the mean key and value of a first token are added in front of the kept ones."""
    moved_start: bool = True
    """Start with keys and values shifted to their assumed positions; False starts with unchanged ones, with the sink if
    there is one."""

    @classmethod
    def completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {"keep": min(cls.keep, cls.stride_of(values)), **values}

    @classmethod
    def longest_window(cls, values: Mapping[str, Any], positions: int) -> int:
        keep, room = int(values.get("keep", cls.keep)), values.get("room")
        if room is not None:
            return positions - int(room)
        # Kept positions have been in a window, however few that leaves free.
        least = min(positions, keep + int(values.get("overlap", 0)))
        return max(least, positions - enough_room(keep))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep > self.stride:
            raise UserError(
                f"`keep` is {self.keep}, but the next window leaves only {self.stride} positions of a window unseen "
                f"(window={self.window}, overlap={self.overlap}): choose keep={self.stride} or less where the "
                f"memory is added, {'less overlap, ' if self.overlap else ''}or larger windows."
            )

    def concern(self) -> str | None:
        if (self.room or 0) >= enough_room(self.keep):
            return None
        return (
            f"Windows leave {self.room or 0} free positions for {self.keep} kept ones: this memory may do harm until "
            "it is trained. Shorter windows help."
        )

    def build(self, layers: int, width: int) -> "Lookback":
        return Lookback(self, layers, width)


def enough_room(keep: int) -> int:
    """With fewer free positions, more than two kept keys share one of them, which may do harm."""
    return max(LEAST_ROOM, keep // 2)


class Lookback(CacheMechanism):
    """memory (B, L, 2, H, C, D): key · map + shift and value · map + shift of each kept position. The sink is added in
    front when the memory is read."""

    in_parallel: ClassVar[bool] = True

    def __init__(self, config: LookbackConfig, layers: int, width: int) -> None:
        super().__init__(config)
        self.layers = layers
        self.seen = config.keep + config.sink

    def fit(self, base: PreTrainedModel) -> None:
        config = base.config
        family = family_of(config)
        if not has_absolute_positions(config):
            instead = "'kv', which can turn their keys" if family.rotary else "another, such as 'tail'"
            raise UserError(
                f"The mechanism 'lookback' is for decoders with absolute positions, which {config.model_type!r} models "
                f"are not: choose {instead}."
            )
        if self.config.room is None:
            positions = family.positions(config)
            room = self.config.keep + 1  # one position for each kept key, and one for the sink
            if positions is not None:
                room = max(0, min(room, positions - self.config.window))
            self.config = replace(self.config, room=room)
        self.first_position = self.config.room
        if not getattr(config, "reorder_and_upcast_attn", False):  # opened attention does not do that
            open_attention(base)
        heads = config.num_attention_heads
        size = config.hidden_size // heads
        self.maps = nn.Parameter(torch.eye(size).repeat(self.layers, 2, heads, 1, 1))
        # The first is for a document's first window, which begins at position 0. The second learns only if training
        # sequences have three windows or more.
        self.shifts = nn.Parameter(torch.zeros(2, self.layers, heads, self.config.keep, size))
        self.value_shifts = nn.Parameter(torch.zeros(2, self.layers, heads, 1, size))
        if self.config.sink:
            self.sink = nn.Parameter(torch.zeros(self.layers, 2, heads, 1, size))

    def resize(self, config: LookbackConfig) -> None:
        # `self.config` stays the one that the shifts were made for.
        if config.window > self.config.window:
            raise UserError(
                f"This 'lookback' was made for windows of {self.config.window} and has no old positions for longer "
                f"ones: choose window={self.config.window} or less, or add a new one to the base."
            )

    @torch.no_grad()
    def start(self, base: PreTrainedModel) -> None:
        window, keep, stride, room = self.config.window, self.config.keep, self.config.stride, self.first_position
        if not self.config.sink and not self.config.moved_start:
            return
        means = mean_keys_and_values(base, window + room).to(self.shifts)
        if self.config.sink:
            self.sink.copy_(means[:, :, :, :1])
        if not self.config.moved_start:
            return
        keys, values = means.unbind(1)
        if room >= LEAST_ROOM:
            # Not at the very first position, which gets attention that has nowhere else to go.
            first = max(1, room - keep)
            places = first + torch.arange(keep) * (room - 1 - first) // max(1, keep - 1)
            keys_there = keys[:, :, places]
        else:
            places = torch.arange(min(EARLY.start, window - 1), min(EARLY.stop, window))
            keys_there = keys[:, :, places].mean(2, keepdim=True)
        values_there = values[:, :, places].mean(2, keepdim=True)
        self.maps.mul_(INITIAL_SCALE)
        for which, first in enumerate((0, room)):
            old = slice(first + stride - keep, first + stride)
            self.shifts[which] = keys_there - INITIAL_SCALE * keys[:, :, old]
            self.value_shifts[which] = values_there - INITIAL_SCALE * values[:, :, old].mean(2, keepdim=True)

    def slots(self) -> dict[int, int]:
        return dict.fromkeys(range(self.layers), self.seen)

    def kept_flops(self) -> int:
        _, _, heads, size, _ = self.maps.shape
        return 2 * self.layers * 2 * heads * self.config.keep * size * size

    def state_size(self) -> int:
        return 2 * self.shifts[0].numel()

    def first_positions(self, past: Past) -> int | Tensor:
        if past.memory is None:
            return 0
        return self.first_position if past.live is None else self.first_position * past.live[:, None]

    def kept(self, memory: Tensor) -> Tensor:
        if not self.config.sink:
            return memory
        sink = self.sink.to(memory.dtype).expand(len(memory), -1, -1, -1, -1, -1)
        return torch.cat([sink, memory], dim=4)

    def leaves(self, base: PreTrainedModel, like: Tensor, stride: int) -> Sequence[Leave]:
        span = slice(stride - self.config.keep, stride)
        later = zip(self.maps, self.shifts[1], self.value_shifts[1], strict=True)
        return [partial(_moved, maps, shifts, span) for maps, *shifts in later]

    def write(self, recorder: CacheRecorder, past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        before, stride = 0 if past.memory is None else self.seen, recorder.stride
        own = recorder.layers(before, stride - self.config.keep, stride)
        # Heads first (L · 2 · H, B, C, D): then a map is one product for all rows, whose gradient is one product, too.
        parts = [part.transpose(0, 1) for layer in own for part in layer]
        kept = torch.stack([part.to(parts[0].dtype) for part in parts])
        heads, rows, count, size = kept.shape[1:]
        moved = torch.bmm(kept.reshape(-1, rows * count, size), self.maps.to(kept.dtype).reshape(-1, size, size))
        moved = moved.view(self.layers, 2, heads, rows, count, size).movedim(3, 0)
        shifts = (self.shifts, self.value_shifts.expand_as(self.shifts))
        first, later = torch.stack([one.to(moved.dtype) for one in shifts], dim=2)
        last = Past(None if past.memory is None else later.expand_as(moved), past.live)
        return moved + last.otherwise(first.expand_as(moved))


def _moved(maps: Tensor, shifts: Sequence[Tensor], span: slice, *own: Tensor) -> tuple[Tensor, Tensor]:
    """One layer's keys and values after a window that has read a memory, as in `write`."""

    def moved(part: Tensor, one: Tensor, shift: Tensor) -> Tensor:
        by_head = part[:, :, span].transpose(0, 1)
        product = torch.bmm(by_head.flatten(1, 2), one.to(part.dtype)).unflatten(1, by_head.shape[1:3])
        return product.transpose(0, 1) + shift.to(product.dtype)

    keys, values = (moved(*one) for one in zip(own, maps, shifts, strict=True))
    return keys, values
