"""Streams of symbols: alphabets, tokenizers, and the parts of enwik8 and of documents."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recurrify import UserError
from recurrify.data import Document
from recurrify_papers.data import wikipedia
from recurrify_papers.data.tokenizers import make_tokenizer
from recurrify_papers.scratch import symbols
from recurrify_papers.scratch.symbols import Alphabet, SymbolData, Tokens, encode_part, load_symbols, read_symbols

DUMP = ("ñé\nab" * 45).encode()  # 315 bytes
PARTS = ("train", "valid", "test")


@pytest.fixture
def enwik8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A small file in place of enwik8."""
    path = tmp_path / "enwik8"
    path.write_bytes(DUMP)
    dump = replace(wikipedia.ENWIK8, size=len(DUMP), md5=hashlib.md5(DUMP, usedforsecurity=False).hexdigest())
    monkeypatch.setattr(symbols, "ENWIK8", dump)
    return f"enwik8:{path}"


def folder(tmp_path: Path, **parts: str) -> str:
    """A source with its own splits; | separates documents."""
    for name, text in parts.items():
        (tmp_path / name).mkdir(parents=True)
        for number, piece in enumerate(text.split("|")):
            (tmp_path / name / f"{number}.txt").write_text(piece, encoding="utf-8")
    return str(tmp_path)


def spelt(data: SymbolData) -> list[list[int]]:
    assert isinstance(data.symbols, Alphabet)
    return [[data.symbols.values[number] for number in data.streams[part].ids] for part in PARTS]


def test_enwik8_is_cut_at_90_and_95_percent_of_its_bytes(enwik8: str) -> None:
    data = read_symbols("bytes", enwik8)
    assert [bytes(part) for part in spelt(data)] == [DUMP[:283], DUMP[283:299], DUMP[299:]]
    assert data.symbols.values == tuple(sorted(set(DUMP)))
    assert data.streams["train"].ids.dtype == np.uint8


def test_enwik8_without_newlines_has_one_symbol_less(enwik8: str) -> None:
    data = read_symbols("bytes-without-newlines", enwik8)
    assert data.symbols.size == len(set(DUMP)) - 1
    assert b"".join(bytes(part) for part in spelt(data)) == DUMP.replace(b"\n", b"")


def test_enwik8_as_characters_keeps_them_whole(enwik8: str) -> None:
    parts = ["".join(map(chr, part)) for part in spelt(read_symbols("characters", enwik8))]
    assert parts == [DUMP[:282].decode(), DUMP[282:299].decode(), DUMP[299:].decode()]  # byte 283 is inside an é


def test_other_file_than_enwik8_raises(enwik8: str) -> None:
    Path(enwik8.removeprefix("enwik8:")).write_bytes(DUMP + b"x")
    with pytest.raises(UserError, match="MD5"):
        read_symbols("bytes", enwik8)


def test_names_of_splits(enwik8: str) -> None:
    every_byte = Alphabet("all-bytes", tuple(range(256)))
    assert encode_part(every_byte, enwik8, "valid").ids.tolist() == encode_part(every_byte, enwik8, "dev").ids.tolist()
    assert bytes(encode_part(every_byte, enwik8, "all").ids) == DUMP
    with pytest.raises(UserError, match="must be one of train, valid, test or all: got split='tset'"):
        encode_part(every_byte, enwik8, "tset")


def test_documents_are_joined_with_newlines(tmp_path: Path) -> None:
    source = folder(tmp_path / "a", train="ba|ca", valid="ab", test="c")
    data = read_symbols("characters", source)
    assert data.symbols == Alphabet("characters", tuple(map(ord, "\nabc")))
    assert [data.streams[part].ids.tolist() for part in PARTS] == [[2, 1, 0, 3, 1], [1, 2], [3]]
    (tmp_path / "other.txt").write_text("cab")
    other = read_symbols("characters", source, valid=str(tmp_path / "other.txt"))
    assert [other.streams[part].ids.tolist() for part in PARTS[1:]] == [[3, 1, 2], [3]]
    assert (data.checksum == other.checksum, data.held_out_checksum == other.held_out_checksum) == (True, False)


