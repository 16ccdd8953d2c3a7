"""LSTM and GRU language models, on the cells of PyTorch and, on a GPU, of cuDNN.

Shapes: B batch, Q positions of the segment, W width, L layers, V vocabulary.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrify.errors import UserError
from recurrify.vocabulary import embed

START_RANGE = 0.1
"""The first embeddings lie this far from 0 at most."""


@dataclass(frozen=True, kw_only=True)
class RecurrentLanguageConfig:
    """The defaults are an LSTM as large as the published 14-layer Transformer-XL for characters."""

    vocabulary: int
    """Symbols."""
    cell: Literal["lstm", "gru"] = "lstm"
    """Which cell."""
    layers: int = 3
    """Layers, one above the other."""
    width: int = 1408
    """Width of the embeddings and of every layer."""
    dropout: float = 0.1
    """Dropout on the embeddings, between layers, and before the softmax; never from one position to the next."""
    target_length: int = 512
    """Positions of a training segment; the model itself takes any length."""
    tied: bool = True
    """Let the softmax share its weights with the embedding."""

    def __post_init__(self) -> None:
        for name in ("vocabulary", "layers", "width", "target_length"):
            if getattr(self, name) < 1:
                raise UserError(f"`{name}` must be at least 1: got {getattr(self, name)}.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"`dropout` must be at least 0 and below 1: got {self.dropout}.")
        if self.cell not in ("lstm", "gru"):
            raise UserError(f"`cell` must be lstm or gru: got {self.cell!r}.")


class RecurrentLanguageState(NamedTuple):
    """What a segment leaves for the next one, without gradient."""

    hidden: Tensor
    """(L, B, W): the last output of every layer."""
    cell: Tensor
    """(L, B, W): what an LSTM keeps beside it; of a GRU, which keeps nothing more, L is 0."""


class RecurrentLanguageOutput(NamedTuple):
    logits: Tensor
    """(B, Q, V)."""
    state: RecurrentLanguageState


class RecurrentLanguageModel(nn.Module):
    """Symbols in, scores for each next symbol out."""

    def __init__(self, config: RecurrentLanguageConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        between = config.dropout if config.layers > 1 else 0.0
        cell = nn.LSTM if config.cell == "lstm" else nn.GRU
        self.cell = cell(config.width, config.width, config.layers, batch_first=True, dropout=between)
        self.output = None if config.tied else nn.Linear(config.width, config.vocabulary, bias=False)
        self.output_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.dropout = nn.Dropout(config.dropout)
        nn.init.uniform_(self.embedding.weight, -START_RANGE, START_RANGE)

    def first_state(self, batch: int) -> RecurrentLanguageState:
        """The state of those who have read nothing: zeros."""
        layers, width = self.config.layers, self.config.width
        new_zeros = self.embedding.weight.new_zeros
        kept_beside = layers if self.config.cell == "lstm" else 0
        return RecurrentLanguageState(new_zeros(layers, batch, width), new_zeros(kept_beside, batch, width))

    def forward(self, ids_BQ: Tensor, state: RecurrentLanguageState | None = None) -> RecurrentLanguageOutput:
        batch = ids_BQ.shape[0]
        hidden_LBW, cell_LBW = self.first_state(batch) if state is None else state
        if hidden_LBW.shape[:2] != (self.config.layers, batch):
            raise UserError(
                f"the state must hold {self.config.layers} layers of a batch of {batch}: "
                f"got a hidden state of shape {tuple(hidden_LBW.shape)}."
            )
        hidden_LBW, cell_LBW = hidden_LBW.detach(), cell_LBW.detach()
        embedded_BQW = self.dropout(embed(self.embedding, ids_BQ))
        if self.config.cell == "lstm":
            output_BQW, (hidden_LBW, cell_LBW) = self.cell(embedded_BQW, (hidden_LBW, cell_LBW))
        else:
            output_BQW, hidden_LBW = self.cell(embedded_BQW, hidden_LBW)
        weight = self.embedding.weight if self.output is None else self.output.weight
        logits_BQV = functional.linear(self.dropout(output_BQW), weight, self.output_bias)
        return RecurrentLanguageOutput(logits_BQV, RecurrentLanguageState(hidden_LBW.detach(), cell_LBW.detach()))
