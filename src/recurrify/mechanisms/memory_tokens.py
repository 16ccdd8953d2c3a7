"""Memory tokens in front of a window and behind it: the last layer's outputs for those behind are the next memory.

"Recurrent Memory Transformer", Bulatov et al. 2022. Shapes: B rows, M memory tokens, K width.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from recurrify.mechanisms.base import Past, Recorder, SlotMechanism
from recurrify.mechanisms.config import MechanismConfig
from recurrify.mechanisms.neutral import neutral_inputs
from recurrify.settings import setting

INITIAL_SCALE = 0.5
"""Scale of a memory token's normed output for a neutral start, in multiples of the neutral vector's median."""
SPREAD = 0.02
"""Initial standard deviation of the first memory without a neutral start: that of token embeddings."""
HALF_OPEN = 0.0
"""Initial value of gates before the sigmoid: half of the memory is overwritten."""


@dataclass(frozen=True, kw_only=True)
class MemoryTokensConfig(MechanismConfig):
    """As published, but for two things: a document's first window reads nothing, as with every other mechanism here, so
    the learned first memory is only what it writes over; and outputs of the last layer become inputs of the first
    through a norm with a learned scale and shift, because to a pretrained base neither looks like the other. Windows
    that overlap are written whole, with the tokens that the next one sees again."""

    mechanism: ClassVar[str] = "memory_tokens"
    writes_overlap: ClassVar[bool] = True

    tokens: int = setting(8, at_least=1)
    """How many memory tokens are read, in front of the window, and as many written, behind it. The more there are, the
    more a fresh model differs from its base."""
    neutral_start: bool = True
    """Start with memory tokens that the base mostly ignores, with a small share of the outputs; False starts with the
    normed outputs."""
    gated: bool = False
    """Ours, not the paper's: each feature of a memory token keeps a share of its value, by a gate on the new output. A
    memory that is overwritten in every window drifts, and lasts little longer than in training."""

    def build(self, layers: int, width: int) -> "MemoryTokens":
        return MemoryTokens(self, layers, width)


class MemoryTokens(SlotMechanism):
    """memory (B, M, K) = norm(last layer's outputs of the previous memory behind the window); gated, a mixture of that
    and the previous memory."""

    def __init__(self, config: MemoryTokensConfig, layers: int, width: int) -> None:
        super().__init__(config)
        self.layers, self.inputs_behind = layers, config.tokens
        self.first = nn.Parameter(torch.empty(config.tokens, width))
        nn.init.normal_(self.first, std=SPREAD)
        self.norm = nn.LayerNorm(width)
        if config.gated:
            self.gate = nn.Linear(width, width)
            nn.init.zeros_(self.gate.weight)
            nn.init.constant_(self.gate.bias, HALF_OPEN)

    @torch.no_grad()
    def start(self, base: PreTrainedModel) -> None:
        if not self.config.neutral_start:
            return
        start_norm(self.norm, neutral_inputs(base)[0].to(self.first))
        self.first.copy_(self.norm(torch.randn_like(self.first)))

    def slots(self) -> dict[int, int]:
        return dict.fromkeys(range(self.layers), self.config.tokens)

    def state_size(self) -> int:
        return self.first.numel()

    def read(self, memory: Tensor) -> dict[int, Tensor]:
        return {0: memory}

    def ask(self, past: Past, rows: int) -> Tensor:
        return past.otherwise(self.first.expand(rows, -1, -1))

    def recorder(self, stride: int) -> "LastOutputs":
        return LastOutputs(self.layers)

    def write(self, recorder: "LastOutputs", past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        outputs = recorder.outputs().to(self.first.dtype)
        written: Tensor = self.norm(outputs)
        if not self.config.gated:
            return written
        before = self.ask(past, len(outputs)).to(written.dtype)
        return torch.lerp(before, written, self.gate(outputs).sigmoid().to(written.dtype))


class LastOutputs(Recorder):
    """The last layer's outputs of the inputs behind the window."""

    def __init__(self, layers: int) -> None:
        self.last = layers - 1
        self.behind: Tensor | None = None

    def see_behind(self, layer: int, hidden: Tensor) -> None:
        if layer == self.last:
            self.behind = hidden

    def outputs(self) -> Tensor:
        assert self.behind is not None, "no layer ran"
        return self.behind


@torch.no_grad()
def start_norm(norm: nn.LayerNorm, neutral: Tensor) -> None:
    """Let a norm's output start as the neutral vector and a small share of its input."""
    # The median: a few of a first token's features can be a hundred times as large as all others.
    norm.weight.fill_(INITIAL_SCALE * float(neutral.abs().median()))
    norm.bias.copy_(neutral)
