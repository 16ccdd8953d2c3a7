"""Parts that the language models share.

Shapes: B batch, Q positions of the segment, W width, V vocabulary.
"""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from recurrify import RSAConfig, UserError
from recurrify.settings import check_settings, setting
from recurrify.vocabulary import check_ids

INITIAL_STD = 0.02
"""Standard deviation of the initial weights."""


class LanguageOutput(NamedTuple):
    logits: Tensor
    """Scores of the next symbol at each position, (B, Q, V)."""
    state: Any
    """A NamedTuple of tensors without gradient, the input of the next segment."""


def check_config(config: Any) -> None:
    """Raise `UserError` for the first value of a configuration that its declaration does not allow."""
    check_settings(config)
    if config.dropout >= 1:
        raise UserError(f"`dropout` must be below 1: got {config.dropout}.")


@dataclass(frozen=True, kw_only=True)
class DecoderConfig:
    """Settings of every transformer. The defaults are those of the published 14-layer Transformer-XL for characters."""

    has_waves: ClassVar[bool] = True
    """Whether positions are sines and cosines, which need an even width."""

    vocabulary: int = setting(at_least=1)
    """Symbols."""
    layers: int = setting(14, at_least=1)
    """Layers, each attention and a feed-forward part."""
    width: int = setting(512, at_least=1)
    """Width of the hidden states."""
    heads: int = setting(8, at_least=1)
    """Attention heads."""
    head_width: int | None = setting(None, at_least=1)
    """Width of a head; None: width / heads."""
    inner: int = setting(2048, at_least=1)
    """Width inside the feed-forward part."""
    dropout: float = setting(0.1, at_least=0)
    """Dropout on the embeddings, each part's output, inside the feed-forward part, and before the softmax."""
    target_length: int = setting(512, at_least=1)
    """Positions of a training segment; the model itself takes any length."""
    rsa: RSAConfig | None = None
    """Adds recurrence to the attention of every layer; None is the plain model."""

    def __post_init__(self) -> None:
        check_config(self)
        if self.has_waves and self.width % 2 == 1:
            raise UserError(f"`width` must be even, for sines and cosines: got {self.width}.")
        if self.head_width is None:
            if self.width % self.heads:
                raise UserError(
                    f"`heads` must divide `width` unless `head_width` is set: got width={self.width}, "
                    f"heads={self.heads}; set head_width={max(1, self.width // self.heads)}, or change one of the two."
                )
            # Stored, so that the saved configuration has the number.
            object.__setattr__(self, "head_width", self.width // self.heads)
        if self.rsa is not None and self.rsa.heads != self.heads:
            raise UserError(
                f"`rsa` must have as many heads as the model: got rsa.heads={self.rsa.heads}, heads={self.heads}."
            )

    @property
    def each_head(self) -> int:
        """The width of a head."""
        assert self.head_width is not None
        return self.head_width

    @property
    def all_heads(self) -> int:
        """The width of all heads together."""
        return self.heads * self.each_head

    def truncated_rsa(self, span: int) -> RSAConfig | None:
        """`rsa` without weights beyond the distance `span`."""
        return None if self.rsa is None else replace(self.rsa, truncation=min(span, self.rsa.truncation or span))


class FeedForward(nn.Module):
    """Feed-forward part with its residual connection; the normalisation comes before it or, as at first, after it."""

    def __init__(self, config: DecoderConfig, norm_first: bool) -> None:
        super().__init__()
        self.norm_first = norm_first
        self.norm = nn.LayerNorm(config.width)
        self.inner = nn.Linear(config.width, config.inner)
        self.output = nn.Linear(config.inner, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden_BQW: Tensor) -> Tensor:
        inner = self.dropout(torch.relu(self.inner(self.norm(hidden_BQW) if self.norm_first else hidden_BQW)))
        hidden_BQW = hidden_BQW + self.dropout(self.output(inner))
        return hidden_BQW if self.norm_first else self.norm(hidden_BQW)


def embed(embedding: nn.Embedding, ids: Tensor) -> Tensor:
    """`embedding(ids)`. Torch checks every id, so ids are searched only after it failed."""
    if torch.compiler.is_compiling():  # a try block may break the graph
        return embedding(ids)
    try:
        return embedding(ids)
    except IndexError:
        check_ids(ids, embedding)
        raise


def split_heads(joined: Tensor, head_width: int) -> Tensor:
    """From (B, Q, H · D) to (B, H, Q, D)."""
    return joined.unflatten(-1, (-1, head_width)).transpose(1, 2)


def join_heads(split_BHQD: Tensor) -> Tensor:
    """From (B, H, Q, D) to (B, Q, H · D)."""
    return split_BHQD.transpose(1, 2).flatten(2)


def waves(places_N: Tensor, like: Tensor) -> Tensor:
    """Sines, then cosines, of places or distances: (N, W) with the width, type and device of `like`."""
    width = like.shape[-1]
    # In 16 bits, numbers above 256 would be rounded.
    dtype = torch.promote_types(like.dtype, torch.float32)
    frequency = 10_000 ** -(torch.arange(0, width, 2, dtype=dtype, device=like.device) / width)
    angle = places_N.to(dtype)[:, None] * frequency
    return torch.cat([angle.sin(), angle.cos()], dim=1).to(like.dtype)


def check_state(part: Tensor, layers: int, batch: int, batch_dimension: int = 1) -> None:
    """Raise `UserError` for the state of another model or batch."""
    if (part.shape[0], part.shape[batch_dimension]) != (layers, batch):
        raise UserError(
            f"The state must have {layers} layers and a batch of {batch}: got a tensor of shape {tuple(part.shape)}."
        )


def initialize(module: nn.Module) -> None:
    """Initial weights of linear layers and embeddings, for `nn.Module.apply`."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INITIAL_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
