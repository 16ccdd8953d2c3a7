"""Self-attention with recurrence (RSA) inside a pretrained decoder: the output of some heads is mixed with a recurrence
over their values, whose state is passed from window to window.

Shapes: B rows, L layers that have it, H heads, R heads that carry a REM, N positions, W window, D size of a head,
S = 2 · largest dilation.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from recurrify.attention.config import RSAConfig
from recurrify.attention.encoding import RecurrenceEncoding
from recurrify.attention.rsa import mix_recurrence
from recurrify.attention.scan import ScanState
from recurrify.context import Attend
from recurrify.errors import UserError
from recurrify.families import family_of, head_size, open_attention
from recurrify.mechanisms.base import Mechanism, Past, Recorder, WindowContext
from recurrify.mechanisms.config import MechanismConfig
from recurrify.settings import setting


@dataclass(frozen=True, kw_only=True)
class RSARecurrenceConfig(MechanismConfig):
    """`recurrify.attention.RSAConfig` for the layers of a pretrained decoder, whose heads are given."""

    mechanism: ClassVar[str] = "rsa"
    decoders_only: ClassVar[bool] = True

    counts: tuple[int, int, int, int, int, int] = (0, 1, 1, 0, 0, 0)
    """Heads of each kind in a layer: regular, cosine, sine, then dilated regular, dilated cosine, dilated sine."""
    dilations: tuple[int, ...] = ()
    """One dilation for each dilated head, in the order of those heads: a head of dilation d reaches d times as far."""
    sharing: Literal["pair", "none"] = "pair"
    """`pair`: the i-th cosine and the i-th sine head share one decay and angle; or `none`."""
    layers: tuple[int, ...] | Literal["all"] = setting("all", at_least=1)
    """Which layers have it, counted from 1."""
    gate_start: float = -3.0
    """Initial value of each layer's gate before the sigmoid: at −3 the recurrence has a share of 5 %, and the model
    starts close to its base."""

    def __post_init__(self) -> None:
        # Settings from JSON are lists, which are neither equal to tuples nor hashable.
        for name in ("counts", "dilations", "layers"):
            value = getattr(self, name)
            object.__setattr__(self, name, tuple(value) if isinstance(value, list) else value)
        super().__post_init__()
        self.for_heads(max(sum(self.counts), 1))
        if self.layers != "all" and len(set(self.layers)) != max(len(self.layers), 1):
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
                f"`truncation` is {layer.truncation}, but inside a pretrained model the recurrence continues from "
                "window to window: leave it out."
            )
        return cls(
            window=min(cls.window, family_of(base).positions(base) or cls.window),
            counts=layer.counts,
            dilations=layer.dilations,
            sharing=layer.sharing,
            gate_start=cls.gate_start if layer.gate_start is None else layer.gate_start,
        )

    def for_heads(self, heads: int) -> RSAConfig:
        """The same for attention of so many heads; raises UserError if they do not fit."""
        return RSAConfig(
            heads=heads,
            counts=self.counts,
            dilations=self.dilations,
            sharing=self.sharing,
            gate_start=self.gate_start,
        )

    def build(self, layers: int, width: int) -> "RSA":
        return RSA(self, layers, width)


class RSA(Mechanism):
    """memory (B, L, R, S, D): in each layer, the state of the recurrence before the window."""

    changes_attention: ClassVar[bool] = True

    def __init__(self, config: RSARecurrenceConfig, layers: int, width: int) -> None:
        super().__init__(config)
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
                f"The mechanism 'rsa' needs a decoder, which {config.model_type!r} models are not: attention in both "
                "directions has no state to continue from; choose another, such as 'carry'."
            )
        rsa = self.config.for_heads(config.num_attention_heads)
        self.encodings.extend(SavedEncoding(rsa) for _ in self.places)
        slots = 2 * max(head.dilation for head in rsa.plan())
        self.numbers = len(self.places) * rsa.rem_heads * slots * head_size(config)
        open_attention(base)

    def slots(self) -> dict[int, int]:
        return {}

    def state_size(self) -> int:
        return self.numbers

    def open(self, window: WindowContext, base: PreTrainedModel, inputs: dict[str, Any]) -> dict[str, Any]:
        past, recorder, tokens = window.past, window.recorder, window.places
        memory = None if past.memory is None else past.otherwise(torch.zeros_like(past.memory))

        def mixed(place: int, attend: Attend, keys: Tensor, values: Tensor) -> Tensor:
            attended = attend(keys, values)
            if values.shape[1] < attended.shape[1]:  # heads that share their values
                values = values.repeat_interleave(attended.shape[1] // values.shape[1], dim=1)
            encoding = self.encodings[place]
            assert isinstance(encoding, RecurrenceEncoding)
            carry = None if memory is None else memory[:, place]
            if tokens is not None:
                return mix_one(attended, values, encoding, tokens, carry)
            state = None if carry is None else ScanState(carry, carry[:, :, :0])
            if not isinstance(recorder, Carries):
                return mix_recurrence(attended, values, encoding, causal=True, state=state).output
            return recorder.follow(attended, values, encoding, state)

        window.change_attention = {layer: partial(mixed, place) for layer, place in self.places.items()}
        return inputs

    def recorder(self, stride: int) -> "Carries":
        return Carries(stride)

    def write(self, recorder: "Carries", past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        return torch.stack(recorder.layers, dim=1)


class SavedEncoding(RecurrenceEncoding):
    """Its buffers are saved too: transformers leaves buffers that are not saved empty when it loads a model. Parameters
    of kinds without heads become such buffers: there is nothing to train."""

    draws_apart = False
    """They are initialised one after the other, for a base that exists already."""

    def __init__(self, config: RSAConfig) -> None:
        super().__init__(config)
        for name, value in [*self.named_parameters(), *self.named_buffers()]:
            if isinstance(value, nn.Parameter):
                if value.numel():
                    continue
                delattr(self, name)
            self.register_buffer(name, value.detach(), persistent=True)


class Carries(Recorder):
    """The state of each layer's recurrence at the start of the next window."""

    def __init__(self, stride: int) -> None:
        self.stride = stride
        self.layers: list[Tensor] = []

    def follow(self, attended: Tensor, values: Tensor, encoding: RecurrenceEncoding, state: ScanState | None) -> Tensor:
        """Mix a whole window, and keep the state after the positions that the next one does not see again."""
        cut = [self.stride, attended.shape[2] - self.stride]
        (unseen, seen_again), (values, values_again) = attended.split(cut, dim=2), values.split(cut, dim=2)
        output, state = mix_recurrence(unseen, values, encoding, causal=True, state=state)
        assert state is not None
        self.layers.append(state.carry)
        if not seen_again.shape[2]:
            return output
        rest = mix_recurrence(seen_again, values_again, encoding, causal=True, state=state).output
        return torch.cat([output, rest], dim=2)


def mix_one(
    attended: Tensor, values: Tensor, encoding: RecurrenceEncoding, tokens: Tensor, carry: Tensor | None
) -> Tensor:
    """`mix_recurrence` for one query (B, H, 1, D) per row: token number `tokens` (B,) of a window whose values
    (B, H, W, D) are known up to that token. One row of P, as attention has one row of scores."""
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
