"""One training run on Hugging Face's Trainer: start, watch, stop, resume."""

import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import EarlyStoppingCallback, Trainer, TrainerState, TrainingArguments
from transformers.integrations import is_tensorboard_available
from transformers.trainer_callback import PrinterCallback

from recurrify.data import TrainingSequences, collate
from recurrify.errors import UserError
from recurrify.recurrence import RecurrentPreTrainedModel
from recurrify.recurrence.compiled import compile_windows
from recurrify.train.callbacks import (
    EndInOrder,
    ShowProgress,
    StopAfterMinutes,
    StopOnInterrupt,
    StopOnNonFinite,
    non_finite,
)
from recurrify.train.checkpoints import last_whole_checkpoint
from recurrify.train.settings import TrainSettings

Validate = Callable[[RecurrentPreTrainedModel], Mapping[str, float]]


@dataclass(frozen=True)
class TrainOutcome:
    """How a run ended."""

    finished: bool
    """False when its minutes ran out or it was interrupted: the same command goes on with it."""
    steps: int
    tokens: int
    history: list[dict[str, float]]
    """The log: training losses by step, and each validation."""
    interrupted: bool = False


class RecurrentTrainer(Trainer):
    """Trainer with validation on whole documents, a learning rate for what was added, and a check of each loss."""

    control: Any

    def __init__(self, *args: Any, validate: Validate | None, added_learning_rate: float | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.validate, self.added_learning_rate = validate, added_learning_rate

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        # Trainer counts what it finds as `shift_labels`; the model takes it by a name in which Trainer, when it
        # evaluates, does not see a second set of labels to wait for.
        inputs = {("targets" if name == "shift_labels" else name): value for name, value in inputs.items()}
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if isinstance(loss, Tensor) and self.model.training and not loss.requires_grad:
            # A frozen base and texts of one window: nothing was carried, so there is nothing to learn from them.
            loss = loss + 0.0 * sum(value.sum() for value in self.model.added_parameters().values())
        return loss

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        loss = super().training_step(*args, **kwargs)
        if not bool(torch.isfinite(loss)):
            raise non_finite("loss", self.state.global_step + 1)
        return loss

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        """Documents read from beginning to end with carried state, as the model will be used."""
        assert self.validate is not None
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in self.validate(self.model).items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

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


def uses_bf16(precision: str) -> bool:
    """bf16 only where the hardware has it: CPUs without it run a hundred times slower."""
    if precision == "auto":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bf16" and not torch.cuda.is_available():
        raise UserError("`precision` is bf16, but this machine has no usable CUDA GPU: use auto or fp32.")
    return precision == "bf16"


def uses_compile(choice: str) -> bool:
    """Compiling pays where it is quick and kernels are many: on GPUs."""
    return choice == "on" or (choice == "auto" and torch.cuda.is_available())


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
    args = TrainingArguments(
        output_dir=settings.out,
        max_steps=steps,
        per_device_train_batch_size=settings.batch,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        warmup_steps=settings.warmup_steps,
        lr_scheduler_type=settings.schedule,
        max_grad_norm=settings.max_grad_norm,
        bf16=uses_bf16(settings.precision),
        use_cpu=not torch.accelerator.is_available(),
        seed=settings.seed,
        train_sampling_strategy="group_by_length" if settings.group_by_length else "random",
        logging_strategy="steps",
        logging_steps=max(1, min(50, steps // 50)),
        logging_first_step=True,
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        report_to=["tensorboard"] if is_tensorboard_available() else [],
        save_strategy="steps",
        save_steps=interval,
        save_total_limit=2,
        restore_callback_states_from_checkpoint=True,  # a resumed run goes on with the patience it had left
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        # A batch of one-window texts leaves the added weights without gradients.
        ddp_find_unused_parameters=True,
        **(validation if validates else {}),
    )
    # Several GPUs are for `torchrun` or `accelerate launch`; Trainer's fallback, DataParallel, would cut state apart.
    args._n_gpu = min(args.n_gpu, 1)
    if args.world_size != processes:
        raise UserError(
            f"The launcher started {processes} processes, but only {args.world_size} found each other: "
            "start with `torchrun --nproc-per-node N -m recurrify.cli train …` or `accelerate launch`."
        )
    return args


def updates_per_epoch(settings: TrainSettings, sequences: TrainingSequences, processes: int) -> int:
    batches = math.ceil(len(sequences) / (settings.batch * processes))
    return math.ceil(batches / settings.accumulate)


def tokens_per_step(settings: TrainSettings, sequences: TrainingSequences, processes: int) -> int:
    """Tokens in an average update: documents' last sequences and an epoch's last batch are shorter than the others."""
    return max(1, round(sequences.targets / updates_per_epoch(settings, sequences, processes)))


def _is_over(state: TrainerState, steps: int, patience: int) -> bool:
    early: Any = state.stateful_callbacks.get("EarlyStoppingCallback", {})
    waited = early.get("attributes", {}).get("early_stopping_patience_counter", 0)
    return state.global_step >= steps or (patience > 0 and waited >= patience)


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
    if uses_compile(settings.compile):
        compile_windows(model)
    args = training_arguments(settings, sequences, validate is not None)
    per_step = tokens_per_step(settings, sequences, args.world_size)
    if show_progress and settings.warmup_steps >= args.max_steps:
        print(
            f"note: the warm-up of {settings.warmup_steps} steps is not over when the run ends after {args.max_steps}: "
            "shorten it with --warmup-steps",
            file=sys.stderr,
        )
    pad = getattr(tokenizer, "pad_token_id", None) or 0
    progress = ShowProgress(per_step, progress_label)
    trainer = RecurrentTrainer(
        model=model,
        args=args,
        train_dataset=sequences,
        eval_dataset=sequences if validate is not None else None,
        data_collator=partial(collate, pad_token_id=pad),
        processing_class=tokenizer,
        validate=validate,
        added_learning_rate=settings.added_learning_rate,
    )
    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(StopOnNonFinite())
    trainer.add_callback(EndInOrder())
    if show_progress:
        trainer.add_callback(progress)
    if validate is not None and settings.patience:
        trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=settings.patience))
    clock = StopAfterMinutes(settings.max_minutes or math.inf)
    trainer.add_callback(clock)
    interrupt = StopOnInterrupt()
    trainer.add_callback(interrupt)
    resume = last_whole_checkpoint(Path(settings.out))
    if resume is not None:
        state = TrainerState.load_from_json(str(resume / "trainer_state.json"))
        if _is_over(state, args.max_steps, settings.patience):
            # Stopped between the last step and the saving of the model; Trainer would take one step more.
            best = resume.with_name(f"checkpoint-{state.best_global_step}")
            model.load_state_dict(load_file((best if best.is_dir() else resume) / "model.safetensors"), strict=False)
            return TrainOutcome(True, state.global_step, state.global_step * per_step, state.log_history)
    try:
        with interrupt.listening():
            trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    finally:
        progress.close()
    return TrainOutcome(
        finished=not (clock.reached or interrupt.reached),
        steps=trainer.state.global_step,
        tokens=trainer.state.global_step * per_step,
        history=trainer.state.log_history,
        interrupted=interrupt.reached,
    )
