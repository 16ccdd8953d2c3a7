"""The characters of an answer in a text, even if the two use different Unicode forms."""

import unicodedata
from collections.abc import Iterator
from typing import NamedTuple


class Place(NamedTuple):
    start: int
    stop: int
    exact: bool
    """Whether the text equals the answer character by character."""


def find_span(text: str, answer: str) -> Place | None:
    """The first occurrence of the answer as whole words, else its first occurrence.

    If it does not occur literally, letter case, accents and compatibility forms (ﬁ for fi, ² for 2) are ignored; the
    place is that of the matching characters of `text`.
    """
    answer = answer.strip()
    if not answer:
        return None
    best = _first(text, answer)
    if best is not None:
        return Place(best, best + len(answer), True)
    plain, origins = _plain(text)
    wanted, _ = _plain(answer)
    best = _first(plain, wanted) if wanted else None
    if best is None:
        return None
    stop = origins[best + len(wanted) - 1] + 1
    # Accents that follow the last letter belong to it.
    while stop < len(text) and unicodedata.combining(text[stop]):
        stop += 1
    return Place(origins[best], stop, False)


def _first(text: str, wanted: str) -> int | None:
    found = None
    for start in _occurrences(text, wanted):
        stop = start + len(wanted)
        if goes_on(text[stop : stop + 1]):
            continue
        whole = not (_joins(text[start - 1 : start], wanted[0]) or _joins(wanted[-1], text[stop : stop + 1]))
        if whole:
            return start
        found = start if found is None else found
    return found


def _occurrences(text: str, wanted: str) -> Iterator[int]:
    start = text.find(wanted)
    while start >= 0:
        yield start
        start = text.find(wanted, start + 1)


def _joins(left: str, right: str) -> bool:
    """Whether two neighbouring characters belong to one word."""
    return left.isalnum() and right.isalnum()


def goes_on(character: str) -> bool:
    """Whether a character belongs to the letter before: an accent or another mark, such as Indic and Thai vowels, or
    the vowel or the end of a Korean syllable."""
    return bool(character) and (unicodedata.category(character)[0] == "M" or "\u1160" <= character <= "\u11ff")


def _plain(text: str) -> tuple[str, list[int]]:
    """The text without case, accents and compatibility forms, and the original index of each character."""
    letters: list[str] = []
    origins: list[int] = []
    for index, character in enumerate(text):
        for letter in unicodedata.normalize("NFKD", character).casefold():
            if not unicodedata.combining(letter):
                letters.append(letter)
                origins.append(index)
    return "".join(letters), origins
