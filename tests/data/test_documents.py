"""Documents out of files, folders and named sources, and the errors a user can run into."""

import gzip
import json
import lzma
import os
from itertools import chain
from pathlib import Path

import pytest

from recurrify.data.documents import CORPORA, load_documents
from recurrify.data.records import Document, Skipped
from recurrify.data.tokens import checksum
from recurrify.errors import UserError

WORDS = " ".join(f"word{number}" for number in range(400))


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def json_lines(*records: object) -> str:
    return "".join(json.dumps(record) + "\n" for record in records)


def names(documents: list[Document]) -> list[str]:
    return [document.name for document in documents]


def one_sentence(error: pytest.ExceptionInfo[UserError]) -> str:
    message = str(error.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


def test_a_text_file_is_one_document_kept_as_it_stands(tmp_path: Path) -> None:
    path = write(tmp_path / "book.rst", "\ufefffirst line\r\nzweite Zeile: äöü\r\n")
    assert load_documents(str(path), "all") == [Document("book.rst", "first line\r\nzweite Zeile: äöü\r\n")]


def test_one_file_is_split_by_position(tmp_path: Path) -> None:
    path = write(tmp_path / "book.txt", WORDS)
    (train,), (valid,), (test,) = (load_documents(path, split) for split in ("train", "validation", "test"))
    assert train.text + valid.text + test.text == WORDS
    assert abs(len(train.text) / len(WORDS) - 0.9) < 0.05
    assert min(len(valid.text), len(test.text)) > 0.01 * len(WORDS)
    assert valid.text.startswith("word")
    assert test.text.startswith("word")


def test_json_lines_give_one_document_per_line(tmp_path: Path) -> None:
    # U+2028 breaks lines for `str.splitlines`, but not in JSON Lines.
    content = '{"text": "one\u2028line"}\n\n{"text": "two", "id": 7}\r\n{"text": " "}\n'
    skipped: list[Skipped] = []
    documents = load_documents(write(tmp_path / "a.jsonl", content), "all", skipped=skipped)
    assert documents == [Document("a.jsonl:1", "one\u2028line"), Document("a.jsonl:3", "two")]
    assert names(skipped) == ["a.jsonl:4"]
    body = write(tmp_path / "b.ndjson", json_lines({"body": "three"}))
    assert load_documents(body, "all", text_field="body") == [Document("b.ndjson:1", "three")]


def test_compressed_files_are_read_as_what_they_hold(tmp_path: Path) -> None:
    text = write(tmp_path / "a.txt.xz", lzma.compress(b"packed text"))
    lines = write(tmp_path / "b.jsonl.gz", gzip.compress(json_lines({"text": "x"}, {"text": "y"}).encode()))
    assert load_documents(text, "all") == [Document("a.txt.xz", "packed text")]
    assert load_documents(lines, "all") == [Document("b.jsonl.gz:1", "x"), Document("b.jsonl.gz:2", "y")]


def test_a_folder_is_read_in_the_order_of_its_paths_and_reports_what_it_skips(tmp_path: Path) -> None:
    write(tmp_path / "b.txt", "b")
    write(tmp_path / "a/z.md", "z")
    write(tmp_path / "a/c.jsonl", json_lines({"text": "c1"}, {"text": "c2"}))
    write(tmp_path / "empty.txt", "\n")
    write(tmp_path / "image.png", b"\x89PNG\0\0")
    write(tmp_path / "latin.txt", "caf\u00e9".encode("latin-1"))
    write(tmp_path / "broken.gz", b"no gzip")
    write(tmp_path / ".git/config", "hidden")
    skipped: list[Skipped] = []
    documents = load_documents(tmp_path, "all", skipped=skipped)
    assert names(documents) == ["a/c.jsonl:1", "a/c.jsonl:2", "a/z.md", "b.txt"]
    reasons = dict(skipped)
    assert sorted(reasons) == ["broken.gz", "empty.txt", "image.png", "latin.txt"]
    assert "offset 4" in reasons["image.png"]
    assert "0xe9 at offset 3" in reasons["latin.txt"]


@pytest.mark.parametrize("count", [3, 4, 19, 20, 100])
def test_an_unsplit_folder_is_dealt_out_without_loss(tmp_path: Path, count: int) -> None:
    for number in range(count):
        write(tmp_path / f"{number:03}.txt", f"text {number}")
    splits = {split: names(load_documents(tmp_path, split)) for split in ("train", "valid", "test")}
    assert sorted(chain(*splits.values())) == names(load_documents(tmp_path, "all"))
    assert all(splits.values())
    assert len(splits["valid"]) == len(splits["test"]) == max(1, count // 20)
    assert all(split == sorted(split) for split in splits.values())


def test_the_deal_is_the_same_everywhere(tmp_path: Path) -> None:
    for name in "abcdefgh":
        write(tmp_path / name, name)
    # A change here moves documents between the splits of every user's corpus.
    assert [names(load_documents(tmp_path, split)) for split in ("valid", "test")] == [["d"], ["f"]]


def test_two_documents_are_each_split_by_position(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", WORDS)
    write(tmp_path / "b.txt", WORDS.upper())
    splits = [load_documents(tmp_path, split) for split in ("train", "valid", "test")]
    assert [names(split) for split in splits] == [["a.txt", "b.txt"]] * 3
    assert "".join(split[1].text for split in splits) == WORDS.upper()


@pytest.mark.parametrize("valid", ["valid", "validation", "val", "dev"])
def test_a_folder_with_splits_of_its_own_keeps_them(tmp_path: Path, valid: str) -> None:
    for name in ("train", valid, "test"):
        write(tmp_path / name / "deep" / "a.txt", f"text of {name}")
    write(tmp_path / "README.txt", "about")
    assert load_documents(tmp_path, "valid") == [Document(f"{valid}/deep/a.txt", f"text of {valid}")]
    assert load_documents(tmp_path, "train") == [Document("train/deep/a.txt", "text of train")]
    assert len(load_documents(tmp_path, "all")) == 4


def test_files_named_after_splits_keep_them_too(tmp_path: Path) -> None:
    write(tmp_path / "train.jsonl", json_lines({"text": "a"}))
    write(tmp_path / "test.jsonl.gz", gzip.compress(json_lines({"text": "b"}).encode()))
    assert names(load_documents(tmp_path, "test")) == ["test.jsonl.gz:1"]
    with pytest.raises(UserError, match="no split 'valid', only test, train"):
        load_documents(tmp_path, "valid")


def test_a_program_is_not_taken_for_a_split_corpus(tmp_path: Path) -> None:
    for name in ("train.py", "test.py", "test/a.py", "model.py"):
        write(tmp_path / name, "pass")
    everywhere = [load_documents(tmp_path, split) for split in ("train", "valid", "test")]
    assert sorted(names(list(chain(*everywhere)))) == ["model.py", "test.py", "test/a.py", "train.py"]


def test_limit_keeps_the_first_documents(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", json_lines(*({"text": str(number)} for number in range(50))))
    assert load_documents(path, limit=3) == load_documents(path)[:3]
    with pytest.raises(UserError, match="limit=0"):
        load_documents(path, limit=0)


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("empty.txt", "", "empty.txt is empty"),
        ("blank.txt", " \n\t", "blank.txt is empty"),
        ("nul.txt", b"ab\0c", "NUL byte at offset 2"),
        ("latin.txt", b"caf\xe9", "not UTF-8, with byte 0xe9 at offset 3"),
        ("bad.gz", b"plain", "bad.gz is no whole .gz file"),
        ("cut.xz", lzma.compress(b"text" * 100)[:-9], "cut.xz is no whole .xz file"),
        ("cut.gz", gzip.compress(b"text" * 100, mtime=0)[:-9], "cut.gz is no whole .gz file"),
        ("a.jsonl", '{"text": "x"}\n{oops}\n', "a.jsonl, line 2 is not JSON"),
        ("a.jsonl", '{"text": "x"}\n[1]\n', "a.jsonl, line 2 is not a JSON object"),
        ("a.jsonl", '{"body": "x", "id": 1}\n', r"line 1 has no field 'text': .*body, id"),
        ("a.jsonl", '{"text": 5}\n', "line 1 has no text in 'text' but 5"),
        ("a.jsonl", '{"text": "\\ud800"}\n', "line 1 has half a surrogate pair"),
        ("a.jsonl", '{"text": ""}\n', "has no text in its split 'train'"),
    ],
)
def test_a_bad_file_is_named_with_what_is_wrong(tmp_path: Path, name: str, content: str | bytes, expected: str) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(UserError, match=expected) as error:
        load_documents(path)
    assert str(path) in one_sentence(error)


def test_a_bad_json_line_in_a_folder_is_an_error_not_a_loss(tmp_path: Path) -> None:
    write(tmp_path / "a.txt", "fine")
    write(tmp_path / "b.jsonl", "oops\n")
    with pytest.raises(UserError, match=r"b\.jsonl, line 1"):
        load_documents(tmp_path, "all")


def test_a_folder_without_text_is_an_error(tmp_path: Path) -> None:
    write(tmp_path / "a.bin", b"\0")
    with pytest.raises(UserError, match=r"holds no text \(1 files looked at\)") as error:
        load_documents(tmp_path)
    assert str(tmp_path) in one_sentence(error)


def test_a_text_too_short_for_a_split_is_an_error(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "x")
    assert load_documents(path, "test") == [Document("a.txt", "x")]
    with pytest.raises(UserError, match="no text in its split 'train'"):
        load_documents(path, "train")


@pytest.mark.parametrize("source", ["nowhere.txt", "nowhere", "/no/where", "missing/book.txt", "./stdlib"])
def test_a_missing_path_is_named_without_asking_the_hub(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=f"{source} does not exist") as error:
        load_documents(source)
    assert "hf:owner/name" in one_sentence(error)


def test_a_mistyped_path_in_a_folder_that_exists_is_not_taken_for_a_hub_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "books/one", "text")
    with pytest.raises(UserError, match="books/two does not exist"):
        load_documents("books/two")


def test_an_unknown_split_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="split='evaluation'"):
        load_documents(tmp_path, "evaluation")


