"""The seam between the window loop and the ways of remembering: one config, one module, one line each."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from numbers import Integral
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from recurrify.errors import UserError
from recurrify.windows import check_window


@dataclass(frozen=True, kw_only=True)
class RecurrenceConfig:
    """What every mechanism shares: how text is cut into windows and how far gradients travel."""

    mechanism: ClassVar[str]
    left_to_base: ClassVar[tuple[str, ...]] = ()
    """Settings that, where they are None, the base decides; a model's own config then says what it decided."""

    window: int = 300
    """Tokens the base model sees at once."""
    overlap: int = 0
    """Tokens that a window shares with the one before it."""
    bptt_windows: int | None = None
    """Backpropagate through at most this many consecutive windows, counted in groups from a call's first; None goes
    through all of them. 1 keeps gradients inside their window: what writes the memory then learns nothing."""
    checkpoint: bool = False
    """Keep only what passes between windows and recompute each window in the backward pass."""

    def __post_init__(self) -> None:
        check_window(self.window, self.overlap)
        if self.bptt_windows is not None:
            whole_number("bptt_windows", self.bptt_windows, 1, "or None for all windows")
        yes_or_no("checkpoint", self.checkpoint)

    @property
    def stride(self) -> int:
        return self.window - self.overlap

    def to_dict(self) -> dict[str, Any]:
        return {"mechanism": self.mechanism, **asdict(self)}

    @classmethod
    def completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Settings by name, with those that were left out and have to suit the others."""
        return values

    @classmethod
    def stride_of(cls, values: dict[str, Any]) -> int:
        """Of settings that may yet be refused."""
        window, overlap = (values.get(name, getattr(cls, name)) for name in ("window", "overlap"))
        check_window(window, overlap)
        return int(window) - int(overlap)


def whole_number(name: str, value: object, least: int, otherwise: str = "") -> None:
    """Refuse what is not a whole number of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        more = f", {otherwise}" if otherwise else ""
        raise UserError(f"`{name}` must be a whole number of at least {least}{more}: got {name}={value!r}.")


def finite_number(name: str, value: object, least: float = -math.inf) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not (math.isfinite(value) and value >= least):
        which = ", such as -3" if least == -math.inf else f" of at least {least:g}"
        raise UserError(f"`{name}` must be a number{which}: got {name}={value!r}.")


