"""Training a question answerer on Hugging Face's Trainer."""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import TrainerState, TrainingArguments
from transformers.integrations import is_tensorboard_available
from transformers.trainer_callback import PrinterCallback

from recurrify.data.question_windows import WindowedQuestion, collate_questions
from recurrify.errors import UserError
from recurrify.records import RunRecord
from recurrify.recurrence import RecurrentForQuestionAnswering
from recurrify.train.callbacks import EndInOrder, ShowProgress, StopAfterMinutes, StopOnInterrupt, StopOnNonFinite
from recurrify.train.checkpoints import last_whole_checkpoint
from recurrify.train.trainer import RecurrentTrainer, TrainOutcome, uses_bf16

MOST_CHECKPOINTS = 10
"""Written in the course of a run; only the newest is kept."""


@dataclass(frozen=True, kw_only=True)
class AnswerSettings(RunRecord):
    """The defaults are the paper's for HotpotQA."""

    model: str
    """The base: a Hugging Face name, a folder, or a question answerer to go on with."""
    data: str
    """Training questions: a SQuAD or a HotpotQA file."""
    test: str | None = None
    """Questions to answer and to score once training is over."""
    recurrence: dict[str, Any] = field(default_factory=dict)
    """The mechanism and its settings, as RecurrenceConfig.to_dict writes them."""
    questions: int | None = None
    """Train on so many questions, drawn at random; None: on all."""
    epochs: float = 4.0
    batch: int = 8
    """Questions in a step, per device."""
    accumulate: int = 1
    """Batches whose gradients are added up before each update."""
    learning_rate: float = 2e-5
    """For the base model's weights and its heads."""
    added_learning_rate: float | None = None
    """For the weights that recurrence added; None takes `learning_rate`."""
    weight_decay: float = 0.0
    warmup_steps: int = 100
    schedule: str = "linear"
    """Learning rate after the warm-up: constant_with_warmup, linear or cosine."""
    max_grad_norm: float = 1.0
    precision: str = "auto"
    """auto (bf16 on GPUs that have it, else fp32), bf16 or fp32."""
    longest_answer: int = 30
    """Tokens of the longest span that is predicted."""
    seed: int = 0
    data_checksum: str | None = None
    """Of the training questions, written down when the run begins."""

    def __post_init__(self) -> None:
        at_least: dict[str, float] = {"batch": 1, "accumulate": 1, "longest_answer": 1}
        at_least |= dict.fromkeys(("warmup_steps", "weight_decay", "max_grad_norm"), 0)
        for name, least in at_least.items():
            if not getattr(self, name) >= least:
                raise UserError(f"`{name}` must be at least {least}: got {getattr(self, name)}.")
        for name in ("epochs", "learning_rate", "added_learning_rate", "questions", "max_minutes"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                raise UserError(f"`{name}` must be a positive number: got {value}.")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"`seed` must lie between 0 and 2³² − 1: got {self.seed}.")
        if self.precision not in ("auto", "bf16", "fp32"):
            raise UserError(f"`precision` must be auto, bf16 or fp32: got {self.precision!r}.")
        if self.schedule not in ("constant_with_warmup", "linear", "cosine"):
            raise UserError(f"`schedule` must be constant_with_warmup, linear or cosine: got {self.schedule!r}.")


def answering_arguments(settings: AnswerSettings, questions: int) -> TrainingArguments:
    """The settings in Trainer's words; a checkpoint after each epoch, unless epochs are many."""
    batches = math.ceil(questions / (settings.batch * int(os.environ.get("WORLD_SIZE", "1"))))
    updates = math.ceil(batches / settings.accumulate)
    steps = max(1, math.ceil(settings.epochs * updates))
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
        logging_strategy="steps",
        logging_steps=max(1, min(50, steps // 50)),
        logging_first_step=True,
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        report_to=["tensorboard"] if is_tensorboard_available() else [],
        save_strategy="steps",
        save_steps=max(min(updates, steps), math.ceil(steps / MOST_CHECKPOINTS)),
        save_total_limit=1,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        # A batch of one-window contexts leaves the added weights without gradients.
        ddp_find_unused_parameters=True,
    )
    args._n_gpu = min(args.n_gpu, 1)  # several GPUs are for `torchrun`, not for Trainer's fallback, DataParallel
    return args


def train_answerer(
    model: RecurrentForQuestionAnswering,
    questions: Sequence[WindowedQuestion],
    settings: AnswerSettings,
    tokenizer: Any = None,
    show_progress: bool = True,
    progress_label: str = "",
) -> TrainOutcome:
    """Train `model` in place, going on from the newest whole checkpoint in `settings.out` if there is one."""
    args = answering_arguments(settings, len(questions))
    per_epoch = sum(len(tokens) for question in questions for tokens in question.windows)
    per_question = round(per_epoch / len(questions))
    per_step = per_question * settings.batch * settings.accumulate
    pad = getattr(tokenizer, "pad_token_id", None) or 0
    trainer = RecurrentTrainer(
        model=model,
        args=args,
        train_dataset=list(questions),
        data_collator=partial(collate_questions, pad_token_id=pad, window=model.recurrence.window),
        processing_class=tokenizer,
        validate=None,
        added_learning_rate=settings.added_learning_rate,
    )
    progress, interrupt = ShowProgress(per_step, progress_label), StopOnInterrupt()
    clock = StopAfterMinutes(settings.max_minutes or math.inf)
    trainer.remove_callback(PrinterCallback)
    for callback in (StopOnNonFinite(), EndInOrder(), *([progress] if show_progress else []), clock, interrupt):
        trainer.add_callback(callback)
    resume = last_whole_checkpoint(Path(settings.out))
    if resume is not None:
        state = TrainerState.load_from_json(str(resume / "trainer_state.json"))
        if state.global_step >= args.max_steps:
            # Stopped between the last step and the saving of the model; Trainer would take one step more.
            model.load_state_dict(load_file(resume / "model.safetensors"), strict=False)
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
