"""The training loop of every run: Hugging Face's Trainer, its arguments, its callbacks, and resuming."""

import importlib.util
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from accelerate.utils.constants import OPTIMIZER_NAME
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.integrations import is_tensorboard_available
from transformers.trainer_callback import PrinterCallback
from transformers.trainer_pt_utils import LengthGroupedSampler, get_length_grouped_indices

from recurrify.console import busy, is_first
from recurrify.data.records import IGNORED
from recurrify.data.sequences import TrainingSequences
from recurrify.errors import UserError
from recurrify.evaluate.perplexity import StoppedEvaluation
from recurrify.modeling.saving import WEIGHTS
from recurrify.modeling.sharding import is_sharded, level, load_whole_weights, spread_weights
from recurrify.speed.backends import leave_out_cudnn
from recurrify.speed.products import quick_products
from recurrify.speed.verify import Compared, verify_windows
from recurrify.train.callbacks import (
    CountSeconds,
    EndInOrder,
    ShowProgress,
    StopEarly,
    StopOnNonFinite,
    non_finite,
    seconds_trained,
)
from recurrify.train.checkpoints import STATE_FILE, best_checkpoint, last_whole_checkpoint, replace_state
from recurrify.train.settings import TrainerSettings, processes, shards

Validate = Callable[[Any, Callable[[int], None]], Mapping[str, float]]
"""The scores of a model; it reports the tokens of each forward pass to its second argument, which may end it."""
MOST_CHECKPOINTS = 10
"""Written during a run on examples; only the newest is kept."""


@dataclass(frozen=True)
class TrainOutcome:
    """How a run ended."""

    finished: bool
    """False if its time was up or it was interrupted: run the same command to resume."""
    steps: int
    tokens: int
    history: list[dict[str, float]]
    """The log: training losses by step, and each validation."""
    interrupted: bool = False


