"""The plain records that every part of `data` passes around."""

from typing import NamedTuple


class Document(NamedTuple):
    """One text that is read from its first word to its last; documents never run into each other."""

    name: str
    text: str


class Skipped(NamedTuple):
    """Something that was found in a source but left out, and why; for the caller to print."""

    name: str
    reason: str
