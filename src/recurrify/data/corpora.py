"""Corpora known by name. Packages add theirs through the entry point group `recurrify.corpora`, each entry a
`Corpus`."""

from collections.abc import Callable
from functools import cache
from importlib.metadata import entry_points
from typing import NamedTuple

from recurrify.data.records import Document
from recurrify.data.stdlib import load_stdlib

ENTRY_POINTS = "recurrify.corpora"


class Corpus(NamedTuple):
    """A corpus known by name."""

    description: str
    load: Callable[..., list[Document]]
    """`load(split, limit, skipped)` returns the documents and appends what it leaves out to `skipped`."""
    takes_argument: bool = False
    """Whether `name:ARGUMENT` is a source too; `load` then gets the argument as its fourth value."""


def find_corpus(source: str) -> tuple[Corpus, str | None] | None:
    """The corpus that a source names and its argument, as in `enwik8:FILE`; None for any other source."""
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


CORPORA: dict[str, Corpus] = {
    "stdlib": Corpus("the sources of Python's standard library, one document per file; offline", load_stdlib),
}
"""Built-in corpora; `corpus_names` lists those of installed packages too."""
