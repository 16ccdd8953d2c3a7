"""enwik8 and text8: a hundred million bytes of Wikipedia each, as dumped and as plain words.

`enwik8:PATH` and `text8:PATH` name a local file, plain or as `.xz`, `.gz` or `.zip`. The names alone look for it in the
folder in the variable RECURRIFY_DATA or, if that is not set, on the Hugging Face hub. The MD5 sum must be the published
one. Splits are the usual ones: the first 90 %, the next and the last 5 % of the bytes; a character on a boundary
belongs to the later split.

text8 was made from the first part of enwik9, of which enwik8 is only the beginning, by the rules of `clean_wikipedia`.
`text8-from:PATH` applies them to any dump: enwik9 gives text8 itself, and enwik8 only its first 74 million characters.
"""

import codecs
import gzip
import hashlib
import lzma
import os
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, cast

from recurrify import UserError
from recurrify.data import EVERYTHING, SPLITS, Corpus, Document, Skipped

FOLDER_VARIABLE = "RECURRIFY_DATA"
SUFFIXES = ("", ".xz", ".gz", ".zip")

BLOCK = 1 << 20
"""Bytes of a dump that are read and cleaned at once."""

SHORTEST_DOCUMENT = 2_000
"""Characters; a shorter page, usually a redirect, is joined to the next one."""

PAGE = re.compile(r"^(?=  <page>$)", re.MULTILINE)
TITLE = re.compile(r"<title>(.*?)</title>")


@dataclass(frozen=True)
class Dump:
    """A published file with known content."""

    name: str
    size: int
    md5: str
    web: str
    """Where to download it."""
    hub: str
    """The Hugging Face data set that holds it."""
    hub_options: dict[str, str] = field(default_factory=dict)


ENWIK8 = Dump(
    name="enwik8",
    size=100_000_000,
    md5="a1fa5ffddb56f4953e226637dabbb36a",
    web="https://mattmahoney.net/dc/enwik8.zip",
    hub="LTCB/enwik8",
    # The data set is a program, which is not run; the hub keeps its output in a branch.
    hub_options={"data_dir": "enwik8-raw", "revision": "refs/convert/parquet"},
)
TEXT8 = Dump(
    name="text8",
    size=100_000_000,
    md5="3bea1919949baf155f99411df5fada7e",
    web="https://mattmahoney.net/dc/text8.zip",
    hub="afmck/text8",
)


def verified_corpus(source: str) -> str | None:
    """enwik8 or text8 if the source is that text by its checksum; None for any other source, whatever its file name."""
    corpus, colon, path = source.partition(":")
    known = corpus in (ENWIK8.name, TEXT8.name) and bool(path) == bool(colon)
    return corpus if known else None


def is_text8(source: str) -> bool:
    """Whether a source is text8, or text cleaned like it."""
    return verified_corpus(source) == TEXT8.name or source.startswith("text8-from:")


def load_enwik8(
    split: str, limit: int | None, skipped: list[Skipped], path: str | None = None, dump: Dump = ENWIK8
) -> list[Document]:
    """One document per article, markup and all; joined, a split's documents are its text, with nothing left out."""
    data = read_dump(dump, path)
    documents = [
        Document(f"{part}/{number} {title}", text)
        for part in (SPLITS if split == EVERYTHING else (split,))
        for number, (title, text) in enumerate(articles(part_of_dump(data, part)))
    ]
    return documents[:limit]


def load_text8(
    split: str, limit: int | None, skipped: list[Skipped], path: str | None = None, dump: Dump = TEXT8
) -> list[Document]:
    """One document per split: text8 is a single running text without any trace of where its articles end."""
    data = read_dump(dump, path)
    parts = SPLITS if split == EVERYTHING else (split,)
    return [Document(f"text8/{part}", part_of_dump(data, part)) for part in parts][:limit]


def load_cleaned(split: str, limit: int | None, skipped: list[Skipped], path: str = "") -> list[Document]:
    """The plain words of a dump, at most as many characters as text8 has; one document per split."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"There is no file {file}: give a Wikipedia dump as `text8-from:PATH`.")
    data = _cleaned(file, file.stat().st_mtime_ns)
    if len(data) < len(SPLITS) * SHORTEST_DOCUMENT:
        raise UserError(
            f"{file} gives only {len(data):,} characters of words: a Wikipedia dump has its articles between "
            "`<text …>` and `</text>`."
        )
    parts = SPLITS if split == EVERYTHING else (split,)
    return [Document(f"{file.name}/{part}", part_of_dump(data, part)) for part in parts][:limit]


@lru_cache(maxsize=1)
def _cleaned(file: Path, changed: int) -> bytes:
    """Cached, because every split needs it; `changed` is part of the key so that a new file is read again."""
    cleaned: list[str] = []
    length = 0
    with _opened(file, None) as stream:
        for words in cleaned_records(_decoded(stream, file)):
            cleaned.append(words)
            length += len(words)
            if length >= TEXT8.size:
                break
    return "".join(cleaned)[: TEXT8.size].encode()


def _decoded(stream: BinaryIO, file: Path) -> Iterator[str]:
    """The text block by block: a dump of gigabytes does not fit into memory."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    read, ended = 0, False
    while not ended:
        block = stream.read(BLOCK)
        read, ended = read + len(block), not block
        try:
            yield decoder.decode(block, final=ended)
        except UnicodeDecodeError as error:
            place = read - len(error.object) + error.start
            raise UserError(f"{file} is not UTF-8 text ({error.reason} at byte {place}): give a dump.") from error


