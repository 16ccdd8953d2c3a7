"""A cache of token ids on disk: a corpus is tokenized once per tokenizer, and read through memory mapping.

The file is a safetensors file: the ids of all documents, and tables of their names and sizes. It is written by hand,
because the library writes tensors that are in memory, and a corpus may be larger.
"""

import hashlib
import json
import mmap
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload
from uuid import uuid4

import numpy as np
from filelock import FileLock

from recurrify.data.records import Document, Skipped
from recurrify.data.tokens import (
    TokenizedDocument,
    checksum,
    no_tokens,
    tokenize_documents,
    tokenize_stream,
    unchanged,
)

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

FORMAT = "recurrify tokens 2"
HEADER = 2_048
"""Bytes of the file's header, padded with spaces."""
SIZES = ("ends", "words", "characters", "bytes", "name_ends")
"""Tables of 64-bit integers, one entry per document; ends are offsets after its ids and after its name."""


class CachedDocuments(Sequence[TokenizedDocument]):
    """Tokenized documents in a cache file; those in use are read from it."""

    def __init__(self, tables: dict[str, np.ndarray]) -> None:
        self._tables = tables

    def __len__(self) -> int:
        return len(self._tables["ends"])

    @overload
    def __getitem__(self, index: int) -> TokenizedDocument: ...
    @overload
    def __getitem__(self, index: slice) -> list[TokenizedDocument]: ...
    def __getitem__(self, index: int | slice) -> TokenizedDocument | list[TokenizedDocument]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        tables = self._tables
        ids, name = (
            tables[values][tables[ends][index - 1] if index else 0 : tables[ends][index]]
            for values, ends in (("ids", "ends"), ("names", "name_ends"))
        )
        sizes = (int(tables[size][index]) for size in ("words", "characters", "bytes"))
        return TokenizedDocument(name.tobytes().decode(errors="surrogateescape"), ids, *sizes)


def tokenize_cached(
    documents: Iterable[Document],
    tokenizer: "PreTrainedTokenizerBase",
    cache_dir: Path | None,
    *,
    show_progress: bool = False,
    skipped: list[Skipped] | None = None,
    text_checksum: str | None = None,
) -> Sequence[TokenizedDocument]:
    """`tokenize_documents`, or its cached result for the same texts and tokenizer in `cache_dir`.

    The documents are read one at a time, and again if there is no cached result. Of several processes one tokenizes.

    Args:
        documents: The documents.
        tokenizer: The tokenizer.
        cache_dir: The folder of the cache; None keeps ids in memory.
        show_progress: Whether to show a progress bar.
        skipped: A list to which documents that are too short are appended, and a cache that cannot be written.
        text_checksum: `checksum(documents)`, if it is known.
    """
    skipped = [] if skipped is None else skipped
    if cache_dir is None:
        return tokenize_documents(documents, tokenizer, show_progress=show_progress, skipped=skipped)
    text_checksum = text_checksum or checksum(documents)
    path = Path(cache_dir) / f"tokens-{_cache_key(text_checksum, tokenizer)}.safetensors"
    cached, problem = _read(path), None
    if cached is None:
        with _lock(path.parent):
            cached = _read(path)  # another process may have written it meanwhile
            if cached is None:
                problem = _write(path, unchanged(documents, text_checksum), tokenizer, show_progress)
                cached = _read(path) if problem is None else None
    if cached is None:
        skipped.append(Skipped(f"the token cache {path.parent}", f"cannot be written ({problem})"))
        return tokenize_documents(documents, tokenizer, show_progress=show_progress, skipped=skipped)
    found, too_short = cached
    skipped += too_short
    if not len(found):
        raise no_tokens(too_short)
    return found


