"""Pretraining on Hugging Face's Trainer, in batches of one shape that compile once."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import Subset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.utils import is_torch_tf32_available

from recurrify import UserError
from recurrify.speed import compile_function, verify_step
from recurrify.train import (
    TrainOutcome,
    Validate,
    ValidatingTrainer,
    compile_mode,
    run_to_end,
    trainer_arguments,
)
from recurrify_papers.data.packed import PackedRows
from recurrify_papers.pretrain.settings import PretrainSettings

LOWEST_RATE = 0.1
"""End of the cosine, as a share of the peak."""

Collate = Callable[[Any], dict[str, torch.Tensor]]


def new_model(settings: PretrainSettings, vocabulary: int, end: int, pad: int | None = None) -> Any:
    """A model with random weights in the architecture of the objective."""
    width, dropout = settings.width, settings.dropout
    shape: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "eos_token_id": end,
    }
    if settings.objective == "mlm":
        dropouts = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), dropout)
        shape |= {"max_position_embeddings": settings.positions, "intermediate_size": 4 * width, "pad_token_id": pad}
        return BertForMaskedLM(BertConfig(**shape, **dropouts))
    if settings.objective == "span":
        shape |= {"num_decoder_layers": settings.layers, "d_kv": width // settings.heads, "d_ff": 4 * width}
        return T5ForConditionalGeneration(
            T5Config(**shape, dropout_rate=dropout, pad_token_id=pad, decoder_start_token_id=pad)
        )
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), dropout)
    model = GPT2LMHeadModel(GPT2Config(**shape, **dropouts, n_positions=settings.positions, bos_token_id=end))
    # Transformers does not find it by the name of the class; its warning about that would stop compilation.
    model.loss_type = "ForCausalLM"
    return model


@dataclass(frozen=True)
class Pace:
    """Updates of one size: sequences of an epoch that do not fill an update are left out."""

    updates_per_epoch: int
    sequences_per_update: int
    """Over all processes."""
    tokens_per_update: int

    @classmethod
    def of(cls, settings: PretrainSettings, rows: int) -> "Pace":
        together = settings.batch * settings.accumulate * int(os.environ.get("WORLD_SIZE", "1"))
        if rows < together:
            raise UserError(
                f"The training text has {rows} sequences of {settings.positions} tokens, too few for one update of "
                f"{together}: lower --batch, or use more text."
            )
        return cls(rows // together, together, together * settings.positions)

    def steps(self, tokens: float) -> int:
        """The number of updates closest to this many tokens; at least one."""
        return max(1, round(tokens / self.tokens_per_update))

    def total_steps(self, settings: PretrainSettings) -> int:
        """The updates of a run."""
        most = math.inf if settings.max_tokens is None else self.steps(settings.max_tokens)
        epochs = settings.epochs or (1.0 if settings.max_tokens is None else None)
        return int(most if epochs is None else min(most, max(1, math.ceil(epochs * self.updates_per_epoch))))


class StopOnNonFinite(TrainerCallback):
    """Stops at a loss that is not finite, and never lets such weights into a checkpoint.

    Unlike the callback of fine-tuning, it does not wait for the GPU in every step.
    """

    def on_log(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, logs: Any = None, **_: Any
    ) -> None:
        if not math.isfinite((logs or {}).get("loss", 0.0)):
            raise self._error("loss", state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        norm = torch.nn.utils.get_total_norm(list(kwargs["model"].parameters())) if control.should_save else None
        if norm is not None and not bool(torch.isfinite(norm)):
            raise self._error("norm of the weights", state)

    def _error(self, what: str, state: TrainerState) -> UserError:
        return UserError(
            f"The {what} is not finite at step {state.global_step}: the checkpoints saved so far are valid. Lower the "
            "learning rate and use a new output folder, or check the data."
        )


class CompilingTrainer(ValidatingTrainer):
    """Compiles the model itself: Trainer passes no options to the compiler, and options that are set only meanwhile do
    not reach backward passes, which are compiled in another thread on GPUs."""

    quick: Any = None
    """The compiled model, after the first step; the model itself if the two do not agree."""

    def training_step(self, model: Any, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        if self.quick is None:
            self.quick = self._compiled(model, inputs)
        return super().training_step(self.quick, inputs, *args, **kwargs)

    def _compiled(self, model: Any, inputs: dict[str, Any]) -> Any:
        batch, own = self._prepare_inputs(inputs), self.model.train()

        fast = compile_function(own)
        quick, eager = (partial(self.compute_loss, one, dict(batch)) for one in (fast, own))
        if not verify_step(own, quick, eager, self.accelerator.autocast):
            return model
        return fast if model is own else compile_function(model)


def pretrain_model(
    model: PreTrainedModel,
    rows: PackedRows,
    settings: PretrainSettings,
    collate: Collate,
    validate: Validate,
) -> TrainOutcome:
    """Train `model` in place, resuming from the last checkpoint in `settings.out`."""
    pace = Pace.of(settings, len(rows))
    steps = pace.total_steps(settings)
    interval = min(pace.steps(settings.valid_every), steps)
    whole = Subset(rows, range(pace.updates_per_epoch * pace.sequences_per_update))
    arguments = trainer_arguments(
        settings,
        steps,
        interval,
        dataloader_drop_last=True,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": LOWEST_RATE},
        adam_beta2=0.95,
        optim="adamw_torch_fused" if torch.cuda.is_available() else "adamw_torch",
        tf32=True if is_torch_tf32_available() else None,
        eval_strategy="steps",
        eval_steps=interval,
    )
    kind = ValidatingTrainer if compile_mode(settings.compile) == "off" else CompilingTrainer
    trainer = kind(
        model=model,
        args=arguments,
        train_dataset=whole,
        eval_dataset=whole,
        data_collator=collate,
        validate=validate,
    )
    try:
        return run_to_end(trainer, settings, lambda done: done * pace.tokens_per_update, last=[StopOnNonFinite()])
    finally:
        model.config.use_cache = True  # Trainer turns it off
