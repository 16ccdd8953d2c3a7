"""enwik8 and text8: a hundred million bytes of Wikipedia each, as dumped and as plain words.

`enwik8:PATH` and `text8:PATH` name a local file, plain or as `.xz`, `.gz` or `.zip`; the names alone are those of data
sets on the Hugging Face hub. The MD5 sum must be the published one. Splits are the usual ones: the first 90 %, the next
and the last 5 % of the bytes; a character on a boundary belongs to the later split.
"""

import hashlib
import lzma
import re
import zipfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import fsspec

from recurrify import UserError
from recurrify.data import EVERYTHING, SPLITS, Corpus, Document, Skipped

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
    """The dump's bytes, checked: from `path`, else from the hub."""
    source = path or dump.hub
    data = _from_hub(dump) if path is None else _unpacked(Path(path).expanduser(), dump)
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != dump.md5:
        raise UserError(
            f"{source} is not {dump.name}: its {len(data):,} bytes have the MD5 sum {found}, but those of {dump.name} "
            f"({dump.size:,} bytes) have {dump.md5}; fetch it again from {dump.web}."
        )
    return data


def _unpacked(path: Path, dump: Dump) -> bytes:
    """The content of a file, unpacked by its suffix; an archive holds one file."""
    if not path.is_file():
        raise UserError(f"There is no file {path} to read {dump.name} from: fetch it from {dump.web}.")
    try:
        with fsspec.open(path, "rb", compression="infer") as file:
            data: bytes = file.read()
    except (OSError, EOFError, lzma.LZMAError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(f"{path} cannot be read ({error}): fetch it again from {dump.web}.") from error
    return data


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
            f"{dump.web} and give it as {dump.name}:PATH."
        ) from error


# ---- corpora, registered as entry points of the group recurrify.corpora ------------------------------------

ENWIK8_CORPUS = Corpus("100 MB of Wikipedia with its markup, one document per article", load_enwik8, True)
TEXT8_CORPUS = Corpus("100 MB of Wikipedia as plain words, one document per split", load_text8, True)
