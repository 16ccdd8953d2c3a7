"""Streams of symbols: what they are numbered by, and what they are cut from."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recurrify import UserError
from recurrify.data.records import Document
from recurrify.data.tokenizers import make_tokenizer
from recurrify_papers.data import wikipedia
from recurrify_papers.scratch import symbols
from recurrify_papers.scratch.symbols import Alphabet, SymbolStream, Tokens, encode_part, load_symbols, read_symbols

DUMP = ("ñé\nab" * 45).encode()  # 315 bytes


@pytest.fixture
def enwik8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A small file that is taken for enwik8."""
    path = tmp_path / "enwik8"
    path.write_bytes(DUMP)
    dump = replace(wikipedia.ENWIK8, size=len(DUMP), md5=hashlib.md5(DUMP, usedforsecurity=False).hexdigest())
    monkeypatch.setattr(symbols, "ENWIK8", dump)
    return f"enwik8:{path}"


def folder(tmp_path: Path, **parts: str) -> str:
    """A source with its own splits."""
    for name, text in parts.items():
        (tmp_path / name).mkdir(parents=True)
        for number, piece in enumerate(text.split("|")):
            (tmp_path / name / f"{number}.txt").write_text(piece, encoding="utf-8")
    return str(tmp_path)


def spelt(alphabet: Alphabet, stream: SymbolStream) -> list[int]:
    return [alphabet.values[number] for number in stream.ids]


class TestDump:
    def test_bytes_are_cut_at_90_and_95_percent(self, enwik8: str) -> None:
        data = read_symbols("bytes", enwik8)
        parts = [bytes(spelt(data.symbols, data.streams[part])) for part in ("train", "valid", "test")]
        assert parts == [DUMP[:283], DUMP[283:299], DUMP[299:]]
        assert data.symbols.values == tuple(sorted(set(DUMP)))
        assert data.streams["train"].ids.dtype == np.uint8

    def test_without_newlines_there_is_one_symbol_fewer(self, enwik8: str) -> None:
        data = read_symbols("bytes-without-newlines", enwik8)
        assert data.symbols.size == len(set(DUMP)) - 1
        joined = b"".join(bytes(spelt(data.symbols, data.streams[part])) for part in ("train", "valid", "test"))
        assert joined == DUMP.replace(b"\n", b"")

    def test_characters_stay_whole(self, enwik8: str) -> None:
        # Byte 283 is the second half of an é.
        data = read_symbols("characters", enwik8)
        parts = ["".join(map(chr, spelt(data.symbols, data.streams[part]))) for part in ("train", "valid", "test")]
        assert parts == [DUMP[:282].decode(), DUMP[282:299].decode(), DUMP[299:].decode()]

    def test_another_file_is_refused(self, enwik8: str) -> None:
        Path(enwik8.removeprefix("enwik8:")).write_bytes(DUMP + b"x")
        with pytest.raises(UserError, match="MD5"):
            read_symbols("bytes", enwik8)


class TestDocuments:
    def test_joined_with_newlines(self, tmp_path: Path) -> None:
        source = folder(tmp_path, train="ba|ca", valid="ab", test="c")
        data = read_symbols("characters", source)
        assert data.symbols == Alphabet("characters", tuple(map(ord, "\nabc")))
        assert [data.streams[part].ids.tolist() for part in ("train", "valid", "test")] == [
            [2, 1, 0, 3, 1],
            [1, 2],
            [3],
        ]

    def test_another_source_for_validation(self, tmp_path: Path) -> None:
        source = folder(tmp_path / "a", train="abc", valid="a", test="c")
        (tmp_path / "other.txt").write_text("cab")
        data = read_symbols("characters", source, valid=str(tmp_path / "other.txt"))
        assert data.streams["valid"].ids.tolist() == [2, 0, 1]
        assert data.streams["test"].ids.tolist() == [2]

    @pytest.mark.parametrize("kind", ["characters", "bytes", "all-bytes"])
    def test_sizes_are_those_of_what_can_be_predicted(self, kind: str, tmp_path: Path) -> None:
        text = "éa€😀b"
        data = read_symbols(kind, folder(tmp_path, train=text, valid=text, test=text))
        stream = data.streams["test"]
        if kind == "characters":
            assert (stream.characters, stream.bytes) == (4, len("a€😀b".encode()))
        else:
            # The first byte is half of é: its other half is predicted, but is no character by itself.
            assert (stream.characters, stream.bytes) == (4, len(text.encode()) - 1)
        assert data.symbols.size == {"characters": 5, "bytes": len(set(text.encode())), "all-bytes": 256}[kind]

    def test_the_checksum_is_of_all_parts(self, tmp_path: Path) -> None:
        sums = [
            read_symbols("bytes", folder(tmp_path / str(number), train=train, valid=valid, test="a")).checksum
            for number, (train, valid) in enumerate([("abc", "a"), ("abc", "a"), ("abc", "b"), ("acb", "a")])
        ]
        assert sums[0] == sums[1]
        assert len(set(sums)) == 3


