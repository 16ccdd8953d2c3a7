"""enwik8 and text8 out of made-up dumps: found, checked, split, cut into articles, cleaned."""

import gzip
import hashlib
import lzma
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from recurrify.data import CORPORA, Corpus, corpus_names, load_documents
from recurrify.errors import UserError
from recurrify_papers.data import wikipedia
from recurrify_papers.data.wikipedia import (
    ENWIK8,
    TEXT8,
    Dump,
    articles,
    part_of_dump,
)

HEADER = "<mediawiki>\n  <siteinfo>\n  </siteinfo>\n"


def page(title: str, words: int) -> str:
    return (
        f'  <page>\n    <title>{title}</title>\n    <text xml:space="preserve">{"näive " * words}</text>\n  </page>\n'
    )


@pytest.fixture(scope="module")
def content() -> bytes:
    pages = [page(f"Page {number}", 700 if number % 3 else 3) for number in range(90)]
    return (HEADER + "".join(pages)).encode()


@pytest.fixture
def dump(content: bytes, monkeypatch: pytest.MonkeyPatch) -> Dump:
    """A small file in place of enwik8."""
    small = replace(ENWIK8, size=len(content), md5=hashlib.md5(content).hexdigest())

    def load(*args: Any) -> Any:
        return wikipedia.load_enwik8(*args, **({} if len(args) > 3 else {"path": None}), dump=small)

    monkeypatch.setitem(CORPORA, "enwik8", Corpus("small", load, True))
    return small


def test_corpora_are_registered_as_entry_points(tmp_path: Path) -> None:
    assert {"enwik8", "text8"} <= set(corpus_names()) - set(CORPORA)
    with pytest.raises(UserError, match=r"no file .* to read enwik8 from"):
        load_documents(f"enwik8:{tmp_path}/none")


