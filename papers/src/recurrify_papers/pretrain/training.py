"""Models from scratch on Hugging Face's Trainer: fixed shapes, so that they compile once and keep a GPU busy."""

import math
import os
import time
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

from recurrify.data.packed import PackedRows, collate_rows
from recurrify.data.tokenizers import check_vocabulary_size
from recurrify.errors import UserError
from recurrify.train.checkpoints import last_whole_checkpoint
from recurrify.train.running import (
    TrainOutcome,
    Validate,
    ValidatingTrainer,
    run_to_end,
    trainer_arguments,
    uses_compile,
)
from recurrify.train.settings import TrainerSettings
from recurrify_papers.pretrain.objectives import OBJECTIVES, Chance

LOWEST_RATE = 0.1
"""Where the cosine ends, as a share of the peak."""
WARM_STEPS = 20
"""Steps before the speed is measured: compilation and first allocations fall into them."""
CHECK_EVERY = 10
"""Steps between two looks at the weights: each look makes the GPU wait."""

Collate = Callable[[Any], dict[str, torch.Tensor]]


@dataclass(frozen=True, kw_only=True)
class PretrainSettings(TrainerSettings):
    """A small model that trains in minutes on one GPU."""

    data: list[str]
    """Sources of training text, pooled in this order."""
    objective: str = "clm"
    """clm trains a GPT-2 to predict the next token, mlm a BERT to fill in masked ones, span a T5 to write what was cut
    out of its input."""
    valid: str | None = None
    """Validation text; None takes the training sources' own validation splits."""
    text_field: str = "text"
    """Which field of JSON lines or of a data set holds the text."""
    tokenizer: str | None = None
    """A folder or a name on the hub; None makes one from the training text."""
    vocabulary: int = 16_384
    """Tokens of the tokenizer that is made; a given one keeps its own."""
    layers: int = 8
    width: int = 512
    heads: int = 8
    positions: int = 1024
    """Tokens of a sequence, and the longest window of the model."""
    epochs: float | None = None
    """Passes over the text; None: as many as `max_tokens` takes, or one."""
    max_tokens: int | None = None
    """Stop after about this many training tokens."""
    batch: int = 32
    """Sequences in a step, per device."""
    learning_rate: float = 1e-3
    """At its peak, after the warm-up; a cosine then takes it down to a tenth."""
    warmup_steps: int = 200
    weight_decay: float = 0.1
    """Of the matrices; biases and LayerNorms keep theirs."""
    dropout: float = 0.0
    valid_every: int = 20_000_000
    """Validate (and save) each time so many training tokens have passed."""
    compile: str = "auto"
    """auto (on with CUDA), on or off."""

    def __post_init__(self) -> None:
        sizes = dict.fromkeys(("layers", "width", "heads", "valid_every"), 1)
        self.check({**sizes, "positions": 2}, ("epochs", "max_tokens"))
        if self.objective not in OBJECTIVES:
            raise UserError(f"`objective` must be one of {', '.join(OBJECTIVES)}: got {self.objective!r}.")
        if not self.data:
            raise UserError("`data` names no training text: give at least one source.")
        if self.width % self.heads:
            raise UserError(
                f"`heads` must divide the width: {self.heads} does not divide {self.width}; "
                f"choose such as {math.gcd(self.heads, self.width)}."
            )
        if self.tokenizer is None:
            check_vocabulary_size(self.vocabulary, self.objective)
        if not 0 <= self.dropout < 1:
            raise UserError(f"`dropout` must lie between 0 and 1: got {self.dropout}.")
        self.check_choice("compile", "auto", "on", "off")


