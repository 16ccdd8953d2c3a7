"""Informer (Zhou et al., 2021) for long forecasts in one step, and RSA-Informer where `rsa` is set.

The encoder reads the past; the decoder reads the last rows of the past and zeros for the rows to forecast, and returns
them at once. With `attention="full"` it is a plain encoder-decoder transformer.

Shapes: B batch, L rows of past, P rows to forecast, T rows of a sequence, W width, H heads, D head width, C channels,
F time features.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from recurrify import RSAConfig, UserError
from recurrify.attention import RecurrenceEncoding, scan
from recurrify.settings import setting
from recurrify_papers.models.parts import check_config
from recurrify_papers.models.prob_sparse import prob_sparse_attention, sample_keys

LONGEST_CHUNK = 1024
"""Up to this many rows the recurrence is one matrix product, which is faster than many small ones."""
ALIGNED = 8
"""Matrix products in 16 bits are fast if the row length is a multiple of this."""


@dataclass(frozen=True, kw_only=True)
class InformerConfig:
    """The defaults are those of the published code, except that it uses `distil` and `mix`."""

    channels: int = setting(at_least=1)
    """Columns that are read and forecast."""
    time_features: int = setting(at_least=1)
    """Position in day, week and year, and known covariates."""
    past: int = setting(at_least=1)
    """Rows the encoder reads."""
    label: int = setting(at_least=0)
    """Rows at the end of the past that the decoder starts from."""
    horizon: int = setting(at_least=1)
    """Rows to forecast."""
    width: int = setting(512, at_least=1)
    """Width of the hidden states; even, for the sines and cosines of the positions."""
    heads: int = setting(8, at_least=1)
    """Attention heads."""
    inner: int = setting(2048, at_least=1)
    """Width inside the feed-forward part."""
    encoder_layers: int = setting(2, at_least=1)
    decoder_layers: int = setting(1, at_least=1)
    dropout: float = setting(0.05, at_least=0)
    """Of embeddings, each part's output, inside the feed-forward, and of full attention's weights."""
    attention: str = setting("prob", choices=("prob", "full"))
    """Self-attention: `prob` computes softmax rows for outstanding queries only, `full` for all."""
    factor: int = setting(5, at_least=1)
    """ProbSparse samples and chooses factor · ⌈ln T⌉ of T rows."""
    distil: bool = False
    """Halve the sequence between encoder layers by convolution and pooling."""
    mix: bool = False
    """Join the heads of the decoder's self-attention without transposing, as the published code does: a row then holds
    several rows of one or two heads, later rows included, instead of its own row of all heads."""
    rsa: RSAConfig | None = None
    """Adds recurrence to every self-attention, causal in the decoder and both ways in the encoder; None is Informer."""
    recurrence_rows: str = setting("all", choices=("all", "selected"))
    """Rows of ProbSparse attention that get recurrence: all, or `selected`, those of the queries chosen."""

    def __post_init__(self) -> None:
        if isinstance(self.rsa, dict):  # a configuration read back from JSON
            object.__setattr__(self, "rsa", RSAConfig(**self.rsa))
        check_config(self)
        if self.label > self.past:
            raise UserError(f"`label` must be at most `past`: got label={self.label}, past={self.past}.")
        if self.width % self.heads or self.width % 2:
            raise UserError(f"`width` must be even and a multiple of `heads`: got {self.width} and {self.heads}.")
        if self.recurrence_rows == "selected" and self.attention == "full":
            raise UserError("`recurrence_rows='selected'` needs attention='prob': full attention selects no rows.")
        if self.rsa is not None and self.rsa.heads != self.heads:
            raise UserError(
                f"The heads of `rsa` must be those of the model: got rsa.heads={self.rsa.heads}, heads={self.heads}."
            )


class Projections(nn.Module):
    """From hidden states to queries, keys and values by head, and back."""

    def __init__(self, config: InformerConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.width, config.width)
        self.key_value = nn.Linear(config.width, 2 * config.width)
        self.output = nn.Linear(config.width, config.width)
        self.attention_dropout = config.dropout
        self.mix = False

    def split(self, hidden_BTW: Tensor, seen_BTW: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        key, value = self.key_value(seen_BTW).chunk(2, dim=-1)
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (self.query(hidden_BTW), key, value)
        )
        return query, key, value

    def join(self, attended_BHTD: Tensor) -> Tensor:
        batch, heads, rows, width = attended_BHTD.shape
        ordered = attended_BHTD if self.mix else attended_BHTD.transpose(1, 2)
        return self.output(ordered.reshape(batch, rows, heads * width))

    @property
    def dropout_now(self) -> float:
        return self.attention_dropout if self.training else 0.0


class CrossAttention(Projections):
    """The decoder attends to the encoder: full attention, as published, without recurrence."""

    def forward(self, hidden_BTW: Tensor, encoded_BTW: Tensor) -> Tensor:
        query, key, value = self.split(hidden_BTW, encoded_BTW)
        return self.join(functional.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout_now))


class SelfAttention(Projections):
    """ProbSparse or full attention, mixed with RSA's recurrence if the configuration has one."""

    def __init__(self, config: InformerConfig, causal: bool) -> None:
        super().__init__(config)
        self.config, self.causal = config, causal
        self.mix = config.mix and causal
        self.encoding = None if config.rsa is None else RecurrenceEncoding(config.rsa)

    def forward(self, hidden_BTW: Tensor) -> Tensor:
        query, key, value = self.split(hidden_BTW, hidden_BTW)
        chosen_BHU = None
        if self.config.attention == "full":
            attended = functional.scaled_dot_product_attention(
                query, key, value, dropout_p=self.dropout_now, is_causal=self.causal
            )
        else:
            rows, factor = query.shape[2], self.config.factor
            sample_QN = sample_keys(rows, rows, factor, query.device, self.training)
            attended, chosen_BHU = prob_sparse_attention(
                query, key, value, sample_QN, causal=self.causal, factor=factor
            )
        if self.encoding is not None:
            rows_BHU = chosen_BHU if self.config.recurrence_rows == "selected" else None
            attended = add_recurrence(attended, value, self.encoding, self.causal, rows_BHU)
        return self.join(attended)


