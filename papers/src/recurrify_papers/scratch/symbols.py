"""Text as one stream of symbols: characters, bytes, or the tokens of a tokenizer.

The alphabet is that of the training part; `all-bytes` always has all 256 bytes. enwik8 and text8 are cut at 90 % and
95 % of their bytes. The documents of any other source are joined with a newline, or with the tokenizer's end of text.
`bytes-without-newlines` is how the code of Transformer-XL reads enwik8, which no paper mentions: its 205 bytes become
204, and newlines are neither read nor scored.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from recurrify import UserError
from recurrify.data import (
    EVERYTHING,
    SPLITS,
    Say,
    cache_folder,
    canonical_split,
    tokenize_cached,
)
from recurrify.results import write_whole
from recurrify_papers.data.packed import pack_documents
from recurrify_papers.data.tokenizers import load_tokenizer
from recurrify_papers.data.wikipedia import ENWIK8, TEXT8, part_of_dump, read_dump
from recurrify_papers.documents import read_documents

CHARACTERS, BYTES, ALL_BYTES, BYTES_WITHOUT_NEWLINES = "characters", "bytes", "all-bytes", "bytes-without-newlines"
ALPHABETS = (CHARACTERS, BYTES, ALL_BYTES, BYTES_WITHOUT_NEWLINES)
"""Values of `symbols` that do not name a tokenizer."""
SYMBOLS_FILE = "symbols.json"
NEWLINE = 10
CODE_POINTS = 0x110000


def _silent(text: str) -> None:
    """Report nothing."""


class SymbolStream(NamedTuple):
    """One part of a text."""

    ids: np.ndarray
    """Symbol ids, in the smallest type that torch can slice."""
    bytes: int
    """UTF-8 bytes that all symbols but the first spell; the first is never predicted."""


class SymbolData(NamedTuple):
    """A source in the symbols of its training part."""

    symbols: "Symbols"
    streams: dict[str, SymbolStream]
    """train, valid and test."""
    checksum: str
    """Of the training part."""
    held_out_checksum: str
    """Of the other parts."""


@dataclass(frozen=True)
class Alphabet:
    """Characters or bytes, each a symbol."""

    kind: str
    """One of ALPHABETS."""
    values: tuple[int, ...]
    """Code points or bytes in ascending order; the id of a symbol is its index."""

    @classmethod
    def of(cls, kind: str, codes: np.ndarray) -> "Alphabet":
        """The alphabet of all `codes`."""
        if kind == ALL_BYTES:
            return cls(kind, tuple(range(256)))
        seen = np.zeros(CODE_POINTS, dtype=bool)
        seen[codes] = True
        return cls(kind, tuple(np.flatnonzero(seen).tolist()))

    @property
    def size(self) -> int:
        return len(self.values)

    @property
    def unit(self) -> str:
        return "character" if self.kind == CHARACTERS else "byte"

    def read(self, source: str, split: str, text_field: str = "text", say: Say = _silent) -> SymbolStream:
        return self.encode(_codes(self.kind, source, split, text_field, say), f"the {split} part of {source!r}")

    def encode(self, codes: np.ndarray, where: str) -> SymbolStream:
        """Code points or bytes as ids; `where` names the text in the error about an unknown symbol."""
        ids_of = np.full(CODE_POINTS if self.kind == CHARACTERS else 256, -1, dtype=np.int32)
        ids_of[list(self.values)] = np.arange(self.size)
        ids = ids_of[codes]
        unknown = np.flatnonzero(ids < 0)
        if len(unknown):
            first = int(unknown[0])
            code = int(codes[first])
            name = f"{chr(code)!r} (U+{code:04X})" if self.kind == CHARACTERS else f"the byte 0x{code:02X}"
            raise UserError(
                f"There is no symbol for {name}, {self.unit} {first:,} of {where}: it does not occur in the training "
                "part. Train with --symbols all-bytes, which reads any text, or with a tokenizer."
            )
        spelt = len(codes) - 1
        if self.kind == CHARACTERS:
            # UTF-8 has one byte, and one more from each of these code points on.
            spelt += sum(int((codes[1:] >= bound).sum()) for bound in (0x80, 0x800, 0x10000))
        return SymbolStream(ids.astype(_smallest_type(self.size)), spelt)

    def save(self, folder: Path) -> None:
        write_whole(folder / SYMBOLS_FILE, (json.dumps({"kind": self.kind, "values": self.values}) + "\n").encode())


@dataclass(frozen=True)
class Tokens:
    """The tokens of a tokenizer, with its end of text after each document."""

    tokenizer: Any

    @property
    def size(self) -> int:
        return len(self.tokenizer)

    @property
    def unit(self) -> str:
        return "token"

    def read(self, source: str, split: str, text_field: str = "text", say: Say = _silent) -> SymbolStream:
        documents = read_documents(source, split, text_field, say)
        tokenized = tokenize_cached(documents, self.tokenizer, cache_folder())
        end = self.tokenizer.eos_token_id
        ids = pack_documents(tokenized, self.tokenizer.sep_token_id if end is None else end, self.size)
        first = self.tokenizer.decode([int(ids[0])], clean_up_tokenization_spaces=False)
        spelt = sum(document.bytes for document in tokenized) - len(first.encode(errors="replace"))
        return SymbolStream(ids.astype(_smallest_type(self.size)), spelt)

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)


Symbols = Alphabet | Tokens


def load_symbols(folder: Path) -> Symbols:
    """The symbols that `save` wrote into the folder of a model."""
    path = folder / SYMBOLS_FILE
    if not path.is_file():
        return Tokens(load_tokenizer(str(folder)))
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if found["kind"] not in ALPHABETS:
            raise ValueError(f"unknown kind {found['kind']!r}")
        return Alphabet(found["kind"], tuple(int(value) for value in found["values"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} is not a file of symbols ({error}): use a folder that recurrify wrote.") from error


def read_symbols(
    name: str, source: str, *, valid: str | None = None, text_field: str = "text", say: Say = _silent
) -> SymbolData:
    """The training, validation and test part of a source.

    Args:
        name: One of ALPHABETS, or a tokenizer's folder or name.
        source: A text source.
        valid: Another source, all of which replaces the validation part.
        text_field: Field of JSON lines or of a data set that holds the text.
        say: Receives one line for each part that is read.
    """
    parts = {split: (source, split) for split in SPLITS}
    if valid:
        parts["valid"] = (valid, EVERYTHING)
    if name not in ALPHABETS:
        tokens = _tokens_named(name)
        streams = {part: tokens.read(*where, text_field, say) for part, where in parts.items()}
        # Of the tokens, not of the text: another tokenizer of the same name would go unnoticed.
        return SymbolData(tokens, streams, *_checksums({part: stream.ids for part, stream in streams.items()}))
    codes = {part: _codes(name, *where, text_field, say) for part, where in parts.items()}
    _dump.cache_clear()
    alphabet = Alphabet.of(name, codes["train"])
    streams = {part: alphabet.encode(codes[part], f"the {part} part of {parts[part][0]!r}") for part in SPLITS}
    return SymbolData(alphabet, streams, *_checksums(codes))


def encode_part(symbols: Symbols, source: str, split: str, *, text_field: str = "text") -> SymbolStream:
    """A split of any source in given symbols."""
    return symbols.read(source, canonical_split(split), text_field)


def _tokens_named(name: str) -> Tokens:
    try:
        return Tokens(load_tokenizer(name))
    except UserError as error:
        reason = str(error).rstrip(".")
        raise UserError(
            f"`symbols` must be {', '.join(ALPHABETS)} or name a tokenizer: got {name!r} ({reason})."
        ) from error


def _codes(kind: str, source: str, split: str, text_field: str, say: Say) -> np.ndarray:
    """A split of a source as code points (uint32) or bytes (uint8)."""
    content: str | bytes
    corpus, _, path = source.partition(":")
    if corpus in (ENWIK8.name, TEXT8.name):
        content = _part(_dump(corpus, path or None), split, whole_characters=kind == CHARACTERS)
    else:
        content = "\n".join(document.text for document in read_documents(source, split, text_field, say))
    if kind == CHARACTERS:
        text = content if isinstance(content, str) else content.decode()
        return np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    codes = np.frombuffer(content.encode() if isinstance(content, str) else content, dtype=np.uint8)
    return codes[codes != NEWLINE] if kind == BYTES_WITHOUT_NEWLINES else codes


@lru_cache(maxsize=1)
def _dump(name: str, path: str | None) -> bytes:
    """Cached, because each part is cut from the whole file."""
    return read_dump(ENWIK8 if name == ENWIK8.name else TEXT8, path)


def _part(data: bytes, split: str, whole_characters: bool) -> str | bytes:
    if split == EVERYTHING:
        return data
    if whole_characters:
        return part_of_dump(data, split)
    start, stop = {"train": (0, 90), "valid": (90, 95), "test": (95, 100)}[split]
    return data[len(data) * start // 100 : len(data) * stop // 100]


def _checksums(parts: Mapping[str, np.ndarray]) -> tuple[str, str]:
    """Of the training part, and of the others."""
    trained, held_out = hashlib.sha256(), hashlib.sha256()
    for name, content in parts.items():
        total = trained if name == "train" else held_out
        total.update(f"{name} {content.dtype} {len(content)} ".encode())
        total.update(np.ascontiguousarray(content).data)
    return trained.hexdigest(), held_out.hexdigest()


def _smallest_type(size: int) -> type[np.generic]:
    """Without uint16, which torch supports only in part."""
    return np.uint8 if size <= 2**8 else np.int16 if size <= 2**15 else np.int32
