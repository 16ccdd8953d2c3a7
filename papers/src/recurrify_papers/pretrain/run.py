"""Pretraining as a whole job: from names of text to a model in a folder, with its tokenizer and its result."""

import hashlib
import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, set_seed

from recurrify.console import is_first
from recurrify.data.documents import load_documents
from recurrify.data.packed import PackedRows, pack_documents
from recurrify.data.records import Document, Skipped
from recurrify.data.texts import Say, cache_folder
from recurrify.data.token_cache import tokenize_cached
from recurrify.data.tokenizers import load_tokenizer, make_tokenizer, save_tokenizer
from recurrify.data.tokens import TokenizedDocument, checksum
from recurrify.errors import UserError
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.mechanisms.base import NoRecurrence
from recurrify.modeling.heads import add_recurrence
from recurrify.results import provenance, save_result
from recurrify.train.finetuning import explain_full_disk
from recurrify.train.resuming import RESULT_FILE, earlier_result
from recurrify.train.running import Validate, uses_bf16
from recurrify_papers.pretrain.objectives import Masked, collator_of
from recurrify_papers.pretrain.training import Pace, PretrainOutcome, PretrainSettings, new_model, pretrain_model

TOKENIZER_FOLDER = "tokenizer"
ARCHITECTURES = {"clm": "GPT-2", "mlm": "BERT", "span": "T5"}
IGNORED = -100


def pretrain(
    settings: PretrainSettings, say: Say, show_progress: bool = True, progress_label: str = ""
) -> dict[str, Any]:
    """Train from scratch as the settings say and leave model and result in `settings.out`; goes on with a run there."""
    out = Path(settings.out)
    started = time.time()
    half = uses_bf16(settings.precision)  # refuses what this machine cannot do before the text is read
    documents = [_load(source, "train", settings, say) for source in settings.data]
    settings = replace(settings, data_checksum=_checksum_of_all(documents))
    made_before = PretrainSettings.read(out) is not None
    earlier = earlier_result(settings, say, also_written=(TOKENIZER_FOLDER,))
    if earlier is not None:
        return earlier
    tokenizer = _tokenizer(settings, documents, say, made_before=made_before)
    collate = collator_of(settings.objective, tokenizer, settings.seed)
    texts = [text for source in documents for text in _tokenize(source, tokenizer, "train", say)]
    rows = _rows(texts, tokenizer, settings)
    steps = Pace.of(settings, len(rows), int(os.environ.get("WORLD_SIZE", "1"))).total_steps(settings)
    valid_documents = (
        _load(settings.valid, "all", settings, say)
        if settings.valid
        else [document for source in settings.data for document in _load(source, "valid", settings, say)]
    )
    validate = _validation(settings, _tokenize(valid_documents, tokenizer, "valid", say), tokenizer, half)
    set_seed(settings.seed)
    model = new_model(settings, len(tokenizer), _end(tokenizer), tokenizer.pad_token_id)
    settings.write()
    say(_describe(model, settings, len(rows)))
    if settings.warmup_steps >= steps:
        say(
            f"note: the warm-up of {settings.warmup_steps} steps is not over when the run ends after {steps}: "
            "shorten it with --warmup-steps"
        )
    try:
        outcome = pretrain_model(model, rows, settings, validate, show_progress, progress_label, collate)
    except (OSError, RuntimeError) as error:
        raise _explained(error, settings.out) from error
    result = _result(settings, model, outcome, started)
    if not outcome.finished:
        say(f"stopped and saved after {outcome.tokens:,} tokens: run the same command again to go on")
    elif is_first():
        _leave(model, tokenizer, result, out)
    return result


def _load(source: str, split: str, settings: PretrainSettings, say: Say) -> list[Document]:
    skipped: list[Skipped] = []
    documents = load_documents(source, split, text_field=settings.text_field, skipped=skipped)
    _tell_skipped(skipped, say)
    characters = sum(len(document.text) for document in documents)
    count = "1 document" if len(documents) == 1 else f"{len(documents):,} documents"
    say(f"{source} ({split}): {count}, {characters:,} characters")
    return documents


def _tokenize(documents: Sequence[Document], tokenizer: Any, split: str, say: Say) -> list[TokenizedDocument]:
    skipped: list[Skipped] = []
    tokens = tokenize_cached(documents, tokenizer, cache_folder(), show_progress=True, skipped=skipped)
    _tell_skipped(skipped, say)
    say(f"{split}: {sum(len(document.ids) for document in tokens):,} tokens")
    return tokens


def _tell_skipped(skipped: Sequence[Skipped], say: Say) -> None:
    for entry in skipped[:10]:
        say(f"skipped {entry.name}: {entry.reason}")
    if len(skipped) > 10:
        say(f"… and skipped {len(skipped) - 10} more")


def _checksum_of_all(sources: Sequence[Sequence[Document]]) -> str:
    """A single source's own checksum, or one of all of theirs."""
    sums = [checksum(documents) for documents in sources]
    return sums[0] if len(sums) == 1 else hashlib.sha256("\n".join(sums).encode()).hexdigest()


