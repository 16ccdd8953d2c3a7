"""Keys and values of the previous window's last positions, and of a document's first, seen by every layer of the next.

As in "Transformer-XL", Dai et al. 2019, with the attention sinks of "Efficient Streaming Language Models with Attention
Sinks", Xiao et al. 2023, and on request with a band that makes it the sliding-window attention of "Longformer",
Beltagy et al. 2020. Nothing is added that could be trained; it is for models with rotary positions alone, whose
keys can be turned to where they stand in the next window. Shapes: B rows, L layers, H key heads, D size of a head, C
keys kept (sinks, then the last positions), N positions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel

from recurrify.errors import UserError
from recurrify.families import as_mask, family_of, open_attention, turn_keys
from recurrify.mechanisms.base import (
    Mechanism,
    Notes,
    Past,
    RecurrenceConfig,
    register_mechanism,
    whole_number,
    yes_or_no,
)


@dataclass(frozen=True, kw_only=True)
class KVConfig(RecurrenceConfig):
    """Windows of a rotary model that look back at what the window before computed."""

    mechanism: ClassVar[str] = "kv"

    keep: int = 64
    """How many of the last positions that the next window does not see it looks back at."""
    sinks: int = 4
    """How many of a document's first positions all its windows look back at."""
    sliding: bool = False
    """Every position sees, beside the sinks, only as many of the last ones as a window has, itself among them. With
    `keep` a window less one or more, and no sinks, that is sliding-window attention over the whole text; with fewer
    kept, a window's first positions see fewer."""

    @classmethod
    def completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        sinks = values.get("sinks", cls.sinks)
        whole_number("sinks", sinks, 0)
        return {"keep": max(1, min(cls.keep, cls.stride_of(values) - sinks)), **values}

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("keep", self.keep, 1)
        whole_number("sinks", self.sinks, 0)
        yes_or_no("sliding", self.sliding)
        if self.keep + self.sinks > self.stride:
            raise UserError(
                f"`keep` is {self.keep} and `sinks` {self.sinks}, but the next window leaves only {self.stride} "
                f"positions of a window unseen (window={self.window}, overlap={self.overlap}): choose "
                f"keep={max(self.stride - self.sinks, 1)} or less where the memory is added, fewer sinks, "
                f"{'less overlap, ' if self.overlap else ''}or larger windows."
            )


