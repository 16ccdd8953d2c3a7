"""What goes beyond the papers, by size: which mechanisms at which sizes, how many tokens, which rotary model.

Tokens of the small size, each run's own training tokens added up (8 M on books, 5 M on wiki text; scores come on top):
`mechanisms` 519 M (135 M of them choose learning rates), `starts` 153 M, `frozen` 206 M, `tokens` 876 M: 1.75 G. Before
them comes the base, 100 M. `unfamiliar` and `rotary` are apart: the latter takes 117 M tokens of a model four times as
large.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from recurrify.errors import UserError

Recurrence = dict[str, Any]

PLAIN = "plain"
PAPERS = "carry-1"
"""The paper's own mechanism, by its name in the rows."""
SMOLLM = "HuggingFaceTB/SmolLM2-135M"
WHOLE_WINDOW = "window"
"""For `keep` of the mechanism kv: as much as a window holds beside the sinks."""


def tail(size: int, **more: Any) -> Recurrence:
    return {"mechanism": "tail", "tail": size, "pooled_slots": 1, **more}


def lookback(keep: int) -> Recurrence:
    return {"mechanism": "lookback", "keep": keep}


def memory_tokens(tokens: int, **more: Any) -> Recurrence:
    return {"mechanism": "memory_tokens", "tokens": tokens, **more}


def summary(tokens: int, limit: int = 4) -> Recurrence:
    return {"mechanism": "summary", "tokens": tokens, "limit": limit}


def compress(size: int) -> Recurrence:
    return {"mechanism": "compress", "size": size}


def kv(keep: int | str, **more: Any) -> Recurrence:
    return {"mechanism": "kv", "keep": keep, **more}


MECHANISMS: dict[str, Recurrence] = {
    "carry-1": {"mechanism": "carry"},
    "carry-4": {"mechanism": "carry", "slots": 4},
    "carry-every-layer": {"mechanism": "carry", "insert_layer": "all"},
    "tail-16": tail(16),
    "tail-32": tail(32),
    "tail-64": tail(64),
    "tail-256": tail(256),
    "gated-tail-16": tail(16, gated=True),
    "gated-tail-64": tail(64, gated=True),
    "lookback-64": lookback(64),
    "lookback-256": lookback(256),
    "memory-tokens-4": memory_tokens(4),
    "memory-tokens-16": memory_tokens(16),
    "gated-memory-tokens-16": memory_tokens(16, gated=True),
    "summary-4": summary(4),
    "summary-16": summary(16),
    "compress-32": compress(32),
    "compress-64": compress(64),
}
"""Every mechanism at several sizes; the first of each kind is the one whose learning rate is chosen."""

ROTARY: dict[str, Recurrence] = {
    "carry-1": {"mechanism": "carry"},
    "tail-16": tail(16),
    "tail-64": tail(64),
    "memory-tokens-16": memory_tokens(16),
    "kv-16": kv(16),
    "kv-64": kv(64),
    "kv-window": kv(WHOLE_WINDOW),
    "sliding-window": kv(WHOLE_WINDOW, sliding=True),
}


