"""An associative memory in every layer: a few tokens behind each window write into it, and every token reads from it.

"Associative Recurrent Memory Transformer" (ARMT), Rodkin et al. 2024: a delta rule overwrites the value of a key.
Shapes: B rows, N positions, M tokens behind the window, L layers, K width, D size, F = 6·D features of a key.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, normalize
from transformers import PreTrainedModel

from recurrify.mechanisms.base import Past, Recorder, SlotMechanism, WindowContext
from recurrify.mechanisms.config import MechanismConfig
from recurrify.mechanisms.memory_tokens import SPREAD
from recurrify.mechanisms.neutral import neutral_inputs
from recurrify.settings import setting

ROLLS = 3
"""The published feature map multiplies each entry with so many neighbours."""
INITIAL_SCALE = 0.1
"""Scale of what is read for a neutral start, in multiples of the median of a layer's neutral input."""


@dataclass(frozen=True, kw_only=True)
class CompressConfig(MechanismConfig):
    """As published, except for five things: keys have length one and are written one after the other, which is stable
    without a count of earlier writes; old windows fade as new ones are written; values are as narrow as keys and
    widened when read, so that the memory stays small; that last map starts nearly closed; and no tokens are added in
    front of the window. Overlapping windows are written whole, with the tokens that the next one sees again."""

    mechanism: ClassVar[str] = "compress"
    writes_overlap: ClassVar[bool] = True

    tokens: int = setting(8, at_least=1)
    """How many tokens behind each window write into the memory of every layer."""
    size: int = setting(32, at_least=1)
    """Width of keys and values: each layer's memory has 6 · size² numbers."""
    fade: float = setting(0.025, at_least=0)
    """The memory shrinks to e^−fade of itself with each token that writes with full strength. At first 8 tokens write
    with about half of it: each window forgets a tenth, and the memory stays at the size that ten windows give it. With
    0, as published, nothing fades: over hundreds of windows the memory, and what is read from it, grows far beyond its
    size in training."""
    neutral_start: bool = True
    """Start with a small map from the memory to the layers; False starts with a map of the usual size."""

    def build(self, layers: int, width: int) -> "Compress":
        return Compress(self, layers, width)


class Compress(SlotMechanism):
    """memory (B, L, F, D): in each layer, the value of each feature of a key."""

    def __init__(self, config: CompressConfig, layers: int, width: int) -> None:
        super().__init__(config)
        self.layers, self.inputs_behind = layers, config.tokens
        size = config.size
        self.tokens = nn.Parameter(torch.empty(config.tokens, width))
        nn.init.normal_(self.tokens, std=SPREAD)
        # For each layer a map of the reading token, three of the writing one, and one of what is read.
        self.query = nn.Parameter(torch.empty(layers, width, size))
        self.key = nn.Parameter(torch.empty(layers, width, size))
        self.value = nn.Parameter(torch.empty(layers, width, size))
        self.strength = nn.Parameter(torch.empty(layers, width, 1))
        self.out = nn.Parameter(torch.empty(layers, size, width))
        for weight in (self.query, self.key, self.value, self.strength):
            nn.init.normal_(weight, std=width**-0.5)
        nn.init.normal_(self.out, std=size**-0.5)

    @torch.no_grad()
    def start(self, base: PreTrainedModel) -> None:
        if not self.config.neutral_start:
            return
        neutral = neutral_inputs(base)
        vector = neutral[0].to(self.tokens)
        self.tokens.mul_(float(vector.abs().median()) / SPREAD).add_(vector)
        for out, vector in zip(self.out, neutral, strict=True):
            out.mul_(INITIAL_SCALE * float(vector.abs().median()))

    def slots(self) -> dict[int, int]:
        return {}

    def state_size(self) -> int:
        return self.layers * 2 * ROLLS * self.config.size**2

    def read(self, memory: Tensor) -> dict[int, Tensor]:
        return {}

    def open(self, window: WindowContext, base: PreTrainedModel, inputs: dict[str, Any]) -> dict[str, Any]:
        past = window.past
        if past.memory is not None:
            memory = past.otherwise(torch.zeros_like(past.memory))

            def recalled(layer: int, hidden: Tensor) -> Tensor:
                asked = features(_normed(hidden, self.query) @ self.query[layer])
                return hidden + (asked @ memory[:, layer].to(asked.dtype) @ self.out[layer]).to(hidden.dtype)

            window.change_inputs = recalled
        return super().open(window, base, inputs)

    def ask(self, past: Past, rows: int) -> Tensor:
        return self.tokens.expand(rows, -1, -1)

    def recorder(self, stride: int) -> "OutputsBehind":
        return OutputsBehind()

    def write(self, recorder: "OutputsBehind", past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        behind = _normed(torch.stack(recorder.layers, dim=1), self.key)  # (B, L, M, K)
        keys, values = features(behind @ self.key), behind @ self.value
        strengths = (behind @ self.strength).sigmoid()
        # In the weights' own precision, also under autocast: sums over many windows must not round away.
        memory = past.otherwise(self.key.new_zeros(*keys.shape[:2], keys.shape[3], self.config.size))
        # Fades by what is written, not by windows: a window that writes nothing leaves the memory as it was.
        written = strengths.sum(dim=2, keepdim=True, dtype=memory.dtype)
        memory = memory * (-self.config.fade * written).exp()
        for key, value, strength in zip(
            keys.split(1, dim=2), values.split(1, dim=2), strengths.split(1, dim=2), strict=True
        ):
            memory = memory + key.mT @ (strength * (value - key @ memory))
        return memory


class OutputsBehind(Recorder):
    """Each layer's outputs of the tokens behind the window."""

    def __init__(self) -> None:
        self.layers: list[Tensor] = []

    def see_behind(self, layer: int, hidden: Tensor) -> None:
        self.layers.append(hidden)


def features(keys: Tensor) -> Tensor:
    """(…, D) to (…, F), none negative and of length 1: each half-wave of an entry times that of its neighbours."""
    halves = torch.cat([keys, -keys], dim=-1).relu()
    rolled = torch.cat([halves * halves.roll(by, dims=-1) for by in range(1, ROLLS + 1)], dim=-1)
    return normalize(rolled, dim=-1)


def _normed(hidden: Tensor, like: Tensor) -> Tensor:
    return layer_norm(hidden.to(like.dtype), hidden.shape[-1:])
