"""Fine-tuning over windows on Hugging Face's Trainer."""

import math
import os
import sys
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import EarlyStoppingCallback, TrainerState, TrainingArguments

from recurrify.data.sequences import IGNORED, TrainingSequences, collate
from recurrify.errors import UserError
from recurrify.modeling.model import RecurrentPreTrainedModel
from recurrify.speed.compiled import compile_windows
from recurrify.speed.graphed import graph_steps
from recurrify.speed.verify import verify_windows
from recurrify.train.callbacks import StopOnNonFinite, non_finite
from recurrify.train.running import (
    TrainOutcome,
    Validate,
    ValidatingTrainer,
    compile_mode,
    run_to_end,
    trainer_arguments,
)
from recurrify.train.settings import TrainSettings


class RecurrentTrainer(ValidatingTrainer):
    """Trainer with validation on whole documents, a learning rate for what was added, and a check of each loss."""

    def __init__(
        self, *args: Any, added_learning_rate: float | None, tokens_per_step: int | None = None, **kwargs: Any
    ) -> None:
        super().__init__(*args, **kwargs)
        self.added_learning_rate = added_learning_rate
        self.tokens_per_step = tokens_per_step
        self.is_verified = False
        """Whether the compiled step was compared with the eager one."""

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        # Trainer counts what it finds as `shift_labels`; the model takes it by a name in which Trainer, when it
        # evaluates, does not see a second set of labels to wait for.
        inputs = {("targets" if name == "shift_labels" else name): value for name, value in inputs.items()}
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if isinstance(loss, Tensor) and self.model.training and not loss.requires_grad:
            # A frozen base and texts of one window: nothing was carried, so there is nothing to learn from them.
            loss = loss + 0.0 * sum(value.sum() for value in self.model.added_parameters().values())
        return loss

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        targets = inputs.get("shift_labels")
        if targets is not None:
            # Batches differ in length, and those of an epoch's beginning from those of its end.
            tokens = (targets != IGNORED).sum().to(self.args.device)
            if self.state.global_step and not self.state.num_input_tokens_seen and self.tokens_per_step:
                # The steps before were taken by a version that did not count.
                self.state.num_input_tokens_seen = self.state.global_step * self.tokens_per_step
            self.state.num_input_tokens_seen += int(self.accelerator.gather(tokens).sum().item())
        if not self.is_verified:
            self.is_verified = True
            batch = {("targets" if name == "shift_labels" else name): value for name, value in inputs.items()}
            verify_windows(self.model.train(), self._prepare_inputs(batch), self.compute_loss_context_manager)
        loss = super().training_step(model, inputs, *args, **kwargs)
        if not bool(torch.isfinite(loss)):
            raise non_finite("loss", self.state.global_step + 1)
        return loss

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        optimizer = super().create_optimizer(model)
        if self.added_learning_rate is not None:
            _split_added(optimizer, self.model, self.added_learning_rate)
        return optimizer


def _split_added(optimizer: torch.optim.Optimizer, model: Any, rate: float) -> None:
    """Move the added parameters of each group into a group of their own with this learning rate."""
    added = {id(parameter) for parameter in model.added_parameters().values()}
    for group in list(optimizer.param_groups):
        own = [p for p in group["params"] if id(p) in added]
        group["params"] = [p for p in group["params"] if id(p) not in added]
        if own:
            rest = {name: value for name, value in group.items() if name not in ("params", "lr")}
            optimizer.add_param_group({**rest, "params": own, "lr": rate})