def part_of_dump(data: bytes, split: str) -> str:
    """The text of the first 90 %, the next 5 % or the last 5 % of the bytes."""
    bounds = [0, len(data) * 90 // 100, len(data) * 95 // 100, len(data)]
    for index in (1, 2):
        while bounds[index] < len(data) and data[bounds[index]] & 0xC0 == 0x80:  # inside a UTF-8 character
            bounds[index] -= 1
    number = SPLITS.index(split)
    return data[bounds[number] : bounds[number + 1]].decode("utf-8")


def articles(text: str) -> list[tuple[str, str]]:
    """Titles and texts, cut before each `<page>`; short pages are joined to the next.

    Text before the first page (the dump's header, or the rest of an article that a split cuts) is a page without a
    title. A document has the title of its longest page.
    """
    found: list[tuple[str, str]] = []
    waiting: list[str] = []
    for page in PAGE.split(text):
        waiting.append(page)
        if sum(map(len, waiting)) >= SHORTEST_DOCUMENT:
            found.append((_title(waiting), "".join(waiting)))
            waiting = []
    rest = "".join(waiting)
    if rest and found:
        title, last = found.pop()
        found.append((title, last + rest))
    elif rest:
        found.append((_title(waiting), rest))
    return found


def _title(pages: list[str]) -> str:
    match = TITLE.search(max(pages, key=len))
    return match[1] if match else "untitled"


# ---- getting the bytes -----------------------------------------------------------------------------------


def read_dump(dump: Dump, path: str | None = None) -> bytes:
    """The dump's bytes, checked: from `path`, else from the folder in RECURRIFY_DATA, else from the hub."""
    folder = os.environ.get(FOLDER_VARIABLE)
    if path is not None:
        source, data = path, _unpacked(Path(path).expanduser(), dump)
    elif folder:
        file = _in_folder(Path(folder).expanduser(), dump)
        source, data = str(file), _unpacked(file, dump)
    else:
        source, data = dump.hub, _from_hub(dump)
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != dump.md5:
        raise UserError(
            f"{source} is not {dump.name}: its {len(data):,} bytes have the MD5 sum {found}, but those of {dump.name} "
            f"({dump.size:,} bytes) have {dump.md5}; fetch it again from {dump.web}."
        )
    return data


def _in_folder(folder: Path, dump: Dump) -> Path:
    for suffix in SUFFIXES:
        file = folder / f"{dump.name}{suffix}"
        if file.is_file():
            return file
    raise UserError(
        f"{FOLDER_VARIABLE} names the folder {folder}, but there is no {dump.name} in it: fetch it from {dump.web}, "
        f"give it as {dump.name}:PATH, or unset the variable to ask the hub."
    )


def _unpacked(path: Path, dump: Dump) -> bytes:
    if not path.is_file():
        raise UserError(f"There is no file {path} to read {dump.name} from: fetch it from {dump.web}.")
    with _opened(path, dump) as stream:
        return stream.read()


@contextmanager
def _opened(path: Path, dump: Dump | None) -> Iterator[BinaryIO]:
    """What a file holds, unpacked as it is read. Of an archive, the dump's own file; without a dump, its only one."""
    way_out = "give another file" if dump is None else f"fetch it again from {dump.web}"
    try:
        match path.suffix:
            case ".gz":
                with gzip.open(path) as gzip_file:
                    yield cast(BinaryIO, gzip_file)
            case ".xz":
                with lzma.open(path) as xz_file:
                    yield cast(BinaryIO, xz_file)
            case ".zip":
                with zipfile.ZipFile(path) as archive, archive.open(_member(archive, path, dump)) as member:
                    yield cast(BinaryIO, member)
            case _:
                with path.open("rb") as file:
                    yield file
    except (gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path} is not a complete {path.suffix} file ({error}): {way_out}.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check its rights.") from error


def _member(archive: zipfile.ZipFile, path: Path, dump: Dump | None) -> str:
    names = [name for name in archive.namelist() if not name.endswith("/")]
    if dump is None:
        if len(names) != 1:
            raise UserError(f"{path} holds {len(names)} files: unpack it and name the dump among them.")
        return names[0]
    if dump.name not in names:
        raise UserError(f"{path} holds no file {dump.name}: fetch it again from {dump.web}.")
    return dump.name


def _from_hub(dump: Dump) -> bytes:
    try:
        import datasets

        opened: Any = datasets.load_dataset(dump.hub, **dump.hub_options)
        rows = (row for split in ("train", "validation", "test") if split in opened for row in opened[split])
        return "".join(row["text"] for row in rows).encode()
    # Not installed, not found, offline, a broken download: the libraries below raise dozens of types for it.
    except Exception as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[0].rstrip(".")
        raise UserError(
            f"{dump.name} could not be loaded from {dump.hub} on the hub ({type(error).__name__}: {reason}): fetch "
            f"{dump.web} and give it as {dump.name}:PATH, or put it into the folder that {FOLDER_VARIABLE} names."
        ) from error


# ---- plain words -----------------------------------------------------------------------------------------

DIGITS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

_MARKUP: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, flags | re.ASCII), replacement)
    for pattern, replacement, flags in (
        (r"<.*>", "", 0),  # the dump's own tags
        (r"&amp;", "&", 0),  # first: the dump escapes an article's own `&lt;` again
        (r"&lt;", "<", 0),
        (r"&gt;", ">", 0),
        (r"<ref[^<]*</ref>", "", 0),  # footnotes
        (r"<[^>]*>", "", 0),  # tags of the article
        (r"\[http:[^] ]*", "[", 0),  # addresses, but not the words shown for them
        (r"\|thumb", "", re.IGNORECASE),  # how pictures are placed
        (r"\|left", "", re.IGNORECASE),
        (r"\|right", "", re.IGNORECASE),
        (r"\|\d+px", "", re.IGNORECASE),
        (r"\[\[image:[^\[\]]*\|", "", re.IGNORECASE),  # a picture's name, but not its caption
        (r"\[\[category:([^|\]]*)[^]]*\]\]", r"[[\1]]", re.IGNORECASE),
        (r"\[\[[a-z\-]*:[^\]]*\]\]", "", 0),  # the article in other languages
        (r"\[\[[^|\]]*\|", "[[", 0),  # a link's target, but not the words shown for it
        (r"\{\{[^}]*\}\}", "", 0),  # templates
        (r"\{[^}]*\}", "", 0),  # tables
        (r"[\[\]]", "", 0),
        (r"&[^;]*;", " ", 0),  # characters written as entities
    )
)
_OTHERS = re.compile(r"[^a-z]+")
# A to Z only: `str.lower` would make words of signs such as the Kelvin's.
_LOWER = {upper: upper + 32 for upper in range(ord("A"), ord("Z") + 1)}


