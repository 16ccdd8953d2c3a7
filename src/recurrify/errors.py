"""The exception whose message is meant for users, and what other exceptions say."""

import re
from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["UserError", "cut", "did_you_mean", "first_line", "is_out_of_memory"]


class UserError(ValueError):
    """Invalid input, in one sentence that names the value and what to do.

    The command line prints it without a traceback and exits with 2; in Python it is a plain `ValueError`.
    """


def first_line(error: Exception) -> str:
    """The first line of an exception's message."""
    return (str(error).strip().splitlines() or [""])[0]


def cut(text: str, most: int) -> str:
    """At most so many characters of the text, with " …" where some are missing."""
    return text if len(text) <= most else f"{text[:most]} …"


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The known name that a mistyped one may have meant."""
    close = get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f" (did you mean {close[0]!r}?)" if close else ""


def is_out_of_memory(error: Exception) -> bool:
    """Whether memory is full, which torch reports as a RuntimeError."""
    words = "allocate memory|not enough memory|out of memory|bad_alloc|failed to map segment|start new thread"
    said = re.search(f"{words}|could not create a primitive", str(error), re.IGNORECASE)  # which is how oneDNN says it
    return isinstance(error, MemoryError) or bool(said)
