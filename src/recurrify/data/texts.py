"""Device selection, and text as tokens with a report of what was skipped."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

from recurrify.caching import cache_folder
from recurrify.console import heartbeat
from recurrify.data.documents import stream_documents
from recurrify.data.records import Skipped
from recurrify.data.token_cache import tokenize_cached
from recurrify.data.tokens import TokenizedDocument, checksum, text_sizes
from recurrify.errors import UserError

FEW_TOKENS = 10_000
"""Losses of tokens scatter by some 3 nats, so that their mean over this many is known to about 3 %."""
Say = Callable[[str], None]
"""Prints a progress message."""
MOST_REPORTED = 10


def pick_device(name: str = "auto") -> torch.device:
    """The device of this name; `auto` is CUDA if available, else the CPU."""
    if name != "auto":
        try:
            device = torch.device(name)
            if device.type != "cuda" or torch.cuda.is_available():
                torch.ones(1, device=device).item()  # torch knows devices that this machine lacks
        except (RuntimeError, AssertionError) as error:
            raise UserError(f"There is no device {name!r}: use auto, cpu, cuda or cuda:N.") from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UserError(f"Device {name!r} is not available, this machine has no usable CUDA GPU: use cpu.")
        return device
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def report_skipped(skipped: Sequence[Skipped], say: Say) -> None:
    """Report the first things that were left out, and how many more there are."""
    for entry in skipped[:MOST_REPORTED]:
        say(f"skipped {entry.name}: {entry.reason}")
    if len(skipped) > MOST_REPORTED:
        say(f"… and skipped {len(skipped) - MOST_REPORTED} more")


def read_text(
    source: str,
    split: str,
    tokenizer: Any,
    say: Say,
    text_field: str = "text",
    tokens_per_document: int | None = None,
) -> tuple[Sequence[TokenizedDocument], str]:
    """Tokenized documents and the checksum of their text. Neither texts nor tokens need to fit in memory."""
    skipped: list[Skipped] = []
    with heartbeat(lambda: f"reading {source}"):
        documents = stream_documents(source, split, text_field=text_field, skipped=skipped)
        text_sum = checksum(documents)
    tokens = tokenize_cached(
        documents, tokenizer, cache_folder(), show_progress=True, skipped=skipped, text_checksum=text_sum
    )
    report_skipped(skipped, say)
    if tokens_per_document is not None:
        tokens = shorten(tokens, tokenizer, tokens_per_document)
    count = "1 document" if len(tokens) == 1 else f"{len(tokens)} documents"
    say(f"{source} ({split}): {count}, {sum(len(d.ids) for d in tokens):,} tokens")
    return tokens, text_sum


def few_tokens(tokens: Sequence[TokenizedDocument]) -> str | None:
    """A warning about a text, or its split, that is too short for its score to say much."""
    count = sum(len(document.ids) for document in tokens)
    if count >= FEW_TOKENS:
        return None
    return f"this text has only {count:,} tokens, where differences of a few percent are chance: use a longer one."


def shorten(tokens: Sequence[TokenizedDocument], tokenizer: Any, most: int) -> list[TokenizedDocument]:
    """The first `most` tokens of each document, with the sizes of the text that they decode to."""
    short = []
    for document in tokens:
        if len(document.ids) > most:
            ids = document.ids[:most]
            text = tokenizer.decode(ids, clean_up_tokenization_spaces=False)
            document = TokenizedDocument(document.name, ids, *text_sizes(text))
        short.append(document)
    return short
