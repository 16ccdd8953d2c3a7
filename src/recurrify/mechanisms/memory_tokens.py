"""Memory tokens in front of a window and behind it: what becomes of those behind is the next window's memory.

"Recurrent Memory Transformer", Bulatov et al. 2022. Shapes: B rows, M memory tokens, K width.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from recurrify.mechanisms.base import (
    Mechanism,
    Notes,
    Past,
    RecurrenceConfig,
    register_mechanism,
    whole_number,
    yes_or_no,
)

FAINT = 0.5
"""How loud a memory token is at first about what it comes from, in multiples of the neutral vector's median."""
SPREAD = 0.02
"""Of the first memory, before training, where it does not start from the base: that of token embeddings."""
OPEN = 0.0
"""Where gates start, before the sigmoid: half of the memory is written anew."""


@dataclass(frozen=True, kw_only=True)
class MemoryTokensConfig(RecurrenceConfig):
    """As published, but for two things: a document's first window reads nothing, as with every other mechanism here, so
    the learned first memory is only what it writes over; and outputs of the last layer become inputs of the first
    through a norm with a learned scale and shift, because to a pretrained base neither looks like the other. Windows
    that overlap are written whole, with the tokens that the next one sees again."""

    mechanism: ClassVar[str] = "memory_tokens"

    tokens: int = 8
    """How many memory tokens are read, in front of the window, and as many written, behind it. The more there are, the
    more a fresh model differs from its base."""
    neutral_start: bool = True
    """Start with memory tokens that the base makes little of and that only hint at what was written; False starts with
    what was written, normed."""
    gated: bool = False
    """Ours, not the paper's: each feature of a memory token keeps a share of what it was, by a gate that looks at what
    was written. A memory that is written anew in every window drifts, and holds for little longer than it was trained
    to."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("tokens", self.tokens, 1)
        yes_or_no("neutral_start", self.neutral_start)
        yes_or_no("gated", self.gated)


class MemoryTokens(Mechanism):
    """memory (B, M, K) = norm(what the last layer makes of the memory before, put behind the window); gated, a mixture
    of that and the memory before."""

    def __init__(self, config: MemoryTokensConfig, layers: int, width: int) -> None:
        super().__init__()
        self.config, self.layers = config, layers
        self.first = nn.Parameter(torch.empty(config.tokens, width))
        nn.init.normal_(self.first, std=SPREAD)
        self.norm = nn.LayerNorm(width)
        if config.gated:
            self.gate = nn.Linear(width, width)
            nn.init.zeros_(self.gate.weight)
            nn.init.constant_(self.gate.bias, OPEN)

    @torch.no_grad()
    def start_from(self, neutral: list[Tensor]) -> None:
        if not self.config.neutral_start:
            return
        vector = neutral[0].to(self.first)
        start_norm(self.norm, vector)
        self.first.copy_(self.norm(torch.randn_like(self.first)))

    def slots(self) -> dict[int, int]:
        return dict.fromkeys(range(self.layers), self.config.tokens)

    def floats(self) -> int:
        return self.first.numel()

    def read(self, memory: Tensor) -> dict[int, Tensor]:
        return {0: memory}

    def inputs_behind(self) -> int:
        return self.config.tokens

    def ask(self, past: Past, rows: int) -> Tensor:
        return past.otherwise(self.first.expand(rows, -1, -1))

    def start_window(self, stride: int) -> "LastOutputs":
        return LastOutputs(self.layers)

    def write(self, notes: Notes, past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        assert isinstance(notes, LastOutputs)
        outputs = notes.outputs().to(self.first.dtype)
        written: Tensor = self.norm(outputs)
        if not self.config.gated:
            return written
        before = self.ask(past, len(outputs)).to(written.dtype)
        return torch.lerp(before, written, self.gate(outputs).sigmoid().to(written.dtype))


class LastOutputs(Notes):
    """What the last layer makes of the inputs behind the window."""

    def __init__(self, layers: int) -> None:
        self.last = layers - 1
        self.behind: Tensor | None = None

    def see(self, layer: int, hidden: Tensor) -> None:
        pass

    def see_behind(self, layer: int, hidden: Tensor) -> None:
        if layer == self.last:
            self.behind = hidden

    def outputs(self) -> Tensor:
        assert self.behind is not None, "no layer ran"
        return self.behind

    def summary(self) -> None:
        return None


@torch.no_grad()
def start_norm(norm: nn.LayerNorm, neutral: Tensor) -> None:
    """Let what a norm gives be at first the neutral vector and a hint of what went in."""
    # The median: a few of a first token's features can be a hundred times as large as all others.
    norm.weight.fill_(FAINT * float(neutral.abs().median()))
    norm.bias.copy_(neutral)


register_mechanism(MemoryTokensConfig, MemoryTokens)
