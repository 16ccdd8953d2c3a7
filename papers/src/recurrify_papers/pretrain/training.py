"""Pretraining on Hugging Face's Trainer, in batches of one shape that compile once."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
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
from recurrify.data import PackedRows
from recurrify.train import (
    TrainOutcome,
    Validate,
    ValidatingTrainer,
    last_whole_checkpoint,
    run_to_end,
    trainer_arguments,
    uses_compile,
)
from recurrify_papers.pretrain.objectives import RandomCollator
from recurrify_papers.pretrain.settings import PretrainSettings

LOWEST_RATE = 0.1
"""End of the cosine, as a share of the peak."""

Collate = Callable[[Any], dict[str, torch.Tensor]]


def new_model(settings: PretrainSettings, vocabulary: int, end: int, pad: int | None = None) -> Any:
    """A model with random weights in the architecture of the objective."""
    if settings.objective == "mlm":
        return BertForMaskedLM(
            BertConfig(
                vocab_size=vocabulary,
                max_position_embeddings=settings.positions,
                hidden_size=settings.width,
                num_hidden_layers=settings.layers,
                num_attention_heads=settings.heads,
                intermediate_size=4 * settings.width,
                hidden_dropout_prob=settings.dropout,
                attention_probs_dropout_prob=settings.dropout,
                pad_token_id=pad,
                eos_token_id=end,
            )
        )
    if settings.objective == "span":
        return T5ForConditionalGeneration(
            T5Config(
                vocab_size=vocabulary,
                d_model=settings.width,
                d_kv=settings.width // settings.heads,
                d_ff=4 * settings.width,
                num_layers=settings.layers,
                num_heads=settings.heads,
                dropout_rate=settings.dropout,
                pad_token_id=pad,
                decoder_start_token_id=pad,
                eos_token_id=end,
            )
        )
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocabulary,
            n_positions=settings.positions,
            n_embd=settings.width,
            n_layer=settings.layers,
            n_head=settings.heads,
            resid_pdrop=settings.dropout,
            embd_pdrop=settings.dropout,
            attn_pdrop=settings.dropout,
            bos_token_id=end,
            eos_token_id=end,
        )
    )
    # Transformers does not find it by the name of the class; its warning about that would stop compilation.
    model.loss_type = "ForCausalLM"
    return model


@dataclass(frozen=True)
class Pace:
    """Batches, updates and epochs. Short batches are dropped, so every batch is full."""

    batches_per_epoch: int
    accumulate: int
    tokens_per_batch: int
    """Over all processes."""

    @classmethod
    def of(cls, settings: PretrainSettings, rows: int) -> "Pace":
        together = settings.batch * int(os.environ.get("WORLD_SIZE", "1"))
        if rows < together:
            raise UserError(
                f"The training text has {rows} sequences of {settings.positions} tokens, too few for one batch of "
                f"{together}: lower --batch, or use more text."
            )
        return cls(rows // together, settings.accumulate, together * settings.positions)

    @property
    def updates_per_epoch(self) -> int:
        return math.ceil(self.batches_per_epoch / self.accumulate)

    def batches(self, steps: int) -> int:
        """Batches of the first `steps` updates; the last update of an epoch may have fewer."""
        epochs, rest = divmod(steps, self.updates_per_epoch)
        return epochs * self.batches_per_epoch + rest * self.accumulate

    def tokens(self, steps: int) -> int:
        """Tokens of the first `steps` updates."""
        return self.batches(steps) * self.tokens_per_batch

    def steps(self, tokens: float) -> int:
        """The number of updates closest to this many tokens; at least one."""
        return max(1, round(tokens / self.tokens_per_batch / self.batches_per_epoch * self.updates_per_epoch))

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
    trainer = ValidatingTrainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=collate,
        validate=validate,
        compiles=uses_compile(settings.compile),
    )
    resumed = last_whole_checkpoint(Path(settings.out))
    if resumed is not None and isinstance(collate, RandomCollator):
        collate.batches = pace.batches(int(resumed.name.split("-")[1]))
    try:
        return run_to_end(trainer, settings, pace.tokens, last=[StopOnNonFinite()])
    finally:
        model.config.use_cache = True  # Trainer turns it off
