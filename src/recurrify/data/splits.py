"""The split of each document where the source has no splits of its own."""

import hashlib
import re
from collections.abc import Callable, Iterator

import numpy as np

from recurrify.data.records import CHANGED_MEANWHILE, Document, Skipped
from recurrify.errors import UserError

SPLITS = ("train", "valid", "test")
EVERYTHING = "all"

# The names that folders, files and Hugging Face data sets give to our three splits.
SPLIT_OF_NAME = {
    "train": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}


def canonical_split(split: str) -> str:
    """`train`, `valid`, `test` or `all`, from any of their usual names."""
    if split == EVERYTHING:
        return split
    if split not in SPLIT_OF_NAME:
        raise UserError(f"`split` must be one of train, valid, test or all: got split={split!r}.")
    return SPLIT_OF_NAME[split]


def stable_hash(name: str) -> int:
    """A hash that, unlike `hash()`, is the same on every machine, run and Python version."""
    return int(hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest(), 16)


class Documents:
    """Documents that are read from their source whenever they are iterated: they need not fit in memory.

    Args:
        read: Reads all documents of the source, each with the key by which it is dealt to a split, and appends what it
            leaves out to its argument.
        skipped: What reading leaves out is appended to this list, once.
        split: The split to keep, where the source has no splits of its own; by default everything is kept.
    """

    def __init__(
        self,
        read: Callable[[list[Skipped]], Iterator[tuple[str, Document]]],
        skipped: list[Skipped],
        split: str = EVERYTHING,
    ) -> None:
        self._read, self._skipped, self._reported = read, skipped, set[Skipped]()
        self._kept: np.ndarray | None = None
        self._pieces: list[Document] | None = None
        if split == EVERYTHING:
            return
        hashes: list[int] = []
        first: list[Document] = []
        for key, document in self._everything():
            hashes.append(stable_hash(key) >> 192)
            if len(first) < len(SPLITS):
                first.append(document)
        if len(first) < len(SPLITS):
            pieces = [Document(name, cut_by_position(text)[SPLITS.index(split)]) for name, text in first]
            self._pieces = [piece for piece in pieces if piece.text.strip()]
        else:
            self._kept = _dealt(np.array(hashes, dtype=np.uint64), split)

    def _everything(self) -> Iterator[tuple[str, Document]]:
        skipped: list[Skipped] = []
        try:
            yield from self._read(skipped)
        finally:
            new = [entry for entry in skipped if entry not in self._reported]
            self._reported.update(new)
            self._skipped += new

    def __iter__(self) -> Iterator[Document]:
        if self._pieces is not None:
            yield from self._pieces
            return
        for index, (_, document) in enumerate(self._everything()):
            if self._kept is not None and index >= len(self._kept):
                raise UserError(CHANGED_MEANWHILE)
            if self._kept is None or self._kept[index]:
                yield document


def _dealt(hashes: np.ndarray, split: str) -> np.ndarray:
    """Which documents a split of a source without splits has: the first 5 % (at least one) by their hashes are valid,
    the next 5 % (at least one) are test, the rest is train."""
    ranked = np.argsort(hashes, kind="stable")
    held_out = max(1, round(len(hashes) * 0.05))
    parts = {"valid": ranked[:held_out], "test": ranked[held_out : 2 * held_out], "train": ranked[2 * held_out :]}
    kept = np.zeros(len(hashes), dtype=bool)
    kept[parts[split]] = True
    return kept


def cut_by_position(text: str) -> tuple[str, str, str]:
    """The first 90 %, the next 5 % and the last 5 % of a text; joined they are the text."""
    valid, test, end = len(text) * 90 // 100, len(text) * 95 // 100, len(text)
    # A cut moves at most half of the way to the next, so that no part is empty.
    first_cut = _boundary(text, valid, (valid + test) // 2)
    second_cut = _boundary(text, test, (test + end) // 2)
    return text[:first_cut], text[first_cut:second_cut], text[second_cut:]


def _boundary(text: str, start: int, stop: int) -> int:
    """Where the first line, else word, begins after `start`; `start` itself if none does by `stop`."""
    # Never after a carriage return, whose newline may follow.
    for boundary in (r"\n", r"[^\S\r]"):
        found = re.compile(boundary).search(text, start, stop)
        if found:
            return found.end()
    return start
