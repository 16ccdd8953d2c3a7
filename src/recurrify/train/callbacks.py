"""What watches a run: the clock, the numbers, and the person in front of it."""

import sys
import time
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from recurrify.console import LINE_SECONDS
from recurrify.errors import UserError
from recurrify.interrupts import Interrupt


class StopAfterMinutes(TrainerCallback):
    """End this invocation in good order, with everything saved, once its time is up."""

    def __init__(self, minutes: float) -> None:
        self.minutes = minutes
        self.deadline = float("inf")
        self.reached = False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.deadline = time.monotonic() + 60 * self.minutes

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if time.monotonic() >= self.deadline and state.global_step < state.max_steps:
            self.reached = True
            control.should_save = control.should_training_stop = True
        return control


class StopOnInterrupt(TrainerCallback, Interrupt):
    """The first Ctrl-C ends the run in good order after the step, saved; a second one ends it at once."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if self.heard:
            control.should_save = control.should_training_stop = True
        return control


class EndInOrder(TrainerCallback):
    """The last step is validated and saved wherever the interval would have put it."""

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if state.global_step >= state.max_steps:
            control.should_save = control.should_log = True
            control.should_evaluate = args.eval_strategy != "no"
        return control


class StopOnNonFinite(TrainerCallback):
    """Never let a loss or gradient that is not a number reach the weights."""

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        model: torch.nn.Module = kwargs["model"]
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if gradients and not bool(torch.isfinite(torch.nn.utils.get_total_norm(gradients))):
            raise non_finite("gradient", state.global_step + 1)


def non_finite(what: str, step: int) -> UserError:
    return UserError(
        f"The {what} is not finite at step {step}: training stopped before it could spoil the weights, and the "
        "checkpoints saved so far are good; lower the learning rate and use a new output folder, or look at the data."
    )


class ShowProgress(TrainerCallback):
    """A bar with loss, tokens per second and time left; plain lines where the output is not a terminal, or with a
    `label` that tells apart runs that share one."""

    def __init__(self, tokens_per_step: int, label: str = "", console: Console | None = None) -> None:
        self.tokens_per_step, self.label = tokens_per_step, label
        self.console = console or Console(stderr=True)
        self.bar: Progress | None = None
        self.started, self.first_step, self.last_line = 0.0, 0, 0.0
        self.loss, self.valid = "", ""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.started, self.first_step = time.monotonic(), state.global_step
        if not state.is_world_process_zero:
            return
        if self.console.is_terminal and not self.label:
            columns = (TextColumn("training"), BarColumn(), TextColumn("{task.percentage:3.0f}%"))
            text = TextColumn("{task.fields[text]}")
            self.bar = Progress(*columns, text, TimeElapsedColumn(), TimeRemainingColumn(), console=self.console)
            self.bar.add_task("train", total=state.max_steps, completed=state.global_step, text="")
            self.bar.start()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        seconds = time.monotonic() - self.started
        speed = (state.global_step - self.first_step) * self.tokens_per_step / max(seconds, 1e-9)
        text = f"step {state.global_step}/{state.max_steps}{self.loss}{self.valid}  {speed:,.0f} tokens/s"
        if self.bar is not None:
            self.bar.update(self.bar.tasks[0].id, completed=state.global_step, text=text)
        elif time.monotonic() - self.last_line > LINE_SECONDS or state.global_step == state.max_steps:
            self.last_line = time.monotonic()
            left = (state.max_steps - state.global_step) * seconds / max(state.global_step - self.first_step, 1)
            label = f"{self.label}: " if self.label else ""
            print(f"{label}{text}  {left / 60:.1f} min left", file=sys.stderr, flush=True)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        if logs and "loss" in logs:
            self.loss = f"  loss {logs['loss']:.3f}"

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        if metrics and "eval_loss" in metrics:
            self.valid = f"  valid {metrics['eval_loss']:.3f}"

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.close()

    def close(self) -> None:
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
