"""Fine-tuning on text: from names to a trained model and a result in a folder."""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Any

import torch
from accelerate import PartialState
from transformers import EarlyStoppingCallback, TrainerState, TrainingArguments, set_seed

from recurrify.console import busy
from recurrify.data.sequences import TrainingSequences, collate
from recurrify.data.texts import Say, few_tokens, read_text
from recurrify.evaluate.flops import full_flops_per_token, memory_cost
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.modeling.heads import RecurrentForCausalLM
from recurrify.modeling.loading import load_model, model_tokenizer
from recurrify.modeling.model import RecurrentPreTrainedModel
from recurrify.modeling.sharding import from_first, without_weights
from recurrify.speed.compiled import Choices, compile_windows
from recurrify.speed.graphed import graph_steps
from recurrify.train.callbacks import StopOnNonFinite
from recurrify.train.loop import (
    RecurrentTrainer,
    TrainOutcome,
    Validate,
    compile_mode,
    run_to_end,
    trainer_arguments,
    updates_per_epoch,
    uses_bf16,
)
from recurrify.train.memory import estimate_memory, free_gib, memory_sentence
from recurrify.train.run_folder import (
    begin_run,
    check_vocabulary,
    complete_run,
    count_parameters,
    earlier_result,
    own_gpu,
    recorded,
)
from recurrify.train.settings import TrainSettings, processes, shards


def train_run(
    settings: TrainSettings, say: Say, show_progress: bool = True, progress_label: str = ""
) -> dict[str, Any]:
    """Train as the settings say, and leave model and result in `settings.out`; resumes a run that stopped there."""
    started = time.time()
    set_seed(settings.seed)
    with busy(f"loading {settings.model}") if show_progress and not progress_label else nullcontext():
        model, tokenizer = _load(settings)
    texts, text_sum = read_text(settings.data, "train", tokenizer, say, settings.text_field)
    source, split = (settings.valid, "all") if settings.valid else (settings.data, "valid")
    valid_texts, valid_sum = read_text(source, split, tokenizer, say, settings.text_field, settings.valid_tokens)
    if short := few_tokens(valid_texts):
        say(f"Validation: {short}")
    settings = recorded(settings, model, text_sum, valid_sum)
    if shards() > 1:
        settings = from_first(lambda: settings)  # the others cannot tell the checksum of the weights
    earlier = earlier_result(settings, say)
    if earlier is not None:
        return earlier
    check_vocabulary(model, chain(texts, valid_texts), settings.model)
    recurrence = model.recurrence
    sequences = TrainingSequences(texts, window=recurrence.window, overlap=recurrence.overlap, windows=settings.windows)
    begin_run(settings)

    def validate(model: RecurrentForCausalLM, advance: Callable[[int], None]) -> dict[str, float]:
        rows, half = max(8, settings.batch), uses_bf16(settings.precision)
        found = evaluate_documents(model, valid_texts, rows=rows, bf16=half, progress=advance, shared=processes() > 1)
        return {"loss": found.total_nll / int(found.tokens.sum()), "perplexity_per_word": found.perplexity_per_word}

    say(
        f"{settings.model}: {count_parameters(model)['base']:,} parameters; windows of {recurrence.window}, overlap "
        f"{recurrence.overlap}, {settings.windows} in a sequence; {memory_cost(model)}"
    )

    free = free_gib()
    if free is not None:
        half = uses_bf16(settings.precision)
        needed = estimate_memory(model, settings.batch, settings.windows, half=half, shards=shards())
        say(memory_sentence(model, needed.gib, free))

    def fit() -> TrainOutcome:
        return train(model, sequences, settings, validate, tokenizer, show_progress, progress_label)

    return complete_run("train", settings, model, tokenizer, say, started, fit)


def _load(settings: TrainSettings) -> tuple[RecurrentForCausalLM, Any]:
    """The model and its tokenizer. With FSDP the first process alone reads the weights, and `RecurrentTrainer` spreads
    them."""
    if shards() == 1:
        return load_model(settings.model, settings.recurrence, device=own_gpu())
    PartialState(cpu=not torch.accelerator.is_available())  # joins the processes
    loaded: list[Any] = []

    def config() -> Any:
        loaded.extend(load_model(settings.model, settings.recurrence))
        return loaded[0].config

    shared = from_first(config)
    if not loaded:
        return without_weights(RecurrentForCausalLM, shared), model_tokenizer(settings.model)
    model, tokenizer = loaded
    return model, tokenizer


def train(
    model: RecurrentPreTrainedModel,
    sequences: TrainingSequences,
    settings: TrainSettings,
    validate: Validate | None = None,
    tokenizer: Any = None,
    show_progress: bool = True,
    progress_label: str = "",
) -> TrainOutcome:
    """Train `model` in place, resuming from the newest intact checkpoint in `settings.out`."""
    if settings.freeze_base:
        model.base.requires_grad_(False)
    mode = compile_mode(settings.compile)
    if mode != "off":
        prepare = graph_steps if mode == "graphs" else compile_windows
        prepare(model, settings.batch, Choices(by_layer=settings.compile == "layers"))
    args = training_arguments(settings, sequences, validate is not None)
    per_step = tokens_per_step(settings, sequences)
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
        first_step=_first_step(model, per_step, mode),
    )
    model.graphed_steps = None  # frees the memory that CUDA graphs hold
    return outcome


def _first_step(model: RecurrentPreTrainedModel, tokens: int, mode: str) -> str:
    """How long the first step may take."""
    if mode != "off":
        return f" ({tokens:,} tokens; it is compiled and checked, which may take minutes)"
    if not isinstance(model, RecurrentPreTrainedModel):
        return ""  # the papers' XLNet, whose cost is counted in another way
    # A forward and a backward pass, and another forward pass for checkpoints, at the speed of one matrix product.
    passes = 4 if model.recurrence.checkpoint else 3
    width = model.base.config.hidden_size
    rows = torch.ones(2048, width, device=model.device)
    weights = torch.ones(width, 4 * width, device=model.device)
    rows @ weights
    begun = time.perf_counter()
    (rows @ weights)[0, 0].item()
    per_flop = (time.perf_counter() - begun) / (2 * rows.numel() * 4 * width)
    seconds = passes * tokens * full_flops_per_token(model) * per_flop
    return f" ({tokens:,} tokens, about {max(1, round(seconds)):,} s)"


def training_arguments(settings: TrainSettings, sequences: TrainingSequences, validates: bool) -> TrainingArguments:
    """The settings as Trainer's arguments."""
    per_step = tokens_per_step(settings, sequences)
    steps = max(1, math.ceil(settings.epochs * updates_per_epoch(settings, len(sequences))))
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
    return trainer_arguments(
        settings,
        steps,
        interval,
        lr_scheduler_type=settings.schedule,
        train_sampling_strategy="group_by_length" if settings.group_by_length else "random",
        restore_callback_states_from_checkpoint=True,  # a resumed run keeps the patience it had left
        ddp_find_unused_parameters=False,  # the memory always takes part in the graph
        **(validation if validates else {}),
    )


def tokens_per_step(settings: TrainSettings, sequences: TrainingSequences) -> int:
    """Tokens of an average update: the last sequence of a document and the last batch of an epoch are shorter."""
    return max(1, round(sequences.targets / updates_per_epoch(settings, len(sequences))))


def _out_of_patience(state: TrainerState, patience: int) -> bool:
    early: Any = state.stateful_callbacks.get("EarlyStoppingCallback", {})
    waited = early.get("attributes", {}).get("early_stopping_patience_counter", 0)
    return bool(patience > 0 and waited >= patience)