def training_arguments(settings: TrainSettings, sequences: TrainingSequences, validates: bool) -> TrainingArguments:
    """The settings in Trainer's words."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    per_step = tokens_per_step(settings, sequences, processes)
    steps_per_epoch = updates_per_epoch(settings, sequences, processes)
    steps = max(1, math.ceil(settings.epochs * steps_per_epoch))
    if settings.max_tokens is not None:
        steps = max(1, min(steps, round(settings.max_tokens / per_step)))
    interval = max(1, min(round(settings.valid_every / per_step), steps))
    validation = {
        "eval_strategy": "steps",
        "eval_steps": interval,
        "load_best_model_at_end": True,
        "metric_for_best_model": "loss",
        "greater_is_better": False,
    }
    args = trainer_arguments(
        settings,
        steps,
        interval,
        lr_scheduler_type=settings.schedule,
        train_sampling_strategy="group_by_length" if settings.group_by_length else "random",
        save_total_limit=2,
        restore_callback_states_from_checkpoint=True,  # a resumed run goes on with the patience it had left
        # A batch of one-window texts leaves the added weights without gradients.
        ddp_find_unused_parameters=True,
        **(validation if validates else {}),
    )
    if args.world_size != processes:
        raise UserError(
            f"The launcher started {processes} processes, but only {args.world_size} found each other: "
            "start with `torchrun --nproc-per-node N -m recurrify.cli.main train …` or `accelerate launch`."
        )
    return args


def updates_per_epoch(settings: TrainSettings, sequences: TrainingSequences, processes: int) -> int:
    batches = math.ceil(len(sequences) / (settings.batch * processes))
    return math.ceil(batches / settings.accumulate)


def tokens_per_step(settings: TrainSettings, sequences: TrainingSequences, processes: int) -> int:
    """Tokens in an average update: documents' last sequences and an epoch's last batch are shorter than the others."""
    return max(1, round(sequences.targets / updates_per_epoch(settings, sequences, processes)))


def _out_of_patience(state: TrainerState, patience: int) -> bool:
    early: Any = state.stateful_callbacks.get("EarlyStoppingCallback", {})
    waited = early.get("attributes", {}).get("early_stopping_patience_counter", 0)
    return bool(patience > 0 and waited >= patience)


def train(
    model: RecurrentPreTrainedModel,
    sequences: TrainingSequences,
    settings: TrainSettings,
    validate: Validate | None = None,
    tokenizer: Any = None,
    show_progress: bool = True,
    progress_label: str = "",
) -> TrainOutcome:
    """Train `model` in place, going on from the newest whole checkpoint in `settings.out` if there is one."""
    if settings.freeze_base:
        model.base.requires_grad_(False)
    mode = compile_mode(settings.compile)
    if mode != "off":
        prepare = graph_steps if mode == "graphs" else compile_windows
        prepare(model, settings.batch, settings.memory_budget)
    elif settings.memory_budget < 1:
        raise UserError(
            f"`memory_budget` is {settings.memory_budget:g}, but only compiled windows have one, and with "
            f"`compile` {settings.compile} they are not compiled here: set it to on, or leave the budget out."
        )
    args = training_arguments(settings, sequences, validate is not None)
    per_step = tokens_per_step(settings, sequences, args.world_size)
    if show_progress and settings.warmup_steps >= args.max_steps:
        print(
            f"note: the warm-up of {settings.warmup_steps} steps is not over when the run ends after {args.max_steps}: "
            "shorten it with --warmup-steps",
            file=sys.stderr,
        )
    pad = getattr(tokenizer, "pad_token_id", None) or 0
    trainer = RecurrentTrainer(
        model=model,
        args=args,
        train_dataset=sequences,
        eval_dataset=sequences if validate is not None else None,
        data_collator=partial(collate, pad_token_id=pad),
        processing_class=tokenizer,
        validate=validate,
        added_learning_rate=settings.added_learning_rate,
        tokens_per_step=per_step,
    )
    patient = validate is not None and settings.patience
    outcome = run_to_end(
        trainer,
        settings,
        lambda steps: steps * per_step,
        first=[StopOnNonFinite()],
        last=[EarlyStoppingCallback(early_stopping_patience=settings.patience)] if patient else [],
        is_over=lambda state: _out_of_patience(state, settings.patience),
        show_progress=show_progress,
        progress_label=progress_label,
    )
    model.graphed_steps = None  # graphs hold on to the memory of a whole step
    return outcome
