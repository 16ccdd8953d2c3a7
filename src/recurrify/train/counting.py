"""How long a run has trained, and on how many tokens, stops and all."""

import time
from collections.abc import Mapping, Sequence
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


class CountSeconds(TrainerCallback):
    """Write into the log how long the run has trained, together with what it took before it was stopped and went on;
    and, where the trainer counts them, how many tokens."""

    def __init__(self) -> None:
        self.before, self.started = 0.0, 0.0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.before, self.started = seconds_trained(state.log_history) or 0.0, time.monotonic()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        entry: dict[str, float] = state.log_history[-1]
        entry["seconds"] = round(self.before + time.monotonic() - self.started, 3)
        if state.num_input_tokens_seen:
            entry["num_input_tokens_seen"] = state.num_input_tokens_seen


def seconds_trained(history: Sequence[Mapping[str, float]]) -> float | None:
    """By its last word; None where it has none."""
    return next((entry["seconds"] for entry in reversed(history) if "seconds" in entry), None)
