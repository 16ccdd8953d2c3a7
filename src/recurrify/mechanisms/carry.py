"""The paper's mechanism: the hidden states of each window are pooled, passed through a small MLP, and added to the next
window as extra keys and values.

"Adding Recurrence to Pretrained Transformers", section 3. Shapes: B rows, N positions, K width, L layers.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from recurrify.errors import UserError
from recurrify.mechanisms.base import Past, Recorder, SlotMechanism
from recurrify.mechanisms.config import MechanismConfig
from recurrify.mechanisms.neutral import neutral_inputs
from recurrify.settings import setting

INITIAL_SCALE = 0.1
"""Factor of the network's random output weights for a neutral start."""
HEAD_START = 16
"""The initial mean 0 and variance 1 of the running statistics count as so many windows."""
MOST_PARTS = 16
"""Parts that a window's positions are divided into for pooling."""


@dataclass(frozen=True, kw_only=True)
class CarryConfig(MechanismConfig):
    """The defaults are the paper's for language models."""

    mechanism: ClassVar[str] = "carry"

    pooling: Literal["mean", "max", "attention"] = "mean"
    """Over a window's positions: the mean, the maximum, or attention with one learned key."""
    pooled_layers: Literal["all", "last"] = "all"
    """All layers, weighted by a learned softmax; or the last layer alone, as for question answering."""
    insert_layer: int | Literal["all"] = setting(2, at_least=1)
    """The layer, counted from 1, that receives the carried vectors; "all" gives each layer its own."""
    slots: int = setting(1, at_least=1)
    """How many vectors are carried to each receiving layer."""
    hidden_layers: int = setting(3, at_least=0)
    """Hidden layers of the feed-forward network that maps the pooled vector."""
    hidden_size: int = setting(200, at_least=1)
    """Width of those hidden layers."""
    neutral_start: bool = True
    """Start with vectors that the base mostly ignores, so that it is nearly as good as before until it learns to use
    them. The paper does not say how its network starts; False starts at random, as torch does."""
    standardize: bool = False
    """Standardise the pooled vector by running statistics and add a linear path around the network. Not in the
    paper; pooled vectors of different texts differ little from their common mean, so this speeds up learning."""

    def build(self, layers: int, width: int) -> "Carry":
        return Carry(self, layers, width)