class ValidatingTrainer(Trainer):
    """Trainer whose validation is a function of the model."""

    control: Any

    def __init__(self, *args: Any, validate: Validate | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.validate = validate
        self.stopped = False
        """Whether a signal ended a validation."""
        self.advance: Callable[[int], None] = lambda tokens: None
        """Called during validation with the tokens of each forward pass; `StoppedEvaluation` ends it."""

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        with quick_products():
            loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
        return loss

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        try:
            metrics = self.validation_metrics(metric_key_prefix)
        except StoppedEvaluation:
            self.stopped = True
            self.control.should_save = self.control.should_training_stop = True
            return {f"{metric_key_prefix}_loss": math.inf}  # never the best
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics

    def validation_metrics(self, prefix: str = "eval") -> dict[str, float]:
        """The scores of the model on the validation data."""
        assert self.validate is not None
        return {f"{prefix}_{name}": value for name, value in self.validate(self.model, self.advance).items()}


class ByLength(LengthGroupedSampler):
    """Sequences of similar length together. The order depends on seed and epoch alone: all processes have the same."""

    def __init__(self, batch_size: int, lengths: list[int], seed: int) -> None:
        super().__init__(batch_size, lengths=lengths)
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Called by Trainer."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        return iter(get_length_grouped_indices(self.lengths, self.batch_size, generator=generator))


class RecurrentTrainer(ValidatingTrainer):
    """Trainer with a learning rate of its own for the memory, a token count, and a check of each loss."""

    def __init__(self, *args: Any, added_learning_rate: float | None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.added_learning_rate = added_learning_rate
        self.compared = Compared()
        self.whole: dict[str, Tensor] = {}
        """The weights that the first process spreads."""
        if self.is_fsdp_enabled:
            _check_sharding(self.accelerator.state.fsdp_plugin)
            self.whole = dict(self.model.state_dict()) if is_first() else {}

    def compute_loss(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        # Trainer counts the tokens of `shift_labels`. The model takes them as `targets`, in which Trainer, when it
        # evaluates, does not see a second set of labels.
        inputs = {("targets" if name == "shift_labels" else name): value for name, value in inputs.items()}
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if isinstance(loss, Tensor) and self.model.training and not loss.requires_grad:
            # With a frozen base, texts of one window use no memory and give no gradient.
            loss = loss + 0.0 * sum(value.sum() for value in self.model.added_parameters().values())
        return loss

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        targets = inputs.get("shift_labels")
        if targets is not None:
            tokens = (targets != IGNORED).sum().to(self.args.device)
            self.state.num_input_tokens_seen += int(self.accelerator.gather(tokens).sum().item())
        if is_sharded(self.model):
            inputs = level(self._prepare_inputs(inputs), IGNORED)

        def compare() -> None:
            batch = {("targets" if name == "shift_labels" else name): value for name, value in inputs.items()}
            verify_windows(self.model, self._prepare_inputs(batch), self.accelerator.autocast)

        with self.compared.during(self.model, compare):
            loss = super().training_step(model, inputs, *args, **kwargs)
        if not bool(torch.isfinite(loss)):
            raise non_finite("loss", self.state.global_step + 1)
        return loss

    def create_scheduler(self, *args: Any, **kwargs: Any) -> Any:
        if is_sharded(self.model):  # since a moment ago; a checkpoint is loaded later
            spread_weights(self.model, self.whole)
            self.whole = {}
        return super().create_scheduler(*args, **kwargs)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load the safetensors of a checkpoint, whatever number of processes wrote it."""
        was_sharded = (Path(resume_from_checkpoint) / f"{OPTIMIZER_NAME}.bin").is_file()
        if was_sharded != self.is_fsdp_enabled:
            raise UserError(
                f"{resume_from_checkpoint!r} was written {'with' if was_sharded else 'without'} FSDP: resume "
                f"{'with' if was_sharded else 'without'} it, on any number of processes, or choose another --out."
            )
        load_whole_weights(self.model if model is None else model, Path(resume_from_checkpoint) / WEIGHTS)

    def _load_best_model(self) -> None:
        load_whole_weights(self.model, Path(self.state.best_model_checkpoint or "") / WEIGHTS)

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        args: TrainingArguments = self.args
        if args.train_sampling_strategy != "group_by_length":
            return super()._get_train_sampler(train_dataset)
        examples = self.train_dataset if train_dataset is None else train_dataset
        is_cut = isinstance(examples, TrainingSequences)
        lengths = examples.lengths() if is_cut else [len(one["input_ids"]) for one in examples]
        together = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        return ByLength(together, lengths, args.seed)

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        optimizer = super().create_optimizer(model)
        if self.added_learning_rate is not None:
            _split_added(optimizer, self.model, self.added_learning_rate)
        return optimizer


def _check_sharding(plugin: Any) -> None:
    """Raise `UserError` for settings of FSDP that cannot work here."""
    if plugin.fsdp_version != 2:
        raise UserError("FSDP version 1 is not supported: set `fsdp_version: 2` in the file for `accelerate launch`.")
    if "FULL_STATE_DICT" not in str(plugin.state_dict_type):
        raise UserError(
            "Checkpoints are written in one piece: set `fsdp_state_dict_type: FULL_STATE_DICT` in the file for "
            "`accelerate launch`."
        )
    plugin.cpu_ram_efficient_loading = False  # `spread_weights` spreads buffers, too


def _split_added(optimizer: torch.optim.Optimizer, model: Any, rate: float) -> None:
    """Move the memory's parameters of each group into a group of their own with this learning rate."""
    added = {id(parameter) for parameter in model.added_parameters().values()}
    for group in list(optimizer.param_groups):
        own = [p for p in group["params"] if id(p) in added]
        group["params"] = [p for p in group["params"] if id(p) not in added]
        if own:
            rest = {name: value for name, value in group.items() if name not in ("params", "lr")}
            optimizer.add_param_group({**rest, "params": own, "lr": rate})


def uses_bf16(precision: str) -> bool:
    """Whether to train in bf16: where the hardware supports it (CPUs without it are a hundred times slower)."""
    if precision == "auto":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bf16" and not torch.cuda.is_available():
        raise UserError("`precision` is bf16, but this machine has no usable CUDA GPU: use auto or fp32.")
    return precision == "bf16"


def compile_mode(choice: str) -> str:
    """off, on or graphs; auto is graphs with one CUDA GPU, and layers the same but never off."""
    if choice == "graphs" and processes() > 1:
        raise UserError(f"`compile` is graphs, but {processes()} processes train together: use auto, on or off.")
    if choice == "graphs" and not torch.cuda.is_available():
        raise UserError("`compile` is graphs, but this machine has no usable CUDA GPU: use auto, on or off.")
    if choice in ("on", "layers") and shards() > 1:
        raise UserError(
            f"`compile` is {choice}, but FSDP divides the weights, whose windows cannot be compiled: use auto or off."
        )
    if choice not in ("auto", "layers"):
        return choice
    if shards() > 1:
        return "off"
    if not torch.cuda.is_available():
        return "on" if choice == "layers" else "off"
    # Gradients that processes share arrive by hooks, which a captured step does not call.
    return "graphs" if torch.cuda.device_count() == 1 and processes() == 1 else "on"


def trainer_arguments(settings: TrainerSettings, steps: int, save_steps: int, **more: Any) -> TrainingArguments:
    """The settings as Trainer's arguments; `more` are arguments of one kind of run."""
    leave_out_cudnn()
    args = TrainingArguments(
        output_dir=settings.out,
        max_steps=steps,
        per_device_train_batch_size=settings.batch,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        warmup_steps=settings.warmup(steps),
        max_grad_norm=settings.max_grad_norm,
        bf16=uses_bf16(settings.precision),
        use_cpu=not torch.accelerator.is_available(),
        seed=settings.seed,
        logging_strategy="steps",
        logging_steps=max(1, min(50, steps // 50)),
        logging_first_step=True,
        logging_nan_inf_filter=False,
        disable_tqdm=True,
        log_level_replica="error",
        report_to=_reports_to(settings.report_to),
        save_strategy="steps",
        save_steps=save_steps,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        **more,
    )
    # Several GPUs need `torchrun` or `accelerate launch`; Trainer's fallback, DataParallel, would split the state.
    args._n_gpu = min(args.n_gpu, 1)
    if args.world_size != processes():
        raise UserError(
            f"The launcher started {processes()} processes, but only {args.world_size} found each other: start with "
            "`torchrun --nproc-per-node N -m recurrify train …` or `accelerate launch`."
        )
    return args


def _reports_to(choice: str) -> list[str]:
    if choice == "wandb" and importlib.util.find_spec("wandb") is None:
        raise UserError("`report_to` is wandb, which is not installed: run `pip install wandb`, or use tensorboard.")
    return [] if choice == "none" or (choice == "tensorboard" and not is_tensorboard_available()) else [choice]


def updates_per_epoch(settings: TrainerSettings, examples: int) -> int:
    """Weight updates in one pass over this many examples."""
    return math.ceil(math.ceil(examples / (settings.batch * processes())) / settings.accumulate)


def task_arguments(settings: Any, examples: int, group_by_length: bool) -> TrainingArguments:
    """Trainer's arguments for training on examples: a checkpoint after each epoch, at most ten in all."""
    updates = updates_per_epoch(settings, examples)
    steps = max(1, math.ceil(settings.epochs * updates))
    return trainer_arguments(
        settings,
        steps,
        max(min(updates, steps), math.ceil(steps / MOST_CHECKPOINTS)),
        lr_scheduler_type=settings.schedule,
        train_sampling_strategy="group_by_length" if group_by_length else "random",
        ddp_find_unused_parameters=True,  # a batch of one-window examples gives the memory no gradients
    )


def run_to_end(
    trainer: ValidatingTrainer,
    settings: TrainerSettings,
    tokens_of: Callable[[int], int],
    *,
    first: Sequence[TrainerCallback] = (),
    last: Sequence[TrainerCallback] = (),
    is_over: Callable[[TrainerState], bool] = lambda state: False,
    show_progress: bool = True,
    progress_label: str = "",
    first_step: str = "",
) -> TrainOutcome:
    """Train, resuming from the newest intact checkpoint in `settings.out`.

    Args:
        trainer: The trainer, without the common callbacks.
        settings: The settings of the run.
        tokens_of: How many tokens so many steps take on average.
        first: Callbacks before the common ones.
        last: Callbacks after the common ones.
        is_over: Whether a saved state is the end of the run, although steps are left.
        show_progress: Whether to show a progress bar, or lines.
        progress_label: A name for the lines, where several runs share a terminal.
        first_step: How long the first step may take, for those who wait for it.
    """
    progress = ShowProgress(tokens_of(1), progress_label, first_step=first_step)
    stop = StopEarly(settings.max_minutes or math.inf)
    trainer.remove_callback(PrinterCallback)
    for callback in (*first, CountSeconds(), EndInOrder(), *([progress] if show_progress else []), stop, *last):
        trainer.add_callback(callback)

    def advance(tokens: int) -> None:
        stop.check_validation()
        progress.show_validation(trainer.state, tokens)

    trainer.advance = advance
    with trainer.args.main_process_first(local=False):  # it removes damaged checkpoints
        resume = last_whole_checkpoint(Path(settings.out))
    try:
        with stop.listening():
            if resume is not None:
                state = TrainerState.load_from_json(str(resume / STATE_FILE))
                if _was_not_validated(state, trainer.args):
                    with busy(f"validating step {state.global_step}") if show_progress else nullcontext():
                        _validate_saved(trainer, state, resume)
                if state.global_step >= trainer.args.max_steps or is_over(state):
                    # Stopped between the last step and the saving of the model; Trainer would take one step more.
                    load_whole_weights(trainer.model, best_checkpoint(resume) / WEIGHTS)
                    return TrainOutcome(True, state.global_step, _tokens(state, tokens_of), state.log_history)
            trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    except StoppedEvaluation:  # of the checkpoint that the run resumes from, which stays as it is
        trainer.state, trainer.stopped = state, True
    finally:
        progress.close()
    interrupted = stop.interrupted or trainer.stopped
    return TrainOutcome(
        finished=not (stop.out_of_time or interrupted),
        steps=trainer.state.global_step,
        tokens=_tokens(trainer.state, tokens_of),
        history=trainer.state.log_history,
        interrupted=interrupted,
    )


def _was_not_validated(state: TrainerState, args: TrainingArguments) -> bool:
    """Whether a signal ended the validation of a saved step."""
    due = args.eval_strategy != "no" and (
        state.global_step % args.eval_steps == 0 or state.global_step >= args.max_steps
    )
    return due and not any("eval_loss" in one and one["step"] == state.global_step for one in state.log_history)


def _validate_saved(trainer: ValidatingTrainer, state: TrainerState, checkpoint: Path) -> None:
    """Validate a checkpoint, and write into its state what Trainer would have written at this step."""
    load_whole_weights(trainer.model, checkpoint / WEIGHTS)
    metrics = trainer.validation_metrics()
    entry = {**metrics, "epoch": state.epoch, "step": state.global_step, "seconds": seconds_trained(state.log_history)}
    state.log_history.append(entry)
    is_best = metrics["eval_loss"] < (math.inf if state.best_metric is None else state.best_metric)
    if is_best and trainer.args.metric_for_best_model is not None:
        state.best_metric, state.best_global_step = metrics["eval_loss"], state.global_step
        state.best_model_checkpoint = str(checkpoint)
    patience: Any = state.stateful_callbacks.get("EarlyStoppingCallback")
    if patience is not None:
        counter = patience["attributes"]["early_stopping_patience_counter"]
        patience["attributes"]["early_stopping_patience_counter"] = 0 if is_best else counter + 1
    if is_first():
        state.save_to_json(str(new := checkpoint / f".{STATE_FILE}.tmp"))
        replace_state(checkpoint, new)
    trainer.accelerator.wait_for_everyone()


def _tokens(state: TrainerState, tokens_of: Callable[[int], int]) -> int:
    """The tokens that the trainer counted, or the average of its steps."""
    return state.num_input_tokens_seen or tokens_of(state.global_step)


def train_examples(
    model: Any,
    examples: Sequence[Any],
    collate: Callable[[Any], dict[str, Tensor]],
    settings: Any,
    tokens: int,
    tokenizer: Any,
    progress_label: str = "",
    group_by_length: bool = False,
) -> TrainOutcome:
    """Train on examples that have so many `tokens` together, resuming from the newest intact checkpoint."""
    trainer = RecurrentTrainer(
        model=model,
        args=task_arguments(settings, len(examples), group_by_length),
        train_dataset=examples,
        data_collator=collate,
        processing_class=tokenizer,
        validate=None,
        added_learning_rate=settings.added_learning_rate,
    )
    per_step = round(tokens / len(examples)) * settings.batch * settings.accumulate * trainer.args.world_size
    return run_to_end(
        trainer,
        settings,
        lambda steps: steps * per_step,
        first=[StopOnNonFinite()],
        progress_label=progress_label,
    )
