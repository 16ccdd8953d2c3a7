"""Transformer-XL (Dai et al., 2019) for language modelling, and RSA-XL where `rsa` is set.

Shapes: B batch, Q positions of the segment, M positions of memory, K = M + Q, W width, H heads, D head width,
L layers, V vocabulary.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrify import RSAConfig, UserError
from recurrify.attention import RecurrenceEncoding, mix_recurrence
from recurrify.settings import setting
from recurrify_papers.kernels.relative import relative_attention, relative_kernels_run
from recurrify_papers.models.parts import (
    INITIAL_STD,
    DecoderConfig,
    FeedForward,
    LanguageOutput,
    check_state,
    embed,
    initialize,
    join_heads,
    split_heads,
    waves,
)


@dataclass(frozen=True, kw_only=True)
class TransformerXLConfig(DecoderConfig):
    """The defaults are the published 14-layer model for characters."""

    memory_length: int = setting(512, at_least=0)
    """Positions of each layer's input that are kept for the next segment."""
    same_length: bool = False
    """Let every position see the same number of keys, itself and the `memory_length − 1` before it. The recurrence of
    RSA is truncated at the same distance."""
    clamp: int | None = setting(None, at_least=1)
    """Largest distance that positions distinguish; None: no limit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.same_length and self.memory_length < 2:
            raise UserError(f"`same_length` needs a `memory_length` of at least 2: got {self.memory_length}.")

    @property
    def recurrence(self) -> RSAConfig | None:
        """`rsa`, truncated at the span of the attention if that has one."""
        return self.truncated_rsa(self.memory_length - 1) if self.same_length else self.rsa


class TransformerXLState(NamedTuple):
    """State between segments."""

    memory: Tensor
    """Last inputs of every layer, without gradient, (L, B, M, W)."""


class _Shared(NamedTuple):
    """Inputs of the attention that all layers share."""

    waves: Tensor
    """The distances K − 1, …, 0 as sines and cosines, R in the paper: (K, W)."""
    hidden_keys: Tensor
    """True where a query must not see a key: (Q, K)."""
    content_bias: Tensor
    """u in the paper: (H, D)."""
    position_bias: Tensor
    """v in the paper: (H, D)."""


class RelativeAttention(nn.Module):
    """Attention by content and by distance, added to its input and normalised.

    The score of query i and key j, ℓ positions apart, is ((q_i + u) · k_j + (q_i + v) · W_kr R_ℓ) / √D.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.head_width = config.each_head
        self.span = config.memory_length if config.same_length else None
        inside = config.all_heads
        self.query = nn.Linear(config.width, inside, bias=False)
        self.key = nn.Linear(config.width, inside, bias=False)
        self.value = nn.Linear(config.width, inside, bias=False)
        self.position_key = nn.Linear(config.width, inside, bias=False)
        self.output = nn.Linear(inside, config.width, bias=False)
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.encoding = None if config.recurrence is None else RecurrenceEncoding(config.recurrence)

    def forward(self, hidden_BQW: Tensor, memory_BMW: Tensor, shared: _Shared) -> Tensor:
        seen_BKW = torch.cat([memory_BMW, hidden_BQW], dim=1)
        query_BHQD = split_heads(self.query(hidden_BQW), self.head_width)
        key_BHKD = split_heads(self.key(seen_BKW), self.head_width)
        value_BHKD = split_heads(self.value(seen_BKW), self.head_width)
        position_key_HKD = split_heads(self.position_key(shared.waves)[None], self.head_width)[0]

        by_distance_BHQK = (query_BHQD + shared.position_bias[:, None]) @ position_key_HKD.transpose(-1, -2)
        query_BHQD = query_BHQD + shared.content_bias[:, None]
        if relative_kernels_run(query_BHQD, key_BHKD.shape[2]):
            attended_BHQD = relative_attention(query_BHQD, by_distance_BHQK, key_BHKD, value_BHKD, span=self.span)
        else:
            # The position term is the additive mask, so that fused kernels can do the rest.
            by_position_BHQK = align_distances(by_distance_BHQK) / math.sqrt(self.head_width)
            mask_BHQK = by_position_BHQK.masked_fill(shared.hidden_keys, -math.inf)
            attended_BHQD = functional.scaled_dot_product_attention(
                query_BHQD, key_BHKD, value_BHKD, attn_mask=mask_BHQK.to(query_BHQD.dtype)
            )
        if self.encoding is not None:
            attended_BHQD = mix_recurrence(attended_BHQD, value_BHKD, self.encoding, causal=True).output
        update_BQW = self.output(join_heads(attended_BHQD))
        return self.norm(hidden_BQW + self.dropout(update_BQW))