def new_model(settings: PretrainSettings, vocabulary: int, end: int, pad: int | None = None) -> Any:
    """Random weights, in the shape that the settings say and the architecture that the objective asks for."""
    if settings.objective == "mlm":
        return _new_bert(settings, vocabulary, end, pad)
    if settings.objective == "span":
        return _new_t5(settings, vocabulary, end, pad)
    config = GPT2Config(
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
    model = GPT2LMHeadModel(config)
    # Transformers does not find it by the class's name, and its warning about that would keep the loss uncompiled.
    model.loss_type = "ForCausalLM"
    return model


def _new_bert(settings: PretrainSettings, vocabulary: int, end: int, pad: int | None) -> BertForMaskedLM:
    config = BertConfig(
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
    return BertForMaskedLM(config)


def _new_t5(settings: PretrainSettings, vocabulary: int, end: int, pad: int | None) -> T5ForConditionalGeneration:
    config = T5Config(
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
    return T5ForConditionalGeneration(config)


@dataclass(frozen=True)
class Pace:
    """How batches make updates and updates make epochs; short batches are dropped, so every batch is full."""

    batches_per_epoch: int
    accumulate: int
    tokens_per_batch: int
    """Over all processes."""

    @classmethod
    def of(cls, settings: PretrainSettings, rows: int, processes: int = 1) -> "Pace":
        together = settings.batch * processes
        if rows < together:
            raise UserError(
                f"The training text makes {rows} sequences of {settings.positions} tokens, too few for one batch of "
                f"{together}: lower --batch, or give more text."
            )
        return cls(rows // together, settings.accumulate, together * settings.positions)

    @property
    def updates_per_epoch(self) -> int:
        return math.ceil(self.batches_per_epoch / self.accumulate)

    def tokens(self, steps: int) -> int:
        """Tokens predicted in the first `steps` updates; an epoch's last update may have fewer batches."""
        epochs, rest = divmod(steps, self.updates_per_epoch)
        return (epochs * self.batches_per_epoch + rest * self.accumulate) * self.tokens_per_batch

    def steps(self, tokens: float) -> int:
        """The updates that come nearest to so many tokens; at least one."""
        return max(1, round(tokens / self.tokens_per_batch / self.batches_per_epoch * self.updates_per_epoch))

    def total_steps(self, settings: PretrainSettings) -> int:
        epochs = settings.epochs if settings.epochs is not None else (1.0 if settings.max_tokens is None else math.inf)
        limits = [] if math.isinf(epochs) else [max(1, math.ceil(epochs * self.updates_per_epoch))]
        return min([*limits, *([self.steps(settings.max_tokens)] if settings.max_tokens is not None else [])])


class MeasureSpeed(TrainerCallback):
    """Tokens per second of training alone: without the first steps, and without validating and saving."""

    def __init__(self, pace: Pace) -> None:
        self.pace = pace
        self.seconds, self.tokens = 0.0, 0
        self.warm_at = 0
        self.last = 0.0

    @property
    def tokens_per_second(self) -> float | None:
        return self.tokens / self.seconds if self.seconds > 0 else None

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.warm_at = state.global_step + WARM_STEPS

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        now = self._now(state)
        if state.global_step > self.warm_at:
            self.seconds += now - self.last
            self.tokens += self.pace.tokens(state.global_step) - self.pace.tokens(state.global_step - 1)
        self.last = now

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.last = self._now(state)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.last = self._now(state)

    def _now(self, state: TrainerState) -> float:
        # The GPU lags behind the program. They must be at one where counting begins; before each pause, the look at
        # the weights has brought them together.
        if torch.cuda.is_initialized() and state.global_step == self.warm_at:
            torch.cuda.synchronize()
        return time.monotonic()


class StopOnSpoiltWeights(TrainerCallback):
    """No checkpoint ever holds a number that is not finite; the weights are looked at now and then, and before each."""

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if state.global_step % CHECK_EVERY and not control.should_save:
            return
        if not bool(torch.isfinite(torch.nn.utils.get_total_norm(list(kwargs["model"].parameters())))):
            raise UserError(
                f"The weights are no longer finite at step {state.global_step}: the checkpoints saved so far are good; "
                "lower the learning rate and use a new output folder, or look at the data."
            )


def pretraining_arguments(settings: PretrainSettings, pace: Pace, validates: bool) -> TrainingArguments:
    """The settings in Trainer's words."""
    steps = pace.total_steps(settings)
    interval = min(pace.steps(settings.valid_every), steps)
    return trainer_arguments(
        settings,
        steps,
        interval,
        dataloader_drop_last=True,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr_rate": LOWEST_RATE},
        adam_beta2=0.95,
        optim="adamw_torch_fused" if torch.cuda.is_available() else "adamw_torch",
        tf32=True if is_torch_tf32_available() else None,
        eval_strategy="steps" if validates else "no",
        eval_steps=interval,
        save_total_limit=2,
    )


@dataclass(frozen=True)
class PretrainOutcome(TrainOutcome):
    """How a run ended, and how fast it went."""

    tokens_per_second: float | None = None
    """None where this invocation had too few steps to tell."""


def pretrain_model(
    model: PreTrainedModel,
    rows: PackedRows,
    settings: PretrainSettings,
    validate: Validate | None = None,
    show_progress: bool = True,
    progress_label: str = "",
    collate: Collate = collate_rows,
) -> PretrainOutcome:
    """Train `model` in place, going on from the newest whole checkpoint in `settings.out` if there is one.

    `collate` makes a batch of rows, by the next token unless another objective's is given.
    """
    pace = Pace.of(settings, len(rows), int(os.environ.get("WORLD_SIZE", "1")))
    trainer = ValidatingTrainer(
        model=model,
        args=pretraining_arguments(settings, pace, validate is not None),
        train_dataset=rows,
        eval_dataset=rows if validate is not None else None,
        data_collator=collate,
        validate=validate,
        compiles=uses_compile(settings.compile),
    )
    resume = last_whole_checkpoint(Path(settings.out))
    if resume is not None and isinstance(collate, Chance):
        state = TrainerState.load_from_json(str(resume / "trainer_state.json"))
        collate.batches = pace.tokens(state.global_step) // pace.tokens_per_batch
    speed = MeasureSpeed(pace)
    try:
        outcome = run_to_end(
            trainer,
            settings,
            pace.tokens,
            # The look at the weights comes after all that may want to save, and before the clock is read.
            last=[StopOnSpoiltWeights(), speed],
            show_progress=show_progress,
            progress_label=progress_label,
        )
    finally:
        model.config.use_cache = True  # which Trainer turns off
    return PretrainOutcome(**vars(outcome), tokens_per_second=speed.tokens_per_second)
