"""Beyond the paper: the hidden states at a window's last positions are mapped and added to the next window as extra
inputs, which pass through its layers like its own.

Shapes: B rows, N positions, M tail slots, P pooled slots, K width.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from recurrify.errors import UserError
from recurrify.mechanisms.base import Past, Recorder, SlotMechanism
from recurrify.mechanisms.carry import Carry, CarryConfig, Pool
from recurrify.mechanisms.config import MechanismConfig
from recurrify.mechanisms.neutral import neutral_inputs
from recurrify.settings import setting

INITIAL_SCALE = 3.0
"""Scale of a slot's input for a neutral start, in multiples of the neutral vector's median."""
SPREAD = 0.01
"""Initial standard deviation of the network's output weights and of the slots' positions."""
CLOSED = -4.0
"""Initial value of gates before the sigmoid: slots keep a fiftieth of what they were."""


@dataclass(frozen=True, kw_only=True)
class TailConfig(MechanismConfig):
    """A tail gives local continuity and reaches one window back; pooled slots go further and give the topic."""

    mechanism: ClassVar[str] = "tail"

    insert_layer: int = setting(2, at_least=2)
    """The layer, counted from 1, that the slots enter, and whose inputs at the window's last positions they come
    from: the layers below compute those inputs, so it is the second or a later one."""
    until_layer: int | Literal["top"] = setting("top", at_least=2)
    """The last layer, counted from 1, that sees the slots; `insert_layer` itself: no other layer does."""
    tail: int = setting(16, at_least=1)
    """How many positions become slots: the last ones that the next window does not see itself."""
    pooled_slots: int = setting(0, at_least=0)
    """How many vectors to add that come from the mean over all positions and layers, as in
    `CarryConfig(standardize=True)`."""
    gated: bool = False
    """Let each slot keep a learned share of what it was: old windows then fade instead of vanishing."""
    gate_start: float = CLOSED
    """Initial value of the gates before the sigmoid: by default almost nothing is kept, with 0 half."""
    hidden_size: int | None = setting(None, at_least=1)
    """Width of the hidden layer in each map; None takes the base model's."""
    neutral_start: bool = True
    """Start with slots that the base mostly ignores, with a small share of the hidden states that they come from; False
    starts with those hidden states."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.until_layer != "top" and self.until_layer < self.insert_layer:
            raise UserError(
                f"`until_layer` must be at least `insert_layer`, or 'top': got until_layer={self.until_layer}, "
                f"insert_layer={self.insert_layer}."
            )
        if not self.gated and self.gate_start != CLOSED:
            raise UserError(f"gate_start={self.gate_start:g} needs gates: add gated=True, or leave it out.")
        if self.tail > self.stride:
            raise UserError(
                f"`tail` is {self.tail}, but the next window leaves only {self.stride} positions of a window unseen "
                f"(window={self.window}, overlap={self.overlap}): choose tail={self.stride} or less, or larger windows."
            )

    def build(self, layers: int, width: int) -> "Tail":
        return Tail(self, layers, width)


class Tail(SlotMechanism):
    """memory (B, P + M, K) = the pooled slots, then linear(x) + network(x) + position of each tail slot; where it is
    gated, g ⊙ the memory before + (1 − g) ⊙ that, with a learned g of each slot's every feature."""

    def __init__(self, config: TailConfig, layers: int, width: int) -> None:
        super().__init__(config)
        until = layers if config.until_layer == "top" else config.until_layer
        for name, layer, otherwise in (("insert_layer", config.insert_layer, ""), ("until_layer", until, ", or 'top'")):
            if layer > layers:
                raise UserError(
                    f"`{name}` is {layer}, but the model has only {layers} layers: choose at most {layers}{otherwise}."
                )
        self.first, self.last = config.insert_layer - 1, until - 1
        hidden = config.hidden_size or width
        self.norm = nn.LayerNorm(width)
        self.linear = nn.Linear(width, width, bias=False)
        out = nn.Linear(hidden, width, bias=False)
        self.network = nn.Sequential(nn.Linear(width, hidden), nn.GELU(), out)
        self.positions = nn.Parameter(torch.empty(config.tail, width))
        # A slot starts as the input it comes from, which the base can read untrained. A small random map would do more
        # harm: the base's own norms scale small inputs up.
        nn.init.eye_(self.linear.weight)
        nn.init.normal_(out.weight, std=SPREAD)
        nn.init.normal_(self.positions, std=SPREAD)
        if config.gated:
            self.gate = nn.Parameter(torch.full((config.pooled_slots + config.tail, width), config.gate_start))
        self.pool = None
        if config.pooled_slots:
            pool = CarryConfig(
                insert_layer=config.insert_layer,
                slots=config.pooled_slots,
                hidden_layers=1,
                hidden_size=hidden,
                standardize=True,
            )
            self.pool = Carry(pool, layers, width)

    @torch.no_grad()
    def start(self, base: PreTrainedModel) -> None:
        if not self.config.neutral_start:
            return
        neutral = neutral_inputs(base)
        vector = neutral[self.first].to(self.positions)
        # The median: a few of a first token's features can be a hundred times as large as all others.
        self.linear.weight.mul_(INITIAL_SCALE * float(vector.abs().median()))
        self.positions.add_(vector)
        if self.pool is not None:
            self.pool.start_from(neutral)

    def slots(self) -> dict[int, int]:
        count = self.config.pooled_slots + self.config.tail
        return dict.fromkeys(range(self.first, self.last + 1), count)

    def state_size(self) -> int:
        return (self.config.pooled_slots + self.config.tail) * self.positions.shape[1]

    def read(self, memory: Tensor) -> dict[int, Tensor]:
        return {self.first: memory}

    def recorder(self, stride: int) -> "LastPositions":
        return LastPositions(self, stride)

    def statistics(self) -> tuple[Tensor, ...]:
        return () if self.pool is None else self.pool.statistics()

    def write(self, recorder: "LastPositions", past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        assert recorder.inputs is not None, "no layer ran"
        normed = self.norm(recorder.inputs.to(self.positions.dtype))
        slots = self.linear(normed) + self.network(normed) + self.positions
        if self.pool is not None and recorder.pool is not None:
            pooled = self.pool.write(recorder.pool, past, statistics)
            slots = torch.cat([pooled.to(slots.dtype), slots], dim=1)
        if not self.config.gated:
            return slots
        # A row's first window has nothing to keep: there, old and new are the same.
        return torch.lerp(slots, past.otherwise(slots), self.gate.sigmoid().to(slots.dtype))

    def learn_statistics(self, summaries: list[Tensor]) -> None:
        if self.pool is not None:
            self.pool.learn_statistics(summaries)


class LastPositions(Recorder):
    """The inputs of the slots' first layer at the last positions, and the pool of the pooled slots."""

    def __init__(self, tail: Tail, stride: int) -> None:
        self.below = tail.first - 1
        self.span = slice(stride - tail.config.tail, stride)
        self.pool: Pool | None = None if tail.pool is None else tail.pool.recorder(stride)
        self.inputs: Tensor | None = None

    def see(self, layer: int, hidden: Tensor) -> None:
        if layer == self.below:
            self.inputs = hidden[:, self.span]
        if self.pool is not None:
            self.pool.see(layer, hidden)

    def summary(self) -> Tensor | None:
        return None if self.pool is None else self.pool.summary()
