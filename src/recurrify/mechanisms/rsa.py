"""Self-attention with recurrence inside a pretrained decoder: a share of what some heads attend to is the recurrence
over their values, and its state goes on from window to window.

Shapes: B rows, L layers that have it, H heads, R heads that carry a REM, N positions, W window, D size of a head,
S = 2 · largest dilation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from recurrify.attention.config import RSAConfig
from recurrify.attention.encoding import RecurrenceEncoding
from recurrify.attention.rsa import mix_recurrence
from recurrify.attention.scan import ScanState
from recurrify.errors import UserError
from recurrify.families import family_of, open_attention
from recurrify.mechanisms.base import (
    Mechanism,
    Notes,
    Past,
    RecurrenceConfig,
    finite_number,
    register_mechanism,
    whole_number,
)


@dataclass(frozen=True, kw_only=True)
class RSARecurrenceConfig(RecurrenceConfig):
    """`recurrify.attention.RSAConfig` for the layers of a pretrained decoder, whose heads are given."""

    mechanism: ClassVar[str] = "rsa"

    counts: tuple[int, int, int, int, int, int] = (0, 1, 1, 0, 0, 0)
    """Heads of each kind in a layer: regular, cosine, sine, then dilated regular, dilated cosine, dilated sine."""
    dilations: tuple[int, ...] = ()
    """One dilation for each dilated head, in the order of those heads: a head of dilation d reaches d times as far."""
    sharing: Literal["pair", "none"] = "pair"
    """`pair`: the i-th cosine and the i-th sine head share one decay and angle; or `none`."""
    layers: tuple[int, ...] | Literal["all"] = "all"
    """Which layers have it, counted from 1."""
    gate_start: float = -3.0
    """The first value of each layer's gate before the sigmoid: at −3 the recurrence has a share of a twentieth, and the
    model starts nearly as its base."""

    def __post_init__(self) -> None:
        super().__post_init__()
        # A configuration read back from JSON brings lists, which are neither equal to tuples nor hashable.
        for name in ("counts", "dilations", "layers"):
            value = getattr(self, name)
            object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)
        _whole_numbers("counts", self.counts, 0)
        _whole_numbers("dilations", self.dilations, 1)
        finite_number("gate_start", self.gate_start)
        self.for_heads(max(sum(self.counts), 1))
        if self.layers == "all":
            return
        _whole_numbers("layers", self.layers, 1, "or 'all'; layers are counted from 1")
        if not self.layers or len(set(self.layers)) < len(self.layers):
            raise UserError(f"`layers` must be 'all' or different numbers of layers: got {self.layers!r}.")

    @classmethod
    def of_layer(cls, layer: RSAConfig, base: PretrainedConfig) -> "RSARecurrenceConfig":
        """The config of one attention layer for all layers of a decoder, in windows of the usual length."""
        heads = base.num_attention_heads
        if layer.heads != heads:
            raise UserError(
                f"`heads` of the RSAConfig is {layer.heads}, but the model has {heads} heads: choose heads={heads}."
            )
        if layer.truncation is not None:
            raise UserError(
                f"`truncation` is {layer.truncation}, but inside a pretrained model the recurrence goes on from window "
                "to window: leave it out."
            )
        return cls(
            window=min(cls.window, family_of(base).positions(base) or cls.window),
            counts=layer.counts,
            dilations=layer.dilations,
            sharing=layer.sharing,
            gate_start=cls.gate_start if layer.gate_start is None else layer.gate_start,
        )

    def for_heads(self, heads: int) -> RSAConfig:
        """The same for attention of so many heads, which refuses what does not fit."""
        return RSAConfig(
            heads=heads,
            counts=self.counts,
            dilations=self.dilations,
            sharing=self.sharing,
            gate_start=self.gate_start,
        )


def _whole_numbers(name: str, values: object, least: int, otherwise: str = "") -> None:
    if not isinstance(values, tuple):
        more = f", {otherwise}" if otherwise else ""
        raise UserError(f"`{name}` must be a list of whole numbers{more}: got {name}={values!r}.")
    for value in values:
        whole_number(name, value, least, otherwise)


class RSA(Mechanism):
    """memory (B, L, R, S, D): in each layer, all that the recurrence knows of the positions before the window."""

    def __init__(self, config: RSARecurrenceConfig, layers: int, width: int) -> None:
        super().__init__()
        self.config = config
        chosen = range(1, layers + 1) if config.layers == "all" else sorted(config.layers)
        if chosen[-1] > layers:
            raise UserError(
                f"`layers` names layer {chosen[-1]}, but the model has only {layers} layers: choose at most {layers}."
            )
        self.places = {layer - 1: place for place, layer in enumerate(chosen)}
        self.encodings = nn.ModuleList()
        self.numbers = 0

    def fit(self, base: PreTrainedModel) -> None:
        config = base.config
        if not family_of(config).causal:
            raise UserError(
                f"The mechanism 'rsa' needs a decoder, which {config.model_type!r} models are not: attention that "
                "looks both ways has seen its future and leaves no state to go on from; choose another, as 'carry'."
            )
        rsa = self.config.for_heads(config.num_attention_heads)
        self.encodings.extend(SavedEncoding(rsa) for _ in self.places)
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        slots = 2 * max(head.dilation for head in rsa.plan())
        self.numbers = len(self.places) * rsa.rem_heads * slots * size
        open_attention(base)

    def slots(self) -> dict[int, int]:
        return {}

    def floats(self) -> int:
        return self.numbers

    def read(self, memory: Tensor) -> dict[int, Tensor]:
        return {}

    def mix(
        self, past: Past, notes: Notes | None = None, tokens: Tensor | None = None
    ) -> Callable[[int, Tensor, Tensor], Tensor]:
        memory = None if past.memory is None else past.otherwise(torch.zeros_like(past.memory))

        def mixed(layer: int, attended: Tensor, values: Tensor) -> Tensor:
            place = self.places.get(layer)
            if place is None:
                return attended
            encoding = self.encodings[place]
            assert isinstance(encoding, RecurrenceEncoding)
            carry = None if memory is None else memory[:, place]
            if tokens is not None:
                return mix_one(attended, values, encoding, tokens, carry)
            state = None if carry is None else ScanState(carry, carry[:, :, :0])
            if notes is None:
                return mix_recurrence(attended, values, encoding, causal=True, state=state).output
            assert isinstance(notes, Carries)
            return notes.follow(attended, values, encoding, state)

        return mixed

    def start_window(self, stride: int) -> "Carries":
        return Carries(stride)

    def write(self, notes: Notes, past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        assert isinstance(notes, Carries)
        return torch.stack(notes.layers, dim=1)


class SavedEncoding(RecurrenceEncoding):
    """Its buffers are saved too: transformers leaves those that are not saved empty when it loads a model. Parameters
    of kinds that no head is of become such buffers: there is nothing to train."""

    draws_apart = False
    """They are made one after the other, for a base that is there already."""

    def __init__(self, config: RSAConfig) -> None:
        super().__init__(config)
        for name, value in [*self.named_parameters(), *self.named_buffers()]:
            if isinstance(value, nn.Parameter):
                if value.numel():
                    continue
                delattr(self, name)
            self.register_buffer(name, value.detach(), persistent=True)


class Carries(Notes):
    """The state of each layer's recurrence where the next window begins."""

    def __init__(self, stride: int) -> None:
        self.stride = stride
        self.layers: list[Tensor] = []

    def follow(self, attended: Tensor, values: Tensor, encoding: RecurrenceEncoding, state: ScanState | None) -> Tensor:
        """Mix a whole window, and keep the state behind what the next one does not see again."""
        cut = [self.stride, attended.shape[2] - self.stride]
        (unseen, seen_again), (values, values_again) = attended.split(cut, dim=2), values.split(cut, dim=2)
        output, state = mix_recurrence(unseen, values, encoding, causal=True, state=state)
        assert state is not None
        self.layers.append(state.carry)
        if not seen_again.shape[2]:
            return output
        rest = mix_recurrence(seen_again, values_again, encoding, causal=True, state=state).output
        return torch.cat([output, rest], dim=2)

    def see(self, layer: int, hidden: Tensor) -> None:
        pass

    def summary(self) -> None:
        return None


