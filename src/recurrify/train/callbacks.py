"""Callbacks of a training run: when it stops, what it logs, and what it prints."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from recurrify.console import Pace, heartbeat, say, time_left
from recurrify.errors import UserError
from recurrify.evaluate.perplexity import StoppedEvaluation
from recurrify.interrupts import Interrupt
from recurrify.train.checkpoints import finish_checkpoint


class StopEarly(TrainerCallback, Interrupt):
    """Save and stop after a step once the time is up, or after Ctrl-C or a signal of a batch system.

    Processes that train together agree after each step, so that all of them stop at the same one.
    """

    def __init__(self, minutes: float) -> None:
        super().__init__()
        self.minutes, self.deadline = minutes, float("inf")
        self.interrupted, self.out_of_time = False, False

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.deadline = time.monotonic() + 60 * self.minutes

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        late = time.monotonic() >= self.deadline and state.global_step < state.max_steps
        self.interrupted, self.out_of_time = _any_process((self.heard, late), args)
        if self.interrupted or self.out_of_time:
            control.should_save = control.should_training_stop = True
        return control

    def check_validation(self) -> None:
        """Raise `StoppedEvaluation` after a signal; called often. The run validates this step when it resumes."""
        if self.heard:
            raise StoppedEvaluation


def _any_process(flags: Sequence[bool], args: TrainingArguments) -> list[bool]:
    """Each flag, set if it is set in any of the processes that train together."""
    if args.world_size == 1:
        return list(flags)
    shared = torch.tensor(flags, dtype=torch.int32, device=args.device)
    torch.distributed.all_reduce(shared, torch.distributed.ReduceOp.MAX)
    return [bool(flag) for flag in shared.tolist()]


class EndInOrder(TrainerCallback):
    """Validate and save the last step, whatever the interval; finish each checkpoint before an old one is removed."""

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if args.world_size > 1:
            torch.distributed.barrier()  # each process has a file in it
        if state.is_world_process_zero:
            checkpoint = Path(str(args.output_dir)) / f"checkpoint-{state.global_step}"
            # Of sharded runs: a pickled copy of the safetensors.
            (checkpoint / "pytorch_model_fsdp.bin").unlink(missing_ok=True)
            finish_checkpoint(checkpoint)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> TrainerControl:
        if state.global_step >= state.max_steps:
            control.should_save = control.should_log = True
            control.should_evaluate = args.eval_strategy != "no"
        return control


class StopOnNonFinite(TrainerCallback):
    """Stop before a loss or gradient that is not finite reaches the weights."""

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        model: torch.nn.Module = kwargs["model"]
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        if gradients and not bool(torch.isfinite(torch.nn.utils.get_total_norm(gradients))):
            raise non_finite("gradient", state.global_step + 1)


def non_finite(what: str, step: int) -> UserError:
    """The error for a loss or gradient that is not finite."""
    return UserError(
        f"The {what} is not finite at step {step}: lower the learning rate and use a new output folder, or check the "
        "data. The weights of this step were not changed; the checkpoints saved so far are intact."
    )


class CountSeconds(TrainerCallback):
    """Log the seconds trained so far, those before a resume included, and the tokens, if the trainer counts them."""

    def __init__(self) -> None:
        self.before, self.started = 0.0, 0.0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.before, self.started = seconds_trained(state.log_history) or 0.0, perf_counter()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        entry: dict[str, float] = state.log_history[-1]
        entry["seconds"] = round(self.before + perf_counter() - self.started, 3)
        if state.num_input_tokens_seen:
            entry["num_input_tokens_seen"] = state.num_input_tokens_seen


def seconds_trained(history: Sequence[Mapping[str, float]]) -> float | None:
    """The seconds that a run trained, resumes included; None if its log has none."""
    return next((entry["seconds"] for entry in reversed(history) if "seconds" in entry), None)


class ShowProgress(TrainerCallback):
    """A progress bar with loss, speed and time left; lines if there is no terminal, or if a `label` names one of
    several runs in it."""

    def __init__(
        self, tokens_per_step: int, label: str = "", console: Console | None = None, first_step: str = ""
    ) -> None:
        self.tokens_per_step, self.label = tokens_per_step, label
        self.console = console or Console(stderr=True)
        self.shown = ExitStack()
        self.bar: Progress | None = None
        self.started, self.first_step = 0.0, 0
        self.pace = Pace()
        self.text, self.loss, self.valid = f"preparing the first step{first_step}", "", ""
        self.validated, self.steps = 0, 0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.started, self.first_step = time.monotonic(), state.global_step
        self.pace.report(state.global_step)
        if not state.is_world_process_zero:
            return
        if self.console.is_terminal and not self.label:
            columns = (TextColumn("training"), BarColumn(), TextColumn("{task.percentage:3.0f}%"))
            text = TextColumn("{task.fields[text]}")
            self.bar = Progress(*columns, text, TimeElapsedColumn(), TimeRemainingColumn(), console=self.console)
            self.bar.add_task("train", total=state.max_steps, completed=state.global_step, text=self.text)
            self.shown.enter_context(heartbeat(None))
            self.shown.enter_context(self.bar)
        else:
            say(self._line())
            self.shown.enter_context(heartbeat(self._line))

    def _line(self) -> str:
        text = f"{self.label}: {self.text}" if self.label else self.text
        waited = time.monotonic() - self.started
        return f"{text}: {waited:.0f} s" if self.steps == 0 and waited >= 1 else text

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if not state.is_world_process_zero:
            return
        self.steps += 1
        done, seconds = state.global_step - self.first_step, time.monotonic() - self.started
        self.pace.report(state.global_step)
        speed = done * self.tokens_per_step / max(seconds, 1e-9)
        self.text = f"step {state.global_step}/{state.max_steps}{self.loss}{self.valid}  {speed:,.0f} tokens/s"
        if self.bar is not None:
            self.bar.update(self.bar.tasks[0].id, completed=state.global_step, text=self.text)
            return
        self.text += f"  {time_left(self.pace.seconds_left(state.max_steps) or 0.0)}"
        if state.global_step == state.max_steps:
            say(self._line())

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

    def show_validation(self, state: TrainerState, tokens: int) -> None:
        """Show that so many more tokens of the validation are done."""
        self.validated += tokens
        self.text = f"step {state.global_step}/{state.max_steps}{self.loss}  validating: {self.validated:,} tokens"
        if self.bar is not None:
            self.bar.update(self.bar.tasks[0].id, text=self.text)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **_: Any,
    ) -> None:
        self.validated = 0
        if metrics and "eval_loss" in metrics:
            self.valid = f"  valid {metrics['eval_loss']:.3f}"

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Remove the bar, or end the lines."""
        self.shown.close()
        self.bar = None
