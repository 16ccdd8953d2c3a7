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
    clean_wikipedia,
    cleaned_records,
    part_of_dump,
    verified_corpus,
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
    monkeypatch.delenv("RECURRIFY_DATA", raising=False)
    return small


def test_corpora_are_registered_as_entry_points(tmp_path: Path) -> None:
    assert {"enwik8", "text8", "text8-from"} <= set(corpus_names()) - set(CORPORA)
    with pytest.raises(UserError, match=r"no file .* to read enwik8 from"):
        load_documents(f"enwik8:{tmp_path}/none")


def test_published_checksums() -> None:
    assert (ENWIK8.md5, ENWIK8.size) == ("a1fa5ffddb56f4953e226637dabbb36a", 10**8)
    assert (TEXT8.md5, TEXT8.size) == ("3bea1919949baf155f99411df5fada7e", 10**8)


@pytest.mark.parametrize(
    ("source", "corpus"),
    [
        ("enwik8", "enwik8"),
        ("text8:some/file.zip", "text8"),
        ("text8-from:enwik8", None),
        ("some/text8", None),
        ("./enwik8", None),
        ("enwik8:", None),
        ("stdlib", None),
        ("", None),
    ],
)
def test_verified_corpus(source: str, corpus: str | None) -> None:
    assert verified_corpus(source) == corpus


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
    @pytest.mark.parametrize("way", ["named", "folder"])
    def test_documents_of_a_file(
        self, way: str, suffix: str, content: bytes, dump: Dump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
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
        if way == "folder":
            monkeypatch.setenv("RECURRIFY_DATA", str(tmp_path))
            source = "enwik8"
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
        with pytest.raises(UserError, match=f"is not a complete {suffix} file"):
            load_documents(f"enwik8:{tmp_path}/enwik8{suffix}")

    def test_an_archive_of_something_else(self, dump: Dump, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("other", "x")
        with pytest.raises(UserError, match="holds no file enwik8"):
            load_documents(f"enwik8:{tmp_path}/a.zip")

    def test_no_such_file(self, dump: Dump, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(UserError, match="There is no file"):
            load_documents(f"enwik8:{tmp_path}/enwik8")
        monkeypatch.setenv("RECURRIFY_DATA", str(tmp_path))
        with pytest.raises(UserError, match=r"there is no enwik8 in it.*enwik8:PATH"):
            load_documents("enwik8")

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
        monkeypatch.delenv("RECURRIFY_DATA", raising=False)
        assert wikipedia.load_text8("test", None, [], None, small)[0].text == text[950:]

    def test_other_text_raises(self, tmp_path: Path) -> None:
        (tmp_path / "text8").write_text("a b c")
        with pytest.raises(UserError, match=rf"is not text8.*{TEXT8.md5}"):
            load_documents(f"text8:{tmp_path / 'text8'}")


def clean(*lines: str) -> str:
    return clean_wikipedia('<text xml:space="preserve">\n' + "\n".join(lines) + "\n</text>")


class TestCleaning:
    @pytest.mark.parametrize(
        ("markup", "words"),
        [
            ("Plain words, and more.", "plain words and more"),
            ("the '''bold''' U.S.-born", "the bold u s born"),
            ("a  b\t\tc", "a b c"),
            ("in 1905", "in one nine zero five"),
            ("B52s", "b five two s"),
            ("naïve Ångström \u212a", "na ve ngstr m"),
            ("see [[Diggers]] now", "see diggers now"),
            ("the [[sans-culotte|sans-culottes]] of", "the sans culottes of"),
            ("at [http://a.org/x?y=1 this page] and [http://b.org]", "at this page and"),
            ("[[Image:Cat.jpg|thumb|left|200px|A grey cat]] sits", "a grey cat sits"),
            ("[[image:Cat.jpg|Right|a [[cat]]]]", "a cat"),
            ("[[Category:Birds|*]] [[category:Fish]]", "birds fish"),
            ("[[de:Anarchismus]] [[zh-min-nan:X]] stay", "stay"),
            ("a {{stub}} b {| border=1 |} c", "a b c"),
            ("x&lt;ref name=q&gt;a footnote&lt;/ref&gt; y", "x y"),
            ("x &lt;br /&gt; y &lt;b&gt;z&lt;/b&gt;", "x y z"),
            ("a &amp;mdash; b &quot;c&quot;", "a b c"),
            ("5 &amp;lt; 6", "five six"),
        ],
        ids=lambda value: value[:12] if isinstance(value, str) else "",
    )
    def test_markup(self, markup: str, words: str) -> None:
        assert clean(markup, "", "-", "x") == f" {words} x"

    @pytest.mark.parametrize(
        ("lines", "words"),
        [
            (["before", "{| border=1", "! head", "|-", "| cell 7 || cell", "|}", "after"], "before after"),
            (["before &lt;!-- a comment", "over three", "lines --&gt; after"], "before after"),
            (["before&lt;ref name=x", "&gt;a note", "", "of lines&lt;/ref&gt; after"], "before after"),
            (["before {{Infobox", "| name = no", "}} after"], "before after"),
            (["before {| a", "{{stub}}", "still |} after"], "before after"),
            (["one [[a|", "b]] two"], "one b two"),
        ],
        ids=["table", "comment", "footnote", "template", "template in a table", "link"],
    )
    def test_markup_goes_whole_however_many_lines_it_has(self, lines: list[str], words: str) -> None:
        assert clean(*lines) == f" {words}"

    def test_only_articles(self) -> None:
        """Neither the dump's own fields nor redirects, not even one within an article."""
        dump = (
            "<title>No</title>\n<comment>no</comment>\n"
            '      <text xml:space="preserve">#REDIRECT [[No]]</text>\n'
            '      <text xml:space="preserve">First Line\nsecond line\nlast one</text>\n<id>7</id>\n'
            '      <text xml:space="preserve">Whole</text>\n'
            '      <text xml:space="preserve">Of pages\nwith #redirect in them\nand no more</text>\n'
        )
        assert clean_wikipedia(dump) == " first line second line last one whole"

    @pytest.mark.parametrize("size", [1, 2, 7, 50])
    def test_blocks_change_nothing(self, size: int) -> None:
        dump = "".join(page(title, 3) for title in ("One", "Two")) + '<text xml:space="preserve">the {| end\n|} of it'
        blocks = [dump[start : start + size] for start in range(0, len(dump), size)]
        whole = " n ive n ive n ive n ive n ive n ive the of it"
        assert "".join(cleaned_records(blocks)) == clean_wikipedia(dump) == whole

    def test_the_beginning_of_text8(self) -> None:
        line = (
            "'''Anarchism''' originated as a term of abuse first used against early [[working class]] [[radical]]s "
            "including the [[Diggers]] of the [[English Revolution]] and the [[sans-culotte|''sans-culottes'']] of the "
            "[[French Revolution]].[http://uk.encarta.msn.com/encyclopedia_761568770/Anarchism.html] Whilst the term"
        )
        assert clean_wikipedia(f'<text xml:space="preserve">{line}\n') == (
            " anarchism originated as a term of abuse first used against early working class radicals including the "
            "diggers of the english revolution and the sans culottes of the french revolution whilst the term"
        )


def test_any_dump_is_cleaned_and_split_like_text8(tmp_path: Path) -> None:
    words = [f"w{chr(97 + number % 26)}{chr(97 + number // 26 % 26)}" for number in range(3_000)]
    lines = [" ".join(words[start : start + 10]).replace(" ", " [[Link|") + "]]" * 9 for start in range(0, 3_000, 10)]
    dump = tmp_path / "dump.xml"
    dump.write_text('<page>\n<text xml:space="preserve">' + "\n".join(lines) + "</text>\n</page>", encoding="utf-8")
    parts = [load_documents(f"text8-from:{dump}", split) for split in ("train", "valid", "test")]
    assert [len(documents) for documents in parts] == [1, 1, 1]
    joined = "".join(documents[0].text for documents in parts)
    assert joined.split() == words
    assert len(parts[0][0].text) == len(joined) * 90 // 100


class TestPackedDumps:
    WORDS = "näive words " * 2_000
    TEXT = f'<page>\n<text xml:space="preserve">{WORDS}</text>\n</page>\n'

    @pytest.mark.parametrize("suffix", [".xz", ".gz", ".zip"])
    def test_cleaned_as_they_are_unpacked(self, tmp_path: Path, suffix: str) -> None:
        file = tmp_path / f"dump{suffix}"
        match suffix:
            case ".xz":
                file.write_bytes(lzma.compress(self.TEXT.encode()))
            case ".gz":
                file.write_bytes(gzip.compress(self.TEXT.encode()))
            case ".zip":
                with zipfile.ZipFile(file, "w") as archive:
                    archive.writestr("enwik9", self.TEXT)
        parts = load_documents(f"text8-from:{file}", "all")
        assert "".join(part.text for part in parts) == " n ive words" * 2_000

    def test_an_archive_of_several(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "dump.zip", "w") as archive:
            archive.writestr("one", "x")
            archive.writestr("two", "x")
        with pytest.raises(UserError, match="holds 2 files: unpack it"):
            load_documents(f"text8-from:{tmp_path}/dump.zip")

    def test_a_broken_archive(self, tmp_path: Path) -> None:
        (tmp_path / "dump.xz").write_bytes(lzma.compress(self.TEXT.encode())[:-20])
        with pytest.raises(UserError, match=r"is not a complete \.xz file .*give another file"):
            load_documents(f"text8-from:{tmp_path}/dump.xz")

    def test_no_more_is_read_than_text8_has(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What follows is not even text."""
        monkeypatch.setattr(wikipedia, "TEXT8", replace(TEXT8, size=10_000))
        monkeypatch.setattr(wikipedia, "BLOCK", 1_000)
        (tmp_path / "dump").write_bytes(self.TEXT.encode() + b" " * 2_000 + b"\xff")
        parts = load_documents(f"text8-from:{tmp_path}/dump", "all")
        assert "".join(part.text for part in parts) == (" n ive words" * 2_000)[:10_000]

    def test_the_place_of_a_bad_byte(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Counted from the beginning of the file, wherever blocks are cut: within a character, too."""
        monkeypatch.setattr(wikipedia, "BLOCK", 4)
        (tmp_path / "dump").write_bytes("aaäääa".encode() + b"\xff" + b"a" * 20)
        with pytest.raises(UserError, match=r"is not UTF-8 text \(invalid start byte at byte 9\)"):
            load_documents(f"text8-from:{tmp_path}/dump")


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"no markup at all", "gives only 0 characters"), (b"\xff\xfe", "is not UTF-8"), (None, "There is no file")],
)
def test_invalid_dump_raises(tmp_path: Path, content: bytes | None, message: str) -> None:
    dump = tmp_path / "dump.xml"
    if content is not None:
        dump.write_bytes(content)
    with pytest.raises(UserError, match=message):
        load_documents(f"text8-from:{dump}", "train")
