"""Summary tokens behind each window: what becomes of them stays in front of the windows that follow.

"Adapting Language Models to Compress Contexts" (AutoCompressors), Chevalier et al. 2023. Shapes: B rows, M summary
tokens of a window, W windows kept, K width.
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
from recurrify.mechanisms.memory_tokens import SPREAD, LastOutputs, start_norm


@dataclass(frozen=True, kw_only=True)
class SummaryConfig(RecurrenceConfig):
    """As published, but for three things: only the last windows' summaries are kept, so that a text may be of any
    length; the places of summaries that a row does not have yet are taken by learned vectors, so that all rows and all
    windows have one shape and none needs a mask; and outputs of the last layer become inputs of the first through a
    norm with a learned scale and shift. Windows that overlap are summed up whole, with the tokens that the next one
    sees again."""

    mechanism: ClassVar[str] = "summary"

    tokens: int = 4
    """How many vectors sum up a window."""
    limit: int = 4
    """Of how many windows, the last ones, the summaries are kept."""
    neutral_start: bool = True
    """Start with summaries that the base makes little of and that only hint at what they sum up; False starts with what
    the last layer makes of the summary tokens, normed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        whole_number("tokens", self.tokens, 1)
        whole_number("limit", self.limit, 1)
        yes_or_no("neutral_start", self.neutral_start)


class Summary(Mechanism):
    """memory (B, W·M, K) = the memory before without its oldest M vectors, then norm(what the last layer makes of the
    summary tokens)."""

    def __init__(self, config: SummaryConfig, layers: int, width: int) -> None:
        super().__init__()
        self.config, self.layers = config, layers
        self.tokens = nn.Parameter(torch.empty(config.tokens, width))
        self.empty = nn.Parameter(torch.empty(config.tokens, width))
        nn.init.normal_(self.tokens, std=SPREAD)
        nn.init.normal_(self.empty, std=SPREAD)
        self.norm = nn.LayerNorm(width)

    @torch.no_grad()
    def start_from(self, neutral: list[Tensor]) -> None:
        if not self.config.neutral_start:
            return
        start_norm(self.norm, neutral[0].to(self.tokens))
        for vectors in (self.tokens, self.empty):
            vectors.copy_(self.norm(torch.randn_like(vectors)))

    def slots(self) -> dict[int, int]:
        return dict.fromkeys(range(self.layers), self.config.limit * self.config.tokens)

    def floats(self) -> int:
        return self.config.limit * self.tokens.numel()

    def read(self, memory: Tensor) -> dict[int, Tensor]:
        return {0: memory}

    def inputs_behind(self) -> int:
        return self.config.tokens

    def ask(self, past: Past, rows: int) -> Tensor:
        return self.tokens.expand(rows, -1, -1)

    def start_window(self, stride: int) -> LastOutputs:
        return LastOutputs(self.layers)

    def write(self, notes: Notes, past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        assert isinstance(notes, LastOutputs)
        written = self.norm(notes.outputs().to(self.tokens.dtype))
        nothing = self.empty.to(written.dtype).repeat(self.config.limit, 1).expand(len(written), -1, -1)
        return torch.cat([past.otherwise(nothing)[:, self.config.tokens :], written], dim=1)


register_mechanism(SummaryConfig, Summary)