class TestUnknown:
    def test_characters(self, tmp_path: Path) -> None:
        source = folder(tmp_path, train="abc", valid="a", test="abéxé")
        with pytest.raises(UserError) as caught:
            read_symbols("characters", source)
        said = str(caught.value)
        assert "'é' (U+00E9), which is character 2 of the test part of" in said
        assert "(2 such in all)" in said
        assert "use --symbols all-bytes, which spell any character, or a tokenizer." in said

    def test_bytes(self, tmp_path: Path) -> None:
        source = folder(tmp_path, train="abc", valid="ab\t", test="a")
        with pytest.raises(UserError, match="the byte 0x09, which is byte 2 of the valid part"):
            read_symbols("bytes", source)
        assert read_symbols("all-bytes", source).streams["valid"].ids.tolist() == [97, 98, 9]

    def test_by_a_model_that_is_trained_already(self, tmp_path: Path) -> None:
        source = folder(tmp_path, train="abc", valid="ab", test="ab\t")
        with pytest.raises(UserError) as caught:
            encode_part(Alphabet("bytes", (97, 98, 99)), source, "test")
        said = str(caught.value)
        assert "the byte 0x09, which is byte 2 of the test part" in said
        assert "give a text of the 3 bytes that the model was trained with, or train one with --symbols all-" in said
        assert "use --symbols" not in said


class TestTokens:
    def test_of_a_shipped_model(self, tmp_path: Path) -> None:
        source = folder(tmp_path, train="some words", valid="words", test="and words")
        data = read_symbols("shipped:base", source)
        assert data.symbols.unit == "token"
        with pytest.raises(UserError, match="shipped are shipped:base, shipped:plain"):
            read_symbols("shipped:vase", source)

    def test_a_wrong_word_is_told_the_right_ones(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def nothing(name: str) -> None:
            raise OSError("bits is not on the hub")

        monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", nothing)
        with pytest.raises(UserError) as caught:
            read_symbols("bits", folder(tmp_path, train="a", valid="a", test="a"))
        said = str(caught.value)
        assert "must be characters, bytes, all-bytes, bytes-without-newlines or name a tokenizer: got 'bits'" in said
        assert "bits is not on the hub" in said

    def test_with_the_end_of_text_after_each_document(self, tmp_path: Path) -> None:
        made = make_tokenizer([Document("a", "some words and some words again " * 20)], 270)
        made.save_pretrained(tmp_path / "tokenizer")
        source = folder(tmp_path / "text", train="some words|again some", valid="words é and", test="and words")
        data = read_symbols(str(tmp_path / "tokenizer"), source)
        end = made.eos_token_id
        expected = [*made.encode("some words"), end, *made.encode("again some"), end]
        assert data.streams["train"].ids.tolist() == expected
        assert data.streams["train"].ids.dtype == np.int16
        first = made.decode(made.encode("words é and")[:1])
        valid = data.streams["valid"]
        assert (valid.characters, valid.bytes) == (11 - len(first), 12 - len(first))
        assert (data.symbols.size, data.symbols.unit) == (len(made), "token")

    def test_saved_and_read_back(self, tmp_path: Path) -> None:
        made = make_tokenizer([Document("a", "some words and some words again " * 20)], 270)
        Tokens(made).save(tmp_path / "model")
        source = folder(tmp_path / "text", train="some", valid="words", test="and words")
        stream = encode_part(load_symbols(tmp_path / "model"), source, "test")
        assert stream.ids.tolist() == [*made.encode("and words"), made.eos_token_id]


def test_usual_names_of_a_split_and_no_others(enwik8: str) -> None:
    every_byte = Alphabet("all-bytes", tuple(range(256)))
    by_name = {name: encode_part(every_byte, enwik8, name).ids.tolist() for name in ("valid", "dev")}
    assert by_name["valid"] == by_name["dev"]
    with pytest.raises(UserError, match="must be one of train, valid, test or all: got split='tset'"):
        encode_part(every_byte, enwik8, "tset")


class TestSaving:
    def test_an_alphabet_comes_back(self, tmp_path: Path) -> None:
        alphabet = Alphabet("characters", (10, 97, 233, 0x1F600))
        alphabet.save(tmp_path)
        assert load_symbols(tmp_path) == alphabet
        source = folder(tmp_path / "text", train="a", valid="a", test="😀é\n")
        assert encode_part(load_symbols(tmp_path), source, "test").ids.tolist() == [3, 2, 0]

    @pytest.mark.parametrize("content", ["{", '{"kind": "runes", "values": []}', '{"values": [1]}'])
    def test_other_files_are_refused(self, content: str, tmp_path: Path) -> None:
        (tmp_path / "symbols.json").write_text(content)
        with pytest.raises(UserError, match=r"symbols\.json"):
            load_symbols(tmp_path)
