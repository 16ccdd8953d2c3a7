"""A cache of token ids on disk: a corpus is tokenized once per tokenizer."""

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

from recurrify.data.records import Document, Skipped
from recurrify.data.tokens import TokenizedDocument, checksum, tokenize_documents

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMAT = "recurrify tokens 1"


def tokenize_cached(
    documents: Sequence[Document],
    tokenizer: "PreTrainedTokenizerBase",
    cache_dir: Path | None,
    *,
    show_progress: bool = False,
    skipped: list[Skipped] | None = None,
) -> list[TokenizedDocument]:
    """`tokenize_documents`, or its cached result for the same texts and tokenizer in `cache_dir`.

    A cache that cannot be written is reported in `skipped`.
    """
    skipped = [] if skipped is None else skipped
    if cache_dir is None:
        return tokenize_documents(documents, tokenizer, show_progress=show_progress, skipped=skipped)
    path = Path(cache_dir) / f"tokens-{_cache_key(documents, tokenizer)}.safetensors"
    cached = _read(path)
    if cached is None:
        too_short: list[Skipped] = []
        fresh = tokenize_documents(documents, tokenizer, show_progress=show_progress, skipped=too_short)
        problem = _write(path, fresh, too_short)
        if problem is not None:
            skipped.append(Skipped(f"the token cache {path.parent}", f"cannot be written ({problem})"))
        cached = fresh, too_short
    skipped += cached[1]
    return cached[0]


def _cache_key(documents: Sequence[Document], tokenizer: "PreTrainedTokenizerBase") -> str:
    parts = [FORMAT, checksum(documents), _tokenizer_identity(tokenizer)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _tokenizer_identity(tokenizer: "PreTrainedTokenizerBase") -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        # A tokenizer written in Python is identified by its class and vocabulary.
        return json.dumps([type(tokenizer).__qualname__, sorted(tokenizer.get_vocab().items())])
    serial = json.loads(backend.to_str())
    # Truncation and padding are settings of the last call.
    return json.dumps({key: value for key, value in serial.items() if key not in ("truncation", "padding")})


def _write(path: Path, documents: list[TokenizedDocument], skipped: list[Skipped]) -> Exception | None:
    """Write under a temporary name first, so that a killed run leaves no partial cache; returns what prevented it."""
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
        return None
    except (OSError, SafetensorError) as error:
        return error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _read(path: Path) -> tuple[list[TokenizedDocument], list[Skipped]] | None:
    """The content of a cache file; None if it is missing or damaged."""
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
