"""Transformer-XL (Dai et al., 2019) for language modelling, and RSA-XL where `rsa` is set.

Shapes: B batch, Q positions of the segment, M positions of memory, K = M + Q, W width, H heads, D head width,
L layers, V vocabulary.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrify.attention.config import RSAConfig
from recurrify.attention.encoding import RecurrenceEncoding
from recurrify.attention.rsa import mix_recurrence
from recurrify.errors import UserError
from recurrify.vocabulary import embed
from recurrify_papers.kernels.relative import relative_attention, relative_kernels_run
from recurrify_papers.models.head_widths import HeadWidths

START_SPREAD = 0.02
"""The standard deviation of the first weights."""


@dataclass(frozen=True, kw_only=True)
class TransformerXLConfig(HeadWidths):
    """The defaults are the published 14-layer model for characters."""

    vocabulary: int
    """Symbols."""
    layers: int = 14
    """Layers, each attention and a feed-forward part."""
    width: int = 512
    """Width of the hidden states; even, for the sines and cosines of the positions."""
    heads: int = 8
    """Attention heads."""
    head_width: int | None = None
    """Width of a head; None: width / heads."""
    inner: int = 2048
    """Width inside the feed-forward part."""
    dropout: float = 0.1
    """Dropout on the embeddings, the positions, each part's output, inside the feed-forward, and before the softmax."""
    attention_dropout: float = 0.0
    """Dropout on the attention weights; never on the recurrence of RSA."""
    target_length: int = 512
    """Positions of a training segment; the model itself takes any length."""
    memory_length: int = 512
    """Positions of each layer's input that are kept for the next segment."""
    same_length: bool = False
    """Let every position see the same number of keys, itself and the `memory_length − 1` before it, at the start of a
    segment as at its end; the recurrence of RSA is cut at the same distance."""
    clamp: int | None = None
    """Positions farther than this look as if they were this far; None: no limit."""
    rsa: RSAConfig | None = None
    """Adds recurrence to the attention of every layer; None is Transformer-XL itself."""

    def __post_init__(self) -> None:
        for name in ("vocabulary", "layers", "width", "heads", "inner", "target_length"):
            if getattr(self, name) < 1:
                raise UserError(f"`{name}` must be at least 1: got {getattr(self, name)}.")
        for name in ("dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"`{name}` must be at least 0 and below 1: got {getattr(self, name)}.")
        if self.width % 2 == 1:
            raise UserError(f"`width` must be even, for its sines and cosines: got {self.width}.")
        self.settle_head_width()
        if self.memory_length < 0:
            raise UserError(f"`memory_length` must be 0, for no memory, or more: got {self.memory_length}.")
        if self.same_length and self.memory_length < 2:
            raise UserError(
                f"`same_length` needs a `memory_length` of at least 2, or nobody sees a neighbour: "
                f"got {self.memory_length}."
            )
        if self.clamp is not None and self.clamp < 1:
            raise UserError(f"`clamp` must be at least 1, or None for no limit: got {self.clamp}.")
        if self.rsa is not None and self.rsa.heads != self.heads:
            raise UserError(
                f"the heads of `rsa` must be those of the model: got rsa.heads={self.rsa.heads}, heads={self.heads}."
            )

    @property
    def recurrence(self) -> RSAConfig | None:
        """`rsa`, cut at the span of the attention where that has one."""
        if self.rsa is None or not self.same_length:
            return self.rsa
        span = self.memory_length - 1
        return replace(self.rsa, truncation=min(span, self.rsa.truncation or span))


class TransformerXLState(NamedTuple):
    """What a segment leaves for the next one."""

    memory: Tensor
    """(L, B, M, W): the last inputs of every layer, without gradient."""


class TransformerXLOutput(NamedTuple):
    logits: Tensor
    """(B, Q, V)."""
    state: TransformerXLState


class _Shared(NamedTuple):
    """What the attention of every layer is given alike."""

    waves: Tensor
    """(K, W): the distances K − 1, …, 0 as sines and cosines, R in the paper."""
    hidden_keys: Tensor
    """(Q, K): True where a query must not see a key."""
    content_bias: Tensor
    """(H, D): u in the paper."""
    position_bias: Tensor
    """(H, D): v in the paper."""


class RelativeAttention(nn.Module):
    """Attention by content and by distance, added to its input and normalised.

    The score of query i and key j, ℓ positions apart, is ((q_i + u) · k_j + (q_i + v) · W_kr R_ℓ) / √D.
    """

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.heads, self.head_width = config.heads, config.each_head
        self.attention_dropout = config.attention_dropout
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
        query_BHQD = self._split(self.query(hidden_BQW))
        key_BHKD = self._split(self.key(seen_BKW))
        value_BHKD = self._split(self.value(seen_BKW))
        position_key_HKD = self._split(self.position_key(shared.waves)[None])[0]

        dropout = self.attention_dropout if self.training else 0.0
        fused = dropout == 0 and relative_kernels_run(query_BHQD, key_BHKD.shape[2])
        by_distance_BHQK = (query_BHQD + shared.position_bias[:, None]) @ position_key_HKD.transpose(-1, -2)
        query_BHQD = query_BHQD + shared.content_bias[:, None]
        if fused:
            attended_BHQD = relative_attention(query_BHQD, by_distance_BHQK, key_BHKD, value_BHKD, span=self.span)
        else:
            # The position term goes in as the mask that is added to the scores, so that fused kernels can do the rest.
            by_position_BHQK = align_distances(by_distance_BHQK) / math.sqrt(self.head_width)
            mask_BHQK = by_position_BHQK.masked_fill(shared.hidden_keys, -math.inf)
            attended_BHQD = functional.scaled_dot_product_attention(
                query_BHQD, key_BHKD, value_BHKD, attn_mask=mask_BHQK.to(query_BHQD.dtype), dropout_p=dropout
            )
        if self.encoding is not None:
            attended_BHQD = mix_recurrence(attended_BHQD, value_BHKD, self.encoding, causal=True).output
        update_BQW = self.output(attended_BHQD.transpose(1, 2).flatten(2))
        return self.norm(hidden_BQW + self.dropout(update_BQW))

    def _split(self, joined: Tensor) -> Tensor:
        return joined.unflatten(-1, (self.heads, self.head_width)).transpose(1, 2)


class FeedForward(nn.Module):
    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.width, config.inner)
        self.output = nn.Linear(config.inner, config.width)
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_BQW: Tensor) -> Tensor:
        inner = self.dropout(torch.relu(self.inner(hidden_BQW)))
        return self.norm(hidden_BQW + self.dropout(self.output(inner)))