def yes_or_no(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise UserError(f"`{name}` must be True or False: got {value!r}.")


class Past(NamedTuple):
    """What the windows before left to each row."""

    memory: Tensor | None
    """(rows, …): None where no row has one."""
    live: Tensor | None
    """(rows,) bool on the device: the rows that have one; None means all."""

    def otherwise(self, fresh: Tensor) -> Tensor:
        """The memory, with `fresh` in rows that have none."""
        if self.memory is None:
            return fresh
        memory = self.memory.to(fresh.dtype)
        if self.live is None:
            return memory
        return torch.where(self.live.view(-1, *[1] * (memory.ndim - 1)), memory, fresh)


class Mechanism(nn.Module, ABC):
    """What enters a window (`read`) and what leaves it (`write`)."""

    keys_only: ClassVar[bool] = False
    """Whether `slots` are keys and values that the base is given as such, and not inputs of its layers. If `fit` opens
    the base's attention (`families.open_attention`), windows in which all rows have them run without a mask."""

    def fit(self, base: PreTrainedModel) -> None:
        """Called once, with the base it is for: a mechanism that cannot work with it says why."""

    def start_from(self, neutral: list[Tensor]) -> None:
        """Called once, where recurrence is added to a trained base: `neutral` holds, for each layer, an input that the
        base makes little of. A mechanism that starts from it leaves the base at first nearly as good as it was."""

    def settled(self, config: RecurrenceConfig) -> RecurrenceConfig:
        """Called after `fit`: the config with whatever was left for the base to decide, as it will be saved."""
        return config

    def learn_from(self, base: PreTrainedModel) -> None:
        """Called once, where recurrence is added to a trained base: for a mechanism that starts with what the base
        itself computes."""

    def windows_changed(self, config: RecurrenceConfig) -> None:
        """Called where a finished model's text is to be cut otherwise: `config` is the one the mechanism was built with
        but for what `RecurrenceConfig` itself has. A mechanism that cannot go on in such windows says why."""

    def check_cache(self, base: PreTrainedModel) -> None:
        """Refuse a base that checkpoints its own layers: transformers takes the cache from these, and with it the keys
        and values that it is given as a memory."""
        if self.keys_only and base.training and base.is_gradient_checkpointing:
            raise UserError(
                "The base checkpoints its own layers, which then see nothing of the keys that are kept for them: call "
                "`model.base.gradient_checkpointing_disable()`, and `model.set_recurrence(checkpoint=True)` instead."
            )

    @abstractmethod
    def slots(self) -> dict[int, int]:
        """How many extra inputs each layer has: {layer index: count}."""

    def slot_pairs(self, window: int) -> int:
        """How many pairs of a token and a slot attention computes in a window, all layers together."""
        return window * sum(self.slots().values())

    def kept_flops(self) -> int:
        """How many operations a mechanism of keys only spends on them in each window."""
        return 0

    def sees_slots(self, places: Tensor) -> Tensor | None:
        """Which of the slots (tokens, count) are seen from these places of a window; None: all of them."""
        return None

    @abstractmethod
    def floats(self) -> int:
        """How many numbers a row's memory holds."""

    @abstractmethod
    def read(self, memory: Tensor) -> dict[int, Tensor]:
        """Memory to the extra inputs (rows, count, width) of layers of the coming window. A layer that has slots
        and is given none here gets what the layer before made of its own."""

    def recall(self, past: Past) -> Callable[[int, Tensor], Tensor] | None:
        """What changes each layer's inputs from memory: called with the layer's index and all inputs (rows, inputs,
        width) that the coming window, or a part of it, has there; None changes nothing."""
        return None

    def mix(
        self, past: Past, notes: "Notes | None" = None, tokens: Tensor | None = None
    ) -> Callable[[int, Tensor, Tensor], Tensor] | None:
        """What changes each layer's attention before its output projection, for a mechanism whose `fit` opened it:
        called with the layer's index, what was attended to and the values, both (rows, heads, positions, size); None
        changes nothing. `notes` are those of a window that is written. Where `tokens` (rows,) are given, only that
        token of each row is new, and the values are those of a whole window, blank or old behind it."""
        return None

    def first_position(self) -> int:
        """The position of a window's first token, where that is not the same for all windows the highest."""
        return 0

    def first_positions(self, past: Past) -> int | Tensor:
        """The same for windows with this past, or (rows, 1) for each of them."""
        return self.first_position()

    def prepare(
        self, base: PreTrainedModel, inputs: dict[str, Any], past: Past, notes: "Notes | None"
    ) -> dict[str, Any]:
        """The base's own inputs for the coming window, changed where the mechanism works through them; `notes` are
        those of a window that is written."""
        return inputs

    def inputs_behind(self) -> int:
        """How many extra inputs stand behind a window that is written to memory."""
        return 0

    def ask(self, past: Past, rows: int) -> Tensor | None:
        """Those inputs (rows, count, width) of the first layer, or None: they see the whole window and are not seen
        by it, and go up through all layers; the notes see what becomes of them."""
        return None

    @abstractmethod
    def start_window(self, stride: int) -> "Notes":
        """An empty notebook for one window: sees every layer's output as the window runs. Only the first
        `stride` positions, which the next window does not see, belong into the memory."""

    def statistics(self) -> tuple[Tensor, ...]:
        """Tensors that `write` reads and that change between calls: taken once per call, so that a window
        recomputed in the backward pass sees what it saw in the forward pass."""
        return ()

    @abstractmethod
    def write(self, notes: "Notes", past: Past, statistics: tuple[Tensor, ...]) -> Tensor:
        """A finished window's notes, and what that window itself had of the past, to the memory that the next window
        reads."""

    def learn_statistics(self, summaries: list[Tensor]) -> None:
        """Called once after a training forward pass with the windows' summaries, outside the graph."""


class Notes(ABC):
    """Collects from the layers of one window, as they run, what `write` will need."""

    @abstractmethod
    def see(self, layer: int, hidden: Tensor) -> None:
        """`hidden` (rows, positions, width) is the output of `layer`."""

    def see_behind(self, layer: int, hidden: Tensor) -> None:  # noqa: B027 - most have nothing behind
        """`hidden` (rows, count, width) is what `layer` made of the inputs behind."""

    @abstractmethod
    def summary(self) -> Tensor | None:
        """(rows, width): the window in one vector, or None where `learn_statistics` needs nothing."""


Builder = Callable[[Any, int, int], Mechanism | None]
_MECHANISMS: dict[str, tuple[type[RecurrenceConfig], Builder]] = {}


def register_mechanism(config: type[RecurrenceConfig], build: Builder) -> None:
    """Make a mechanism known: `build(config, layers, width)` gives its module, or None for plain windows."""
    _MECHANISMS[config.mechanism] = (config, build)


def mechanism_names() -> list[str]:
    return sorted(_MECHANISMS)


def build_mechanism(config: RecurrenceConfig, layers: int, width: int) -> Mechanism | None:
    return _MECHANISMS[config.mechanism][1](config, layers, width)


def recurrence_config(values: dict[str, Any]) -> RecurrenceConfig:
    """The config object that `RecurrenceConfig.to_dict` wrote down."""
    values = dict(values)
    name = values.pop("mechanism", None)
    if name not in _MECHANISMS:
        raise UserError(f"Unknown recurrence mechanism {name!r}: known are {', '.join(mechanism_names())}.")
    config = _MECHANISMS[name][0]
    known = {field.name for field in fields(config)}
    unknown = sorted(set(values) - known)
    if unknown:
        raise UserError(
            f"The mechanism {name!r} has no setting {', '.join(map(repr, unknown))}: "
            f"its settings are {', '.join(sorted(known))}; a newer recurrify may have more."
        )
    return config(**config.completed(values))


@dataclass(frozen=True, kw_only=True)
class NoRecurrence(RecurrenceConfig):
    """Plain windows: the baseline, run through the very same code."""

    mechanism: ClassVar[str] = "none"


register_mechanism(NoRecurrence, lambda config, layers, width: None)
