"""Token ids kept on disk, so that a corpus is tokenized once per tokenizer."""

import hashlib
import json
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from recurrify.data.documents import load_documents
from recurrify.data.records import Document, Skipped
from recurrify.data.tokens import TokenizedDocument, checksum, tokenize_documents
from recurrify.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMAT = "recurrify tokens 1"


def tokenized(
    source: str | os.PathLike[str],
    split: str,
    tokenizer: "PreTrainedTokenizerBase",
    cache_dir: Path | None = None,
    *,
    text_field: str = "text",
    limit: int | None = None,
    show_progress: bool = False,
    skipped: list[Skipped] | None = None,
) -> list[TokenizedDocument]:
    """The token ids of a source's split: `load_documents`, then `tokenize_cached`."""
    documents = load_documents(source, split, text_field=text_field, limit=limit, skipped=skipped)
    return tokenize_cached(documents, tokenizer, cache_dir, show_progress=show_progress, skipped=skipped)


def tokenize_cached(
    documents: Sequence[Document],
    tokenizer: "PreTrainedTokenizerBase",
    cache_dir: Path | None,
    *,
    show_progress: bool = False,
    skipped: list[Skipped] | None = None,
) -> list[TokenizedDocument]:
    """As `tokenize_documents`, out of a file in `cache_dir` where one holds the same texts and tokenizer."""
    skipped = [] if skipped is None else skipped
    if cache_dir is None:
        return tokenize_documents(documents, tokenizer, show_progress=show_progress, skipped=skipped)
    path = Path(cache_dir) / f"tokens-{_cache_key(documents, tokenizer)}.safetensors"
    cached = _read(path)
    if cached is None:
        too_short: list[Skipped] = []
        fresh = tokenize_documents(documents, tokenizer, show_progress=show_progress, skipped=too_short)
        _write(path, fresh, too_short)
        cached = fresh, too_short
    skipped += cached[1]
    return cached[0]


def _cache_key(documents: Sequence[Document], tokenizer: "PreTrainedTokenizerBase") -> str:
    parts = [FORMAT, checksum(documents), _tokenizer_identity(tokenizer)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _tokenizer_identity(tokenizer: "PreTrainedTokenizerBase") -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        # A tokenizer written in Python has no serial form; its class and vocabulary decide what it gives.
        return json.dumps([type(tokenizer).__qualname__, sorted(tokenizer.get_vocab().items())])
    serial = json.loads(backend.to_str())
    # These two remember how the tokenizer was last called, not what it is.
    return json.dumps({key: value for key, value in serial.items() if key not in ("truncation", "padding")})


def _write(path: Path, documents: list[TokenizedDocument], skipped: list[Skipped]) -> None:
    """Under a temporary name first: a run that is killed here leaves no half-written cache behind."""
    ids = np.concatenate([document.ids for document in documents])
    sizes = [
        [document.name, len(document.ids), document.words, document.characters, document.bytes]
        for document in documents
    ]
    about = {"documents": sizes, "skipped": skipped, "sha256": _digest(ids)}
    temporary = path.with_suffix(f".{uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        save_file({"ids": ids}, temporary, metadata={FORMAT: json.dumps(about)})
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"The token cache {path.parent} cannot be written ({error}): choose another `cache_dir`, or None."
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _read(path: Path) -> tuple[list[TokenizedDocument], list[Skipped]] | None:
    """What a cache file holds; None when there is no such file or it is damaged."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads(file.metadata()[FORMAT])
            ids = file.get_tensor("ids")
        if _digest(ids) != about["sha256"]:
            return None
        documents: list[TokenizedDocument] = []
        start = 0
        for name, length, words, characters, size in about["documents"]:
            part = ids[start : start + length]
            documents.append(TokenizedDocument(name, part, words, characters, size))
            start += length
        return documents, [Skipped(*entry) for entry in about["skipped"]]
    except (SafetensorError, OSError, KeyError, TypeError, ValueError):
        return None


def _digest(ids: np.ndarray) -> str:
    return hashlib.sha256(ids.tobytes()).hexdigest()
