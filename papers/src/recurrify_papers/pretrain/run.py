"""A pretraining run: from text sources to a model in a folder, with its tokenizer and its result."""

import hashlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, set_seed

from recurrify import UserError
from recurrify.console import is_first
from recurrify.data import (
    Document,
    Say,
    TokenizedDocument,
    cache_folder,
    checksum,
    tokenize_cached,
)
from recurrify.records import RESULT_FILE
from recurrify.results import full_disk_explained, provenance, save_result
from recurrify.train import TrainOutcome, Validate, earlier_result, seconds_trained, uses_bf16
from recurrify_papers.data.packed import PackedRows, pack_documents
from recurrify_papers.data.tokenizers import load_tokenizer, make_tokenizer, save_tokenizer
from recurrify_papers.documents import read_documents
from recurrify_papers.pretrain.objectives import IGNORED, Masked, collator_of
from recurrify_papers.pretrain.settings import OBJECTIVES, PretrainSettings
from recurrify_papers.pretrain.training import Pace, new_model, pretrain_model

TOKENIZER_FOLDER = "tokenizer"


def pretrain(settings: PretrainSettings, say: Say) -> dict[str, Any]:
    """Train a model and write it, with its result, to `settings.out`. A run that was stopped there resumes.

    Returns:
        The result. After a stop, `finished` is false.
    """
    out, started = Path(settings.out), time.time()
    uses_bf16(settings.precision)  # fails before the text is read
    documents = [read_documents(source, "train", settings.text_field, say) for source in settings.data]
    valid_documents = (
        read_documents(settings.valid, "all", settings.text_field, say)
        if settings.valid
        else [one for source in settings.data for one in read_documents(source, "valid", settings.text_field, say)]
    )
    settings = replace(settings, data_checksum=_checksum_of_all(documents), held_out_checksum=checksum(valid_documents))
    earlier = earlier_result(settings, say, also_written=(TOKENIZER_FOLDER,))
    if earlier is not None:
        return earlier
    tokenizer = _tokenizer(settings, documents, say)
    collate = collator_of(settings.objective, tokenizer, settings.seed)
    rows = _rows([text for source in documents for text in _tokenize(source, tokenizer)], tokenizer, settings)
    pace = Pace.of(settings, len(rows))
    validate = _validation(settings, _tokenize(valid_documents, tokenizer), tokenizer)
    set_seed(settings.seed)
    model = new_model(settings, len(tokenizer), _end(tokenizer), tokenizer.pad_token_id)
    try:
        with full_disk_explained(settings.out):
            if is_first():
                settings.write()  # before all other files: a folder with a record can be resumed
                if settings.tokenizer is None:
                    save_tokenizer(tokenizer, out / TOKENIZER_FOLDER)
            say(_describe(model, settings, rows, pace))
            outcome = pretrain_model(model, rows, settings, collate, validate)
            result = _result(settings, model, outcome, started)
            if not outcome.finished:
                say(f"stopped after {outcome.tokens:,} tokens: run the same command to resume from the checkpoint")
            elif is_first():
                _save(model, tokenizer, result, out)
    except RuntimeError as error:
        if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise UserError(f"The model could not be compiled ({reason}): use --compile off.") from error
        raise
    return result


def _tokenize(documents: Sequence[Document], tokenizer: Any) -> list[TokenizedDocument]:
    return list(tokenize_cached(documents, tokenizer, cache_folder(), show_progress=True))


def _checksum_of_all(sources: Sequence[Sequence[Document]]) -> str:
    sums = [checksum(documents) for documents in sources]
    return sums[0] if len(sums) == 1 else hashlib.sha256("\n".join(sums).encode()).hexdigest()