def clean_wikipedia(text: str) -> str:
    """The words of a Wikipedia dump as text8 has them: a to z in lower case, numbers spelt digit by digit.

    The rules are those of the script that made text8 (Matt Mahoney's, see mattmahoney.net/dc/textdata), for what stands
    between `<text …>` and `</text>`; redirects are left out. No two blanks follow each other.
    """
    return "".join(cleaned_records([text]))


def cleaned_records(blocks: Iterable[str]) -> Iterator[str]:
    """`clean_wikipedia` of a text that comes in blocks, a record at a time.

    A record ends with each `>`. An article has none of its own, since a dump escapes them: it is one record, and a
    table, a comment or a footnote goes as a whole however many lines it has. Words begin with one blank.
    """
    inside = False
    for record in _records(blocks):
        if "<text " in record:
            inside = True
        if "#redirect" in record.lower():
            inside = False
        if inside:
            inside = "</text>" not in record
            yield _words(record)


def _records(blocks: Iterable[str]) -> Iterator[str]:
    begun: list[str] = []
    for block in blocks:
        *ended, rest = block.split(">")
        for end in ended:
            yield "".join([*begun, end, ">"])
            begun.clear()
        begun.append(rest)
    yield "".join(begun)


def _words(record: str) -> str:
    for pattern, replacement in _MARKUP:
        record = pattern.sub(replacement, record)
    record = record.translate(_LOWER)
    for digit, word in enumerate(DIGITS):
        record = record.replace(str(digit), f" {word} ")
    return _OTHERS.sub(" ", f" {record} ")[:-1]


# ---- corpora, registered as entry points of the group recurrify.corpora ------------------------------------

ENWIK8_CORPUS = Corpus("100 MB of Wikipedia with its markup, one document per article", load_enwik8, True)
TEXT8_CORPUS = Corpus("100 MB of Wikipedia as plain words, one document per split", load_text8, True)
CLEANED_CORPUS = Corpus("a Wikipedia dump as plain words: text8-from:PATH", load_cleaned, True)
