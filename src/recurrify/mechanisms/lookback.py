"""Ours: keys and values of the previous window's last positions, seen by every layer of the next, for models whose
positions are absolute.

Such a model's keys tell where they stood, and kept as they are they would stand among the window's own tokens. But most
of what a key says of its place is the same for all tokens there. So the mean key of the old place is taken away, and
that of a place in front of the window put in its stead: a window that has a memory begins some positions later. Values
tell early places from late ones, and are moved by one vector for all. In front of what is kept stands a sink: what such
models make of a first token, to which they give the attention that they have no use for. That alone remembers, before
anything is trained; what is learned are the shifts, a map for each head, and the sink. Shapes: B rows, L layers, H
heads, D size of a head, C positions kept, N positions.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from recurrify.errors import UserError
from recurrify.families import family_of, has_absolute_positions, open_attention
from recurrify.mechanisms.base import (
    Mechanism,
    Notes,
    Past,
    RecurrenceConfig,
    register_mechanism,
    whole_number,
    yes_or_no,
)
from recurrify.mechanisms.kv import mask_of_kept, with_kept
from recurrify.mechanisms.neutral import mean_keys_and_values

FAINTER = 0.85
"""How loud is at first what sets kept keys and values apart: what their new place says of them is less sure."""
LEAST_ROOM = 2
EARLY = slice(2, 10)
"""Where what is kept is taken to stand in a base that has no positions left."""


@dataclass(frozen=True, kw_only=True)
class LookbackConfig(RecurrenceConfig):
    """Windows that look back at what all layers computed in the window before.

    It is made for its own windows and overlap: set to others later, it takes what is kept to have stood elsewhere than
    it did, and gains less until it is trained."""

    mechanism: ClassVar[str] = "lookback"
    left_to_base: ClassVar[tuple[str, ...]] = ("room",)

    keep: int = 64
    """How many of the last positions that the next window does not see it looks back at."""
    room: int | None = None
    """How many positions are left in front of a window that has a memory, for what is kept; None takes one more than
    `keep`, or as many as the base has besides the window. With fewer than half of `keep` it may do harm until it is
    trained."""
    sink: bool = True
    """Whether a first token, as the base knows it, stands in front of what is kept."""
    moved_start: bool = True
    """Start with keys and values that are moved to where they are taken to stand; False starts with them as they were,
    behind the sink all the same."""

    @classmethod
    def completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        return {"keep": min(cls.keep, cls.stride_of(values)), **values}

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("keep", self.keep, 1)
        if self.room is not None:
            whole_number("room", self.room, 0, "or None")
        yes_or_no("sink", self.sink)
        yes_or_no("moved_start", self.moved_start)
        if self.keep > self.stride:
            raise UserError(
                f"`keep` is {self.keep}, but the next window leaves only {self.stride} positions of a window unseen "
                f"(window={self.window}, overlap={self.overlap}): choose keep={self.stride} or less where the "
                f"memory is added, {'less overlap, ' if self.overlap else ''}or larger windows."
            )


def wanted_room(keep: int) -> int:
    """How many positions in front to take where there are enough: one for the sink, and one for each that is kept."""
    return keep + 1


def enough_room(keep: int) -> int:
    """With fewer positions in front, more than two of what is kept stand at one of them, which may do harm."""
    return max(LEAST_ROOM, keep // 2)


class Lookback(Mechanism):
    """memory (B, L, 2, H, C, D): key · map + shift and value · map + shift of each position that is kept. The sink, a
    weight like others, comes in front when it is read."""

    keys_only: ClassVar[bool] = True

    def __init__(self, config: LookbackConfig, layers: int, width: int) -> None:
        super().__init__()
        self.config, self.layers, self.room = config, layers, config.room or 0
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
            wanted = wanted_room(self.config.keep)
            self.room = wanted if positions is None else max(0, min(wanted, positions - self.config.window))
        if not getattr(config, "reorder_and_upcast_attn", False):  # which attention that was opened would not do
            open_attention(base)
        heads = config.num_attention_heads
        size = config.hidden_size // heads
        self.maps = nn.Parameter(torch.eye(size).repeat(self.layers, 2, heads, 1, 1))
        # The first is for what a document's first window leaves, which stood elsewhere. The second learns only where
        # training sequences have three windows or more.
        self.shifts = nn.Parameter(torch.zeros(2, self.layers, heads, self.config.keep, size))
        self.value_shifts = nn.Parameter(torch.zeros(2, self.layers, heads, 1, size))
        if self.config.sink:
            self.sink = nn.Parameter(torch.zeros(self.layers, 2, heads, 1, size))

    def settled(self, config: RecurrenceConfig) -> RecurrenceConfig:
        assert isinstance(config, LookbackConfig)
        return replace(config, room=self.room)

    def windows_changed(self, config: RecurrenceConfig) -> None:
        if config.window > self.config.window:
            raise UserError(
                f"This 'lookback' was made for windows of {self.config.window}: of longer ones it does not know where "
                f"what it keeps has stood. Choose window={self.config.window} or less, or add it to the base anew."
            )

    @torch.no_grad()
    def learn_from(self, base: PreTrainedModel) -> None:
        window, keep, stride = self.config.window, self.config.keep, self.config.stride
        if not self.config.sink and not self.config.moved_start:
            return
        means = mean_keys_and_values(base, window + self.room).to(self.shifts)
        if self.config.sink:
            self.sink.copy_(means[:, :, :, :1])
        if not self.config.moved_start:
            return
        keys, values = means.unbind(1)
        if self.room >= LEAST_ROOM:
            # Not at the very first, to which models give their attention for want of anything better.
            first = max(1, self.room - keep)
            places = first + torch.arange(keep) * (self.room - 1 - first) // max(1, keep - 1)
            keys_there = keys[:, :, places]
        else:
            places = torch.arange(min(EARLY.start, window - 1), min(EARLY.stop, window))
            keys_there = keys[:, :, places].mean(2, keepdim=True)
        values_there = values[:, :, places].mean(2, keepdim=True)
        self.maps.mul_(FAINTER)
        for which, first in enumerate((0, self.room)):
            old = slice(first + stride - keep, first + stride)
            self.shifts[which] = keys_there - FAINTER * keys[:, :, old]
            self.value_shifts[which] = values_there - FAINTER * values[:, :, old].mean(2, keepdim=True)

    def slots(self) -> dict[int, int]:
        return dict.fromkeys(range(self.layers), self.seen)

    def kept_flops(self) -> int:
        _, _, heads, size, _ = self.maps.shape
        return 2 * self.layers * 2 * heads * self.config.keep * size * size

    def floats(self) -> int:
        return 2 * self.shifts[0].numel()

    def read(self, memory: Tensor) -> dict[int, Tensor]:
        return {}

    def first_position(self) -> int:
        return self.room

    def first_positions(self, past: Past) -> int | Tensor:
        if past.memory is None:
            return 0
        return self.room if past.live is None else self.room * past.live[:, None]

    def prepare(self, base: PreTrainedModel, inputs: dict[str, Any], past: Past, notes: Notes | None) -> dict[str, Any]:
        ids: Tensor = inputs["input_ids"]
        cache = with_kept(inputs.get("past_key_values"), self._behind_sink(past))
        mask = mask_of_kept(past, ids, self.seen)
        if notes is not None:
            assert isinstance(notes, WindowCache)
            notes.cache = cache
        places = torch.arange(ids.shape[1], device=ids.device)[None].expand(len(ids), -1) + self.first_positions(past)
        return {**inputs, "position_ids": places, "attention_mask": mask, "past_key_values": cache, "use_cache": True}

    def _behind_sink(self, past: Past) -> Past:
        if past.memory is None or not self.config.sink:
            return past
        sink = self.sink.to(past.memory.dtype).expand(len(past.memory), -1, -1, -1, -1, -1)
        return Past(torch.cat([sink, past.memory], dim=4), past.live)

    def start_window(self, stride: int) -> "WindowCache":
        return WindowCache(stride)

    def write(self, notes: Notes, past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        assert isinstance(notes, WindowCache)
        keys, values = notes.last(self.config.keep, 0 if past.memory is None else self.seen)

        def moved(kept: Tensor, which: int, shifts: Tensor) -> Tensor:
            first, later = shifts.to(kept.dtype)
            last = Past(None if past.memory is None else later.expand_as(kept), past.live)
            return kept @ self.maps[:, which].to(kept.dtype) + last.otherwise(first.expand_as(kept))

        return torch.stack([moved(keys, 0, self.shifts), moved(values, 1, self.value_shifts)], dim=2)


class WindowCache(Notes):
    """What every layer of a window put into the cache that it was given."""

    def __init__(self, stride: int) -> None:
        self.stride = stride
        self.cache: DynamicCache | None = None

    def see(self, layer: int, hidden: Tensor) -> None:
        pass

    def summary(self) -> None:
        return None

    def last(self, keep: int, before: int) -> tuple[Tensor, Tensor]:
        """Keys and values (B, L, H, keep, D) of the last positions that the next window does not see; `before` of
        those in the cache are not the window's own."""
        assert self.cache is not None, "no window was prepared"
        span = slice(before + self.stride - keep, before + self.stride)
        layers = self.cache.layers
        return (
            torch.stack([layer.keys[:, :, span] for layer in layers], dim=1),
            torch.stack([layer.values[:, :, span] for layer in layers], dim=1),
        )


register_mechanism(LookbackConfig, Lookback)
