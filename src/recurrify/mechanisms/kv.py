"""Keys and values of the previous window's last positions, and of a document's first, seen by every layer of the next.

As in "Transformer-XL", Dai et al. 2019, with the attention sinks of "Efficient Streaming Language Models with Attention
Sinks", Xiao et al. 2023, and optionally with the sliding-window mask of "Longformer", Beltagy et al. 2020. It adds no
parameters, and needs rotary positions: such keys can be rotated to their positions in the next window. Shapes: B rows,
L layers, H key heads, D size of a head, C keys kept (sinks, then the last positions), N positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from recurrify.errors import UserError
from recurrify.families import family_of, key_angles, key_width, open_attention, turn, turn_keys
from recurrify.mechanisms.base import CacheMechanism, CacheRecorder, Leave, Past
from recurrify.mechanisms.config import MechanismConfig
from recurrify.settings import setting
from recurrify.speed.products import product_dtype


@dataclass(frozen=True, kw_only=True)
class KVConfig(MechanismConfig):
    """Windows of a rotary model that attend to keys and values of the previous window."""

    mechanism: ClassVar[str] = "kv"
    learns: ClassVar[bool] = False
    decoders_only: ClassVar[bool] = True
    positions: ClassVar[Any] = "rotary"

    keep: int = setting(64, at_least=1)
    """How many positions of the previous window to keep: the last ones that the next window does not see itself."""
    sinks: int = setting(4, at_least=0)
    """How many of a document's first positions all its windows see."""
    sliding: bool = False
    """Besides the sinks, every position sees only as many positions as a window has, itself included. With `keep` of at
    least window − 1 and no sinks, that is sliding-window attention over the whole text; with a smaller `keep`, a
    window's first positions see fewer."""

    @classmethod
    def completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        sinks = values.get("sinks", cls.sinks)
        keep = max(1, min(cls.keep, cls.stride_of(values) - sinks)) if isinstance(sinks, int) else cls.keep
        return {"keep": keep, **values}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep + self.sinks > self.stride:
            raise UserError(
                f"`keep` is {self.keep} and `sinks` {self.sinks}, but the next window leaves only {self.stride} "
                f"positions of a window unseen (window={self.window}, overlap={self.overlap}): choose "
                f"keep={max(self.stride - self.sinks, 1)} or less where the memory is added, fewer sinks, "
                f"{'less overlap, ' if self.overlap else ''}or larger windows."
            )

    def build(self, layers: int, width: int) -> "KV":
        return KV(self, layers, width)


class KV(CacheMechanism):
    """memory (B, L, 2, H, C, D): keys, rotated to positions 0 to C − 1, and values; windows begin at position C."""

    in_parallel: ClassVar[bool] = True

    def __init__(self, config: KVConfig, layers: int, width: int) -> None:
        super().__init__(config)
        self.layers = layers
        self.first_position = config.sinks + config.keep
        self.numbers = 0

    def fit(self, base: PreTrainedModel) -> None:
        check_rotary(self.config.mechanism, base.config)
        open_attention(base)
        self.numbers = self.layers * 2 * self.first_position * key_width(base.config)

    def slots(self) -> dict[int, int]:
        return dict.fromkeys(range(self.layers), self.first_position)

    def slot_pairs(self, window: int) -> int:
        if not self.config.sliding:
            return super().slot_pairs(window)
        last = sum(min(self.config.keep, window - 1 - place) for place in range(window))
        return self.layers * (window * self.config.sinks + last)

    def sees_slots(self, places: Tensor) -> Tensor | None:
        if not self.config.sliding:
            return None
        slots = torch.arange(self.first_position, device=places.device)[None]
        # The last kept key is right in front of the window's first position.
        back = places[:, None] + self.first_position - slots
        return (slots < self.config.sinks) | (back < self.config.window)

    def state_size(self) -> int:
        return self.numbers

    def leaves(self, base: PreTrainedModel, like: Tensor, stride: int) -> Sequence[Leave]:
        angles = key_angles(base, range(self.layers), like, -stride)
        span = slice(stride - self.config.keep, stride)
        return [partial(_turned, cos, sin, span) for cos, sin in zip(*angles, strict=True)]

    def write(self, recorder: CacheRecorder, past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        sinks, keep, stride = self.config.sinks, self.config.keep, recorder.stride
        base = recorder.base
        assert base is not None, "no window was opened"

        before = 0 if past.memory is None else self.first_position

        def moved(first: int, end: int, by: int) -> Tensor:
            own = recorder.layers(before, first, end)
            keys, values = (torch.stack(parts, dim=1) for parts in zip(*own, strict=True))
            turned = turn_keys(base, range(self.layers), keys, by)
            # In the precision in which attention will read it: rotary positions may have made float32 of it.
            return torch.stack([turned, values.to(turned.dtype)], dim=2).to(product_dtype(keys))

        # Windows begin at position sinks + keep: the first tokens move to 0, the last ones in front of the next window.
        last = moved(stride - keep, stride, -stride)
        kept = None if past.memory is None else past.memory[..., :sinks, :]
        if kept is None or past.live is not None:
            first = Past(kept, past.live).otherwise(moved(0, sinks, -sinks - keep))
        else:
            first = kept.to(last.dtype)
        return torch.cat([first, last], dim=-2)


def _turned(cos: Tensor, sin: Tensor, span: slice, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    kept = turn(keys[:, :, span], cos, sin), values[:, :, span]
    return kept[0].to(product_dtype(keys)), kept[1].to(product_dtype(keys))


def check_rotary(mechanism: str, config: PretrainedConfig) -> None:
    """Raise UserError for a base whose keys cannot be rotated to other positions."""
    if not family_of(config).rotary:
        raise UserError(
            f"The mechanism {mechanism!r} needs a model with rotary positions, which {config.model_type!r} models do "
            "not have: with absolute positions, kept keys would have the positions of the window's own tokens. "
            "Choose another, such as 'lookback' or 'tail'."
        )
