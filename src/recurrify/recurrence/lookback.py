"""Ours: keys and values of the previous window's last positions, seen by every layer of the next, for models whose
positions are absolute.

Such a model's keys tell where they stood, and kept as they are they would stand among the window's own tokens. But most
of what a key says of its place is the same for all tokens there. So the mean key of the old place is taken away, and
that of a place in front of the window put in its stead: a window that has a memory begins some positions later. That
alone remembers, before anything is trained; what is learned are the shifts, and a map for each head. Shapes: B rows, L
layers, H heads, D size of a head, C positions kept, N positions.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedModel

from recurrify.errors import UserError
from recurrify.recurrence.families import family_of
from recurrify.recurrence.kv import mask_of_kept, with_kept
from recurrify.recurrence.mechanism import (
    Mechanism,
    Notes,
    Past,
    RecurrenceConfig,
    register_mechanism,
    whole_number,
    yes_or_no,
)
from recurrify.recurrence.neutral import mean_keys

FAINTER = 0.75
"""How loud kept keys are at first: what their new place says of them is a mean, and a good deal less sure."""
LEAST_ROOM = 2
EARLY = slice(2, 10)
"""Where what is kept is taken to stand in a base that has no positions left."""


@dataclass(frozen=True, kw_only=True)
class LookbackConfig(RecurrenceConfig):
    """Windows that look back at what all layers computed in the window before."""

    mechanism: ClassVar[str] = "lookback"
    left_to_base: ClassVar[tuple[str, ...]] = ("room",)

    keep: int = 64
    """How many of the last positions that the next window does not see it looks back at."""
    room: int | None = None
    """How many positions are left in front of a window that has a memory, for what is kept; None takes half of `keep`,
    or as many as the base has besides the window. With fewer than two it does harm until it is trained."""
    moved_start: bool = True
    """Start with keys that are moved to where they are taken to stand; False starts with keys as they were."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("keep", self.keep, 1)
        if self.room is not None:
            whole_number("room", self.room, 0, "or None")
        yes_or_no("moved_start", self.moved_start)
        if self.keep > self.stride:
            raise UserError(
                f"`keep` is {self.keep}, but the next window leaves only {self.stride} positions of a window unseen "
                f"(window={self.window}, overlap={self.overlap}): choose keep={self.stride} or less, or larger windows."
            )


def wanted_room(keep: int) -> int:
    """How many positions in front serve best: two of what is kept stand at one of them."""
    return max(LEAST_ROOM, keep // 2)


class Lookback(Mechanism):
    """memory (B, L, 2, H, C, D): key · map + shift and value · map of each position that is kept."""

    keys_only: ClassVar[bool] = True

    def __init__(self, config: LookbackConfig, layers: int, width: int) -> None:
        super().__init__()
        self.config, self.layers, self.room = config, layers, config.room or 0

    def fit(self, base: PreTrainedModel) -> None:
        config = base.config
        family = family_of(config)
        if not family.causal or family.rotary:
            instead = "'kv', which can turn their keys" if family.rotary else "another, such as 'tail'"
            raise UserError(
                f"The mechanism 'lookback' is for decoders with absolute positions, which {config.model_type!r} models "
                f"are not: choose {instead}."
            )
        if self.config.room is None:
            positions = family.positions(config)
            left = self.config.keep if positions is None else positions - self.config.window
            self.room = max(0, min(wanted_room(self.config.keep), left))
        heads = config.num_attention_heads
        size = config.hidden_size // heads
        self.maps = nn.Parameter(torch.eye(size).repeat(self.layers, 2, heads, 1, 1))
        # The first is for what a document's first window leaves, which stood elsewhere. The second learns only where
        # training sequences have three windows or more.
        self.shifts = nn.Parameter(torch.zeros(2, self.layers, heads, self.config.keep, size))

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
        if not self.config.moved_start:
            return
        window, keep, stride = self.config.window, self.config.keep, self.config.stride
        means = mean_keys(base, window + self.room).to(self.shifts)
        if self.room >= LEAST_ROOM:
            # Not at the very first, to which models give their attention for want of anything better.
            places = torch.linspace(max(1, self.room - keep), self.room - 1, keep).long()
            there = means[:, :, places]
        else:
            there = means[:, :, min(EARLY.start, window - 1) : EARLY.stop].mean(2, keepdim=True)
        self.maps[:, 0].mul_(FAINTER)
        for shift, first in zip(self.shifts, (0, self.room), strict=True):
            last = first + stride
            shift.copy_(there - FAINTER * means[:, :, last - keep : last])

    def slots(self) -> dict[int, int]:
        return dict.fromkeys(range(self.layers), self.config.keep)

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
        cache = with_kept(inputs.get("past_key_values"), past)
        mask = mask_of_kept(past, ids, self.config.keep)
        if notes is not None:
            assert isinstance(notes, WindowCache)
            notes.cache = cache
        places = torch.arange(ids.shape[1], device=ids.device)[None].expand(len(ids), -1) + self.first_positions(past)
        return {**inputs, "position_ids": places, "attention_mask": mask, "past_key_values": cache, "use_cache": True}

    def start_window(self, stride: int) -> "WindowCache":
        return WindowCache(stride)

    def write(self, notes: Notes, past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        assert isinstance(notes, WindowCache)
        keys, values = notes.last(self.config.keep, 0 if past.memory is None else self.config.keep)
        first, later = self.shifts.to(keys.dtype)
        shift = Past(None if past.memory is None else later.expand_as(keys), past.live).otherwise(first.expand_as(keys))
        maps = self.maps.to(keys.dtype)
        return torch.stack([keys @ maps[:, 0] + shift, values @ maps[:, 1]], dim=2)


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
