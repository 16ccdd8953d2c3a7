"""The settings that all mechanisms share. Imports neither torch nor transformers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from recurrify.settings import check_settings, check_types, setting
from recurrify.windows import check_window

if TYPE_CHECKING:
    from recurrify.mechanisms.base import Mechanism


BEST = "best"
"""In place of a mechanism's name: the memory that works best for models of this kind."""
NO_MEMORY = "none"
"""The name of plain windows."""


@dataclass(frozen=True, kw_only=True)
class MechanismConfig:
    """How text is cut into windows and how far gradients travel. A mechanism's own config adds its settings; values are
    checked against the types of the fields, and against the `at_least` of `recurrify.settings.setting`."""

    mechanism: ClassVar[str]
    """The mechanism's name, in saved models and on the command line."""
    learns: ClassVar[bool] = True
    """Whether the mechanism adds parameters to train."""
    decoders_only: ClassVar[bool] = False
    """Whether encoders cannot have it."""
    positions: ClassVar[Literal["any", "rotary", "absolute"]] = "any"
    """Which position encodings of the base it works with."""
    writes_overlap: ClassVar[bool] = False
    """Whether the memory may depend on positions that the next window sees again."""

    window: int = 300
    """Tokens the base model sees at once."""
    overlap: int = 0
    """Tokens that a window shares with the one before it."""
    bptt_windows: int | None = setting(None, at_least=1)
    """Backpropagate through at most this many consecutive windows, counted in groups from a call's first; None goes
    through all of them. With 1, gradients stay inside their window, so the weights that write the memory do not learn.
    """
    checkpoint: bool = False
    """Keep only the memory between windows and recompute each window in the backward pass."""

    def __post_init__(self) -> None:
        check_types(self)
        check_settings(self)
        check_window(self.window, self.overlap)

    @property
    def stride(self) -> int:
        """Tokens from one window's start to the next one's."""
        return self.window - self.overlap

    def to_dict(self) -> dict[str, Any]:
        """As it is saved; `recurrence_config` reads it."""
        return {"mechanism": self.mechanism, **asdict(self)}

    @cached_property
    def memory_settings(self) -> dict[str, Any]:
        """The mechanism and its own settings. A state continues only with the same ones; windows and gradients may
        change from call to call."""
        shared = {entry.name for entry in fields(MechanismConfig)}
        return {name: value for name, value in self.to_dict().items() if name not in shared}

    def build(self, layers: int, width: int) -> "Mechanism | None":
        """The module for a base of so many layers and hidden features; None for plain windows."""
        raise NotImplementedError(f"{type(self).__name__} has no `build`: return the mechanism's module there.")

    def concern(self) -> str | None:
        """A sentence about settings that are allowed but may do harm."""
        return None

    @classmethod
    def completed(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Settings by name, with defaults that depend on other settings."""
        return values

    @classmethod
    def longest_window(cls, values: Mapping[str, Any], positions: int) -> int:
        """The longest window with these settings in a base of so many positions."""
        return positions

    @classmethod
    def stride_of(cls, values: dict[str, Any]) -> int:
        """The stride of settings that are not checked yet."""
        window, overlap = (values.get(name, getattr(cls, name)) for name in ("window", "overlap"))
        check_window(window, overlap)
        return int(window) - int(overlap)


@dataclass(frozen=True, kw_only=True)
class NoRecurrence(MechanismConfig):
    """Plain windows: the baseline, run through the same code."""

    mechanism: ClassVar[str] = NO_MEMORY
    learns: ClassVar[bool] = False

    def build(self, layers: int, width: int) -> None:
        return None