def _tokenizer(settings: PretrainSettings, sources: Sequence[Sequence[Document]], say: Say) -> Any:
    """The tokenizer of the settings, that of the run which resumes, or a new one."""
    if settings.tokenizer is not None:
        return load_tokenizer(settings.tokenizer)
    folder = Path(settings.out) / TOKENIZER_FOLDER
    if folder.is_dir() and any(folder.iterdir()):
        return load_tokenizer(str(folder))
    say(f"training a tokenizer of {settings.vocabulary:,} tokens")
    every = (document for documents in sources for document in documents)
    tokenizer = make_tokenizer(every, settings.vocabulary, settings.objective)
    if len(tokenizer) < settings.vocabulary:
        say(f"the text has only {len(tokenizer):,} tokens that occur more than once")
    return tokenizer


def _validation(settings: PretrainSettings, texts: Sequence[TokenizedDocument], tokenizer: Any) -> Validate:
    """The loss per predicted token of the validation sequences, with the same random choices each time."""
    half = uses_bf16(settings.precision)
    try:
        rows = _rows(texts, tokenizer, settings)
    except UserError as error:
        raise UserError(f"For validation: {error}") from error

    @torch.no_grad()
    def validate(model: PreTrainedModel, advance: Callable[[int], None]) -> dict[str, float]:
        collate = collator_of(settings.objective, tokenizer, seed=0)
        was_training = model.training
        model.eval()
        total, count = 0.0, 0
        for start in range(0, len(rows), settings.batch):
            batch = collate(rows.__getitems__(list(range(start, min(start + settings.batch, len(rows))))))
            batch = {name: value.to(model.device) for name, value in batch.items()}
            scored = int((batch["labels"] != IGNORED).sum())
            with torch.autocast(model.device.type, torch.bfloat16, enabled=half):
                total += float(model(**batch).loss) * scored if scored else 0.0
            count += scored
            advance(scored)
        model.train(was_training)
        return {"loss": total / max(count, 1)}

    return validate


def _rows(texts: Sequence[TokenizedDocument], tokenizer: Any, settings: PretrainSettings) -> PackedRows:
    """Sequences of all positions, less those that the objective itself fills."""
    collate = collator_of(settings.objective, tokenizer)
    length = settings.positions - (collate.around if isinstance(collate, Masked) else 0)
    if length < 2:
        raise UserError(f"`positions` is {settings.positions}, which leaves {length} for the text: use more.")
    return PackedRows(pack_documents(texts, _end(tokenizer), len(tokenizer)), length)


def _end(tokenizer: Any) -> int:
    """The token between two documents; the tokenizer of an encoder may have only a separator."""
    return tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id


def _describe(model: PreTrainedModel, settings: PretrainSettings, rows: PackedRows, pace: Pace) -> str:
    return (
        f"{OBJECTIVES[settings.objective]} with {settings.layers} layers of {settings.width}, {settings.heads} heads, "
        f"{model.config.vocab_size:,} tokens: {model.num_parameters():,} parameters; {len(rows):,} sequences of "
        f"{settings.positions} tokens, {pace.total_steps(settings):,} steps"
    )


def _result(
    settings: PretrainSettings, model: PreTrainedModel, outcome: TrainOutcome, started: float
) -> dict[str, Any]:
    last = next((entry for entry in reversed(outcome.history) if "eval_loss" in entry), {})
    return {
        "kind": "pretrain",
        "finished": outcome.finished,
        "interrupted": outcome.interrupted,
        "steps": outcome.steps,
        "tokens": outcome.tokens,
        "training_seconds": seconds_trained(outcome.history),
        "parameters": model.num_parameters(),
        "vocabulary": model.config.vocab_size,
        "validation": {"loss_per_token": last.get("eval_loss")},
        "history": outcome.history,
        "provenance": provenance(
            settings.to_dict(), seed=settings.seed, data_checksum=settings.data_checksum, started=started
        ),
    }


def _save(model: PreTrainedModel, tokenizer: Any, result: dict[str, Any], out: Path) -> None:
    """Write the model and its result, then remove what resuming needs."""
    model.to(torch.float32).save_pretrained(out / "model")
    tokenizer.save_pretrained(out / "model")
    save_result(out / RESULT_FILE, result)
    for folder in (*out.glob("checkpoint-*"), out / TOKENIZER_FOLDER):
        shutil.rmtree(folder, ignore_errors=True)
