"""Token ids of documents."""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from recurrify.data.records import Document, Skipped
from recurrify.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BATCH_CHARACTERS = 2_000_000
"""Text per tokenizer call; at least one document per core, since a document uses one core."""

FEWEST_TOKENS = 2
"""One to read and one to predict."""


class TokenizedDocument(NamedTuple):
    """A document's token ids (int32) and the sizes of its text, by which losses are divided."""

    name: str
    ids: np.ndarray
    words: int
    characters: int
    bytes: int


def tokenize_documents(
    documents: Sequence[Document],
    tokenizer: "PreTrainedTokenizerBase",
    *,
    show_progress: bool = False,
    skipped: list[Skipped] | None = None,
) -> list[TokenizedDocument]:
    """The documents' token ids, without special tokens; those with fewer than two go to `skipped`."""
    skipped = [] if skipped is None else skipped
    tokenized: list[TokenizedDocument] = []
    for batch in _with_progress(list(_batches(documents)), show_progress):
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
                tokenized.append(TokenizedDocument(document.name, np.asarray(ids, dtype=np.int32), *sizes))
    if not tokenized:
        which = repr(documents[0].name) if documents else "no document"
        which += f" and {len(documents) - 1} more" if len(documents) > 1 else ""
        raise UserError(
            f"{which}: no text gives {FEWEST_TOKENS} tokens or more, the fewest that can be scored: give longer texts."
        )
    return tokenized


def checksum(documents: Iterable[Document]) -> str:
    """The SHA-256 of the documents' names and texts, in their order."""
    digest = hashlib.sha256()
    for document in documents:
        for part in document:
            content = part.encode(errors="surrogateescape")
            # The length first, so that ("ab", "c") and ("a", "bc") differ.
            digest.update(len(content).to_bytes(8, "big"))
            digest.update(content)
    return digest.hexdigest()


def text_sizes(text: str) -> tuple[int, int, int]:
    """Words, characters and bytes of a text."""
    return len(text.split()), len(text), len(text.encode(errors="replace"))


def _batches(documents: Sequence[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if characters >= BATCH_CHARACTERS and len(batch) >= (os.cpu_count() or 1):
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _with_progress(batches: list[list[Document]], show_progress: bool) -> Iterable[list[Document]]:
    if not show_progress:
        return batches
    from rich.console import Console
    from rich.progress import track

    # Results go to stdout, progress to stderr.
    return track(batches, description="Tokenizing", console=Console(stderr=True))
