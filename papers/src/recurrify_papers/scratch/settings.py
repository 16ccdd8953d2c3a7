"""What a language model from scratch is trained with."""

import json
import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from recurrify.errors import UserError
from recurrify.records import RunRecord
from recurrify.train.settings import SCHEDULES
from recurrify_papers.data.wikipedia import is_text8
from recurrify_papers.models.language import ARCHITECTURES, text8_settings

SPEEDS = ("auto", "eager", "compile", "graph")
POINTS_OF_THE_CURVE = 500
MORE_WITHOUT_GRADIENTS = 4
"""So many times the symbols of a training step are scored at once: without gradients they take no more memory."""
MOST_LOGITS = 2**28
"""Scored at once, where that is more than in a training step: 1 GB, which a vocabulary of words would soon exceed."""
MEMORIES_IN_A_LANE = 20
UNTOLD_HEAD_WIDTH = 64
"""Of runs that do not say theirs: they were written when a head was so wide, whatever the width of the model."""


@dataclass(frozen=True, kw_only=True)
class ScratchSettings(RunRecord):
    """The defaults are the published 14-layer Transformer-XL's, but for 20,000 steps instead of 400,000."""

    arch: str
    """The architecture, by its name."""
    data: str
    """A file, a folder, a named corpus or a Hugging Face data set, with its training, validation and test parts."""
    valid: str | None = None
    """Another source, all of which is validated on instead of the data's own part."""
    text_field: str = "text"
    """Which field of JSON lines or of a data set holds the text."""
    symbols: str = "bytes"
    """characters, bytes, all-bytes, bytes-without-newlines, or a tokenizer's folder or name: shipped, or on the hub."""
    settings: dict[str, Any] = field(default_factory=dict)
    """The architecture's own, where they are not its defaults. On text8 a recurrence gets the dilations published for
    it, unless they are set."""
    eval_settings: dict[str, Any] = field(default_factory=dict)
    """What is different in validation and test, on the same weights: a longer memory, say."""
    steps: int = 20_000
    """Updates of the weights."""
    batch: int = 22
    """Lanes: stretches of the training part that are read side by side."""
    length: int = 512
    """Symbols of each lane in one step; gradients go no further back."""
    learning_rate: float = 2.5e-4
    """At its highest."""
    recurrence_learning_rate: float | None = None
    """Of gates, decays and angles, at its highest; it rises and falls with the other. None: the same."""
    schedule: str = "cosine"
    """Learning rate after the warm-up: constant_with_warmup, linear or cosine, both down to 0."""
    warmup_steps: int = 0
    """Steps of linear warm-up."""
    weight_decay: float = 0.0
    """With any, Adam becomes AdamW."""
    clip: float = 0.25
    """The largest norm of the gradient; 0: as large as it is."""
    eval_batch: int | None = None
    """Lanes in validation and test; None: as many as `scoring_lanes` finds, at least `batch`."""
    eval_length: int | None = None
    """Symbols of a segment in validation and test; None takes `length`."""
    valid_every: int = 22_528_000
    """Validate each time so many training symbols have passed."""
    valid_tokens: int = 500_000
    """Validate on the first so many symbols."""
    test_tokens: int | None = None
    """At the end, score the first so many symbols of the validation and of the test part; None: all of both."""
    precision: str = "auto"
    """auto (bf16 on GPUs that have it, else fp32), bf16 or fp32."""
    speed: str = "auto"
    """How a step runs: eager, compile (torch.compile), graph (compiled and captured as one CUDA graph), or auto: graph
    on CUDA but for LSTM and GRU, which are one call of cuDNN's; eager elsewhere."""
    seed: int = 0
    """Of the weights and of dropout."""
    data_checksum: str | None = None
    """Of the training text, written down when the run begins."""

    def __post_init__(self) -> None:
        # Not to those of a run that has begun: it goes on as it is.
        if self.data_checksum is None and is_text8(self.data):
            object.__setattr__(self, "settings", text8_settings(self.arch, self.settings) | self.settings)
        for name in ("settings", "eval_settings"):
            # As they will be read back: tuples become lists.
            object.__setattr__(self, name, json.loads(json.dumps(getattr(self, name))))
        at_least = dict.fromkeys(("steps", "batch", "length", "valid_every"), 1) | {"valid_tokens": 2}
        at_least |= dict.fromkeys(("warmup_steps", "weight_decay", "clip", "seed"), 0)
        at_least |= {"eval_batch": 1, "eval_length": 1, "test_tokens": 2}
        for name, least in at_least.items():
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value >= least):
                raise UserError(f"`{name}` must be at least {least}: got {value}.")
        for name in ("learning_rate", "recurrence_learning_rate", "max_minutes"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UserError(f"`{name}` must be a positive number: got {value}.")
        if self.seed >= 2**32:
            raise UserError(f"`seed` must lie between 0 and 2³² − 1: got {self.seed}.")
        recurrent = [name for name, known in ARCHITECTURES.items() if known.recurrence is not None]
        if self.recurrence_learning_rate is not None and self.arch not in recurrent:
            raise UserError(
                f"`recurrence_learning_rate` is for architectures with recurrence, {', '.join(recurrent)}: "
                f"{self.arch} has none, so leave it out."
            )
        choices = {"schedule": SCHEDULES, "precision": ("auto", "bf16", "fp32"), "speed": SPEEDS}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise UserError(f"`{name}` must be one of {', '.join(known)}: got {getattr(self, name)!r}.")

    @classmethod
    def read(cls, folder: str | Path) -> Self | None:
        found = super().read(folder)
        known = ARCHITECTURES.get(found.arch) if found is not None else None
        if found is None or known is None or "head_width" not in known.settings():
            return found
        return replace(found, settings={"head_width": UNTOLD_HEAD_WIDTH} | found.settings)

    def as_built(self, config: Any) -> Self:
        """With the number that a `head_width` left to the width came to: the run keeps it, whatever the default."""
        if not hasattr(config, "head_width"):
            return self
        return replace(self, settings=self.settings | {"head_width": config.head_width})

    @property
    def symbols_per_step(self) -> int:
        return self.batch * self.length

    @property
    def scored_length(self) -> int:
        """Symbols of a segment in validation and test."""
        return self.eval_length or self.length

    def scoring_lanes(self, symbols: int, vocabulary: int, remembered: int | None) -> int:
        """Lanes in which a stream of so many symbols is scored, by a model that remembers so many positions."""
        if self.eval_batch is not None:
            return self.eval_batch
        at_once = min(MORE_WITHOUT_GRADIENTS * self.symbols_per_step, MOST_LOGITS // vocabulary)
        # Every lane begins with nothing remembered: in one of 20 memories, 1 symbol of 20 sees less than it could. A
        # model that does not say how far it remembers is taken to remember a training segment.
        shortest_lane = MEMORIES_IN_A_LANE * max(self.length if remembered is None else remembered, self.scored_length)
        # A short stream is scored in the lanes of training all the same.
        return max(self.batch, min(at_once // self.scored_length, symbols // shortest_lane))

    @property
    def valid_steps(self) -> int:
        """Steps between validations."""
        return max(1, round(self.valid_every / self.symbols_per_step))

    @property
    def log_steps(self) -> int:
        """Steps that make one point of the training curve; only there is the GPU waited for."""
        return max(1, math.ceil(self.steps / POINTS_OF_THE_CURVE))

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant_with_warmup":
            return self.learning_rate
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        falling = 1 - done if self.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
        return self.learning_rate * falling
