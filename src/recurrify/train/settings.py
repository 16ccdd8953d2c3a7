"""Everything a training run is made of, in one flat record that is written beside its weights and read back."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from recurrify.errors import UserError
from recurrify.known_names import BEST
from recurrify.records import RunRecord

SCHEDULES = ("constant_with_warmup", "linear", "cosine")
"""Learning rates after the warm-up."""


@dataclass(frozen=True, kw_only=True)
class TrainerSettings(RunRecord):
    """What every run on Hugging Face's Trainer is told."""

    batch: int = 8
    """Sequences in a step, per device."""
    accumulate: int = 1
    """Batches whose gradients are added up before each update."""
    learning_rate: float = 5e-5
    weight_decay: float = 0.0
    warmup_steps: int = 100
    max_grad_norm: float = 1.0
    precision: str = "auto"
    """auto (bf16 on GPUs that have it, else fp32), bf16 or fp32."""
    seed: int = 0
    data_checksum: str | None = None
    """Of the training data, written down when the run begins."""

    def check(self, at_least: Mapping[str, float], positive: Sequence[str]) -> None:
        """Refuse values that cannot be: the common ones, those in `at_least`, and those that must be `positive`."""
        common = dict.fromkeys(("warmup_steps", "weight_decay", "max_grad_norm", "seed"), 0)
        for name, least in {"batch": 1, "accumulate": 1, **common, **at_least}.items():
            if not getattr(self, name) >= least:
                raise UserError(f"`{name}` must be at least {least}: got {getattr(self, name)}.")
        for name in ("learning_rate", "max_minutes", *positive):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UserError(f"`{name}` must be a positive number: got {value}.")
        if self.seed >= 2**32:
            raise UserError(f"`seed` must lie between 0 and 2³² − 1: got {self.seed}.")
        self.check_choice("precision", "auto", "bf16", "fp32")

    def check_choice(self, name: str, *known: str) -> None:
        if getattr(self, name) not in known:
            raise UserError(f"`{name}` must be {', '.join(known[:-1])} or {known[-1]}: got {getattr(self, name)!r}.")


@dataclass(frozen=True, kw_only=True)
class TrainSettings(TrainerSettings):
    """The defaults are the paper's where it names a value."""

    may_differ: ClassVar[tuple[str, ...]] = ("max_minutes", "out", "compile", "memory_budget")

    model: str
    """The base: a Hugging Face name, a folder, a .gguf file, or a recurrify model to go on with."""
    data: str
    """Training text: a file, a folder, a named corpus or a Hugging Face data set."""
    valid: str | None = None
    """Validation text; None takes the training source's own validation split."""
    text_field: str = "text"
    """Which field of JSON lines or of a data set holds the text."""
    recurrence: dict[str, Any] = field(default_factory=lambda: {"mechanism": BEST})
    """The mechanism and its settings, as RecurrenceConfig.to_dict writes them; `best` for what served best for models
    of the base's kind."""
    windows: int = 20
    """Windows in one training sequence, through which gradients flow back."""
    epochs: float = 2.0
    """Passes over the training text, unless `max_tokens` ends the run before."""
    max_tokens: int | None = None
    """Stop after about this many training tokens."""
    learning_rate: float = 5e-5
    """For the base model's weights."""
    added_learning_rate: float | None = None
    """For the weights that recurrence added; None takes `learning_rate`."""
    freeze_base: bool = False
    """Train only what recurrence added."""
    schedule: str = "constant_with_warmup"
    """Learning rate after the warm-up: constant_with_warmup, linear or cosine."""
    valid_every: int = 2_000_000
    """Validate (and save) each time so many training tokens have passed."""
    valid_tokens: int = 15_000
    """Validate on the first so many tokens of each validation document."""
    patience: int = 3
    """Stop after so many validations in a row without a better one; 0 never stops early."""
    compile: str = "auto"
    """Whether training windows are compiled: on or off; graphs, on a CUDA GPU, also captures whole steps. auto is
    graphs with one CUDA GPU, on with several, and off without."""
    memory_budget: float = 1.0
    """The share of activations that compiled windows keep for the backward pass; the rest is computed again."""
    group_by_length: bool = False
    """Put sequences of similar length into one batch: less padding where documents are short."""

    def __post_init__(self) -> None:
        self.check(
            {"windows": 1, "valid_every": 1, "valid_tokens": 2, "patience": 0},
            ("epochs", "added_learning_rate", "max_tokens"),
        )
        self.check_choice("compile", "auto", "on", "off", "graphs")
        if not 0 <= self.memory_budget <= 1:
            raise UserError(
                f"`memory_budget` is a share, from 0 (compute all again) to 1 (keep all): got {self.memory_budget!r}."
            )
        if self.memory_budget < 1 and self.recurrence.get("checkpoint"):
            raise UserError(
                f"`memory_budget` is {self.memory_budget:g}, but checkpointed windows keep nothing at all: add "
                "--no-checkpoint, or leave the budget out."
            )
        self.check_choice("schedule", *SCHEDULES)
        mechanism = self.recurrence.get("mechanism")
        if mechanism == BEST:
            return  # what is left is asked again once the base has told which that is
        learns = mechanism not in ("none", "kv")
        if learns and 1 in (self.windows, self.recurrence.get("bptt_windows")):
            raise UserError(
                f"With windows={self.windows} and bptt_windows={self.recurrence.get('bptt_windows')} no gradient "
                "crosses from one window to the next, so the memory would learn nothing: take at least 2 of each."
            )
        if self.freeze_base and not learns:
            raise UserError(
                f"`freeze_base` with mechanism {mechanism!r} leaves nothing to train: leave it out, or name one "
                "that learns."
            )
