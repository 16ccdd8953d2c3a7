"""Text as one stream of symbols for models from scratch: characters, bytes, or the tokens of a tokenizer.

The symbols are those of the training part; `all-bytes` has all 256, whatever the text. enwik8 and text8 are read as
they stand, cut at 90 % and 95 % of their bytes; the documents of any other source are joined, with a newline or the
tokenizer's end of text between them.

`bytes-without-newlines` is how Transformer-XL's code reads enwik8, though no paper says so: its 205 bytes become 204,
and the newlines are neither read nor scored.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from recurrify.data.documents import load_documents
from recurrify.data.packed import pack_documents
from recurrify.data.records import Skipped
from recurrify.data.splits import EVERYTHING, SPLITS, canonical_split
from recurrify.data.token_cache import tokenize_cached
from recurrify.data.tokenizers import load_tokenizer
from recurrify.errors import UserError
from recurrify.results import write_whole
from recurrify_papers.data.wikipedia import ENWIK8, TEXT8, part_of_dump, read_dump

CHARACTERS, BYTES, ALL_BYTES, BYTES_WITHOUT_NEWLINES = "characters", "bytes", "all-bytes", "bytes-without-newlines"
ALPHABETS = (CHARACTERS, BYTES, ALL_BYTES, BYTES_WITHOUT_NEWLINES)
"""What `symbols` may be besides a tokenizer."""
SYMBOLS_FILE = "symbols.json"
SEPARATOR = "\n"
NEWLINE = 10
CODE_POINTS = 0x110000


class SymbolStream(NamedTuple):
    """One part of a text, ready to be read from its first symbol to its last."""

    ids: np.ndarray
    """Symbols by their number, in the smallest type that torch can cut batches from."""
    characters: int
    """Of the text that all symbols but the first spell: those that can be predicted."""
    bytes: int
    """The same in UTF-8."""


class Symbols(Protocol):
    """What a stream is made of."""

    @property
    def size(self) -> int:
        """Of the vocabulary."""

    @property
    def unit(self) -> str:
        """What one symbol is called."""

    def save(self, folder: Path) -> None:
        """Beside the weights of the model that knows these symbols; `load_symbols` reads it back."""


class SymbolData(NamedTuple):
    """A source in the symbols of its training part."""

    symbols: Symbols
    streams: dict[str, SymbolStream]
    """train, valid and test."""
    checksum: str
    """Of all parts, as they are read."""


@dataclass(frozen=True)
class Alphabet:
    """Characters or bytes, each a symbol."""

    kind: str
    """One of ALPHABETS."""
    values: tuple[int, ...]
    """Code points, or bytes, in rising order: a symbol's number is its place here."""

    @classmethod
    def of(cls, kind: str, codes: np.ndarray) -> "Alphabet":
        """All that occurs in `codes`."""
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

    def encode(self, codes: np.ndarray, where: str = "the text", in_training: bool = True) -> SymbolStream:
        """`where` and `in_training` are for the sentence that refuses unknown symbols."""
        number_of = np.full(CODE_POINTS if self.kind == CHARACTERS else 256, -1, dtype=np.int32)
        number_of[list(self.values)] = np.arange(self.size)
        ids = number_of[codes]
        unknown = np.flatnonzero(ids < 0)
        if len(unknown):
            first = int(unknown[0])
            if self.kind == CHARACTERS:
                name = f"{chr(codes[first])!r} (U+{codes[first]:04X})"
            else:
                name = f"the byte 0x{codes[first]:02X}"
            raise UserError(
                f"There is no symbol for {name}, which is {self.unit} {first:,} of {where}: the training part never "
                f"has it ({len(np.unique(codes[unknown]))} such in all); {self._way_out(in_training)}."
            )
        rest = codes[1:]
        if self.kind == CHARACTERS:
            # One byte of UTF-8, and one more beyond each of these code points.
            size = len(rest) + sum(int((rest >= bound).sum()) for bound in (0x80, 0x800, 0x10000))
            return SymbolStream(ids.astype(_smallest_type(self.size)), len(rest), size)
        characters = int(((rest & 0xC0) != 0x80).sum())  # all but the later bytes of a character
        return SymbolStream(ids.astype(_smallest_type(self.size)), characters, len(rest))

    def _way_out(self, in_training: bool) -> str:
        if not in_training:
            return (
                f"give a text of the {self.size} {self.unit}s that the model was trained with, or train one with "
                "--symbols all-bytes, which reads any text"
            )
        spelt = ", which spell any character" if self.kind == CHARACTERS else ""
        return f"use --symbols all-bytes{spelt}, or a tokenizer"

    def save(self, folder: Path) -> None:
        text = json.dumps({"kind": self.kind, "values": self.values}) + "\n"
        write_whole(folder / SYMBOLS_FILE, text.encode())


@dataclass(frozen=True)
class Tokens:
    """A tokenizer's tokens, with its end of text after each document."""

    tokenizer: Any

    @property
    def size(self) -> int:
        return len(self.tokenizer)

    @property
    def unit(self) -> str:
        return "token"

    @property
    def end(self) -> int:
        end = self.tokenizer.eos_token_id
        return self.tokenizer.sep_token_id if end is None else end

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)