def _tokenizer(settings: PretrainSettings, sources: Sequence[Sequence[Document]], say: Say, made_before: bool) -> Any:
    """The one that was asked for, or one made from the training text and kept until the run is finished."""
    if settings.tokenizer is not None:
        return load_tokenizer(settings.tokenizer)
    folder = Path(settings.out) / TOKENIZER_FOLDER
    if made_before and folder.is_dir():
        return load_tokenizer(str(folder))
    say(f"making a tokenizer of {settings.vocabulary:,} tokens")
    every = (document for documents in sources for document in documents)
    tokenizer = make_tokenizer(every, settings.vocabulary, settings.objective)
    if len(tokenizer) < settings.vocabulary:
        say(f"the text gives only {len(tokenizer):,} tokens: more would occur once")
    if is_first():
        folder.parent.mkdir(parents=True, exist_ok=True)
        save_tokenizer(tokenizer, folder)
    return tokenizer


def _validation(settings: PretrainSettings, texts: Sequence[TokenizedDocument], tokenizer: Any, half: bool) -> Validate:
    """Losses of whole documents in plain windows of all positions, as `recurrify evaluate` reads them; of another
    objective than the next token, losses of sequences in which always the same tokens are to be restored."""
    if settings.objective != "clm":
        return _restoring(settings, texts, tokenizer, half)
    # A twin is what gets evaluated: hooks on the layers of the model itself would make it compile anew.
    twin = add_recurrence(new_model(settings, len(tokenizer), _end(tokenizer)), NoRecurrence(window=settings.positions))

    def validate(model: PreTrainedModel) -> dict[str, float]:
        twin.base.load_state_dict(model.state_dict())
        found = evaluate_documents(
            twin.to(model.device), texts, rows=max(8, settings.batch), windows_per_call=1, bf16=half
        )
        return {
            "loss": found.total_nll / int(found.tokens.sum()),
            "perplexity_per_word": found.perplexity_per_word,
            "bits_per_character": found.bits_per_character,
        }

    return validate


def _restoring(settings: PretrainSettings, texts: Sequence[TokenizedDocument], tokenizer: Any, half: bool) -> Validate:
    try:
        rows = _rows(texts, tokenizer, settings)
    except UserError as error:
        raise UserError(f"For validation: {error}") from error

    @torch.no_grad()
    def validate(model: PreTrainedModel) -> dict[str, float]:
        collate = collator_of(settings.objective, tokenizer, seed=0)
        was_training = model.training
        model.eval()
        total, count = 0.0, 0
        for start in range(0, len(rows), settings.batch):
            batch = collate(rows.__getitems__(list(range(start, min(start + settings.batch, len(rows))))))
            batch = {name: value.to(model.device) for name, value in batch.items()}
            scored = int((batch["labels"] != IGNORED).sum())
            if not scored:
                continue  # a short sequence of which chance chose nothing
            with torch.autocast(model.device.type, torch.bfloat16, enabled=half):
                total += float(model(**batch).loss) * scored
            count += scored
        model.train(was_training)
        return {"loss": total / max(count, 1)}

    return validate


def _rows(texts: Sequence[TokenizedDocument], tokenizer: Any, settings: PretrainSettings) -> PackedRows:
    """Sequences of all positions, less those that the objective itself fills."""
    collate = collator_of(settings.objective, tokenizer)
    length = settings.positions - (collate.around if isinstance(collate, Masked) else 0)
    if length < 2:
        raise UserError(f"`positions` is {settings.positions}, which leaves {length} to the text: take more.")
    return PackedRows(pack_documents(texts, _end(tokenizer), len(tokenizer)), length)


def _end(tokenizer: Any) -> int:
    """What stands between two documents: an encoder's tokenizer may have a separator only."""
    return tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id


def _describe(model: PreTrainedModel, settings: PretrainSettings, rows: int) -> str:
    architecture = ARCHITECTURES[settings.objective]
    return (
        f"{architecture} with {settings.layers} layers of {settings.width}, {settings.heads} heads, "
        f"{model.config.vocab_size:,} tokens: {model.num_parameters():,} parameters; "
        f"{rows:,} sequences of {settings.positions} tokens"
    )


def _explained(error: Exception, out: str) -> Exception:
    if type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        return UserError(f"The model could not be compiled ({reason}): use --compile off.")
    return explain_full_disk(error, out)


def _result(
    settings: PretrainSettings, model: PreTrainedModel, outcome: PretrainOutcome, started: float
) -> dict[str, Any]:
    validations = [entry for entry in outcome.history if "eval_loss" in entry]
    last = validations[-1] if validations else {}
    return {
        "kind": "pretrain",
        "finished": outcome.finished,
        "interrupted": outcome.interrupted,
        "steps": outcome.steps,
        "tokens": outcome.tokens,
        "tokens_per_second": outcome.tokens_per_second,
        "parameters": model.num_parameters(),
        "vocabulary": model.config.vocab_size,
        "validation": {
            "loss_per_token": last.get("eval_loss"),
            "perplexity_per_word": last.get("eval_perplexity_per_word"),
            "bits_per_character": last.get("eval_bits_per_character"),
        },
        "history": outcome.history,
        "provenance": provenance(
            settings.to_dict(), seed=settings.seed, data_checksum=settings.data_checksum, started=started
        ),
    }


def _leave(model: PreTrainedModel, tokenizer: Any, result: dict[str, Any], out: Path) -> None:
    """The finished model and its result; what was kept for going on is taken away last."""
    try:
        model.to(torch.float32).save_pretrained(out / "model")
        tokenizer.save_pretrained(out / "model")
    except OSError as error:
        raise explain_full_disk(error, str(out)) from error
    save_result(out / RESULT_FILE, result)
    for folder in (*out.glob("checkpoint-*"), out / TOKENIZER_FOLDER):
        shutil.rmtree(folder, ignore_errors=True)
