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
from recurrify.families import key_width, turn_keys
from recurrify.mechanisms.base import CacheRecorder, Past
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
    in_parallel: ClassVar[bool] = False

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

    def _far_and_seen(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Far keys and values (B, F, 2, H, K, D), and which of them a text had (B, K)."""
        reach, (heads, size) = self.config.reach, self.shape
        far = memory[:, self.near_numbers : -1].view(len(memory), len(self.far), 2, heads, reach, size)
        filled = memory[:, -1:].float() * self.config.stride - self.config.keep
        return far, torch.arange(reach, device=memory.device) >= reach - filled

    def open(self, window: WindowContext, base: PreTrainedModel, inputs: dict[str, Any]) -> dict[str, Any]:
        if window.past.memory is not None:
            far, seen = self._far_and_seen(window.past.memory)
            # One split of all: its gradient is one copy.
            parts = iter(far.flatten(1, 2).unbind(1))
            for layer in self.far:
                window.change_attention[layer] = partial(_look_far, next(parts), next(parts), seen)
        return super().open(window, base, inputs)

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
            far, _ = self._far_and_seen(memory)
            kept = self.kept(memory)[..., config.sinks :, :]
            # Not `kept[:, self.far]`: numbers from the CPU cannot be captured as a graph.
            chosen = torch.stack([kept[:, layer] for layer in self.far], dim=1)
            before = torch.cat([far, chosen], dim=-2).to(near.dtype)
            read = past.otherwise(torch.zeros_like(memory))[:, -1:].to(near.dtype)
        latest = torch.cat([before, added], dim=-2)[..., -config.reach :, :]
        latest = torch.stack([turn_keys(base, self.far, latest[:, :, 0], -config.stride), latest[:, :, 1]], dim=2)
        # No more than fill all positions: half precision counts so far exactly.
        most = -(-(config.reach + config.keep) // config.stride)
        return torch.cat([near.flatten(1), latest.flatten(1), (read + 1).clamp(max=most)], dim=1)


def _look_far(
    more_keys: Tensor, more_values: Tensor, seen: Tensor, attend: Attend, keys: Tensor, values: Tensor
) -> Tensor:
    keys = torch.cat([more_keys.to(keys.dtype), keys], dim=2)
    return attend(keys, torch.cat([more_values.to(values.dtype), values], dim=2), seen)