def mix_one(
    attended: Tensor, values: Tensor, encoding: RecurrenceEncoding, tokens: Tensor, carry: Tensor | None
) -> Tensor:
    """What `mix_recurrence` gives for one query (B, H, 1, D) of each row, its token number `tokens` (B,) of a window
    whose values (B, H, W, D) are there as far as it has come: one row of P, as attention has one row of scores."""
    heads, kernel = encoding.rem_heads, encoding.kernel()
    dilation = kernel.dilation[:, None]
    base, angle = kernel.sign * kernel.decay, kernel.angle

    def power(steps_BRN: Tensor) -> Tensor:
        """z to so many steps: R lies before the last dimension."""
        steps = steps_BRN.to(base.dtype)
        return torch.polar(base[:, None] ** steps, angle[:, None] * steps)

    distance = tokens[:, None, None] - torch.arange(values.shape[2], device=values.device)
    weighed = (distance > 0) & (distance % dilation == 0)
    weights = power(torch.where(weighed, distance // dilation, 0)).masked_fill(~weighed, 0)
    found = (weights[..., None] * values[:, :heads].to(base.dtype)).sum(2)
    if carry is not None:
        real, imaginary = carry.to(base.dtype).chunk(2, dim=2)
        token = tokens[:, None, None]
        slot = (token % dilation)[..., None].expand(-1, -1, -1, carry.shape[3])
        held = torch.complex(real.gather(2, slot), imaginary.gather(2, slot))
        found = found + (power(token // dilation)[..., None] * held).squeeze(2)
    recurrent = torch.where(kernel.sine[:, None], found.imag, found.real)[:, :, None].to(attended.dtype)
    gate = encoding.gate().to(attended.dtype)
    mixed = (1 - gate) * attended[:, :heads] + gate * recurrent
    return torch.cat([mixed, attended[:, heads:]], dim=1)


register_mechanism(RSARecurrenceConfig, RSA)
