"""Records shared by all modules of `data`."""

from typing import NamedTuple

IGNORED = -100
"""The label that losses ignore."""
CHANGED_MEANWHILE = "The text changed while it was read: run the command again when nothing writes to it."


class Document(NamedTuple):
    """One text; windows and sequences never cross documents."""

    name: str
    text: str


class Skipped(NamedTuple):
    """Something in a source that was left out, and why; for the caller to report."""

    name: str
    reason: str