def add_recurrence(
    attended_BHTD: Tensor, value_BHTD: Tensor, encoding: RecurrenceEncoding, causal: bool, rows_BHU: Tensor | None
) -> Tensor:
    """(1 − g) · attended + g · P·V for the heads with a REM: on every row, or on `rows_BHU` only.

    P·V is computed over all rows before rows are selected, so each row has the weights of its own position.
    """
    rem, gate = encoding.rem_heads, encoding.gate().to(attended_BHTD.dtype)
    chunk = min(value_BHTD.shape[2], LONGEST_CHUNK)
    recurrent = scan(value_BHTD[:, :rem], encoding.kernel(), causal=causal, chunk=chunk).output
    mixed = (1 - gate) * attended_BHTD[:, :rem] + gate * recurrent
    if rows_BHU is not None:
        index = rows_BHU[:, :rem].unsqueeze(-1).expand(-1, -1, -1, mixed.shape[-1])
        mixed = attended_BHTD[:, :rem].scatter(2, index, mixed.gather(2, index))
    return torch.cat([mixed, attended_BHTD[:, rem:]], dim=1)


class AddAndNorm(nn.LayerNorm):
    """Residual connection with dropout, then layer norm."""

    def __init__(self, config: InformerConfig) -> None:
        super().__init__(config.width)
        self.dropout = config.dropout

    def forward(self, hidden_BTW: Tensor, part_BTW: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(hidden_BTW + functional.dropout(part_BTW, self.dropout, self.training))


class FeedForward(nn.Module):
    def __init__(self, config: InformerConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.width, config.inner)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.inner, config.width)
        self.norm = AddAndNorm(config)

    def forward(self, hidden_BTW: Tensor) -> Tensor:
        return self.norm(hidden_BTW, self.output(self.dropout(functional.gelu(self.inner(hidden_BTW)))))


class Layer(nn.Module):
    """Self-attention, in the decoder also attention to the encoder, and the feed-forward part."""

    def __init__(self, config: InformerConfig, is_decoder: bool) -> None:
        super().__init__()
        self.attention = SelfAttention(config, causal=is_decoder)
        self.norm = AddAndNorm(config)
        if is_decoder:
            self.cross = CrossAttention(config)
            self.cross_norm = AddAndNorm(config)
        self.feed_forward = FeedForward(config)

    def forward(self, hidden_BTW: Tensor, encoded_BTW: Tensor | None = None) -> Tensor:
        hidden_BTW = self.norm(hidden_BTW, self.attention(hidden_BTW))
        if encoded_BTW is not None:
            hidden_BTW = self.cross_norm(hidden_BTW, self.cross(hidden_BTW, encoded_BTW))
        return self.feed_forward(hidden_BTW)