class TestSplits:
    def test_nothing_is_lost(self, content: bytes) -> None:
        parts = [part_of_dump(content, split) for split in ("train", "valid", "test")]
        assert "".join(parts).encode() == content
        sizes = [len(part.encode()) for part in parts]
        assert sizes[0] in (len(content) * 90 // 100, len(content) * 90 // 100 - 1)

    @pytest.mark.parametrize("shift", range(4))
    def test_character_on_a_boundary_belongs_to_the_later_split(self, shift: int) -> None:
        """Four bytes each: the cuts at 90 and 95 fall on every one of them in turn."""
        data = ("x" * shift + "🙂" * 24 + "x" * (4 - shift)).encode()
        assert len(data) == 100
        train, valid, test = (part_of_dump(data, split) for split in ("train", "valid", "test"))
        assert train + valid + test == data.decode()
        assert len(train.encode()) == 90 - (90 - shift) % 4
        assert len((train + valid).encode()) == 95 - (95 - shift) % 4


class TestArticles:
    def test_cut_at_pages_and_joined_again(self) -> None:
        long = page("A &amp; B", 500)
        text = HEADER + page("Short", 1) + long + page("Next", 500) + page("Tail", 1)
        found = articles(text)
        assert "".join(part for _, part in found) == text
        assert [title for title, _ in found] == ["A &amp; B", "Next"]
        assert found[0][1] == HEADER + page("Short", 1) + long
        assert found[1][1] == page("Next", 500) + page("Tail", 1)

    def test_the_rest_of_an_article_stands_alone_where_it_is_long(self) -> None:
        rest = "the rest of it " * 200
        found = articles(rest + "\n" + page("Next", 500))
        assert [title for title, _ in found] == ["untitled", "Next"]
        assert found[0][1] == rest + "\n"

    def test_the_word_page_within_an_article_cuts_nothing(self) -> None:
        text = page("One", 500).replace("näive ", "see <page> here\n  <page> there ", 1) + page("Two", 500)
        assert [title for title, _ in articles(text)] == ["One", "Two"]

    def test_nothing_but_short_pages(self) -> None:
        text = HEADER + page("One", 1) + page("The other", 2)
        assert articles(text) == [("The other", text)]


class TestLoading:
    @pytest.mark.parametrize("suffix", ["", ".xz", ".gz", ".zip"])
    def test_documents_of_a_file(self, suffix: str, content: bytes, dump: Dump, tmp_path: Path) -> None:
        file = tmp_path / f"enwik8{suffix}"
        match suffix:
            case ".xz":
                file.write_bytes(lzma.compress(content))
            case ".gz":
                file.write_bytes(gzip.compress(content))
            case ".zip":
                with zipfile.ZipFile(file, "w") as archive:
                    archive.writestr("enwik8", content)
            case _:
                file.write_bytes(content)
        source = f"enwik8:{file}"
        found = {split: load_documents(source, split) for split in ("train", "validation", "test", "all")}
        names = [document.name for document in found["all"]]
        assert len(set(names)) == len(names) > 50
        assert found["train"] + found["validation"] + found["test"] == found["all"]
        assert "".join(document.text for document in found["all"]).encode() == content
        assert found["train"][1].name == "train/1 Page 2"
        assert load_documents(source, "train", limit=2) == found["train"][:2]
        assert all(len(document.text) >= wikipedia.SHORTEST_DOCUMENT for document in found["train"])

    def test_other_bytes(self, content: bytes, dump: Dump, tmp_path: Path) -> None:
        other = content[:-1] + b"?"
        (tmp_path / "enwik8").write_bytes(other)
        with pytest.raises(UserError) as caught:
            load_documents(f"enwik8:{tmp_path / 'enwik8'}")
        assert dump.md5 in str(caught.value)
        assert hashlib.md5(other).hexdigest() in str(caught.value)

    @pytest.mark.parametrize("suffix", [".xz", ".gz", ".zip"])
    def test_a_broken_file(self, suffix: str, dump: Dump, tmp_path: Path) -> None:
        (tmp_path / f"enwik8{suffix}").write_bytes(b"this is no archive")
        with pytest.raises(UserError, match=f"enwik8{suffix} cannot be read .* fetch it again"):
            load_documents(f"enwik8:{tmp_path}/enwik8{suffix}")

    def test_from_the_hub(self, content: bytes, dump: Dump, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[Any] = []

        def load_dataset(*args: Any, **kwargs: Any) -> Any:
            asked.append((args, kwargs))
            return {"train": [{"text": content.decode()}]}

        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
        assert "".join(document.text for document in load_documents("enwik8", "all")).encode() == content
        assert asked == [(("LTCB/enwik8",), {"data_dir": "enwik8-raw", "revision": "refs/convert/parquet"})]

    @pytest.mark.parametrize("installed", [True, False])
    def test_without_the_hub(self, installed: bool, dump: Dump, monkeypatch: pytest.MonkeyPatch) -> None:
        def load_dataset(*args: Any, **kwargs: Any) -> Any:
            raise ConnectionError("no network\nand more")

        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset) if installed else None)
        with pytest.raises(UserError) as caught:
            load_documents("enwik8")
        assert "enwik8:PATH" in str(caught.value)
        assert "mattmahoney.net/dc/enwik8.zip" in str(caught.value)
        assert "\n" not in str(caught.value)


class TestText8:
    @pytest.fixture
    def small(self, tmp_path: Path) -> Dump:
        text = (" anarchism originated as a term of abuse" * 50)[:1000]
        (tmp_path / "text8").write_text(text)
        return replace(TEXT8, size=1000, md5=hashlib.md5(text.encode()).hexdigest())

    def test_one_document_per_split(self, small: Dump, tmp_path: Path) -> None:
        path = str(tmp_path / "text8")
        found = wikipedia.load_text8("all", None, [], path, small)
        assert [(document.name, len(document.text)) for document in found] == [
            ("text8/train", 900),
            ("text8/valid", 50),
            ("text8/test", 50),
        ]
        assert "".join(document.text for document in found) == Path(path).read_text()
        assert wikipedia.load_text8("valid", None, [], path, small) == found[1:2]

    def test_from_the_hub_in_its_three_parts(
        self, small: Dump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        text = (tmp_path / "text8").read_text()
        parts = {
            "test": [{"text": text[950:]}],
            "train": [{"text": text[:900]}],
            "validation": [{"text": text[900:950]}],
        }
        monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=lambda name: parts))
        assert wikipedia.load_text8("test", None, [], None, small)[0].text == text[950:]

    def test_other_text_raises(self, tmp_path: Path) -> None:
        (tmp_path / "text8").write_text("a b c")
        with pytest.raises(UserError, match=rf"is not text8.*{TEXT8.md5}"):
            load_documents(f"text8:{tmp_path / 'text8'}")
