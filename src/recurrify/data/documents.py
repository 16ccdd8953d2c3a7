"""Documents out of whatever the user names: a file, a folder, a corpus or a Hugging Face data set."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from recurrify.data.files import COMPRESSED, JSON_LINES, load_file, load_folder
from recurrify.data.hub import first_books, is_saved_dataset, load_hub, row_documents, wikitext_articles
from recurrify.data.records import Document, Skipped
from recurrify.data.splits import canonical_split
from recurrify.data.stdlib import load_stdlib
from recurrify.data.wikipedia import load_cleaned, load_enwik8, load_text8
from recurrify.errors import UserError

__all__ = ["CORPORA", "Corpus", "Document", "Skipped", "load_documents"]

HUB_PREFIX = "hf:"
HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+(:[\w.-]+)?")
FILE_SUFFIXES = {".txt", ".text", ".md", ".json", *JSON_LINES, *COMPRESSED}


class Corpus(NamedTuple):
    """A corpus known by name; `load` takes the split, the limit and the list to report what it skips."""

    description: str
    load: Callable[[str, int | None, list[Skipped]], list[Document]]


def _load_wikitext(split: str, limit: int | None, skipped: list[Skipped]) -> list[Document]:
    return load_hub(
        "Salesforce/wikitext",
        "wikitext-103-raw-v1",
        split,
        text_field="text",
        limit=limit,
        skipped=skipped,
        to_documents=wikitext_articles,
    )


def _load_pg19(split: str, limit: int | None, skipped: list[Skipped], books: str | None = None) -> list[Document]:
    if books is not None and not (books.isdecimal() and int(books) > 0):
        raise UserError(f"`pg19:{books}` does not name a number of training books: write pg19:1250, for example.")
    return load_hub(
        "emozilla/pg19",
        None,
        split,
        text_field="text",
        # Choosing by file name needs all rows at hand, which a stream of the first few is not.
        limit=limit if books is None else None,
        skipped=skipped,
        to_documents=row_documents,
        choose=None if books is None else first_books(int(books)),
    )[:limit]


CORPORA: dict[str, Corpus] = {
    "stdlib": Corpus("the sources of Python's standard library, one document per file; offline", load_stdlib),
    "wikitext-103": Corpus("WikiText-103 (raw) from the hub, one document per article", _load_wikitext),
    "pg19": Corpus("PG-19 from the hub, one document per book", _load_pg19),
    "enwik8": Corpus("100 MB of Wikipedia with its markup, one document per article", load_enwik8),
    "text8": Corpus("100 MB of Wikipedia as plain words, one document per split", load_text8),
}
WITH_MORE: dict[str, Callable[[str, int | None, list[Skipped], str], list[Document]]] = {
    "enwik8": load_enwik8,
    "text8": load_text8,
    "text8-from": load_cleaned,
    "pg19": _load_pg19,
}
"""Corpora that can be told more: their file, as in `enwik8:PATH`, or how many books, as in `pg19:1250`."""


def load_documents(
    source: str | os.PathLike[str],
    split: str = "train",
    *,
    text_field: str = "text",
    limit: int | None = None,
    skipped: list[Skipped] | None = None,
) -> list[Document]:
    """The documents of one split of a source: kept apart, and in the same order every time.

    `source` is the first of these that fits:

    - a name in `CORPORA`: `stdlib`, `wikitext-103`, `pg19`, `enwik8`, `text8` (a file of that name is `./stdlib`);
    - `enwik8:PATH` or `text8:PATH`, these two out of a file of yours; `text8-from:PATH`, a Wikipedia dump cleaned as
      text8 was; `pg19:1250`, the paper's subset: of the training books the first 1,250 by file name;
    - `hf:owner/name` or `hf:owner/name:config`, a Hugging Face data set, or `hf:` and the path of one;
    - a file: one document of UTF-8 text, or with `.jsonl` or `.ndjson` one document per line, taken from
      the field `text_field`; either may be compressed as `.gz` or `.xz`;
    - a folder: every text file below it, hidden ones left out, in the order of their paths;
    - `owner/name` or `owner/name:config`, a Hugging Face data set without the prefix.

    `split` is `train`, `valid` (or `validation`, `val`, `dev`), `test`, or `all` for everything. Splits
    come from the source where it has them: a Hugging Face data set's own, or those of a folder in which at
    least two of the three splits have a sub-folder (`train/`) or a file (`train.jsonl`) at the top. Any
    other source is dealt out 90/5/5 by a hash of the documents' names, no split left empty; with one
    or two documents, each is cut by position into its first 90 %, next 5 % and last 5 %.

    `limit` keeps the first documents of the split. What a folder holds besides text, and rows without
    text, are left out and appended to `skipped`. Everything else that is wrong is a `UserError`.
    """
    source = os.fspath(source)
    split = canonical_split(split)
    skipped = [] if skipped is None else skipped
    if limit is not None and limit < 1:
        raise UserError(f"`limit` must be at least 1 document, or None for all of them: got limit={limit}.")
    documents = _load(source, split, text_field, limit, skipped)[:limit]
    if not documents:
        raise UserError(f"{source} has no text in its split {split!r}: give more text, or ask for split='all'.")
    return documents


def _load(source: str, split: str, text_field: str, limit: int | None, skipped: list[Skipped]) -> list[Document]:
    if source in CORPORA:
        return CORPORA[source].load(split, limit, skipped)
    corpus, _, more = source.partition(":")
    if more and corpus in WITH_MORE:
        return WITH_MORE[corpus](split, limit, skipped, more)
    path = Path(source).expanduser()
    hub_name: str | None = None
    if source.startswith(HUB_PREFIX):
        hub_name = source.removeprefix(HUB_PREFIX)
    elif is_saved_dataset(path) or (not path.exists() and _may_be_on_the_hub(source)):
        hub_name = source
    if hub_name is not None:
        name, config = name_and_config(hub_name)
        return load_hub(name, config, split, text_field=text_field, limit=limit, skipped=skipped)
    if path.is_dir():
        return load_folder(path, split, text_field, skipped)
    check_source(source)
    return load_file(path, split, text_field, skipped)


def check_source(source: str) -> None:
    """Refuse a source that is nowhere: of use before what takes longer to load."""
    corpus, _, more = source.partition(":")
    named = source in CORPORA or source.startswith(HUB_PREFIX) or (more and corpus in WITH_MORE)
    if not (named or Path(source).expanduser().exists() or _may_be_on_the_hub(source)):
        raise UserError(
            f"{source} does not exist: give a file, a folder, a Hugging Face data set as hf:owner/name, "
            f"or one of {', '.join(CORPORA)}."
        )


def _may_be_on_the_hub(source: str) -> bool:
    """Whether a path that does not exist looks like `owner/name` rather than like a mistyped path."""
    path = Path(source)
    return bool(HUB_NAME.fullmatch(source)) and path.suffix not in FILE_SUFFIXES and not path.parent.exists()


def name_and_config(source: str) -> tuple[str, str | None]:
    local = Path(source).expanduser()
    if local.exists():
        return str(local), None
    name, _, config = source.partition(":")
    return name, config or None