def _cache_key(text_checksum: str, tokenizer: "PreTrainedTokenizerBase") -> str:
    parts = [FORMAT, text_checksum, _tokenizer_identity(tokenizer)]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _tokenizer_identity(tokenizer: "PreTrainedTokenizerBase") -> str:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        # A tokenizer written in Python is identified by its class and vocabulary.
        return json.dumps([type(tokenizer).__qualname__, sorted(tokenizer.get_vocab().items())])
    serial = json.loads(backend.to_str())
    # Truncation and padding are settings of the last call.
    return json.dumps({key: value for key, value in serial.items() if key not in ("truncation", "padding")})


@contextmanager
def _lock(folder: Path) -> Iterator[None]:
    """Let processes write to the cache one after the other: all that want the same file but the first find it."""
    lock = FileLock(folder / ".lock")
    with suppress(OSError):  # reported when the file is written
        folder.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield
    finally:
        if lock.is_locked:
            with suppress(OSError):
                (folder / ".lock").unlink()
        lock.release()


def _write(
    path: Path, documents: Iterable[Document], tokenizer: "PreTrainedTokenizerBase", show_progress: bool
) -> OSError | None:
    """Write under a temporary name first, so that a killed run leaves no partial cache; returns what prevented it."""
    temporary = path.with_suffix(f".{uuid4().hex}.tmp")
    tables, names, skipped = {name: array("q") for name in SIZES}, bytearray(), list[Skipped]()
    count = 0
    try:
        with temporary.open("wb") as file:
            file.write(b" " * HEADER)
            digest = hashlib.sha256()

            def add(content: bytes | bytearray) -> None:
                digest.update(content)
                file.write(content)

            for document in tokenize_stream(documents, tokenizer, show_progress=show_progress, skipped=skipped):
                add(document.ids.tobytes())
                count += len(document.ids)
                names += document.name.encode(errors="surrogateescape")
                row = (count, document.words, document.characters, document.bytes, len(names))
                for table, value in zip(tables.values(), row, strict=True):
                    table.append(value)
            add(b"\0" * (-4 * count % 8))  # 64-bit integers begin at multiples of 8
            too_short = json.dumps(skipped).encode(errors="surrogateescape")
            parts = {"ids": ("I32", count, 4 * count), "gap": ("U8", -4 * count % 8, -4 * count % 8)}
            for name, table in tables.items():
                add(table.tobytes())
                parts[name] = ("I64", len(table), 8 * len(table))
            for name, content in (("names", names), ("skipped", too_short)):
                add(content)
                parts[name] = ("U8", len(content), len(content))
            file.seek(0)
            file.write(_header(parts, digest.hexdigest()))
        os.replace(temporary, path)
        return None
    except OSError as error:
        return error
    finally:
        with suppress(OSError):
            temporary.unlink()


def _header(parts: dict[str, tuple[str, int, int]], digest: str) -> bytes:
    described: dict[str, Any] = {"__metadata__": {FORMAT: digest}}
    start = 0
    for name, (kind, length, size) in parts.items():
        described[name] = {"dtype": kind, "shape": [length], "data_offsets": [start, start + size]}
        start += size
    text = json.dumps(described).encode()
    return (HEADER - 8).to_bytes(8, "little") + text.ljust(HEADER - 8)


def _read(path: Path) -> tuple[CachedDocuments, list[Skipped]] | None:
    """The content of a cache file; None if it is missing or damaged."""
    kinds = {"I32": np.int32, "I64": np.int64, "U8": np.uint8}
    try:
        with path.open("rb") as file:
            described = json.loads(file.read(HEADER)[8:])
            if hashlib.file_digest(file, "sha256").hexdigest() != described.pop("__metadata__")[FORMAT]:
                return None
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        tables = {
            name: np.frombuffer(content, kinds[part["dtype"]], part["shape"][0], HEADER + part["data_offsets"][0])
            for name, part in described.items()
        }
        return CachedDocuments(tables), [Skipped(*entry) for entry in json.loads(tables["skipped"].tobytes())]
    except (OSError, KeyError, TypeError, ValueError, AttributeError):
        return None