class Distil(nn.Module):
    """Convolution, then every other row by max pooling."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(width, width, 3, padding=1, padding_mode="circular")
        self.norm = nn.BatchNorm1d(width)

    def forward(self, hidden_BTW: Tensor) -> Tensor:
        hidden_BWT = functional.elu(self.norm(self.convolution(hidden_BTW.transpose(1, 2))))
        return functional.max_pool1d(hidden_BWT, 3, stride=2, padding=1).transpose(1, 2)


class Embedding(nn.Module):
    """The sum of a convolution of the values over three rows, a linear map of the calendar, and sinusoids."""

    def __init__(self, config: InformerConfig) -> None:
        super().__init__()
        self.values = nn.Conv1d(config.channels, config.width, 3, padding=1, padding_mode="circular")
        nn.init.kaiming_normal_(self.values.weight, mode="fan_in", nonlinearity="leaky_relu")
        self.times = nn.Linear(config.time_features, config.width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, values_BTC: Tensor, times_BTF: Tensor) -> Tensor:
        # One matrix product is faster than a convolution of so few channels, and its output is contiguous.
        around = [values_BTC.roll(1, 1), values_BTC, values_BTC.roll(-1, 1), times_BTF]
        weights = [*self.values.weight.unbind(-1), self.times.weight]
        missing = -sum(part.shape[-1] for part in around) % ALIGNED
        seen, weight = (functional.pad(torch.cat(parts, -1), (0, missing)) for parts in (around, weights))
        assert self.values.bias is not None
        embedded_BTW = functional.linear(seen, weight, self.values.bias + self.times.bias)
        return self.dropout(embedded_BTW + position_waves(embedded_BTW))


def position_waves(like_BTW: Tensor) -> Tensor:
    """(T, W): sine and cosine of each position, interleaved."""
    rows, width = like_BTW.shape[1:]
    position = torch.arange(rows, dtype=torch.float32, device=like_BTW.device)[:, None]
    frequency = torch.exp(
        torch.arange(0, width, 2, dtype=torch.float32, device=like_BTW.device) * (-math.log(10_000) / width)
    )
    angle = position * frequency
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1).to(like_BTW.dtype)


class Informer(nn.Module):
    """From the past and the calendar to the whole forecast."""

    def __init__(self, config: InformerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder_embedding, self.decoder_embedding = Embedding(config), Embedding(config)
        self.encoder = nn.ModuleList(Layer(config, is_decoder=False) for _ in range(config.encoder_layers))
        distils = config.encoder_layers - 1 if config.distil else 0
        self.distils = nn.ModuleList(Distil(config.width) for _ in range(distils))
        self.encoder_norm = nn.LayerNorm(config.width)
        self.decoder = nn.ModuleList(Layer(config, is_decoder=True) for _ in range(config.decoder_layers))
        self.decoder_norm = nn.LayerNorm(config.width)
        self.output = nn.Linear(config.width, config.channels)

    def forward(self, past_BLC: Tensor, past_time_BLF: Tensor, future_time_BPF: Tensor) -> Tensor:
        encoded = self.encode(past_BLC, past_time_BLF)
        known = past_BLC.shape[1] - self.config.label
        values = functional.pad(past_BLC[:, known:], (0, 0, 0, self.config.horizon))
        times = torch.cat([past_time_BLF[:, known:], future_time_BPF], dim=1)
        hidden = self.decoder_embedding(values, times)
        for layer in self.decoder:
            hidden = layer(hidden, encoded)
        return self.output(self.decoder_norm(hidden[:, -self.config.horizon :]))

    def encode(self, past_BLC: Tensor, past_time_BLF: Tensor) -> Tensor:
        hidden = self.encoder_embedding(past_BLC, past_time_BLF)
        for number, layer in enumerate(self.encoder):
            hidden = layer(hidden)
            if number < len(self.distils):
                hidden = self.distils[number](hidden)
        return self.encoder_norm(hidden)
