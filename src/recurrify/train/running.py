"""What every run on Hugging Face's Trainer shares: its arguments, validation, watchers and resuming."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_model as load_weights
from torch import Tensor
from transformers import Trainer, TrainerCallback, TrainerState, TrainingArguments
from transformers.integrations import is_tensorboard_available
from transformers.trainer_callback import PrinterCallback

from recurrify.errors import UserError
from recurrify.speed.backends import leave_out_cudnn
from recurrify.speed.compiling import compiled
from recurrify.speed.products import quick_products
from recurrify.speed.verify import verify_module
from recurrify.train.callbacks import EndInOrder, ShowProgress, StopAfterMinutes, StopOnInterrupt
from recurrify.train.checkpoints import last_whole_checkpoint
from recurrify.train.counting import CountSeconds
from recurrify.train.settings import TrainerSettings

Validate = Callable[[Any], Mapping[str, float]]


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


class ValidatingTrainer(Trainer):
    """Trainer whose validation is a function of the model, and whose steps are as quick as the processor allows.

    With `compiles` it compiles them itself: Trainer's own way hands the compiler no options, and such as are only set
    meanwhile need not reach backward passes, which a GPU's own thread compiles."""

    control: Any

    def __init__(self, *args: Any, validate: Validate | None, compiles: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.validate = validate
        self.compiles = compiles
        self.quick: Any = None

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        if self.compiles:
            model = self.quick = self._compiled(model, inputs) if self.quick is None else self.quick
        with quick_products():
            loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
        return loss

    def _compiled(self, model: Any, inputs: dict[str, Any]) -> Any:
        """The compiled model if it agrees with the eager one on this batch, else the model itself."""
        batch, own = self._prepare_inputs(inputs), self.model.train()

        def loss_of(one: Any) -> Tensor:
            loss: Tensor = self.compute_loss(one, dict(batch))
            return loss

        fast = compiled(own)
        if verify_module(fast, own, loss_of, self.compute_loss_context_manager) is own:
            return model
        return fast if model is own else compiled(model)

    def evaluate(
        self, eval_dataset: Any = None, ignore_keys: Any = None, metric_key_prefix: str = "eval"
    ) -> dict[str, float]:
        assert self.validate is not None
        metrics = {f"{metric_key_prefix}_{name}": value for name, value in self.validate(self.model).items()}
        self.log(dict(metrics))
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, metrics)
        return metrics


def uses_bf16(precision: str) -> bool:
    """bf16 only where the hardware has it: CPUs without it run a hundred times slower."""
    if precision == "auto":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    if precision == "bf16" and not torch.cuda.is_available():
        raise UserError("`precision` is bf16, but this machine has no usable CUDA GPU: use auto or fp32.")
    return precision == "bf16"


def uses_compile(choice: str) -> bool:
    """Compiling pays where it is quick and kernels are many: on GPUs."""
    return compile_mode(choice) != "off"


def compile_mode(choice: str) -> str:
    """off, on or graphs, which is what auto means where there is one CUDA GPU."""
    if choice == "graphs" and not torch.cuda.is_available():
        raise UserError("`compile` is graphs, but this machine has no usable CUDA GPU: use auto, on or off.")
    if choice != "auto":
        return choice
    if not torch.cuda.is_available():
        return "off"
    # Trainer shares a batch out to copies of the model where it sees several.
    return "graphs" if torch.cuda.device_count() == 1 else "on"


def trainer_arguments(settings: TrainerSettings, steps: int, save_steps: int, **more: Any) -> TrainingArguments:
    """The settings in Trainer's words; `more` is what one kind of run has for itself."""
    leave_out_cudnn()
    args = TrainingArguments(
        output_dir=settings.out,
        max_steps=steps,
        per_device_train_batch_size=settings.batch,
        gradient_accumulation_steps=settings.accumulate,
        learning_rate=settings.learning_rate,
        weight_decay=settings.weight_decay,
        warmup_steps=settings.warmup_steps,
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
        save_steps=save_steps,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        **more,
    )
    # Several GPUs are for `torchrun` or `accelerate launch`; Trainer's fallback, DataParallel, would cut state apart.
    args._n_gpu = min(args.n_gpu, 1)
    return args


def run_to_end(
    trainer: Trainer,
    settings: TrainerSettings,
    tokens_of: Callable[[int], int],
    *,
    first: Sequence[TrainerCallback] = (),
    last: Sequence[TrainerCallback] = (),
    is_over: Callable[[TrainerState], bool] = lambda state: False,
    show_progress: bool = True,
    progress_label: str = "",
) -> TrainOutcome:
    """Train, going on from the newest whole checkpoint in `settings.out` if there is one.

    `tokens_of` says how many tokens so many steps take on average. `first` and `last` are callbacks around the common
    ones.
    `is_over` knows of other ends of a run than its last step.
    """
    progress, interrupt = ShowProgress(tokens_of(1), progress_label), StopOnInterrupt()
    clock = StopAfterMinutes(settings.max_minutes or math.inf)
    trainer.remove_callback(PrinterCallback)
    for callback in (
        *first,
        CountSeconds(),
        EndInOrder(),
        *([progress] if show_progress else []),
        clock,
        interrupt,
        *last,
    ):
        trainer.add_callback(callback)
    resume = last_whole_checkpoint(Path(settings.out))
    if resume is not None:
        state = TrainerState.load_from_json(str(resume / "trainer_state.json"))
        if state.global_step >= trainer.args.max_steps or is_over(state):
            # Stopped between the last step and the saving of the model; Trainer would take one step more.
            best = resume.with_name(f"checkpoint-{state.best_global_step}")
            load_weights(trainer.model, (best if best.is_dir() else resume) / "model.safetensors", strict=False)
            return TrainOutcome(True, state.global_step, _tokens(state, tokens_of), state.log_history)
    try:
        with interrupt.listening():
            trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    finally:
        progress.close()
    return TrainOutcome(
        finished=not (clock.reached or interrupt.heard),
        steps=trainer.state.global_step,
        tokens=_tokens(trainer.state, tokens_of),
        history=trainer.state.log_history,
        interrupted=interrupt.heard,
    )


def _tokens(state: TrainerState, tokens_of: Callable[[int], int]) -> int:
    """As counted, where the trainer counts them; else as many as its steps should have had."""
    return state.num_input_tokens_seen or tokens_of(state.global_step)