@dataclass(frozen=True, kw_only=True)
class Beyond:
    mechanisms: Mapping[str, Recurrence] = field(default_factory=lambda: MECHANISMS)
    """By name; each one's size is part of the name."""
    differences: tuple[str, ...] = ()
    """How these experiments differ from what was published; empty: as the size's others do."""
    only: tuple[str, ...] | None = None
    """Names to which rows are narrowed; a learning rate is chosen by the first of its kind all the same."""
    training: dict[str, Any] = field(default_factory=dict)
    """What differs from the fine-tunings of the paper's tables."""
    wiki_training: dict[str, Any] = field(default_factory=dict)
    """What differs on wiki text."""
    seeded: tuple[str, ...] = ()
    """Names that take every seed, as plain windows and the paper's mechanism do; `ours` should be among them."""
    longer: tuple[str, ...] = ("plain", "lookback-256")
    """Names, plain windows among them, that are trained in longer windows too."""
    longer_window: int = 600
    untrained: tuple[str, ...] = ()
    """Names that are also scored as they start; plain windows must be among them, for these are what they gain over."""
    ours: str = "lookback-256"
    """The name of what is best here: its curves are drawn over tokens and for several starts, beside the paper's."""
    slots: str = "tail-64"
    """The name of the best that works by slots, which have starts of their own."""
    frozen: tuple[str, ...] = (
        "carry-1",
        "tail-16",
        "tail-64",
        "lookback-64",
        "memory-tokens-16",
        "summary-16",
        "compress-32",
    )
    """Names of mechanisms that are trained on a frozen base too."""
    frozen_candidates: tuple[float, ...] = (3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
    """Learning rates of added weights on a frozen base."""
    token_counts: tuple[int, ...] = (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000)
    """Lengths of fine-tuning."""
    seeded_tokens: int = 10_000_000
    """The longest of them that takes every seed."""
    token_rates: tuple[float, ...] = (1.0, 2.0)
    """Multiples of a kind's learning rate, which short runs have chosen and which may be too low for long ones: of
    these, runs longer than `seeded_tokens` take the one that validates best."""
    start_tokens: int = 5_000_000
    """Length of the runs that show what starts fast."""
    start_points: int = 10
    """How often these are validated."""
    curriculum: tuple[tuple[int, float], ...] = ((2, 0.2), (5, 0.3), (20, 0.5))
    """Windows in a training sequence, and for which share of the tokens."""
    rotary_model: str | None = SMOLLM
    """A model with rotary positions; None makes a small one with random weights."""
    rotary: Mapping[str, Recurrence] = field(default_factory=lambda: ROTARY)
    rotary_seeds: tuple[int, ...] = (0, 1)
    rotary_training: dict[str, Any] = field(default_factory=dict)
    """What differs from the other fine-tunings on books."""
    rotary_candidates: tuple[float, ...] = (1e-5, 3e-5, 1e-4)
    rotary_added_rate: float = 5.0
    """The added weights' learning rate, as a multiple of the base's."""
    rotary_tuning_tokens: int | None = None
    """Length of the runs that choose learning rates; None is the length of the others."""
    rotary_test_tokens: int | None = None
    """How much of each test document is scored; None is all of it."""

    def compared(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those of the names that have rows."""
        return tuple(name for name in names if self.only is None or name in self.only)

    def narrowed(self, names: Iterable[str]) -> "Beyond":
        """With rows of these mechanisms alone, beside plain windows, the paper's mechanism and the best found here."""
        wanted = dict.fromkeys(names)
        unknown = next((name for name in wanted if name not in (PLAIN, *self.mechanisms)), None)
        if unknown is not None:
            known = ", ".join(self.mechanisms)
            raise UserError(f"There is no mechanism {unknown!r} to compare at this size: choose from {known}.")
        return replace(self, only=tuple(dict.fromkeys((*self.always, *wanted))))

    @property
    def always(self) -> tuple[str, ...]:
        """What all else is held against."""
        return PLAIN, PAPERS, self.ours


UNTRAINED = ("plain", "lookback-64", "lookback-256")
PAPER = Beyond(seeded=tuple(MECHANISMS), untrained=UNTRAINED)
SMALL = Beyond(
    differences=(
        "The base is a GPT-2-architecture model of 34 M parameters and 1,024 positions, pretrained here on 100 M "
        "tokens of the training parts of both corpora.",
        "Where no other length is told, fine-tuning takes 8 M tokens of novels, or of the first books of PG-19, and "
        "5 M of enwik8; 8 sequences of 10 windows in a step.",
        "Each kind of memory, and plain windows, take the best of three learning rates on enwik8; added weights learn "
        "at five times that rate, on a frozen base at the best of five rates. Runs of 10 M tokens and more take the "
        "better of that rate and twice that.",
    ),
    # As many tokens in a step as the tables have, in half as many windows of twice as many rows, which fill a device
    # better, and are captured in half the time.
    training={"batch": 8, "windows": 10, "max_tokens": 8_000_000, "valid_every": 4_000_000},
    # Validated once, at their end, where there is nothing to choose from.
    wiki_training={"max_tokens": 5_000_000, "valid_every": 6_000_000, "valid_tokens": 2_000},
    seeded=("tail-64", "lookback-256", "memory-tokens-16", "compress-32"),
    untrained=UNTRAINED,
    seeded_tokens=3_000_000,
    start_tokens=3_000_000,
    curriculum=((2, 0.2), (5, 0.3), (10, 0.5)),
    # A base of 135 M parameters: fewer tokens.
    rotary_training={"max_tokens": 5_000_000, "valid_every": 2_500_000, "warmup_steps": 20, "compile": "auto"},
    # What suits a model of 15 M parameters that never saw such text: at 1e-4 it learned far too slowly.
    rotary_candidates=(3e-4, 1e-3, 3e-3),
    rotary_tuning_tokens=1_500_000,
    rotary_test_tokens=15_000,
)
TINY = Beyond(
    mechanisms={
        "carry-1": {"mechanism": "carry"},
        "tail-4": tail(4),
        "tail-16": tail(16),
        "gated-tail-4": tail(4, gated=True),
        "lookback-16": lookback(16),
        "memory-tokens-4": memory_tokens(4),
        "summary-4": summary(4),
        "compress-8": compress(8),
    },
    seeded=("lookback-16",),
    longer=("plain", "tail-16"),
    ours="lookback-16",
    slots="tail-16",
    untrained=("plain", "lookback-16"),
    longer_window=96,
    frozen=("carry-1", "tail-16", "memory-tokens-4"),
    frozen_candidates=(1e-3, 1e-2),
    token_counts=(5_000, 10_000, 20_000, 40_000),
    start_tokens=16_000,
    start_points=4,
    curriculum=((2, 0.5), (4, 0.5)),
    rotary_model=None,
    rotary={
        "carry-1": {"mechanism": "carry"},
        "tail-16": tail(16),
        "kv-16": kv(16),
        "kv-window": kv(WHOLE_WINDOW),
        "sliding-window": kv(WHOLE_WINDOW, sliding=True),
    },
    rotary_test_tokens=300,
    rotary_seeds=(0,),
    rotary_candidates=(1e-3, 3e-3),
    rotary_added_rate=1.0,
)
