"""enwik8 and text8: a hundred million bytes of Wikipedia each, as dumped and as plain words.

`enwik8:PATH` and `text8:PATH` name a local file, as it is or as `.xz`, `.gz` or `.zip`. The bare names look for it in
the folder that the variable RECURRIFY_DATA names; where that is not set, they ask the Hugging Face hub. Whatever the
source, the MD5 sum must be the published one. Splits are the usual ones: the first 90 %, the next and the last 5 % of
the bytes. A character that such a cut would go through belongs to the later split.

text8 was made by `clean_wikipedia`'s rules out of the first part of enwik9, of which enwik8 is only the beginning.
`text8-from:PATH` applies them to any dump: enwik9 gives text8 itself, and a cleaned enwik8 is some 20 % shorter.
"""

import gzip
import hashlib
import lzma
import os
import re
import zipfile
import zlib
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from recurrify.data.records import Document, Skipped
from recurrify.data.splits import EVERYTHING, SPLITS
from recurrify.errors import UserError

FOLDER_VARIABLE = "RECURRIFY_DATA"
SUFFIXES = ("", ".xz", ".gz", ".zip")

SHORTEST_DOCUMENT = 2_000
"""Characters; a shorter page, mostly a redirect, is read together with the one after it."""

PAGE = re.compile(r"^(?=  <page>$)", re.MULTILINE)
TITLE = re.compile(r"<title>(.*?)</title>")


@dataclass(frozen=True)
class Dump:
    """A file that everybody has the same bytes of."""

    name: str
    size: int
    md5: str
    web: str
    """Where it can be fetched by hand."""
    hub: str
    """The Hugging Face data set that holds it."""
    hub_options: dict[str, str] = field(default_factory=dict)


ENWIK8 = Dump(
    name="enwik8",
    size=100_000_000,
    md5="a1fa5ffddb56f4953e226637dabbb36a",
    web="https://mattmahoney.net/dc/enwik8.zip",
    hub="LTCB/enwik8",
    # The data set itself is a program, which is not run; the hub keeps its output in a branch.
    hub_options={"data_dir": "enwik8-raw", "revision": "refs/convert/parquet"},
)
TEXT8 = Dump(
    name="text8",
    size=100_000_000,
    md5="3bea1919949baf155f99411df5fada7e",
    web="https://mattmahoney.net/dc/text8.zip",
    hub="afmck/text8",
)


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


def load_cleaned(split: str, limit: int | None, skipped: list[Skipped], path: str) -> list[Document]:
    """The plain words of a dump, as many as text8 has at most; one document per split."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"There is no file {file} to make words of: give a Wikipedia dump as `text8-from:PATH`.")
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
    """Kept, since every split asks for it; `changed` makes a file that was written anew another one."""
    try:
        text = _unpacked(file, TEXT8).decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text ({error.reason} at byte {error.start}): give a dump.") from error
    return clean_wikipedia(text)[: TEXT8.size].encode()


def part_of_dump(data: bytes, split: str) -> str:
    """The text of the first 90 %, the next 5 % or the last 5 % of the bytes."""
    bounds = [0, len(data) * 90 // 100, len(data) * 95 // 100, len(data)]
    for index in (1, 2):
        while bounds[index] < len(data) and data[bounds[index]] & 0xC0 == 0x80:  # inside a UTF-8 character
            bounds[index] -= 1
    number = SPLITS.index(split)
    return data[bounds[number] : bounds[number + 1]].decode("utf-8")


def articles(text: str) -> list[tuple[str, str]]:
    """Titles and texts: cut before each `<page>`, short pages joined to the next until they are worth reading.

    What stands before the first page (the dump's header, or the rest of an article that a split's cut went through)
    is a page of its own without a title. A document has the title of its longest page.
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
    try:
        match path.suffix:
            case ".gz":
                with gzip.open(path) as gzip_file:
                    return gzip_file.read()
            case ".xz":
                with lzma.open(path) as xz_file:
                    return xz_file.read()
            case ".zip":
                with zipfile.ZipFile(path) as archive:
                    return archive.read(dump.name)
        return path.read_bytes()
    except KeyError as error:
        raise UserError(f"{path} holds no file {dump.name}: fetch it again from {dump.web}.") from error
    except (gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise UserError(f"{path} is no whole {path.suffix} file ({error}): fetch it again from {dump.web}.") from error
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error.strerror}): check its rights.") from error


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
        (r"<.*>", "", 0),  # the dump's own tags, and what stands between two of them on a line
        (r"&amp;", "&", 0),  # first: the dump has escaped an article's own `&lt;` once more
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

    The rules are those of the script that made text8 (Matt Mahoney's, see mattmahoney.net/dc/textdata). They go line
    by line, over what stands between `<text …>` and `</text>`; redirects are left out. Each line with a word in it
    begins with one blank, and no two blanks follow each other.
    """
    inside = False
    cleaned: list[str] = []
    for line in text.split("\n"):
        if "<text " in line:
            inside = True
        if "#redirect" in line.lower():
            inside = False
        if inside:
            ends = "</text>" in line
            cleaned.append(_words(line))
            inside = not ends
    return "".join(cleaned)


def _words(line: str) -> str:
    for pattern, replacement in _MARKUP:
        line = pattern.sub(replacement, line)
    line = line.translate(_LOWER)
    for digit, word in enumerate(DIGITS):
        line = line.replace(str(digit), f" {word} ")
    return _OTHERS.sub(" ", f" {line} ")[:-1]