def test_the_standard_library_is_split_by_module() -> None:
    skipped: list[Skipped] = []
    splits = {split: load_documents("stdlib", split, skipped=skipped) for split in ("train", "valid", "test")}
    modules = {
        split: {name.split("/")[0].removesuffix(".py") for name in names(documents)}
        for split, documents in splits.items()
    }
    assert skipped == []
    assert not modules["train"] & modules["valid"]
    assert not modules["train"] & modules["test"]
    assert not modules["valid"] & modules["test"]
    # Gold values: the split must not move from one Python version to the next.
    assert {"asyncio", "argparse"} <= modules["train"]
    assert {"email", "tarfile"} <= modules["valid"]
    assert {"idlelib", "statistics"} <= modules["test"]
    everything = list(chain(*splits.values()))
    assert 5e6 < sum(len(document.text) for document in everything) < 20e6
    assert min(len(document.text) for document in everything) >= 2_000
    for name in names(everything):
        assert not {"site-packages", "test", "tests", "idle_test", "pydoc_data"} & set(name.split("/"))
    assert len(load_documents("stdlib", limit=2)) == 2


def test_every_corpus_says_what_it_is() -> None:
    assert set(CORPORA) >= {"stdlib", "wikitext-103", "pg19"}
    assert all(corpus.description for corpus in CORPORA.values())


def test_a_file_name_that_is_not_utf8_is_a_name_like_any_other(tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / f"{number}.txt").write_text("some text")
    odd = tmp_path / os.fsdecode(b"caf\xe9.txt")
    odd.write_text("some text")
    documents = [
        *load_documents(tmp_path, "train"),
        *load_documents(tmp_path, "valid"),
        *load_documents(tmp_path, "test"),
    ]
    assert len(documents) == 5
    assert len(checksum(documents)) == 64


def test_a_number_too_long_for_python_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n{"text": "y", "n": ' + "9" * 5_000 + "}\n")
    with pytest.raises(UserError, match="line 2"):
        load_documents(tmp_path / "a.jsonl", "all")
