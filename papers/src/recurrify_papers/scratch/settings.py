"""Settings of a language model that is trained from scratch. Importing this module does not import torch."""

import json
import math
from dataclasses import dataclass
from typing import Any

from recurrify import UserError
from recurrify.records import RunRecord
from recurrify.settings import setting

ARCHITECTURES = ("xl", "rsa-xl", "brt", "rsa-brt", "lstm", "gru", "transformer", "rsa")
WITH_RECURRENCE = tuple(name for name in ARCHITECTURES if name.startswith("rsa"))
INPUT, BUDGET, TRAINING, EVALUATION = "Input and output", "Budget and validation", "Training", "Evaluation"
EVAL = "eval."
"""Prefix of settings that differ in validation and test."""
POINTS_OF_THE_CURVE = 500
SCORED_AT_ONCE = 4
"""Training steps whose symbols fit into the memory of one scoring step, which has no gradients."""
MOST_LOGITS = 2**28
"""Limit of a scoring step, 1 GB, which matters for the vocabulary of a tokenizer."""
MEMORIES_IN_A_ROW = 20


@dataclass(frozen=True, kw_only=True)
class ScratchSettings(RunRecord):
    """The defaults are those of the published 14-layer Transformer-XL, with 20,000 instead of 400,000 steps."""

    arch: str = setting(choices=ARCHITECTURES, panel=INPUT, basic=True)
    """Architecture: xl, rsa-xl, brt, rsa-brt, lstm, gru, transformer or rsa."""
    data: str = setting(panel=INPUT, basic=True)
    """Text source with a training, a validation and a test part."""
    valid: str | None = setting(None, panel=INPUT)
    """Validate on all of this source instead."""
    text_field: str = setting("text", panel=INPUT)
    """Field of JSON lines or of a data set that holds the text."""
    symbols: str = setting("bytes", panel=INPUT, basic=True)
    """characters, bytes, all-bytes, bytes-without-newlines, or a tokenizer."""
    settings: dict[str, Any] = setting(factory=dict, option=False)  # noqa: RUF009
    """Settings of the architecture; `eval.NAME` is one that differs in validation and test, with the same weights."""
    steps: int = setting(20_000, at_least=1, panel=BUDGET, basic=True)
    """Updates of the weights."""
    batch: int = setting(22, at_least=1, panel=TRAINING, basic=True)
    """Batch rows; each reads its own part of the text."""
    length: int = setting(512, at_least=1, panel=TRAINING, basic=True)
    """Symbols of a row in one step; gradients reach no further back."""
    learning_rate: float = setting(2.5e-4, positive=True, panel=TRAINING, basic=True)
    """Peak learning rate."""
    recurrence_learning_rate: float | None = setting(None, positive=True, panel=TRAINING)
    """Peak learning rate of RSA's gates, decays and angles; None: the same."""
    schedule: str = setting("cosine", choices=("constant_with_warmup", "linear", "cosine"), panel=TRAINING)
    """Learning rate after the warm-up: constant_with_warmup, linear or cosine."""
    lowest_rate: float = setting(0.0, at_least=0, at_most=1, option=False)
    """End of a linear or cosine schedule, as a share of the peak."""
    warmup_steps: int = setting(0, at_least=0, panel=TRAINING)
    """Steps of linear warm-up."""
    weight_decay: float = setting(0.0, at_least=0, panel=TRAINING)
    """Weight decay; a value above 0 selects AdamW."""
    max_grad_norm: float = setting(0.25, at_least=0, panel=TRAINING, formerly="clip")
    """Gradient-norm clipping (0 = off)."""
    eval_batch: int | None = setting(None, at_least=1, panel=EVALUATION)
    """Rows in validation and test; None: `batch`, or more for a long text."""
    eval_length: int | None = setting(None, at_least=1, panel=EVALUATION)
    """Symbols of a segment in validation and test; None: `length`."""
    valid_every: int = setting(22_528_000, at_least=1, panel=BUDGET)
    """Training symbols between validations."""
    valid_tokens: int = setting(500_000, at_least=2, panel=BUDGET)
    """Validate on the first this many symbols."""
    test_tokens: int | None = setting(None, at_least=2, panel=EVALUATION)
    """Symbols of the validation and test part scored at the end; None: all."""
    precision: str = setting("auto", choices=("auto", "bf16", "fp32"), panel=TRAINING)
    """auto (bf16 on GPUs that have it, else fp32), bf16 or fp32."""
    speed: str = setting("auto", choices=("auto", "eager", "compile", "graph"), panel=TRAINING)
    """eager, compile, graph (compiled and captured), or auto: graph on CUDA except for LSTM and GRU, else eager."""
    seed: int = setting(0, at_least=0, at_most=2**32 - 1, panel=TRAINING)
    """Seed of the weights and of dropout."""
    data_checksum: str | None = setting(None, recorded=True, option=False)
    """Checksum of the training text, set when the run starts."""
    held_out_checksum: str | None = setting(None, recorded=True, option=False)
    """Checksum of the validation and test text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.recurrence_learning_rate is not None and self.arch not in WITH_RECURRENCE:
            raise UserError(
                f"`recurrence_learning_rate` is for {', '.join(WITH_RECURRENCE)}: {self.arch} has no recurrence."
            )
        checked: dict[str, Any] = {}
        if self.settings:
            from recurrify_papers.models.language import checked_settings  # imports torch

            for name, value in self.settings.items():
                own = name.removeprefix(EVAL)
                if own == "target_length":
                    option = "--length" if name == own else "--eval-length"
                    raise UserError(f"`target_length` is the length of a segment: use {option}.")
                checked[name] = checked_settings(self.arch, {own: value})[own]
        # As JSON returns them: tuples become lists.
        object.__setattr__(self, "settings", json.loads(json.dumps(checked)))

    @property
    def model_settings(self) -> dict[str, Any]:
        """Settings of the architecture in training."""
        return {name: value for name, value in self.settings.items() if not name.startswith(EVAL)}

    @property
    def eval_settings(self) -> dict[str, Any]:
        """Settings that differ in validation and test."""
        return {name.removeprefix(EVAL): value for name, value in self.settings.items() if name.startswith(EVAL)}

    @property
    def symbols_per_step(self) -> int:
        return self.batch * self.length

    @property
    def scored_length(self) -> int:
        """Symbols of a segment in validation and test."""
        return self.eval_length or self.length

    def scoring_rows(self, symbols: int, vocabulary: int, memory: int | None) -> int:
        """Rows in which a stream of `symbols` is scored by a model that remembers `memory` positions.

        Every row starts without memory. In a row of 20 memories, 5 % of the symbols see less than they could.
        """
        if self.eval_batch is not None:
            return self.eval_batch
        at_once = min(SCORED_AT_ONCE * self.symbols_per_step, MOST_LOGITS // vocabulary)
        shortest_row = MEMORIES_IN_A_ROW * max(self.length if memory is None else memory, self.scored_length)
        return max(self.batch, min(at_once // self.scored_length, symbols // shortest_row))

    @property
    def valid_steps(self) -> int:
        """Steps between validations."""
        return max(1, round(self.valid_every / self.symbols_per_step))

    @property
    def log_steps(self) -> int:
        """Steps per point of the training curve. Only there the program waits for the GPU."""
        return max(1, math.ceil(self.steps / POINTS_OF_THE_CURVE))

    def rate(self, step: int) -> float:
        """The learning rate of a step, counted from 0."""
        if step < self.warmup_steps:
            return self.learning_rate * (step + 1) / self.warmup_steps
        if self.schedule == "constant_with_warmup":
            return self.learning_rate
        done = (step - self.warmup_steps) / max(1, self.steps - self.warmup_steps)
        left = 1 - done if self.schedule == "linear" else 0.5 * (1 + math.cos(math.pi * done))
        return self.learning_rate * (self.lowest_rate + (1 - self.lowest_rate) * left)
