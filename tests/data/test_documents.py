"""Documents from files, folders and named corpora, and the errors that users can run into."""

import gzip
import lzma
import os
import sys
from itertools import chain
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from recurrify.data import CORPORA, Corpus, Document, Skipped, checksum, corpus_names, load_documents
from recurrify.data.splits import cut_by_position
from recurrify.errors import UserError
from support.containers import CONTAINERS, as_parquet, json_lines, write

WORDS = " ".join(f"word{number}" for number in range(400))
SPLITS = ("train", "valid", "test")


def names(documents: list[Document]) -> list[str]:
    return [document.name for document in documents]


def texts(documents: list[Document]) -> list[str]:
    return [document.text for document in documents]


class TestFiles:
    def test_text_file_is_one_unchanged_document(self, tmp_path: Path) -> None:
        path = write(tmp_path / "book.rst", "\ufefffirst line\r\nzweite Zeile: äöü\r\n")
        assert load_documents(str(path), "all") == [Document("book.rst", "first line\r\nzweite Zeile: äöü\r\n")]

    def test_one_file_is_split_by_position(self, tmp_path: Path) -> None:
        path = write(tmp_path / "book.txt.xz", lzma.compress(WORDS.encode()))
        (train,), (valid,), (test,) = (load_documents(path, split) for split in SPLITS)
        assert train.text + valid.text + test.text == WORDS
        assert abs(len(train.text) / len(WORDS) - 0.9) < 0.05
        assert valid.text.startswith("word")

    def test_compressed_text_is_cut_where_the_text_is(self, tmp_path: Path) -> None:
        plain = write(tmp_path / "book.txt", WORDS)
        for path in (
            write(tmp_path / "book.txt.gz", gzip.compress(WORDS.encode())),
            write(tmp_path / "book.gz", gzip.compress(WORDS.encode())),
        ):
            for split in SPLITS:
                assert texts(load_documents(path, split)) == texts(load_documents(plain, split))

    def test_json_lines_give_one_document_per_line(self, tmp_path: Path) -> None:
        # U+2028 breaks lines for `str.splitlines`, but not in JSON Lines.
        content = '{"text": "one\u2028line"}\n\n{"text": "two", "id": 7}\r\n{"text": " "}\n'
        skipped: list[Skipped] = []
        documents = load_documents(write(tmp_path / "a.jsonl", content), "all", skipped=skipped)
        assert documents == [Document("a.jsonl:1", "one\u2028line"), Document("a.jsonl:3", "two")]
        assert names(skipped) == ["a.jsonl:4"]

    def test_limit_keeps_the_first_documents(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.jsonl", json_lines(*({"text": str(number)} for number in range(50))))
        assert load_documents(path, limit=3) == load_documents(path)[:3]
        with pytest.raises(UserError, match="limit=0"):
            load_documents(path, limit=0)

    @pytest.mark.parametrize(
        ("name", "content", "expected"),
        [
            ("blank.txt", " \n\t", "blank.txt is empty"),
            ("nul.txt", b"ab\0c", "NUL byte at offset 2"),
            ("latin.txt", b"caf\xe9", "not UTF-8, with byte 0xe9 at offset 3"),
            ("bad.gz", b"plain", "bad.gz is not a complete .gz file"),
            ("cut.xz", lzma.compress(b"text" * 100)[:-9], "cut.xz is not a complete .xz file"),
            ("cut.gz", gzip.compress(b"text" * 100, mtime=0)[:-9], "cut.gz is not a complete .gz file"),
            ("a.jsonl", '{"text": "x"}\n{oops}\n', "a.jsonl, line 2, is not JSON"),
            ("a.jsonl", '{"text": "x"}\n[1]\n', "a.jsonl, line 2, is not a JSON object"),
            ("a.jsonl", '{"body": "x", "id": 1}\n', "line 1, has no field 'text', only body, id"),
            ("a.jsonl", '{"text": "x"}\n{"body": "x"}\n', "line 2, has no field 'text', which rows before it have"),
            ("a.jsonl", '{"text": 5}\n', "line 1, has no text in 'text' but 5"),
            ("a.jsonl", '{"text": "\\ud800"}\n', "line 1, has half a surrogate pair"),
            ("a.jsonl", '{"text": ""}\n', "has no text in its split 'train'"),
            ("a.jsonl", '{"text": "y", "n": ' + "9" * 5_000 + "}\n", "line 1, is not JSON"),
            ("a.json", "[1, 2]", "is not a list of JSON objects"),
            ("a.parquet", b"plain", "is no .parquet file"),
            ("a.parquet", b"PAR1" + bytes(200), "cannot be read .*it may be damaged, write it again"),
            ("a.arrow", b"plain text", "cannot be read .*it may be damaged, write it again"),
            ("a.csv", "text;label\na;b\n", "separates its columns by ';'"),
        ],
    )
    def test_malformed_file_raises(self, tmp_path: Path, name: str, content: str | bytes, expected: str) -> None:
        path = write(tmp_path / name, content)
        with pytest.raises(UserError, match=expected) as error:
            load_documents(path)
        message = str(error.value)
        assert str(path) in message
        assert message.endswith(".")
        assert "\n" not in message

    def test_text_too_short_for_a_split_raises(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.txt", "x")
        assert load_documents(path, "test") == [Document("a.txt", "x")]
        with pytest.raises(UserError, match="no text in its split 'train'"):
            load_documents(path, "train")

    @pytest.mark.parametrize("name", ["pipe.txt.gz", "pipe.parquet"])
    def test_special_file_raises(self, tmp_path: Path, name: str) -> None:
        """Reading a FIFO would wait forever."""
        os.mkfifo(tmp_path / name)
        with pytest.raises(UserError, match="is not a regular file"):
            load_documents(tmp_path / name)
        write(tmp_path / "a.txt", "text")
        skipped: list[Skipped] = []
        assert names(load_documents(tmp_path, "all", skipped=skipped)) == ["a.txt"]
        assert skipped == [Skipped(name, "is not a regular file")]


ROWS = [{"text": f"text {number}, with “quotes” and\nlines", "id": f"0{number}"} for number in range(40)]


@pytest.mark.parametrize("name", CONTAINERS)
def test_same_rows_split_alike_in_every_container(tmp_path: Path, name: str) -> None:
    source = CONTAINERS[name](tmp_path / name, ROWS)
    reference = write(tmp_path / "reference.ndjson", json_lines(*ROWS))
    assert texts(load_documents(source, "all")) == [row["text"] for row in ROWS]
    for split in SPLITS:
        assert texts(load_documents(source, split)) == texts(load_documents(reference, split))
    assert texts(load_documents(source, "all", text_field="id"))[0] == "00"


def test_files_without_rows_are_no_error(tmp_path: Path) -> None:
    columns = pyarrow.table({"text": pyarrow.array([], pyarrow.string())})
    parquet.write_table(columns, tmp_path / "none.parquet")  # one group of no rows
    with parquet.ParquetWriter(tmp_path / "late.parquet", columns.schema) as writer:
        writer.write_table(columns)
        writer.write_table(pyarrow.table({"text": ["late"]}))
    as_parquet(tmp_path / "rows.PARQUET", ROWS)
    assert texts(load_documents(tmp_path, "all")) == ["late", *(row["text"] for row in ROWS)]


@pytest.mark.parametrize("source", ["a.parquet", "hf:owner/name"])
def test_missing_datasets_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> None:
    as_parquet(tmp_path / "a.parquet", ROWS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r'pip install "recurrify\[data\]"'):
        load_documents(source)


class TestFolders:
    def test_files_are_read_in_path_order_and_skipped_ones_reported(self, tmp_path: Path) -> None:
        write(tmp_path / "b.txt", "b")
        write(tmp_path / "a/z.md", "z")
        write(tmp_path / "a/c.jsonl", json_lines({"text": "c1"}, {"text": "c2"}))
        write(tmp_path / "empty.txt", "\n")
        write(tmp_path / "image.png", b"\x89PNG\0\0")
        write(tmp_path / "latin.txt", "caf\u00e9".encode("latin-1"))
        write(tmp_path / "broken.gz", b"no gzip")
        write(tmp_path / "settings.json", '{"size": 3}')
        write(tmp_path / "numbers.json", "[1]")
        write(tmp_path / ".git/config", "hidden")
        skipped: list[Skipped] = []
        documents = load_documents(tmp_path, "all", skipped=skipped)
        assert names(documents) == ["a/c.jsonl:1", "a/c.jsonl:2", "a/z.md", "b.txt"]
        reasons = dict(skipped)
        left_out = ["broken.gz", "empty.txt", "image.png", "latin.txt", "numbers.json", "settings.json"]
        assert sorted(reasons) == left_out
        assert "offset 4" in reasons["image.png"]
        assert reasons["settings.json"] == "has no field 'text'"

    @pytest.mark.parametrize("count", [3, 19, 20, 100])
    def test_unsplit_folder_is_split_without_loss(self, tmp_path: Path, count: int) -> None:
        for number in range(count):
            write(tmp_path / f"{number:03}.txt", f"text {number}")
        splits = {split: names(load_documents(tmp_path, split)) for split in SPLITS}
        assert sorted(chain(*splits.values())) == names(load_documents(tmp_path, "all"))
        assert len(splits["valid"]) == len(splits["test"]) == max(1, count // 20)
        assert all(split == sorted(split) for split in splits.values())

    @pytest.mark.parametrize("suffix", ["", ".gz"])
    def test_split_is_the_same_on_every_machine_and_compressed(self, tmp_path: Path, suffix: str) -> None:
        for name in "abcdefgh":
            write(tmp_path / f"{name}{suffix}", gzip.compress(name.encode()) if suffix else name)
        # A change here moves documents between the splits of every user's corpus.
        assert [names(load_documents(tmp_path, split)) for split in ("valid", "test")] == [
            [f"d{suffix}"],
            [f"f{suffix}"],
        ]

    def test_two_documents_are_each_split_by_position(self, tmp_path: Path) -> None:
        write(tmp_path / "a.txt", WORDS)
        write(tmp_path / "b.txt", WORDS.upper())
        splits = [load_documents(tmp_path, split) for split in SPLITS]
        assert [names(split) for split in splits] == [["a.txt", "b.txt"]] * 3
        assert "".join(split[1].text for split in splits) == WORDS.upper()

    @pytest.mark.parametrize("valid", ["valid", "validation", "val", "dev"])
    def test_own_splits_are_kept(self, tmp_path: Path, valid: str) -> None:
        for name in ("train", valid, "test"):
            write(tmp_path / name / "deep" / "a.txt", f"text of {name}")
        write(tmp_path / "README.txt", "about")
        assert load_documents(tmp_path, "valid") == [Document(f"{valid}/deep/a.txt", f"text of {valid}")]
        assert len(load_documents(tmp_path, "all")) == 4

    def test_files_named_after_splits_keep_them(self, tmp_path: Path) -> None:
        write(tmp_path / "train.csv", "text\na\n")
        write(tmp_path / "test-00000-of-00001.jsonl.gz", gzip.compress(json_lines({"text": "b"}).encode()))
        assert texts(load_documents(tmp_path, "test")) == ["b"]
        with pytest.raises(UserError, match="no split 'valid', only test, train"):
            load_documents(tmp_path, "valid")

    def test_program_is_not_a_split_corpus(self, tmp_path: Path) -> None:
        for name in ("train.py", "test.py", "test/a.py", "model.py"):
            write(tmp_path / name, "pass")
        everywhere = [load_documents(tmp_path, split) for split in SPLITS]
        assert sorted(names(list(chain(*everywhere)))) == ["model.py", "test.py", "test/a.py", "train.py"]

    def test_bad_line_in_a_folder_raises(self, tmp_path: Path) -> None:
        write(tmp_path / "a.txt", "fine")
        write(tmp_path / "b.jsonl", "oops\n")
        with pytest.raises(UserError, match=r"b\.jsonl, line 1"):
            load_documents(tmp_path, "all")

    def test_folder_without_text_raises(self, tmp_path: Path) -> None:
        write(tmp_path / "a.bin", b"\0")
        with pytest.raises(UserError, match=r"holds no text \(1 files; a\.bin is binary"):
            load_documents(tmp_path)

    def test_file_name_that_is_not_utf8(self, tmp_path: Path) -> None:
        for name in (b"0.txt", b"1.txt", b"2.txt", b"caf\xe9.txt"):
            (tmp_path / os.fsdecode(name)).write_text("some text")
        documents = list(chain(*(load_documents(tmp_path, split) for split in SPLITS)))
        assert len(documents) == 4
        assert len(checksum(documents)) == 64


@pytest.mark.parametrize("source", ["nowhere.txt", "nowhere", "/no/where", "missing/book.txt", "./stdlib", "books/two"])
def test_missing_path_raises_without_asking_the_hub(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "books/one", "text")
    with pytest.raises(UserError, match=f"{source} does not exist: .*hf:owner/name"):
        load_documents(source)


def test_unknown_split_raises(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="split='evaluation'"):
        load_documents(tmp_path, "evaluation")


def test_standard_library_is_split_by_module() -> None:
    skipped: list[Skipped] = []
    splits = {split: load_documents("stdlib", split, skipped=skipped) for split in SPLITS}
    modules = {
        split: {name.split("/")[0].removesuffix(".py") for name in names(documents)}
        for split, documents in splits.items()
    }
    assert skipped == []
    assert not (modules["train"] & modules["valid"] | modules["train"] & modules["test"])
    # Fixed values: the split must not change from one Python version to the next.
    assert {"asyncio", "argparse"} <= modules["train"]
    assert {"email", "tarfile"} <= modules["valid"]
    assert {"idlelib", "statistics"} <= modules["test"]
    everything = list(chain(*splits.values()))
    assert 5e6 < sum(len(document.text) for document in everything) < 20e6
    assert min(len(document.text) for document in everything) >= 2_000
    for name in names(everything):
        assert not {"site-packages", "test", "tests", "idle_test", "pydoc_data"} & set(name.split("/"))
    assert len(load_documents("stdlib", limit=2)) == 2


def test_corpus_may_take_an_argument(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(split: str, limit: int | None, skipped: list[Skipped], argument: str = "none") -> list[Document]:
        return [Document(split, argument)]

    monkeypatch.setitem(CORPORA, "mine", Corpus("for a test", load, takes_argument=True))
    assert load_documents("mine", "valid") == [Document("valid", "none")]
    assert load_documents("mine:some/file") == [Document("train", "some/file")]
    assert "mine" in corpus_names()


def test_installed_package_adds_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(
        tmp_path / "their_corpus.py",
        "from recurrify.data import Corpus, Document\n"
        "THEIRS = Corpus('theirs', lambda split, limit, skipped: [Document(split, 'their text')])\n",
    )
    write(tmp_path / "their_corpus-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: their-corpus\nVersion: 1.0\n")
    write(
        tmp_path / "their_corpus-1.0.dist-info/entry_points.txt", "[recurrify.corpora]\ntheirs = their_corpus:THEIRS\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert load_documents("theirs", "test") == [Document("test", "their text")]
    assert "theirs" in corpus_names()


TEXTS = st.text(alphabet=st.sampled_from("ab \n\r\té\u2028"), max_size=400)


class TestCutByPosition:
    @given(TEXTS)
    def test_nothing_is_lost_or_duplicated(self, text: str) -> None:
        parts = cut_by_position(text)
        assert "".join(parts) == text
        assert len(text) < 20 or all(parts)

    def test_cuts_are_at_lines_if_possible_else_at_words(self) -> None:
        assert all(part.endswith("here\r\n") for part in cut_by_position("some words here\r\n" * 200))
        words = cut_by_position("some words here " * 200)
        assert all(part.endswith(" ") and part.startswith(("some", "words", "here")) for part in words)

    def test_windows_newline_is_never_cut(self) -> None:
        text = "a" * 924 + "\r\n" + "a" * 74
        assert not any(part.endswith("\r") for part in cut_by_position(text))
