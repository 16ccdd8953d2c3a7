"""`kv`, and in chosen layers also what lies before: most layers see a window back, a few see many windows back.

Shapes: B rows, F far layers, H key heads, D size of a head, K far positions, N positions.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurrify.context import Attend, WindowContext
from recurrify.errors import UserError
from recurrify.families import key_angles, key_width, turn, turn_keys
from recurrify.mechanisms.base import CacheRecorder, ParallelLayer, Past, pick_windows
from recurrify.mechanisms.kv import KV, KVConfig
from recurrify.settings import setting


@dataclass(frozen=True, kw_only=True)
class FarConfig(KVConfig):
    """Windows of a rotary model that attend to kept keys and values, in some layers from many windows back."""

    mechanism: ClassVar[str] = "far"

    reach: int = setting(1024, at_least=1)
    """How many positions before the kept ones the far layers see."""
    layers: tuple[int, ...] | Literal["upper"] = setting("upper", at_least=1)
    """Which layers are far, counted from 1; "upper": the third of all layers that begins in the middle."""

    def __post_init__(self) -> None:
        if isinstance(self.layers, list):  # from JSON
            object.__setattr__(self, "layers", tuple(self.layers))
        super().__post_init__()
        if self.sliding:
            raise UserError("`sliding` would hide what lies between the window and the far positions: use false.")
        if self.layers != "upper" and (not self.layers or len(set(self.layers)) != len(self.layers)):
            raise UserError(f"`layers` must be 'upper' or different numbers of layers: got {self.layers!r}.")

    def build(self, layers: int, width: int) -> "Far":
        return Far(self, layers, width)


class Far(KV):
    """memory (B, numbers): what `kv` keeps; keys and values (F, 2, H, K, D) of the far layers, whose keys are rotated
    to the positions before those of `kv`; and how many windows were read."""

    changes_attention: ClassVar[bool] = True

    def __init__(self, config: FarConfig, layers: int, width: int) -> None:
        super().__init__(config, layers, width)
        middle = layers // 2
        chosen = range(middle + 1, middle + 1 + -(-layers // 3)) if config.layers == "upper" else sorted(config.layers)
        if chosen[-1] > layers:
            raise UserError(
                f"`layers` names layer {chosen[-1]}, but the model has only {layers} layers: choose at most {layers}."
            )
        self.far = [layer - 1 for layer in chosen]
        self.near_numbers = 0
        self.shape: tuple[int, int] = (0, 0)

    def fit(self, base: PreTrainedModel) -> None:
        super().fit(base)
        self.near_numbers = self.numbers
        heads = getattr(base.config, "num_key_value_heads", None) or base.config.num_attention_heads
        self.shape = heads, key_width(base.config) // heads
        self.numbers += len(self.far) * 2 * self.config.reach * key_width(base.config) + 1

    def slot_pairs(self, window: int) -> int:
        return super().slot_pairs(window) + window * self.config.reach * len(self.far)

    def kept(self, memory: Tensor) -> Tensor:
        heads, size = self.shape
        return memory[:, : self.near_numbers].view(len(memory), self.layers, 2, heads, self.first_position, size)

    def _far(self, memory: Tensor) -> Tensor:
        """Far keys and values (B, F, 2, H, K, D)."""
        heads, size = self.shape
        return memory[:, self.near_numbers : -1].view(len(memory), len(self.far), 2, heads, self.config.reach, size)

    def _seen(self, read: Tensor) -> Tensor:
        """Which far positions a text had (B, K) that has read so many windows (B, 1)."""
        filled = read.float() * self.config.stride - self.config.keep
        return torch.arange(self.config.reach, device=read.device) >= self.config.reach - filled

    def open(self, window: WindowContext, base: PreTrainedModel, inputs: dict[str, Any]) -> dict[str, Any]:
        memory, recorder = window.past.memory, window.recorder
        inputs = super().open(window, base, inputs)
        if memory is None:
            return inputs
        # One split of all: its gradient is one copy.
        parts = self._far(memory).flatten(1, 2).unbind(1)
        pairs = list(zip(parts[::2], parts[1::2], strict=True))
        if not isinstance(recorder, CacheRecorder) or recorder.windows == 1:
            seen = self._seen(memory[:, -1:])
            for layer, pair in zip(self.far, pairs, strict=True):
                window.change_attention[layer] = partial(_look_far, *pair, seen)
            return inputs
        numbers = torch.arange(recorder.windows + 1, device=memory.device)
        seen = self._seen((memory[:, -1:] + numbers[:-1]).view(-1, 1))
        layers = inputs["past_key_values"].layers
        angles = key_angles(base, self.far, memory, recorder.stride * numbers)
        for layer, pair, *turns in zip(self.far, pairs, *angles, strict=True):
            layers[layer] = FarLayer(layers[layer], pair, self.config.keep, recorder.stride, *turns)
            window.change_attention[layer] = partial(_look_far_in, layers[layer], seen)
        return inputs

    def write_parallel(self, recorder: CacheRecorder, past: Past, chosen: int | Tensor | None) -> Tensor:
        memory = past.memory
        assert memory is not None, "windows in parallel need a memory"
        assert recorder.cache is not None, "no window was opened"
        near = super().write_parallel(recorder, Past(self.kept(memory), None), chosen)
        layers: list[Any] = [recorder.cache.layers[layer] for layer in self.far]
        far = torch.stack([layer.far_behind(chosen) for layer in layers], dim=-5)
        numbers = torch.arange(recorder.windows, device=memory.device).expand(len(memory), -1)[..., None]
        read = memory[:, None, -1:] + 1 + numbers
        read = pick_windows(read, chosen).clamp(max=self._most_read())
        return torch.cat([part.to(near.dtype) for part in (near.flatten(-5), far.flatten(-5), read)], dim=-1)

    def _most_read(self) -> int:
        """No more than fill all positions: half precision counts so far exactly."""
        return -(-(self.config.reach + self.config.keep) // self.config.stride)

    def write(self, recorder: CacheRecorder, past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        config, base, memory = self.config, recorder.base, past.memory
        assert base is not None, "no window was opened"
        near = super().write(recorder, Past(None if memory is None else self.kept(memory), past.live), statistics)
        rows = len(near)
        own = recorder.layers(0 if memory is None else self.first_position, 0, config.stride - config.keep)
        parts = [part for layer in self.far for part in own[layer]]
        added = torch.stack([part.to(near.dtype) for part in parts], dim=1).unflatten(1, (-1, 2))
        if memory is None:
            before = added.new_zeros(*added.shape[:4], config.reach, added.shape[-1])
            read = near.new_zeros(rows, 1)
        else:
            far = self._far(memory)
            kept = self.kept(memory)[..., config.sinks :, :]
            # Not `kept[:, self.far]`: numbers from the CPU cannot be captured as a graph.
            chosen = torch.stack([kept[:, layer] for layer in self.far], dim=1)
            before = torch.cat([far, chosen], dim=-2).to(near.dtype)
            read = past.otherwise(torch.zeros_like(memory))[:, -1:].to(near.dtype)
        latest = torch.cat([before, added], dim=-2)[..., -config.reach :, :]
        latest = torch.stack([turn_keys(base, self.far, latest[:, :, 0], -config.stride), latest[:, :, 1]], dim=2)
        return torch.cat([near.flatten(1), latest.flatten(1), (read + 1).clamp(max=self._most_read())], dim=1)


def _look_far(
    more_keys: Tensor, more_values: Tensor, seen: Tensor, attend: Attend, keys: Tensor, values: Tensor
) -> Tensor:
    keys = torch.cat([more_keys.to(keys.dtype), keys], dim=2)
    return attend(keys, torch.cat([more_values.to(values.dtype), values], dim=2), seen)


class FarLayer(ParallelLayer):
    """A far layer's cache of neighbouring windows: also what lies before each, and before the next one."""

    def __init__(
        self, near: ParallelLayer, far: tuple[Tensor, Tensor], keep: int, stride: int, cos: Tensor, sin: Tensor
    ) -> None:
        """`far`: keys and values (texts, H, K, D) before the first windows; `cos` and `sin` (windows + 1, 1, D): of
        moves by so many windows."""
        super().__init__(near.front, near.leave)
        self.far, self.keep, self.stride, self.cos, self.sin = far, keep, stride, cos[:, None], sin[:, None]

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        found = super().update(key_states, value_states)
        texts = len(self.far[0])
        keys, values = (own.unflatten(0, (texts, -1))[..., : self.stride, :] for own in (key_states, value_states))
        # All keys at their positions in the first window, and from there to those in each.
        keys = self._before(0, turn(keys, self.cos[:-1], self.sin[:-1]))
        self.before = turn(keys, self.cos, -self.sin), self._before(1, values)
        return found

    def _before(self, part: int, own: Tensor) -> Tensor:
        """(texts, windows + 1, H, K, D): of own keys or values (texts, windows, H, stride, D) those that lie far before
        each window."""
        far, kept = self.far[part], self.front[part]
        row = torch.cat([far, kept[:, :, kept.shape[2] - self.keep :], own.transpose(1, 2).flatten(2, 3)], dim=2)
        return row.unfold(2, far.shape[2], self.stride)[:, :, : own.shape[1] + 1].permute(0, 2, 1, 4, 3)

    def far_behind(self, chosen: int | Tensor | None) -> Tensor:
        """(texts, 2, H, K, D) before the windows after the chosen ones, or (texts, windows, …) after each."""
        return torch.stack([pick_windows(part[:, 1:], chosen) for part in self.before], dim=-4)


def _look_far_in(layer: FarLayer, seen: Tensor, attend: Attend, keys: Tensor, values: Tensor) -> Tensor:
    more_keys, more_values = (part[:, :-1].flatten(0, 1) for part in layer.before)
    return _look_far(more_keys, more_values, seen, attend, keys, values)
