"""Token ids of documents."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from recurrify.console import heartbeat, is_first
from recurrify.data.records import CHANGED_MEANWHILE, Document, Skipped
from recurrify.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH_CHARACTERS, MOST_CHARACTERS = 2_000_000, 8_000_000
"""Text per tokenizer call, and at most if there are fewer documents than cores: a document uses one core."""

FEWEST_TOKENS = 2
"""One to read and one to predict."""


class TokenizedDocument(NamedTuple):
    """A document's token ids (int32) and the sizes of its text, by which losses are divided."""

    name: str
    ids: np.ndarray
    words: int = 0
    characters: int = 0
    bytes: int = 0


def tokenize_documents(
    documents: Iterable[Document],
    tokenizer: "PreTrainedTokenizerBase",
    *,
    show_progress: bool = False,
    skipped: list[Skipped] | None = None,
) -> list[TokenizedDocument]:
    """The documents' token ids, without special tokens; those with fewer than two go to `skipped`."""
    too_short: list[Skipped] = []
    tokenized = list(tokenize_stream(documents, tokenizer, show_progress=show_progress, skipped=too_short))
    if not tokenized:
        raise no_tokens(too_short)
    if skipped is not None:
        skipped += too_short
    return tokenized


def no_tokens(too_short: Sequence[Skipped]) -> UserError:
    """The error for documents that give no two tokens."""
    which = repr(too_short[0].name) if too_short else "no document"
    which += f" and {len(too_short) - 1} more" if len(too_short) > 1 else ""
    return UserError(
        f"{which}: no text gives {FEWEST_TOKENS} tokens or more, the fewest that can be scored: give longer texts."
    )


def tokenize_stream(
    documents: Iterable[Document], tokenizer: "PreTrainedTokenizerBase", *, show_progress: bool, skipped: list[Skipped]
) -> Iterator[TokenizedDocument]:
    """`tokenize_documents`, a few documents at a time."""
    for batch in _with_progress(_batches(documents), show_progress):
        # `verbose=False`: documents may be longer than the model's context.
        encoded = tokenizer(
            [document.text for document in batch],
            add_special_tokens=False,
            return_attention_mask=False,
            return_token_type_ids=False,
            verbose=False,
        )
        for document, ids in zip(batch, encoded["input_ids"], strict=True):
            if len(ids) < FEWEST_TOKENS:
                skipped.append(Skipped(document.name, f"gives {len(ids)} token(s), too few to predict any"))
            else:
                sizes = text_sizes(document.text)
                yield TokenizedDocument(document.name, np.asarray(ids, dtype=np.int32), *sizes)


def checksum(documents: Iterable[Document]) -> str:
    """The SHA-256 of the documents' names and texts, in their order."""
    digest = hashlib.sha256()
    for document in documents:
        _add(digest, document)
    return digest.hexdigest()


def unchanged(documents: Iterable[Document], expected: str) -> Iterator[Document]:
    """The documents; raises UserError at the end if this is not their checksum."""
    digest = hashlib.sha256()
    for document in documents:
        _add(digest, document)
        yield document
    if digest.hexdigest() != expected:
        raise UserError(CHANGED_MEANWHILE)


def _add(digest: Any, document: Document) -> None:
    for part in document:
        content = part.encode(errors="surrogateescape")
        # The length first, so that ("ab", "c") and ("a", "bc") differ.
        digest.update(len(content).to_bytes(8, "big"))
        digest.update(content)


def text_sizes(text: str) -> tuple[int, int, int]:
    """Words, characters and bytes of a text."""
    return len(text.split()), len(text), len(text.encode(errors="replace"))


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= (BATCH_CHARACTERS if len(batch) >= (os.cpu_count() or 1) else MOST_CHARACTERS):
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _with_progress(batches: Iterator[list[Document]], show_progress: bool) -> Iterator[list[Document]]:
    if not (show_progress and is_first()):
        yield from batches
        return
    texts = characters = 0
    with heartbeat(lambda: f"tokenizing: {texts:,} documents, {characters:,} characters"):
        for batch in batches:
            yield batch
            texts, characters = texts + len(batch), characters + sum(len(document.text) for document in batch)