@pytest.mark.parametrize(("kind", "size"), [("characters", 5), ("bytes", 11), ("all-bytes", 256)])
def test_bytes_that_are_predicted(kind: str, size: int, tmp_path: Path) -> None:
    text = "éa€😀b"
    data = read_symbols(kind, folder(tmp_path, train=text, valid=text, test=text))
    stream = data.streams["test"]
    # The first symbol is not predicted; the first byte is only a half of é.
    assert stream.bytes == len("a€😀b".encode()) + (kind != "characters")
    assert data.symbols.size == size


@pytest.mark.parametrize(
    ("kind", "parts", "words"),
    [
        ("characters", {"valid": "a", "test": "abéxé"}, r"'é' \(U\+00E9\), character 2 of the test part of"),
        ("bytes", {"valid": "ab\t", "test": "a"}, "the byte 0x09, byte 2 of the valid part of"),
    ],
)
def test_unknown_symbol_raises(kind: str, parts: dict[str, str], words: str, tmp_path: Path) -> None:
    source = folder(tmp_path, train="abc", **parts)
    with pytest.raises(UserError, match=rf"{words}.*Train with --symbols all-bytes"):
        read_symbols(kind, source)
    assert read_symbols("all-bytes", source).symbols.size == 256
    alphabet, split = Alphabet(kind, tuple(map(ord, "abc"))), "test" if kind == "characters" else "valid"
    with pytest.raises(UserError, match=words):
        encode_part(alphabet, source, split)


def test_tokens_end_each_document(tmp_path: Path) -> None:
    made = make_tokenizer([Document("a", "some words and some words again " * 20)], 270)
    Tokens(made).save(tmp_path / "tokenizer")
    source = folder(tmp_path / "text", train="some words|again some", valid="words é and", test="and words")
    data = read_symbols(str(tmp_path / "tokenizer"), source)
    end = made.eos_token_id
    expected = [*made.encode("some words"), end, *made.encode("again some"), end]
    assert data.streams["train"].ids.tolist() == expected
    assert data.streams["train"].ids.dtype == np.int16
    first = made.decode(made.encode("words é and")[:1])
    assert data.streams["valid"].bytes == 12 - len(first)
    assert (data.symbols.size, data.symbols.unit) == (len(made), "token")
    stream = encode_part(load_symbols(tmp_path / "tokenizer"), source, "test")
    assert stream.ids.tolist() == data.streams["test"].ids.tolist()


def test_tokenizer_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = folder(tmp_path, train="some words", valid="words", test="and words")
    assert read_symbols("shipped:base", source).symbols.unit == "token"

    def nothing(name: str, **options: object) -> None:
        raise OSError("bits is not on the hub")

    monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", nothing)
    with pytest.raises(UserError, match=r"must be characters, .* or name a tokenizer: got 'bits' \(.*not on the hub"):
        read_symbols("bits", source)


def test_saved_alphabet_loads(tmp_path: Path) -> None:
    alphabet = Alphabet("characters", (10, 97, 233, 0x1F600))
    alphabet.save(tmp_path)
    assert load_symbols(tmp_path) == alphabet
    source = folder(tmp_path / "text", train="a", valid="a", test="😀é\n")
    assert encode_part(load_symbols(tmp_path), source, "test").ids.tolist() == [3, 2, 0]


@pytest.mark.parametrize("content", ["{", '{"kind": "runes", "values": []}', '{"values": [1]}'])
def test_broken_symbols_file_raises(content: str, tmp_path: Path) -> None:
    (tmp_path / "symbols.json").write_text(content)
    with pytest.raises(UserError, match=r"symbols\.json"):
        load_symbols(tmp_path)
