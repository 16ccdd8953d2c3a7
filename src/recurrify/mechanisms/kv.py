"""Keys and values of the previous window's last positions, and of a document's first, seen by every layer of the next.

As in "Transformer-XL", Dai et al. 2019, with the attention sinks of "Efficient Streaming Language Models with Attention
Sinks", Xiao et al. 2023, and optionally with the sliding-window mask of "Longformer", Beltagy et al. 2020. Positions
from longer ago can be selected by the attention they get, as in "H2O", Zhang et al. 2023, and "SnapKV", Li et al. 2024.
It adds no parameters, and needs rotary positions: such keys can be rotated to their positions in the next window.
Shapes: B rows, L layers, H key heads, D size of a head, C keys kept (sinks, selected ones, then the last positions),
N positions.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from recurrify.errors import UserError
from recurrify.families import family_of, open_attention, turn_keys
from recurrify.mechanisms.base import CacheMechanism, CacheRecorder, Past, WindowContext
from recurrify.mechanisms.config import MechanismConfig
from recurrify.settings import setting
from recurrify.speed.products import product_dtype

OBSERVERS = 32
"""So many of a window's last positions select by their attention what is kept."""


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
    select: int = setting(0, at_least=0)
    """How many positions from longer ago to keep, in each head its own: those with the most attention from the last 32
    positions of a window that the next does not see itself. A position stays as long as it is selected again."""
    sliding: bool = False
    """Besides the sinks, every position sees only as many positions as a window has, itself included. With `keep` of at
    least window − 1 and no sinks, that is sliding-window attention over the whole text; with a smaller `keep`, a
    window's first positions see fewer."""

    @classmethod
    def completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        others = [values.get("sinks", cls.sinks), values.get("select", cls.select)]
        known = all(isinstance(one, int) for one in others)
        keep = max(1, min(cls.keep, cls.stride_of(values) - sum(others))) if known else cls.keep
        return {"keep": keep, **values}

    @property
    def kept(self) -> int:
        """All kept positions."""
        return self.sinks + self.select + self.keep

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kept > self.stride:
            selected = f", `select` {self.select}" if self.select else ""
            raise UserError(
                f"`keep` is {self.keep}{selected} and `sinks` {self.sinks}, but the next window leaves only "
                f"{self.stride} positions of a window unseen (window={self.window}, overlap={self.overlap}): choose "
                f"keep={max(self.stride - self.sinks - self.select, 1)} or less where the memory is added, "
                f"{'less to select, ' if self.select else ''}fewer sinks, "
                f"{'less overlap, ' if self.overlap else ''}or larger windows."
            )
        if self.select and self.sliding:
            raise UserError(
                f"`sliding` hides positions further back than a window, which `select` keeps: got select={self.select} "
                "with sliding=True; leave one of them out."
            )

    def build(self, layers: int, width: int) -> "KV":
        return KV(self, layers, width)


