"""Fine-tuning as a whole job: from names to a model and a result in a folder."""

import errno
import os
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from recurrify.console import is_first
from recurrify.data.sequences import TrainingSequences
from recurrify.data.texts import Say, read_text
from recurrify.data.tokens import TokenizedDocument
from recurrify.errors import UserError
from recurrify.evaluate.flops import memory_cost
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.modeling.heads import RecurrentForCausalLM
from recurrify.modeling.loading import load_model
from recurrify.results import provenance, save_result
from recurrify.train.counting import seconds_trained
from recurrify.train.resuming import RESULT_FILE, earlier_result
from recurrify.train.running import uses_bf16
from recurrify.train.settings import TrainSettings
from recurrify.train.trainer import train


def train_run(
    settings: TrainSettings, say: Say, show_progress: bool = True, progress_label: str = ""
) -> dict[str, Any]:
    """Train as the settings say and leave model and result in `settings.out`; goes on with a run begun there."""
    out = Path(settings.out)
    started = time.time()
    set_seed(settings.seed)
    model, tokenizer = load_model(settings.model, settings.recurrence, device=_own_gpu())
    texts, text_sum = read_text(settings.data, "train", tokenizer, say, settings.text_field)
    # What is written down is what the model has, whatever was left to defaults.
    settings = replace(settings, recurrence=model.recurrence.to_dict(), data_checksum=text_sum)
    earlier = earlier_result(settings, say)
    if earlier is not None:
        return earlier
    valid_texts, _ = read_text(
        settings.valid or settings.data,
        "all" if settings.valid else "valid",
        tokenizer,
        say,
        settings.text_field,
        settings.valid_tokens,
    )
    check_vocabulary(model, [*texts, *valid_texts], settings.model)
    recurrence = model.recurrence
    sequences = TrainingSequences(texts, window=recurrence.window, overlap=recurrence.overlap, windows=settings.windows)
    settings.write()

    def validate(model: RecurrentForCausalLM) -> dict[str, float]:
        found = evaluate_documents(model, valid_texts, rows=max(8, settings.batch), bf16=uses_bf16(settings.precision))
        return {
            "loss": found.total_nll / int(found.tokens.sum()),
            "perplexity_per_word": found.perplexity_per_word,
        }

    say(_describe(model, settings))
    try:
        outcome = train(model, sequences, settings, validate, tokenizer, show_progress, progress_label)
    except (OSError, RuntimeError) as error:
        raise explain_full_disk(error, settings.out) from error
    result = {
        "kind": "train",
        "finished": outcome.finished,
        "interrupted": outcome.interrupted,
        "steps": outcome.steps,
        "tokens": outcome.tokens,
        "training_seconds": seconds_trained(outcome.history),
        "parameters": count_parameters(model),
        "memory": memory_cost(model)._asdict(),
        "history": outcome.history,
        "provenance": provenance(settings.to_dict(), seed=settings.seed, data_checksum=text_sum, started=started),
    }
    if not outcome.finished:
        say(f"stopped and saved after {outcome.tokens:,} tokens: run the same command again to go on")
        return result
    if is_first():
        try:
            model.save_pretrained(out / "model")
            tokenizer.save_pretrained(out / "model")
        except OSError as error:
            raise explain_full_disk(error, settings.out) from error
        save_result(out / RESULT_FILE, result)
    return result


def _own_gpu() -> torch.device | None:
    """That of this process among those that train together; a memory that begins with what a base computes takes a
    minute to add on a CPU."""
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if torch.cuda.is_available() else None


def check_vocabulary(model: RecurrentForCausalLM, documents: Sequence[TokenizedDocument], name: str) -> None:
    """An id beyond the embeddings would end a GPU process in the middle of a kernel."""
    known = model.get_input_embeddings().num_embeddings
    largest = max(int(document.ids.max()) for document in documents)
    if largest >= int(known):  # type: ignore[arg-type]
        raise UserError(
            f"The tokenizer of {name!r} gives token {largest}, but the model knows only 0 to {int(known) - 1}: "  # type: ignore[arg-type]
            "they do not belong together."
        )


def count_parameters(model: RecurrentForCausalLM) -> dict[str, int]:
    added = sum(parameter.numel() for parameter in model.added_parameters().values())
    return {"base": sum(p.numel() for p in model.base.parameters()), "added": added}


def _describe(model: RecurrentForCausalLM, settings: TrainSettings) -> str:
    counts = count_parameters(model)
    return (
        f"{settings.model}: {counts['base']:,} parameters; windows of {model.recurrence.window}, overlap "
        f"{model.recurrence.overlap}, {settings.windows} in a sequence; {memory_cost(model)}"
    )


def explain_full_disk(error: Exception, out: str) -> Exception:
    """torch reports a full disk as a RuntimeError of its own wording."""
    text = str(error)
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS):
        pass
    elif not ("No space left" in text or "PytorchStreamWriter" in text):
        return error
    return UserError(
        f"Could not write to {out!r} ({text.splitlines()[0]}): the checkpoints saved before are whole; free some "
        "space and run the same command again to go on from the newest."
    )