class KV(Mechanism):
    """memory (B, L, 2, H, C, D): keys, turned to stand at positions 0 to C − 1, and values; windows begin at C."""

    keys_only: ClassVar[bool] = True

    def __init__(self, config: KVConfig, layers: int, width: int) -> None:
        super().__init__()
        self.config, self.layers = config, layers
        self.kept = config.sinks + config.keep
        self.numbers = 0

    def fit(self, base: PreTrainedModel) -> None:
        config = base.config
        check_rotary(config)
        open_attention(base)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.numbers = self.layers * 2 * heads * self.kept * size

    def windows_changed(self, config: RecurrenceConfig) -> None:
        assert isinstance(config, KVConfig)
        self.config = config

    def slots(self) -> dict[int, int]:
        return dict.fromkeys(range(self.layers), self.kept)

    def slot_pairs(self, window: int) -> int:
        if not self.config.sliding:
            return super().slot_pairs(window)
        last = sum(min(self.config.keep, window - 1 - place) for place in range(window))
        return self.layers * (window * self.config.sinks + last)

    def sees_slots(self, places: Tensor) -> Tensor | None:
        if not self.config.sliding:
            return None
        slots = torch.arange(self.kept, device=places.device)[None]
        # The last one kept stands right before the window's first position.
        back = places[:, None] + self.kept - slots
        return (slots < self.config.sinks) | (back < self.config.window)

    def floats(self) -> int:
        return self.numbers

    def first_position(self) -> int:
        return self.kept

    def read(self, memory: Tensor) -> dict[int, Tensor]:
        return {}

    def prepare(self, base: PreTrainedModel, inputs: dict[str, Any], past: Past, notes: Notes | None) -> dict[str, Any]:
        ids: Tensor = inputs["input_ids"]
        cache = with_kept(inputs.get("past_key_values"), past)
        mask = mask_of_kept(past, ids, self.kept)
        if past.memory is not None and self.config.sliding:
            mask = self._band(base, ids, past.live)
        if notes is not None:
            assert isinstance(notes, KeysAndValues)
            notes.cache, notes.turn = cache, partial(turn_keys, base)
        places = torch.arange(self.kept, self.kept + ids.shape[1], device=ids.device)[None].expand(len(ids), -1)
        return {**inputs, "position_ids": places, "attention_mask": mask, "past_key_values": cache, "use_cache": True}

    def _band(self, base: PreTrainedModel, ids: Tensor, live: Tensor | None) -> Tensor:
        """(B, 1, N, C + N): what each position sees of what was kept and of its own window."""
        rows, length = ids.shape
        front = self.sees_slots(torch.arange(length, device=ids.device))
        assert front is not None
        front = front.expand(rows, -1, -1)
        if live is not None:
            front = front & live[:, None, None]
        own = torch.ones(length, length, dtype=torch.bool, device=ids.device).tril()
        allowed = torch.cat([front, own.expand(rows, -1, -1)], dim=2)[:, None]
        return as_mask(allowed, base.config._attn_implementation == "eager", base.dtype)

    def start_window(self, stride: int) -> "KeysAndValues":
        return KeysAndValues(stride, self.config.keep, self.config.sinks)

    def write(self, notes: Notes, past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        assert isinstance(notes, KeysAndValues)
        first, last = notes.taken(0 if past.memory is None else self.kept)
        if past.memory is not None:
            first = Past(past.memory[..., : self.config.sinks, :], past.live).otherwise(first)
        return torch.cat([first, last], dim=-2)


def with_kept(cache: DynamicCache | None, past: Past) -> DynamicCache:
    """The cache, or a new one, with the keys and values of a memory (B, L, 2, H, C, D) as its first."""
    cache = DynamicCache() if cache is None else cache
    if past.memory is not None:
        for layer, kept in enumerate(past.memory.unbind(1)):
            cache.update(*kept.unbind(1), layer)
    return cache


def mask_of_kept(past: Past, ids: Tensor, kept: int) -> Tensor | None:
    """(B, C + N): what is there to see for rows of which only some have a memory; None where it is all."""
    if past.memory is None or past.live is None:
        return None
    return torch.cat([past.live[:, None].expand(-1, kept), torch.ones_like(ids)], dim=1)


def check_rotary(config: PretrainedConfig) -> None:
    """Refuse a base whose positions cannot be turned."""
    if not family_of(config).rotary:
        raise UserError(
            f"The mechanism 'kv' needs a model with rotary positions, which {config.model_type!r} models do not "
            "have: with absolute positions, what was kept would stand where the window's own tokens stand. "
            "Choose another, such as 'lookback' or 'tail'."
        )


class KeysAndValues(Notes):
    """What every layer of a window put into the cache that it was given."""

    def __init__(self, stride: int, keep: int, sinks: int) -> None:
        self.stride, self.keep, self.sinks = stride, keep, sinks
        self.cache: DynamicCache | None = None
        self.turn: Callable[[int, Tensor, int], Tensor] | None = None

    def see(self, layer: int, hidden: Tensor) -> None:
        pass

    def summary(self) -> None:
        return None

    def taken(self, before: int) -> tuple[Tensor, Tensor]:
        """(B, L, 2, H, …, D): the window's first positions and its last, each where it stands in the next window;
        `before` of the keys and values in the cache are not the window's own."""
        assert self.cache is not None
        assert self.turn is not None, "no window was prepared"
        first, last = [], []
        for layer, part in enumerate(self.cache.layers):
            keys, values = part.keys[:, :, before:], part.values[:, :, before:]
            begin, end = slice(0, self.sinks), slice(self.stride - self.keep, self.stride)
            # Windows begin at position sinks + keep: the first tokens move to 0, the last ones before the next window.
            moved = self.turn(layer, keys[:, :, begin], -self.sinks - self.keep)
            first.append(torch.stack([moved, values[:, :, begin].to(moved.dtype)], dim=1))
            moved = self.turn(layer, keys[:, :, end], -self.stride)
            last.append(torch.stack([moved, values[:, :, end].to(moved.dtype)], dim=1))
        return torch.stack(first, dim=1), torch.stack(last, dim=1)


register_mechanism(KVConfig, KV)