class TransformerXLLayer(nn.Module):
    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.attention = RelativeAttention(config)
        self.feed_forward = FeedForward(config)

    def forward(self, hidden_BQW: Tensor, memory_BMW: Tensor, shared: _Shared) -> Tensor:
        return self.feed_forward(self.attention(hidden_BQW, memory_BMW, shared))


class TransformerXL(nn.Module):
    """Symbols in, scores for each next symbol out; the softmax shares its weights with the embedding."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        # u and v of the paper, one of each for all layers: the published sizes leave room for no more.
        self.content_bias = nn.Parameter(torch.empty(config.heads, config.each_head))
        self.position_bias = nn.Parameter(torch.empty(config.heads, config.each_head))
        self.layers = nn.ModuleList(TransformerXLLayer(config) for _ in range(config.layers))
        self.output_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.dropout = nn.Dropout(config.dropout)
        self.apply(_start_weights)
        nn.init.normal_(self.content_bias, std=START_SPREAD)
        nn.init.normal_(self.position_bias, std=START_SPREAD)

    def first_state(self, batch: int) -> TransformerXLState:
        """The state of those who have read nothing: a memory of length 0."""
        weight = self.embedding.weight
        return TransformerXLState(weight.new_empty(self.config.layers, batch, 0, self.config.width))

    def forward(self, ids_BQ: Tensor, state: TransformerXLState | None = None) -> TransformerXLOutput:
        batch, queries = ids_BQ.shape
        memory_LBMW = (self.first_state(batch) if state is None else state).memory
        if memory_LBMW.shape[:2] != (self.config.layers, batch):
            raise UserError(
                f"the state must hold {self.config.layers} layers of a batch of {batch}: "
                f"got memory of shape {tuple(memory_LBMW.shape)}."
            )
        keys = memory_LBMW.shape[2] + queries
        # As in the original, embeddings are scaled up to the size of the positions' sines and cosines.
        hidden_BQW = self.dropout(embed(self.embedding, ids_BQ) * math.sqrt(self.config.width))
        waves_KW = distance_waves(keys, self.config.clamp, like=hidden_BQW)
        hidden_keys_QK = self._hidden_keys(queries, keys, ids_BQ.device)
        shared = _Shared(self.dropout(waves_KW), hidden_keys_QK, self.content_bias, self.position_bias)

        kept = []
        for layer, memory_BMW in zip(self.layers, memory_LBMW.detach(), strict=True):
            kept.append(self._keep(memory_BMW, hidden_BQW))
            hidden_BQW = layer(hidden_BQW, memory_BMW, shared)
        logits_BQV = functional.linear(self.dropout(hidden_BQW), self.embedding.weight, self.output_bias)
        return TransformerXLOutput(logits_BQV, TransformerXLState(torch.stack(kept)))

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

    Query i wants its row Q − 1 − i columns further left. One column of padding makes a mere change of shape move every
    row by its own amount. What slides in from the neighbouring rows lies in the future, which is masked.
    """
    batch, heads, queries, keys = by_distance_BHQK.shape
    padded = functional.pad(by_distance_BHQK, (1, 0))
    return padded.view(batch, heads, keys + 1, queries)[:, :, 1:].reshape(batch, heads, queries, keys)


def distance_waves(keys: int, clamp: int | None, like: Tensor) -> Tensor:
    """Sines, then cosines, of the distances K − 1, …, 0, as wide and of the same type as `like`."""
    width = like.shape[-1]
    # In 16 bits, distances beyond 256 would be rounded.
    dtype = torch.promote_types(like.dtype, torch.float32)
    distance_K = torch.arange(keys - 1, -1, -1, dtype=dtype, device=like.device)
    if clamp is not None:
        distance_K = distance_K.clamp(max=clamp)
    frequency = 10_000 ** -(torch.arange(0, width, 2, dtype=dtype, device=like.device) / width)
    angle = distance_K[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1).to(like.dtype)


def _start_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=START_SPREAD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
