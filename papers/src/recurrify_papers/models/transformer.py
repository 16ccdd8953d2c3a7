"""A plain decoder (Vaswani et al., 2017) for language modelling, and the RSA transformer where `rsa` is set.

Attention sees its own segment only. The recurrence of RSA continues from segment to segment. Normalisation comes before
each part. Positions are sines and cosines, so that segments may be longer than in training.

Shapes: B batch, Q positions of the segment, W width, H heads, D head width, L layers, V vocabulary; of a recurrence
R heads, C numbers of carry, T positions of history.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrify.attention import RecurrenceEncoding, ScanState, mix_recurrence
from recurrify_papers.models.parts import (
    DecoderConfig,
    FeedForward,
    LanguageOutput,
    check_state,
    embed,
    initialize,
    join_heads,
    waves,
)


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(DecoderConfig):
    """The defaults are as deep and wide as the published 14-layer Transformer-XL for characters."""


class TransformerState(NamedTuple):
    """State between segments, without gradient; L is 0 in both without a recurrence."""

    carry: Tensor
    """State of the recurrence, (L, B, R, C, D); C is 0 with truncation."""
    history: Tensor
    """Last values, for a recurrence with truncation, (L, B, R, T, D); T is 0 without."""


class CausalAttention(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.head_width = config.each_head
        self.projection = nn.Linear(config.width, 3 * config.all_heads, bias=False)
        self.output = nn.Linear(config.all_heads, config.width, bias=False)
        self.encoding = None if config.rsa is None else RecurrenceEncoding(config.rsa)

    def forward(self, normed_BQW: Tensor, state: ScanState | None) -> tuple[Tensor, ScanState | None]:
        parts = self.projection(normed_BQW).unflatten(-1, (3, -1, self.head_width)).permute(2, 0, 3, 1, 4)
        query_BHQD, key_BHQD, value_BHQD = parts.unbind(0)
        attended_BHQD = functional.scaled_dot_product_attention(query_BHQD, key_BHQD, value_BHQD, is_causal=True)
        if self.encoding is not None:
            attended_BHQD, state = mix_recurrence(attended_BHQD, value_BHQD, self.encoding, causal=True, state=state)
        return self.output(join_heads(attended_BHQD)), state


class TransformerLayer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(config.width)
        self.attention = CausalAttention(config)
        self.feed_forward = FeedForward(config, norm_first=True)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_BQW: Tensor, state: ScanState | None) -> tuple[Tensor, ScanState | None]:
        update_BQW, state = self.attention(self.norm(hidden_BQW), state)
        return self.feed_forward(hidden_BQW + self.dropout(update_BQW)), state


class Transformer(nn.Module):
    """Predicts the next symbol at each position; softmax and embedding share their weights."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.output_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.dropout = nn.Dropout(config.dropout)
        self.apply(initialize)

    def first_state(self, batch: int) -> TransformerState:
        """The state before the first segment: zeros, or empty without a recurrence."""
        layers, heads, slots = 0, 0, 0
        if self.config.rsa is not None:
            layers, heads = self.config.layers, self.config.rsa.rem_heads
            # Real and imaginary parts of as many interleaved recurrences as the largest dilation.
            slots = 0 if self.config.rsa.truncation else 2 * max(self.config.rsa.dilations, default=1)
        new_zeros = self.embedding.weight.new_zeros
        return TransformerState(
            carry=new_zeros(layers, batch, heads, slots, self.config.each_head),
            history=new_zeros(layers, batch, heads, 0, self.config.each_head),
        )

    def forward(self, ids_BQ: Tensor, state: TransformerState | None = None) -> LanguageOutput:
        batch, queries = ids_BQ.shape
        state = self.first_state(batch) if state is None else state
        recurrent = self.config.rsa is not None
        check_state(state.carry, self.config.layers if recurrent else 0, batch)
        # As in the original, embeddings are scaled to the size of the sines and cosines.
        embedded_BQW = embed(self.embedding, ids_BQ) * math.sqrt(self.config.width)
        places_Q = torch.arange(queries, device=ids_BQ.device)
        hidden_BQW = self.dropout(embedded_BQW + waves(places_Q, like=embedded_BQW))
        left = []
        for index, layer in enumerate(self.layers):
            before = ScanState(state.carry[index].detach(), state.history[index].detach()) if recurrent else None
            hidden_BQW, after = layer(hidden_BQW, before)
            left.append(after)
        logits_BQV = functional.linear(self.dropout(self.norm(hidden_BQW)), self.embedding.weight, self.output_bias)
        if not recurrent:
            return LanguageOutput(logits_BQV, self.first_state(batch))
        carry = torch.stack([after.carry.detach() for after in left])
        history = torch.stack([after.history.detach() for after in left])
        return LanguageOutput(logits_BQV, TransformerState(carry, history))