class TransformerXLLayer(nn.Module):
    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.attention = RelativeAttention(config)
        self.feed_forward = FeedForward(config, norm_first=False)

    def forward(self, hidden_BQW: Tensor, memory_BMW: Tensor, shared: _Shared) -> Tensor:
        return self.feed_forward(self.attention(hidden_BQW, memory_BMW, shared))


class TransformerXL(nn.Module):
    """Predicts the next symbol at each position; softmax and embedding share their weights."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        # u and v of the paper, shared by all layers, as the published sizes show.
        self.content_bias = nn.Parameter(torch.empty(config.heads, config.each_head))
        self.position_bias = nn.Parameter(torch.empty(config.heads, config.each_head))
        self.layers = nn.ModuleList(TransformerXLLayer(config) for _ in range(config.layers))
        self.output_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.dropout = nn.Dropout(config.dropout)
        self.apply(initialize)
        nn.init.normal_(self.content_bias, std=INITIAL_STD)
        nn.init.normal_(self.position_bias, std=INITIAL_STD)

    def first_state(self, batch: int) -> TransformerXLState:
        """The state before the first segment: a memory of length 0."""
        weight = self.embedding.weight
        return TransformerXLState(weight.new_empty(self.config.layers, batch, 0, self.config.width))

    def forward(self, ids_BQ: Tensor, state: TransformerXLState | None = None) -> LanguageOutput:
        batch, queries = ids_BQ.shape
        memory_LBMW = (self.first_state(batch) if state is None else state).memory
        check_state(memory_LBMW, self.config.layers, batch)
        keys = memory_LBMW.shape[2] + queries
        # As in the original, embeddings are scaled to the size of the sines and cosines.
        hidden_BQW = self.dropout(embed(self.embedding, ids_BQ) * math.sqrt(self.config.width))
        distance_K = torch.arange(keys - 1, -1, -1, device=ids_BQ.device).clamp(max=self.config.clamp or keys)
        waves_KW = waves(distance_K, like=hidden_BQW)
        hidden_keys_QK = self._hidden_keys(queries, keys, ids_BQ.device)
        shared = _Shared(self.dropout(waves_KW), hidden_keys_QK, self.content_bias, self.position_bias)

        kept = []
        for layer, memory_BMW in zip(self.layers, memory_LBMW.detach(), strict=True):
            kept.append(self._keep(memory_BMW, hidden_BQW))
            hidden_BQW = layer(hidden_BQW, memory_BMW, shared)
        logits_BQV = functional.linear(self.dropout(hidden_BQW), self.embedding.weight, self.output_bias)
        return LanguageOutput(logits_BQV, TransformerXLState(torch.stack(kept)))

    def _hidden_keys(self, queries: int, keys: int, device: torch.device) -> Tensor:
        """True where a query must not see a key."""
        query = torch.arange(keys - queries, keys, device=device)[:, None]
        distance_QK = query - torch.arange(keys, device=device)
        hidden_QK = distance_QK < 0
        if self.config.same_length:
            hidden_QK |= distance_QK >= self.config.memory_length
        return hidden_QK

    def _keep(self, memory_BMW: Tensor, hidden_BQW: Tensor) -> Tensor:
        seen_BKW = torch.cat([memory_BMW, hidden_BQW.detach()], dim=1)
        return seen_BKW[:, max(0, seen_BKW.shape[1] - self.config.memory_length) :]


def align_distances(by_distance_BHQK: Tensor) -> Tensor:
    """From columns of falling distance (K − 1, …, 0), the same for all queries, to columns of keys.

    The row of query i has to move Q − 1 − i columns to the left. With one column of padding, a change of shape moves
    every row by its own amount. What enters from the neighbouring rows is in the future, which is masked.
    """
    batch, heads, queries, keys = by_distance_BHQK.shape
    padded = functional.pad(by_distance_BHQK, (1, 0))
    return padded.view(batch, heads, keys + 1, queries)[:, :, 1:].reshape(batch, heads, queries, keys)
