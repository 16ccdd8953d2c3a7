"""The split of each document where the source has no splits of its own."""

import hashlib
import re
from collections.abc import Sequence

from recurrify.data.records import Document
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


def deal(documents: list[Document], split: str, keys: Sequence[str]) -> list[Document]:
    """The documents of one split of a source that has no splits of its own, in their given order.

    Three documents or more are ranked by the hash of their keys: the first 5 % (at least one) are valid, the next 5 %
    (at least one) are test, the rest is train. One or two documents are each cut by position instead: see
    `cut_by_position`.
    """
    if split == EVERYTHING:
        return documents
    if len(documents) < len(SPLITS):
        pieces = [Document(name, cut_by_position(text)[SPLITS.index(split)]) for name, text in documents]
        return [piece for piece in pieces if piece.text.strip()]
    ranked = sorted(range(len(documents)), key=lambda index: stable_hash(keys[index]))
    held_out = max(1, round(len(documents) * 0.05))
    dealt = {
        "valid": ranked[:held_out],
        "test": ranked[held_out : 2 * held_out],
        "train": ranked[2 * held_out :],
    }
    return [documents[index] for index in sorted(dealt[split])]


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
