"""Summary tokens behind each window: their outputs stay in front of the windows that follow.

"Adapting Language Models to Compress Contexts" (AutoCompressors), Chevalier et al. 2023. Shapes: B rows, M summary
tokens of a window, W windows kept, K width.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from recurrify.mechanisms.base import Past, SlotMechanism
from recurrify.mechanisms.config import MechanismConfig
from recurrify.mechanisms.memory_tokens import SPREAD, LastOutputs, start_norm
from recurrify.mechanisms.neutral import neutral_inputs
from recurrify.settings import setting


@dataclass(frozen=True, kw_only=True)
class SummaryConfig(MechanismConfig):
    """As published, except for three things: only the last windows' summaries are kept, so that a text may have any
    length; learned vectors fill the places of summaries that a row does not have yet, so that all rows and windows have
    one shape and need no mask; and outputs of the last layer become inputs of the first through a norm with a learned
    scale and shift. Overlapping windows are summarised whole, with the tokens that the next one sees again."""

    mechanism: ClassVar[str] = "summary"
    writes_overlap: ClassVar[bool] = True

    tokens: int = setting(4, at_least=1)
    """How many vectors summarise a window."""
    limit: int = setting(4, at_least=1)
    """Of how many windows, counted from the last, summaries are kept."""
    neutral_start: bool = True
    """Start with summaries that the base mostly ignores, with a small share of the summary tokens' outputs; False
    starts with the normed outputs."""

    def build(self, layers: int, width: int) -> "Summary":
        return Summary(self, layers, width)


class Summary(SlotMechanism):
    """memory (B, W·M, K) = the previous memory without its oldest M vectors, then norm(last layer's outputs of the
    summary tokens)."""

    def __init__(self, config: SummaryConfig, layers: int, width: int) -> None:
        super().__init__(config)
        self.layers, self.inputs_behind = layers, config.tokens
        self.tokens = nn.Parameter(torch.empty(config.tokens, width))
        self.empty = nn.Parameter(torch.empty(config.tokens, width))
        nn.init.normal_(self.tokens, std=SPREAD)
        nn.init.normal_(self.empty, std=SPREAD)
        self.norm = nn.LayerNorm(width)

    @torch.no_grad()
    def start(self, base: PreTrainedModel) -> None:
        if not self.config.neutral_start:
            return
        start_norm(self.norm, neutral_inputs(base)[0].to(self.tokens))
        for vectors in (self.tokens, self.empty):
            vectors.copy_(self.norm(torch.randn_like(vectors)))

    def slots(self) -> dict[int, int]:
        return dict.fromkeys(range(self.layers), self.config.limit * self.config.tokens)

    def state_size(self) -> int:
        return self.config.limit * self.tokens.numel()

    def read(self, memory: Tensor) -> dict[int, Tensor]:
        return {0: memory}

    def ask(self, past: Past, rows: int) -> Tensor:
        return self.tokens.expand(rows, -1, -1)

    def recorder(self, stride: int) -> LastOutputs:
        return LastOutputs(self.layers)

    def write(self, recorder: LastOutputs, past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        written = self.norm(recorder.outputs().to(self.tokens.dtype))
        nothing = self.empty.to(written.dtype).repeat(self.config.limit, 1).expand(len(written), -1, -1)
        return torch.cat([past.otherwise(nothing)[:, self.config.tokens :], written], dim=1)
