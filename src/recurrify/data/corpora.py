"""Corpora known by name. `register_corpus` adds one; packages add theirs through the entry point group
`recurrify.corpora`, each entry a `Corpus`."""

import re
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from importlib.metadata import entry_points
from typing import Any, NamedTuple

from recurrify.data.hub import load_hub
from recurrify.data.records import Document, Skipped
from recurrify.data.stdlib import load_stdlib
from recurrify.errors import UserError

ENTRY_POINTS = "recurrify.corpora"

# " = Title = " but not " = = Section = = ".
ARTICLE_HEADING = re.compile(r" = ([^=\s][^=]*?) = \s*")


class Corpus(NamedTuple):
    """A corpus known by name."""

    description: str
    load: Callable[..., list[Document]]
    """`load(split, limit, skipped)` returns the documents and appends what it leaves out to `skipped`."""
    takes_argument: bool = False
    """Whether `name:ARGUMENT` is a source too; `load` then gets the argument as its fourth value."""


def register_corpus(
    name: str, load: Callable[..., list[Document]], description: str = "", takes_argument: bool = False
) -> None:
    """Make `name` a source of documents for every command; see `Corpus` for how `load` is called."""
    if not re.fullmatch(r"[\w-][\w.-]*", name):
        raise UserError(f"A corpus name has letters, digits, dots and dashes only: got {name!r}.")
    CORPORA[name] = Corpus(description, load, takes_argument)


def find_corpus(source: str) -> tuple[Corpus, str | None] | None:
    """The corpus that a source names and its argument, as in `pg19:1250`; None for any other source."""
    name, _, argument = source.partition(":")
    corpus = CORPORA.get(name) or _installed(name)
    if corpus is None or (argument and not corpus.takes_argument) or source.endswith(":"):
        return None
    return corpus, argument or None


def corpus_names() -> list[str]:
    """The names of all corpora, those of installed packages included."""
    return list(dict.fromkeys([*CORPORA, *sorted(entry.name for entry in entry_points(group=ENTRY_POINTS))]))


@cache
def _installed(name: str) -> Corpus | None:
    for entry in entry_points(group=ENTRY_POINTS, name=name):
        corpus: Corpus = entry.load()
        return corpus
    return None


def wikitext_articles(lines: Iterable[str]) -> Iterator[Document]:
    """Whole articles from WikiText's rows, which are lines; each article begins with a line that is its title."""
    article: list[str] = []
    title, number = "untitled", 0
    after_blank_line = True
    for line in lines:
        # Headings have a blank line before them; without this check, tables and formulas would cut articles.
        heading = ARTICLE_HEADING.fullmatch(line) if after_blank_line else None
        if heading:
            if "".join(article).strip():
                yield Document(f"{number} {title}", "".join(article))
                number += 1
            article, title = [], heading[1]
        article.append(line if line.endswith("\n") else line + "\n")
        after_blank_line = not line.strip()
    if "".join(article).strip():
        yield Document(f"{number} {title}", "".join(article))


def _load_wikitext(split: str, limit: int | None, skipped: list[Skipped]) -> list[Document]:
    name = "Salesforce/wikitext:wikitext-103-raw-v1"
    return load_hub(name, split, limit=limit, skipped=skipped, to_documents=wikitext_articles)


def _load_pg19(split: str, limit: int | None, skipped: list[Skipped], books: str | None = None) -> list[Document]:
    name = "emozilla/pg19"
    if books is None:
        return load_hub(name, split, limit=limit, skipped=skipped)
    if not (books.isdecimal() and int(books) > 0):
        raise UserError(f"`pg19:{books}` does not name a number of training books: write pg19:1250, for example.")

    def first_books(part: str, rows: Any) -> Any:
        """The paper's subset: the first training books by file name, which is the number in their address."""
        if part != "train":
            return rows
        files = [address.rstrip("/").rpartition("/")[2] + ".txt" for address in rows["url"]]
        return rows.select(sorted(range(len(files)), key=files.__getitem__)[: int(books)])

    # Not limited before the choice, which needs all rows.
    return load_hub(name, split, skipped=skipped, choose=first_books)[:limit]


CORPORA: dict[str, Corpus] = {
    "stdlib": Corpus("the sources of Python's standard library, one document per file; offline", load_stdlib),
    "wikitext-103": Corpus("WikiText-103 (raw) from the hub, one document per article", _load_wikitext),
    "pg19": Corpus("PG-19 from the hub, one document per book", _load_pg19, takes_argument=True),
}
"""Built-in and registered corpora; `corpus_names` lists those of installed packages too."""