def load_symbols(folder: Path) -> Symbols:
    """Read what `save` of any kind of symbols wrote."""
    path = folder / SYMBOLS_FILE
    if not path.is_file():
        return Tokens(load_tokenizer(str(folder)))
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        alphabet = Alphabet(found["kind"], tuple(int(value) for value in found["values"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read as symbols ({error}): it does not come from recurrify.") from error
    if alphabet.kind not in ALPHABETS:
        raise UserError(f"{path} holds symbols of the kind {alphabet.kind!r}, which is none of {', '.join(ALPHABETS)}.")
    return alphabet


def read_symbols(
    name: str,
    source: str,
    *,
    valid: str | None = None,
    text_field: str = "text",
    cache_dir: Path | None = None,
    skipped: list[Skipped] | None = None,
) -> SymbolData:
    """The three parts of a source; `name` is one of ALPHABETS, or names a tokenizer.

    `valid` is another source, all of which takes the place of the validation part.
    """
    skipped = [] if skipped is None else skipped
    parts = [(source, split, split) for split in SPLITS if not (valid and split == "valid")]
    parts += [(valid, EVERYTHING, "valid")] if valid else []
    if name not in ALPHABETS:
        return _read_tokens(_tokens_named(name), parts, text_field, cache_dir, skipped)
    codes: dict[str, np.ndarray] = {}
    for one in dict.fromkeys(part[0] for part in parts):
        splits = {split: part for other, split, part in parts if other == one}
        codes |= {splits[split]: found for split, found in _codes(name, one, list(splits), text_field, skipped).items()}
    alphabet = Alphabet.of(name, codes["train"])
    where = {part: f"the {part} part of {one!r}" for one, _, part in parts}
    streams = {part: alphabet.encode(codes[part], where[part]) for part in SPLITS}
    return SymbolData(alphabet, streams, _checksum(codes))


def _tokens_named(name: str) -> "Tokens":
    try:
        return Tokens(load_tokenizer(name))
    except UserError as error:
        reason = str(error).rstrip(".")
        raise UserError(
            f"`symbols` must be {', '.join(ALPHABETS)} or name a tokenizer: got {name!r} ({reason})."
        ) from error


def encode_part(
    symbols: Symbols, source: str, split: str, *, text_field: str = "text", cache_dir: Path | None = None
) -> SymbolStream:
    """One split of any source, in symbols that are there already."""
    split = canonical_split(split)
    if isinstance(symbols, Alphabet):
        codes = _codes(symbols.kind, source, [split], text_field, [])[split]
        return symbols.encode(codes, f"the {split} part of {source!r}", in_training=False)
    assert isinstance(symbols, Tokens)
    return _read_tokens(symbols, [(source, split, split)], text_field, cache_dir, []).streams[split]


def _codes(
    kind: str, source: str, splits: Sequence[str], text_field: str, skipped: list[Skipped]
) -> Mapping[str, np.ndarray]:
    """Splits of a source as code points (uint32) or bytes (uint8)."""
    corpus, _, path = source.partition(":")
    dump = {"enwik8": ENWIK8, "text8": TEXT8}.get(corpus)
    if dump is not None:
        data = read_dump(dump, path or None)
        return {split: _as_codes(kind, _part(data, split, kind)) for split in splits}
    found = {}
    for split in splits:
        documents = load_documents(source, split, text_field=text_field, skipped=skipped)
        text = SEPARATOR.join(document.text for document in documents)
        found[split] = _as_codes(kind, text if kind == CHARACTERS else text.encode())
    return found


def _part(data: bytes, split: str, kind: str) -> str | bytes:
    """A split of a dump: by the byte, unless characters have to stay whole."""
    if split == EVERYTHING:
        return data.decode() if kind == CHARACTERS else data
    if kind == CHARACTERS:
        return part_of_dump(data, split)
    start, stop = {"train": (0, 90), "valid": (90, 95), "test": (95, 100)}[split]
    return data[len(data) * start // 100 : len(data) * stop // 100]


def _as_codes(kind: str, content: str | bytes) -> np.ndarray:
    if isinstance(content, str):
        return np.frombuffer(content.encode("utf-32-le"), dtype=np.uint32)
    codes = np.frombuffer(content, dtype=np.uint8)
    return codes[codes != NEWLINE] if kind == BYTES_WITHOUT_NEWLINES else codes


def _read_tokens(
    tokens: Tokens,
    parts: Sequence[tuple[str, str, str]],
    text_field: str,
    cache_dir: Path | None,
    skipped: list[Skipped],
) -> SymbolData:
    streams = {}
    for source, split, part in parts:
        documents = load_documents(source, split, text_field=text_field, skipped=skipped)
        tokenized = tokenize_cached(documents, tokens.tokenizer, cache_dir, skipped=skipped)
        ids = pack_documents(tokenized, tokens.end, tokens.size)
        first = tokens.tokenizer.decode([int(ids[0])], clean_up_tokenization_spaces=False)
        streams[part] = SymbolStream(
            ids.astype(_smallest_type(tokens.size)),
            sum(document.characters for document in tokenized) - len(first),
            sum(document.bytes for document in tokenized) - len(first.encode(errors="replace")),
        )
    # Of the tokens and not of the text: another tokenizer of the same name and size would go unnoticed.
    return SymbolData(tokens, streams, _checksum({part: stream.ids for part, stream in streams.items()}))


def _checksum(parts: Mapping[str, np.ndarray]) -> str:
    total = hashlib.sha256()
    for name, content in parts.items():
        total.update(f"{name} {content.dtype} {len(content)} ".encode())
        total.update(np.ascontiguousarray(content).data)
    return total.hexdigest()


def _smallest_type(size: int) -> type[np.generic]:
    """Unsigned 16 bits are missing: torch can hold them, but cut and copy them only in part."""
    return np.uint8 if size <= 2**8 else np.int16 if size <= 2**15 else np.int32