class KV(CacheMechanism):
    """memory (B, L, 2, H, C, D): keys, rotated to positions 0 to C − 1, and values; windows begin at position C."""

    def __init__(self, config: KVConfig, layers: int, width: int) -> None:
        super().__init__(config)
        self.layers = layers
        self.first_position = config.kept
        self.numbers = 0
        self.observed = 0
        """Layers × heads × size of a head: the width of the queries that select."""

    def fit(self, base: PreTrainedModel) -> None:
        config = base.config
        check_rotary(config)
        open_attention(base)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        self.numbers = self.layers * 2 * heads * self.first_position * size
        self.observed = self.layers * config.num_attention_heads * size if self.config.select else 0

    def resize(self, config: KVConfig) -> None:
        self.config = config

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

    def kept_flops(self) -> int:
        return 2 * self.observed * min(OBSERVERS, self.config.window) * (self.first_position + self.config.window)

    def open(self, window: WindowContext, base: PreTrainedModel, inputs: dict[str, Any]) -> dict[str, Any]:
        if isinstance(window.recorder, AttentionRecorder):
            window.recorder.live = window.past.live
        return super().open(window, base, inputs)

    def recorder(self, stride: int) -> CacheRecorder:
        return AttentionRecorder(stride) if self.config.select else CacheRecorder(stride)

    def write(self, recorder: CacheRecorder, past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        sinks, keep, stride, room = self.config.sinks, self.config.keep, recorder.stride, self.first_position
        base = recorder.base
        assert base is not None, "no window was opened"

        def moved(layer: int, keys: Tensor, values: Tensor, span: slice, by: int) -> Tensor:
            turned = turn_keys(base, layer, keys[:, :, span], by)
            # In the precision in which attention will read it: rotary positions may have made float32 of it.
            return torch.stack([turned, values[:, :, span].to(turned.dtype)], dim=1).to(product_dtype(keys))

        own = list(enumerate(recorder.layers(0 if past.memory is None else room)))
        # Windows begin at position `room`: the first tokens move to 0, the last ones in front of the next window.
        first = torch.stack([moved(layer, *kv, slice(0, sinks), -room) for layer, kv in own], dim=1)
        last = torch.stack([moved(layer, *kv, slice(stride - keep, stride), -stride) for layer, kv in own], dim=1)
        if past.memory is not None:
            first = Past(past.memory[..., :sinks, :], past.live).otherwise(first)
        parts = [first, last]
        if isinstance(recorder, AttentionRecorder):
            parts.insert(1, torch.stack([self._selected(recorder, past, layer) for layer, _ in own], dim=1))
        return torch.cat(parts, dim=-2)

    def _selected(self, recorder: "AttentionRecorder", past: Past, layer: int) -> Tensor:
        """(B, 2, H, selected, D): those with the most attention between the sinks and the last positions."""
        sinks, select, room = self.config.sinks, self.config.select, self.first_position
        keys, values = recorder.layers(0)[layer]
        stop = keys.shape[2] - (self.config.window - recorder.stride) - self.config.keep
        before = keys.shape[2] - self.config.window
        received = recorder.received[layer][:, :, sinks:stop]
        if past.memory is not None and past.live is not None:
            # Rows without memory choose from their window alone, in which the sinks come first.
            hidden = torch.arange(sinks, stop, device=keys.device) < room + sinks
            received = received.masked_fill(hidden & ~past.live[:, None, None], -1)
        chosen = received.topk(select, dim=-1).indices.sort(dim=-1).values + sinks
        places = torch.arange(sinks, sinks + select, device=keys.device)
        each = chosen[..., None].expand(-1, -1, -1, keys.shape[-1])
        assert recorder.base is not None
        # Each head is a row of its own, with its own moves. An index is a position, but for windows without memory.
        turned = turn_keys(
            recorder.base,
            layer,
            keys.gather(2, each).flatten(0, 1)[:, None],
            (places - chosen - (room - before)).flatten(0, 1),
        )
        turned = turned[:, 0].unflatten(0, chosen.shape[:2])
        return torch.stack([turned, values.gather(2, each).to(turned.dtype)], dim=1).to(product_dtype(keys))


class AttentionRecorder(CacheRecorder):
    """Also how much attention each position gets from the window's last ones."""

    def __init__(self, stride: int) -> None:
        super().__init__(stride)
        self.live: Tensor | None = None
        """(B,): the rows that see kept keys; None means all."""
        self.received: dict[int, Tensor] = {}
        """(B, H, kept keys and positions) of each layer: the mean over the last positions and the heads that share a
        key."""

    @torch.no_grad()
    def see_queries(self, layer: int, queries: Tensor, keys: Tensor, scale: float) -> None:
        before = keys.shape[2] - queries.shape[2]
        last = queries[:, :, : self.stride][:, :, -OBSERVERS:].unflatten(1, (keys.shape[1], -1))
        scores = scale * (last.float() @ keys[:, :, None].float().mT)
        count, length = scores.shape[-2:]
        later = torch.ones(count, length, dtype=torch.bool, device=keys.device).triu(before + self.stride - count + 1)
        if self.live is not None:
            kept = torch.arange(length, device=keys.device) < before
            later = later | kept & ~self.live[:, None, None, None, None]
        self.received[layer] = scores.masked_fill(later, -torch.inf).softmax(dim=-1).mean(dim=(2, 3))


def check_rotary(config: PretrainedConfig) -> None:
    """Raise UserError for a base whose keys cannot be rotated to other positions."""
    if not family_of(config).rotary:
        raise UserError(
            f"The mechanism 'kv' needs a model with rotary positions, which {config.model_type!r} models do not "
            "have: with absolute positions, kept keys would have the positions of the window's own tokens. "
            "Choose another, such as 'lookback' or 'tail'."
        )
