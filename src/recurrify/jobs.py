"""Whole jobs, from names to result files: what the command line and the demo call."""

import errno
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from recurrify.data import (
    Skipped,
    TokenizedDocument,
    TrainingSequences,
    checksum,
    load_documents,
    tokenize_cached,
)
from recurrify.errors import UserError
from recurrify.evaluate import (
    Evaluation,
    evaluate_documents,
    full_flops_per_token,
    interval,
    paper_flops_per_token,
    relative_gain,
)
from recurrify.recurrence import RecurrentForCausalLM, load_model
from recurrify.results import load_result, provenance, save_result
from recurrify.train import TrainSettings, last_whole_checkpoint, train, uses_bf16

RESULT_FILE = "result.json"
Say = Callable[[str], None]


def cache_folder() -> Path:
    """Where tokenized text is kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "recurrify"


def pick_device(name: str = "auto") -> torch.device:
    if name != "auto":
        try:
            device = torch.device(name)
            if device.type != "cuda" or torch.cuda.is_available():
                torch.ones(1, device=device).item()  # a device that torch knows may still not be here
        except (RuntimeError, AssertionError) as error:
            raise UserError(f"There is no device {name!r}: use auto, cpu, cuda or cuda:N.") from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UserError(f"Device {name!r} was asked for, but this machine has no usable CUDA GPU: use cpu.")
        return device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def read_text(
    source: str,
    split: str,
    tokenizer: Any,
    say: Say,
    text_field: str = "text",
    tokens_per_document: int | None = None,
) -> tuple[list[TokenizedDocument], str]:
    """Tokenized documents and the checksum of their text."""
    skipped: list[Skipped] = []
    documents = load_documents(source, split, text_field=text_field, skipped=skipped)
    tokens = tokenize_cached(documents, tokenizer, cache_folder(), show_progress=True, skipped=skipped)
    for entry in skipped[:10]:
        say(f"skipped {entry.name}: {entry.reason}")
    if len(skipped) > 10:
        say(f"… and skipped {len(skipped) - 10} more")
    if tokens_per_document is not None:
        tokens = shorten(tokens, tokenizer, tokens_per_document)
    documents_told = "1 document" if len(tokens) == 1 else f"{len(tokens)} documents"
    say(f"{source} ({split}): {documents_told}, {sum(len(d.ids) for d in tokens):,} tokens")
    return tokens, checksum(documents)


def shorten(tokens: Sequence[TokenizedDocument], tokenizer: Any, most: int) -> list[TokenizedDocument]:
    """The first `most` tokens of each document, with the words and characters that these tokens spell."""
    short = []
    for document in tokens:
        if len(document.ids) > most:
            ids = document.ids[:most]
            text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
            size = len(text.encode("utf-8", errors="replace"))
            document = TokenizedDocument(document.name, ids, len(text.split()), len(text), size)
        short.append(document)
    return short


# ---- training --------------------------------------------------------------------------------------------


def train_run(
    settings: TrainSettings, say: Say, show_progress: bool = True, progress_label: str = ""
) -> dict[str, Any]:
    """Train as the settings say and leave model and result in `settings.out`; goes on with a run begun there."""
    out = Path(settings.out)
    started = time.time()
    set_seed(settings.seed)
    model, tokenizer = load_model(settings.model, settings.recurrence)
    texts, text_sum = read_text(settings.data, "train", tokenizer, say, settings.text_field)
    # What is written down is what the model has, whatever was left to defaults.
    settings = replace(settings, recurrence=model.recurrence.to_dict(), data_checksum=text_sum)
    earlier = TrainSettings.read(out)
    if earlier is not None:
        settings.check_same_run(earlier)
        if (out / RESULT_FILE).is_file():
            say(f"{settings.out} is finished already: nothing to do (choose another --out to train anew).")
            return load_result(out / RESULT_FILE)
        checkpoint = last_whole_checkpoint(out)
        where = f"from step {checkpoint.name.split('-')[1]}" if checkpoint else "from the start: nothing was saved yet"
        say(f"going on with the run in {settings.out}, {where}")
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
        raise _if_disk_full(error, settings.out) from error
    result = {
        "kind": "train",
        "finished": outcome.finished,
        "interrupted": outcome.interrupted,
        "steps": outcome.steps,
        "tokens": outcome.tokens,
        "parameters": count_parameters(model),
        "history": outcome.history,
        "provenance": provenance(settings.to_dict(), seed=settings.seed, data_checksum=text_sum, started=started),
    }
    if not outcome.finished:
        say(f"stopped and saved after {outcome.tokens:,} tokens: run the same command again to go on")
        return result
    if int(os.environ.get("RANK", "0")) == 0:
        try:
            model.save_pretrained(out / "model")
            tokenizer.save_pretrained(out / "model")
        except OSError as error:
            raise _if_disk_full(error, settings.out) from error
        save_result(out / RESULT_FILE, result)
    return result


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
        f"{settings.model}: {counts['base']:,} parameters, {counts['added']:,} added by "
        f"{model.recurrence.mechanism!r}; windows of {model.recurrence.window}, overlap {model.recurrence.overlap}, "
        f"{settings.windows} in a sequence"
    )


def _if_disk_full(error: Exception, out: str) -> Exception:
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


# ---- evaluation ------------------------------------------------------------------------------------------


def evaluation_rows(
    model: RecurrentForCausalLM,
    tokens: Sequence[TokenizedDocument],
    overlaps: Sequence[int],
    progress: Callable[[int], None] | None = None,
    rows: int = 32,
    bf16: bool = False,
) -> tuple[list[dict[str, Any]], list[Evaluation]]:
    """One table row per overlap, all scoring the same tokens, and the evaluations behind them."""
    table, evaluations = [], []
    for overlap in overlaps:
        found = evaluate_documents(model, tokens, overlap=overlap, rows=rows, bf16=bf16, progress=progress)
        evaluations.append(found)
        table.append(
            {
                "window": found.window,
                "overlap": overlap,
                "perplexity_per_word": found.perplexity_per_word,
                "perplexity_per_word_interval": interval(found),
                "perplexity_per_token": found.perplexity_per_token,
                "perplexity_per_token_interval": interval(found, "perplexity_per_token"),
                "bits_per_character": found.bits_per_character,
                "bits_per_byte": found.bits_per_byte,
                "flops_per_token": paper_flops_per_token(model, overlap=overlap),
                "full_flops_per_token": full_flops_per_token(model, overlap=overlap),
            }
        )
    return table, evaluations


def gain_row(plain: Sequence[Evaluation], recurrent: Sequence[Evaluation], unit: str = "word") -> dict[str, Any]:
    """How much lower the recurrent model's perplexity is, with its interval; same seeds in the same order."""
    gain = relative_gain(plain, recurrent, metric=f"perplexity_per_{unit}", paired_seeds=True)
    return {"overlap": plain[0].overlap, "unit": unit, "seeds": len(recurrent), **asdict(gain)}
