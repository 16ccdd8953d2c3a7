"""A plain decoder (Vaswani et al., 2017) for language modelling, and the RSA transformer where `rsa` is set.

Attention ends where its segment begins: nothing is remembered, except by the recurrence of RSA, which may run on from
segment to segment. Normalisation stands in front of each part, as is usual today. Positions are sines and cosines, not
learned vectors, so that segments may be longer than those of training.

Shapes: B batch, Q positions of the segment, W width, H heads, D head width, L layers, V vocabulary; of a recurrence
R heads, C numbers of carry, T positions of history.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrify.attention.config import RSAConfig
from recurrify.attention.encoding import RecurrenceEncoding
from recurrify.attention.rsa import mix_recurrence
from recurrify.attention.scan import ScanState
from recurrify.errors import UserError
from recurrify.vocabulary import embed
from recurrify_papers.models.head_widths import HeadWidths

START_SPREAD = 0.02
"""The standard deviation of the first weights."""


@dataclass(frozen=True, kw_only=True)
class TransformerConfig(HeadWidths):
    """The defaults are as deep and wide as the published 14-layer Transformer-XL for characters."""

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
    """Dropout on the embeddings, each part's output, inside the feed-forward, and before the softmax."""
    target_length: int = 512
    """Positions of a training segment; the model itself takes any length."""
    rsa: RSAConfig | None = None
    """Adds recurrence to the attention of every layer; None is the plain decoder."""
    carry_recurrence: bool = True
    """Let the recurrence of RSA run on from one segment to the next, while attention starts anew."""

    def __post_init__(self) -> None:
        for name in ("vocabulary", "layers", "width", "heads", "inner", "target_length"):
            if getattr(self, name) < 1:
                raise UserError(f"`{name}` must be at least 1: got {getattr(self, name)}.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"`dropout` must be at least 0 and below 1: got {self.dropout}.")
        if self.width % 2 == 1:
            raise UserError(f"`width` must be even, for its sines and cosines: got {self.width}.")
        self.settle_head_width()
        if self.rsa is not None and self.rsa.heads != self.heads:
            raise UserError(
                f"the heads of `rsa` must be those of the model: got rsa.heads={self.rsa.heads}, heads={self.heads}."
            )

    @property
    def carried(self) -> RSAConfig | None:
        """The recurrence that leaves a segment, if there is one."""
        return self.rsa if self.carry_recurrence else None


class TransformerState(NamedTuple):
    """What a segment leaves for the next one, without gradient; L is 0 in both where no recurrence is carried."""

    carry: Tensor
    """(L, B, R, C, D): what the recurrence goes on from; C is 0 with truncation."""
    history: Tensor
    """(L, B, R, T, D): the last values, for a recurrence with truncation; T is 0 without."""


class TransformerOutput(NamedTuple):
    logits: Tensor
    """(B, Q, V)."""
    state: TransformerState


class CausalAttention(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.head_width = config.each_head
        inside = config.all_heads
        self.projection = nn.Linear(config.width, 3 * inside, bias=False)
        self.output = nn.Linear(inside, config.width, bias=False)
        self.encoding = None if config.rsa is None else RecurrenceEncoding(config.rsa)

    def forward(self, normed_BQW: Tensor, state: ScanState | None) -> tuple[Tensor, ScanState | None]:
        parts = self.projection(normed_BQW).unflatten(-1, (3, -1, self.head_width)).permute(2, 0, 3, 1, 4)
        query_BHQD, key_BHQD, value_BHQD = parts.unbind(0)
        attended_BHQD = functional.scaled_dot_product_attention(query_BHQD, key_BHQD, value_BHQD, is_causal=True)
        if self.encoding is not None:
            attended_BHQD, state = mix_recurrence(attended_BHQD, value_BHQD, self.encoding, causal=True, state=state)
        return self.output(attended_BHQD.transpose(1, 2).flatten(2)), state


class TransformerLayer(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.width)
        self.attention = CausalAttention(config)
        self.norm = nn.LayerNorm(config.width)
        self.inner = nn.Linear(config.width, config.inner)
        self.output = nn.Linear(config.inner, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_BQW: Tensor, state: ScanState | None) -> tuple[Tensor, ScanState | None]:
        update_BQW, state = self.attention(self.attention_norm(hidden_BQW), state)
        hidden_BQW = hidden_BQW + self.dropout(update_BQW)
        inner = self.dropout(torch.relu(self.inner(self.norm(hidden_BQW))))
        return hidden_BQW + self.dropout(self.output(inner)), state


class Transformer(nn.Module):
    """Symbols in, scores for each next symbol out; the softmax shares its weights with the embedding."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.layers = nn.ModuleList(TransformerLayer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)
        self.output_bias = nn.Parameter(torch.zeros(config.vocabulary))
        self.dropout = nn.Dropout(config.dropout)
        self.apply(_start_weights)

    def first_state(self, batch: int) -> TransformerState:
        """The state of those who have read nothing: a recurrence at rest, or nothing at all."""
        layers, heads, slots = 0, 0, 0
        if self.config.carried is not None:
            layers, heads = self.config.layers, self.config.carried.rem_heads
            # Real and imaginary parts of as many interleaved recurrences as the largest dilation makes.
            slots = 0 if self.config.carried.truncation else 2 * max(self.config.carried.dilations, default=1)
        new_zeros = self.embedding.weight.new_zeros
        return TransformerState(
            carry=new_zeros(layers, batch, heads, slots, self.config.each_head),
            history=new_zeros(layers, batch, heads, 0, self.config.each_head),
        )

    def forward(self, ids_BQ: Tensor, state: TransformerState | None = None) -> TransformerOutput:
        batch, queries = ids_BQ.shape
        state = self.first_state(batch) if state is None else state
        carried = self.config.carried is not None
        if state.carry.shape[:2] != (self.config.layers if carried else 0, batch):
            raise UserError(
                f"the state must hold {self.config.layers if carried else 0} layers of a batch of {batch}: "
                f"got a carry of shape {tuple(state.carry.shape)}."
            )
        # As in the original, embeddings are scaled up to the size of the positions' sines and cosines.
        embedded_BQW = embed(self.embedding, ids_BQ) * math.sqrt(self.config.width)
        hidden_BQW = self.dropout(embedded_BQW + position_waves(queries, like=embedded_BQW))
        left = []
        for index, layer in enumerate(self.layers):
            before = ScanState(state.carry[index].detach(), state.history[index].detach()) if carried else None
            hidden_BQW, after = layer(hidden_BQW, before)
            left.append(after)
        logits_BQV = functional.linear(self.dropout(self.norm(hidden_BQW)), self.embedding.weight, self.output_bias)
        if not carried:
            return TransformerOutput(logits_BQV, self.first_state(batch))
        carry = torch.stack([after.carry.detach() for after in left])
        history = torch.stack([after.history.detach() for after in left])
        return TransformerOutput(logits_BQV, TransformerState(carry, history))


def position_waves(positions: int, like: Tensor) -> Tensor:
    """Sines, then cosines, of the positions 0, 1, …, as wide and of the same type as `like`."""
    width = like.shape[-1]
    # In 16 bits, positions beyond 256 would be rounded.
    dtype = torch.promote_types(like.dtype, torch.float32)
    frequency = 10_000 ** -(torch.arange(0, width, 2, dtype=dtype, device=like.device) / width)
    angle = torch.arange(positions, dtype=dtype, device=like.device)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1).to(like.dtype)


def _start_weights(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=START_SPREAD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