class Carry(SlotMechanism):
    """memory (B, receiving layers × slots, K) = network(pooled window)."""

    config: CarryConfig
    running_mean: Tensor
    running_variance: Tensor
    windows_seen: Tensor

    def __init__(self, config: CarryConfig, layers: int, width: int) -> None:
        super().__init__(config)
        if config.insert_layer == "all":
            self.receivers = list(range(layers))
        elif config.insert_layer <= layers:
            self.receivers = [config.insert_layer - 1]
        else:
            raise UserError(
                f"`insert_layer` is {config.insert_layer}, but the model has only {layers} layers: "
                f"choose 1 to {layers}, or 'all'."
            )
        self.layers, self.width = layers, width
        if config.pooled_layers == "all":
            self.layer_scores = nn.Parameter(torch.zeros(layers))
        if config.pooling == "attention":
            self.key = nn.Parameter(torch.randn(width) * width**-0.5)
        out = len(self.receivers) * config.slots * width
        widths = [width, *[config.hidden_size] * config.hidden_layers]
        parts: list[nn.Module] = []
        for before, after in pairwise(widths):
            parts += [nn.Linear(before, after), nn.GELU()]
        self.network = nn.Sequential(*parts, nn.Linear(widths[-1], out))
        if config.standardize:
            self.skip = nn.Linear(width, out, bias=False)
            self.register_buffer("running_mean", torch.zeros(width))
            self.register_buffer("running_variance", torch.ones(width))
            self.register_buffer("windows_seen", torch.zeros((), dtype=torch.long))

    def start(self, base: PreTrainedModel) -> None:
        if self.config.neutral_start:
            self.start_from(neutral_inputs(base))

    @torch.no_grad()
    def start_from(self, neutral: list[Tensor]) -> None:
        """Write vectors near these at first: one (width,) for each layer."""
        last: Any = self.network[-1]
        last.weight.mul_(INITIAL_SCALE)
        vectors = [neutral[layer].to(last.bias).repeat(self.config.slots) for layer in self.receivers]
        last.bias.copy_(torch.cat(vectors))
        if self.config.standardize:
            self.skip.weight.mul_(INITIAL_SCALE)

    def slots(self) -> dict[int, int]:
        return dict.fromkeys(self.receivers, self.config.slots)

    def state_size(self) -> int:
        return len(self.receivers) * self.config.slots * self.width

    def read(self, memory: Tensor) -> dict[int, Tensor]:
        parts = memory.split(self.config.slots, dim=1)
        return dict(zip(self.receivers, parts, strict=True))

    def recorder(self, stride: int) -> "Pool":
        return Pool(self, stride)

    def statistics(self) -> tuple[Tensor, ...]:
        if not self.config.standardize:
            return ()
        return self.running_mean.clone(), self.running_variance.clone()

    def write(self, recorder: "Pool", past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        pooled = recorder.summary()
        if statistics:
            mean, variance = statistics
            # In float32 or better: running variances can be far below what half precision resolves.
            exact = pooled.to(torch.promote_types(pooled.dtype, torch.float32))
            pooled = ((exact - mean) * (variance + 1e-5).rsqrt()).to(pooled.dtype)
        pooled = pooled.to(next(self.network.parameters()).dtype)
        carried = self.network(pooled)
        if statistics:
            carried = carried + self.skip(pooled)
        return carried.unflatten(1, (-1, self.width))

    @torch.no_grad()
    def learn_statistics(self, summaries: list[Tensor]) -> None:
        if not self.config.standardize:
            return
        values = torch.cat(summaries).to(self.running_mean.dtype)
        self.windows_seen += len(values)
        # A plain average at first, so that the start is quick; a slow exponential one later. The values that the
        # buffers start with count as a few windows: one window alone has no variance.
        rate = (len(values) / (self.windows_seen + HEAD_START)).clamp(min=0.01).to(values.dtype)
        self.running_mean.lerp_(values.mean(0), rate)
        self.running_variance.lerp_((values - self.running_mean).square().mean(0), rate)

    def _apply(self, fn: Any, recurse: bool = True) -> "Carry":
        """Moves and casts everything but keeps the running statistics in full precision."""
        before = {name: self._buffers[name] for name in ("running_mean", "running_variance") if name in self._buffers}
        super()._apply(fn, recurse)
        for name, old in before.items():
            new = self._buffers[name]
            if old is not None and new is not None and new.dtype in (torch.float16, torch.bfloat16):
                self._buffers[name] = new.float() if old.is_meta else old.to(new.device)
        return self


class Pool(Recorder):
    """Σ_l w_l·h^(l), pooled over positions while the layers run, so that no layer's output is kept for it."""

    def __init__(self, carry: Carry, stride: int) -> None:
        self.carry, self.stride = carry, stride
        self.last = carry.layers - 1
        self.weights = carry.layer_scores.softmax(0) if carry.config.pooled_layers == "all" else None
        self.total: Tensor | None = None

    def see(self, layer: int, hidden: Tensor) -> None:
        if self.weights is None and layer != self.last:
            return
        hidden = hidden[:, : self.stride]
        if self.carry.config.pooling == "mean":
            # The mean over positions commutes with the sum over layers: (B, parts, K) is all that is added up.
            hidden = hidden.unflatten(1, (equal_parts(hidden.shape[1]), -1)).mean(2)
        if self.weights is not None:
            hidden = self.weights[layer].to(hidden.dtype) * hidden
        self.total = hidden if self.total is None else self.total + hidden

    def summary(self) -> Tensor:
        assert self.total is not None, "no layer ran"
        match self.carry.config.pooling:
            case "mean":
                return self.total.mean(1)
            case "max":
                return self.total.amax(1)
            case "attention":
                scores = self.total @ self.carry.key.to(self.total.dtype) * self.carry.width**-0.5
                return (scores.softmax(1)[..., None] * self.total).sum(1)


def equal_parts(positions: int) -> int:
    """Number of equal parts that positions are pooled in at first: compiled for a GPU, one sum over all positions of
    all layers is too few pieces of work to keep it busy."""
    return next(parts for parts in range(min(MOST_PARTS, positions), 0, -1) if positions % parts == 0)
