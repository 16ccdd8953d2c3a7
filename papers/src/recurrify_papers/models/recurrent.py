"""LSTM and GRU language models, on the cells of PyTorch and cuDNN.

Shapes: B batch, Q positions of the segment, W width, L layers, V vocabulary.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrify.settings import setting
from recurrify_papers.models.parts import LanguageOutput, check_config, check_state, embed

INITIAL_RANGE = 0.1
"""Largest absolute value of an initial embedding."""


@dataclass(frozen=True, kw_only=True)
class RecurrentLanguageConfig:
    """The defaults are an LSTM as large as the published 14-layer Transformer-XL for characters."""

    vocabulary: int = setting(at_least=1)
    """Symbols."""
    cell: Literal["lstm", "gru"] = setting("lstm", choices=("lstm", "gru"))
    """LSTM or GRU."""
    layers: int = setting(3, at_least=1)
    """Stacked recurrent layers."""
    width: int = setting(1408, at_least=1)
    """Width of the embeddings and of every layer."""
    dropout: float = setting(0.1, at_least=0)
    """Dropout on the embeddings, between layers, and before the softmax; never from one position to the next."""
    target_length: int = setting(512, at_least=1)
    """Positions of a training segment; the model itself takes any length."""

    def __post_init__(self) -> None:
        check_config(self)


class RecurrentLanguageState(NamedTuple):
    """State between segments, without gradient."""

    hidden: Tensor
    """Last output of every layer, (L, B, W)."""
    cell: Tensor
    """Cell state of an LSTM, (L, B, W); of a GRU, which has none, L is 0."""


class RecurrentLanguageModel(nn.Module):
    """Predicts the next symbol at each position; softmax and embedding share their weights."""

    def __init__(self, config: RecurrentLanguageConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        between = config.dropout if config.layers > 1 else 0.0
        cell = nn.LSTM if config.cell == "lstm" else nn.GRU
        self.cell = cell(config.width, config.width, config.layers, batch_first=True, dropout=between)
        self.output_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.dropout = nn.Dropout(config.dropout)
        nn.init.uniform_(self.embedding.weight, -INITIAL_RANGE, INITIAL_RANGE)

    def first_state(self, batch: int) -> RecurrentLanguageState:
        """The state before the first segment: zeros."""
        layers, width = self.config.layers, self.config.width
        new_zeros = self.embedding.weight.new_zeros
        cell_layers = layers if self.config.cell == "lstm" else 0
        return RecurrentLanguageState(new_zeros(layers, batch, width), new_zeros(cell_layers, batch, width))

    def forward(self, ids_BQ: Tensor, state: RecurrentLanguageState | None = None) -> LanguageOutput:
        batch = ids_BQ.shape[0]
        hidden_LBW, cell_LBW = self.first_state(batch) if state is None else state
        check_state(hidden_LBW, self.config.layers, batch)
        hidden_LBW, cell_LBW = hidden_LBW.detach(), cell_LBW.detach()
        embedded_BQW = self.dropout(embed(self.embedding, ids_BQ))
        if self.config.cell == "lstm":
            output_BQW, (hidden_LBW, cell_LBW) = self.cell(embedded_BQW, (hidden_LBW, cell_LBW))
        else:
            output_BQW, hidden_LBW = self.cell(embedded_BQW, hidden_LBW)
        logits_BQV = functional.linear(self.dropout(output_BQW), self.embedding.weight, self.output_bias)
        return LanguageOutput(logits_BQV, RecurrentLanguageState(hidden_LBW.detach(), cell_LBW.detach()))
