"""Texts that ask, some windows later, for what an early window stated, with answers to choose from.

The facts are in the first window, at random places among filler: any long text, or a story about other people. The
question is at the end of the window `distance` windows later. The right answer is drawn independently of the filler,
the question and the candidates, so that a reader without memory is right by chance, whatever it prefers. Where several
answers are stated, a reader that knows them all, but not to what, is right more often: `guess_level` is how often.
Filler is cleaned first: it contains none of a probe's answers.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from recurrify.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

CANDIDATES = 8
PIECE = 64
"""Tokens of the pieces in which a text is cleaned."""
SEAM = 16
"""Tokens on either side of the border of two pieces that are checked again together."""
MOST_PIECES = 16_000
"""A million tokens: enough for a thousand windows of a thousand tokens."""
MOST_TOKENS = 2**24
"""Of one text: several are in memory at once, and any model needs hours for more."""
THINGS = [
    *("walrus", "lantern", "pepper", "anchor", "velvet", "thimble", "saddle", "cactus"),
    *("marble", "trumpet", "blanket", "pumpkin", "hammock", "compass", "teapot", "feather"),
]
CITIES = ["Lisbon", "Oslo", "Cairo", "Lima", "Prague", "Dublin", "Quito", "Havana"]
COLOURS = ["amber", "crimson", "violet", "ivory", "scarlet", "turquoise", "maroon", "beige"]
PLACES = ["kitchen", "garden", "cellar", "attic", "bakery", "barn", "chapel", "orchard"]
PEOPLE = ["Mary", "John", "Sandra", "Daniel", "Emma", "Peter"]
VARIABLES = ["zorb", "plim", "quax", "frun", "drel", "mopt"]


class Story(NamedTuple):
    """Facts and a question, in words."""

    facts: tuple[str, ...]
    """Placed in this order, each at a random place."""
    question: str
    candidates: tuple[str, ...]
    answer: int
    """Which of the candidates is right."""


class ProbeText(NamedTuple):
    """A text up to the answer."""

    ids: np.ndarray
    """(tokens,): with the longest candidate it fills its windows."""
    candidates: tuple[np.ndarray, ...]
    """The token ids of each."""
    answer: int
    facts: tuple[tuple[int, int], ...]
    """First token and end of each fact."""
    question: int
    """The question's first token."""


Filler = Callable[[int, np.random.Generator], np.ndarray]
"""Returns a number of tokens of text that contain no answer."""


class TextProbe(ABC):
    """Facts, a question, and the text between them."""

    name: ClassVar[str]
    asks: ClassVar[str]
    """The question, for people."""
    secrets: ClassVar[re.Pattern[str]]
    """What filler must not contain: anything that could be an answer."""
    needs_haystack: ClassVar[bool] = True
    candidates: ClassVar[int] = CANDIDATES
    right_at: ClassVar[tuple[float, ...]] = (1.0,)
    """For each answer that the facts state, in order, how often it is the right one."""

    @property
    def chance_level(self) -> float:
        return 1 / self.candidates

    @property
    def guess_level(self) -> float:
        """The accuracy of a reader that knows the stated answers and their order, but not to what they belong; 1 for
        a single answer."""
        return level_by_place(self.right_at, self.candidates)

    @abstractmethod
    def draw(self, chance: np.random.Generator) -> Story:
        """Draw facts, a question and its candidates; the right one is drawn last."""

    def filler(self, haystack: Iterable[np.ndarray], tokenizer: "PreTrainedTokenizerBase") -> Filler:
        """Filler from the documents of the haystack, cleaned."""
        return clean_filler(haystack, tokenizer, self)

    def make(
        self,
        distance: int,
        seed: tuple[int, int],
        window: int,
        tokenizer: "PreTrainedTokenizerBase",
        filler: Filler,
    ) -> ProbeText:
        """A text whose question is in the window `distance` windows after that of the facts, which begin in the first
        window and may be longer.

        `seed` is the seed of all texts and the number of this one.
        """
        if distance < 0:
            raise UserError(f"A distance counts windows and cannot be negative: got {distance}.")
        check_length(distance, window)
        chance = np.random.default_rng([*seed, distance])
        story = self.draw(chance)
        facts = [_encode(tokenizer, fact) for fact in story.facts]
        question, candidates = _question_and_candidates(tokenizer, story)
        ending = len(question) + max(map(len, candidates))
        said = sum(map(len, facts))
        self._check_room(said, ending, window, distance)
        first = max(said, window - (ending if distance == 0 else 0))
        ids = filler((distance + 1) * window - said - ending, chance)
        before, spans = _hidden(facts, ids[: first - said], chance)
        return ProbeText(
            ids=np.concatenate([before, ids[first - said :], question]).astype(np.int64),
            candidates=candidates,
            answer=story.answer,
            facts=spans,
            question=(distance + 1) * window - ending,
        )

    def _check_room(self, said: int, ending: int, window: int, distance: int) -> None:
        if ending > window or said + ending > (distance + 1) * window:
            raise UserError(
                f"The probe {self.name!r} needs {said} tokens for its facts and {ending} for its question, too many "
                f"for {distance + 1} windows of {window}: choose larger windows or distances."
            )

    def fits_one_window(
        self, window: int, tokenizer: "PreTrainedTokenizerBase", filler: Filler, seed: tuple[int, int]
    ) -> bool:
        """Whether facts and question fit into one window, for this seed."""
        try:
            self.make(0, seed, window, tokenizer, filler)
        except UserError:
            return False
        return True


class Passkey(TextProbe):
    name = "passkey"
    asks = "Which number of five digits was the pass key?"
    secrets = re.compile(r"\d{5}")

    def draw(self, chance: np.random.Generator) -> Story:
        keys = tuple(f" {10_000 + number}." for number in chance.choice(90_000, self.candidates, replace=False))
        answer = _drawn(chance, self.candidates)
        return Story((f"\nThe pass key is{keys[answer]}\n",), "\nThe pass key is", keys, answer)


class Needle(TextProbe):
    name = "needle"
    asks = "What should one buy in a city? One sentence of a long text names it."
    secrets = re.compile("|".join(THINGS), re.IGNORECASE)

    def draw(self, chance: np.random.Generator) -> Story:
        city = CITIES[_drawn(chance, len(CITIES))]
        things = tuple(f" {thing}." for thing in _some(THINGS, self.candidates, chance))
        answer = _drawn(chance, self.candidates)
        asked = f"\nThe best thing to do in {city} is to buy a"
        return Story((f"{asked}{things[answer]}\n",), asked, things, answer)


class WordRecall(TextProbe):
    """The colours of the other things are drawn from the same candidates, and may be equal."""

    name = "recall"
    asks = "Which colour has one of three things?"
    right_at = (1 / 3, 1 / 3, 1 / 3)
    secrets = re.compile("|".join(COLOURS), re.IGNORECASE)

    def draw(self, chance: np.random.Generator) -> Story:
        things = _some(THINGS, 3, chance)
        asked = _drawn(chance, len(things))
        colours = [COLOURS[_drawn(chance, len(COLOURS))] for _ in things]
        answer = _drawn(chance, self.candidates)
        colours[asked] = COLOURS[answer]
        said = " ".join(f"The {thing} is {colour}." for thing, colour in zip(things, colours, strict=True))
        candidates = tuple(f" {colour}." for colour in COLOURS)
        return Story((f"\n{said}\n",), f"\nThe {things[asked]} is", candidates, answer)


class WordVariables(TextProbe):
    """Two chains of two names; the other chain's value is one of the candidates."""

    name = "variables"
    asks = "Which number is the value of a name that was assigned another name?"
    right_at = (1 / 2, 1 / 2)
    secrets = re.compile(r"\d{3}|" + "|".join(VARIABLES))

    def draw(self, chance: np.random.Generator) -> Story:
        names = _some(VARIABLES, 4, chance)
        values = tuple(f" {100 + number}\n" for number in chance.choice(900, self.candidates, replace=False))
        order = _drawn(chance, 2)
        other = values[_drawn(chance, self.candidates)]
        answer = _drawn(chance, self.candidates)
        chains = [(names[0], names[1], values[answer]), (names[2], names[3], other)]
        said = "".join(
            f"{first} ={value}{last} = {first}\n" for first, last, value in (chains[order], chains[1 - order])
        )
        return Story((f"\n{said}",), f"\n{names[1]} =", values, answer)


class WordCopying(TextProbe):
    """All candidates have the same words: their order must be remembered."""

    name = "copying"
    asks = "In which order were the four words of a list?"
    secrets = re.compile("|".join(THINGS), re.IGNORECASE)
    again: ClassVar[str] = "again"

    @property
    def guess_level(self) -> float:
        """The words alone say nothing about their order."""
        return self.chance_level

    def draw(self, chance: np.random.Generator) -> Story:
        words = _some(THINGS, 4, chance)
        lists: dict[tuple[str, ...], None] = {}
        while len(lists) < self.candidates:
            lists[tuple(_some(words, len(words), chance))] = None
        orders = list(lists)
        answer = _drawn(chance, self.candidates)
        said = self.say(orders[answer])
        candidates = tuple(f" {', '.join(order)}." for order in orders)
        return Story((f"\nThe list: {', '.join(said)}.\n",), f"\nThe list {self.again}:", candidates, answer)

    def say(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        """The list for which this is the answer."""
        return wanted


class WordReversal(WordCopying):
    name = "reversal"
    asks = "In which order were the four words of a list, read backwards?"
    again = "backwards"

    def say(self, wanted: tuple[str, ...]) -> tuple[str, ...]:
        return wanted[::-1]


class Entities(TextProbe):
    """Two people carry a thing each. The filler is about other people, who go to all places equally often: the right
    place is named there too, but not more often than any other."""

    name = "entities"
    asks = "Where is one of two things that two people carry? A generated story."
    needs_haystack = False
    right_at = (1 / 8, 3 / 8, 1 / 2)
    others: ClassVar[list[str]] = PEOPLE[3:]

    def draw(self, chance: np.random.Generator) -> Story:
        people = _some([one for one in PEOPLE if one not in self.others], 2, chance)
        things = _some(THINGS, 2, chance)
        ways, asked, answer = _ways(people, chance)
        taken = {one: f"took the {thing}" for one, thing in zip(people, things, strict=True)}
        # Each takes a thing at first mention and carries it from then on.
        said = "".join(f" {one} {taken.pop(one, 'went')} to the {place}." for one, place in ways)
        candidates = tuple(f" {place}." for place in PLACES)
        return Story((said,), f" The {things[asked]} is in the", candidates, answer)

    def filler(self, haystack: Iterable[np.ndarray], tokenizer: "PreTrainedTokenizerBase") -> Filler:
        said = [
            [_encode(tokenizer, f" {who} {went} to the {place}.") for place in PLACES]
            for who in self.others
            for went in ("went", "walked", "came")
        ]
        shortest = min(len(ids) for ways in said for ids in ways)

        def fill(count: int, chance: np.random.Generator) -> np.ndarray:
            most = count // shortest + 2
            ways = chance.integers(len(said), size=most)
            places = chance.integers(len(PLACES), size=most)
            parts = [said[way][place] for way, place in zip(ways, places, strict=True)]
            return np.concatenate(parts)[:count]

        return fill


class Hidden(TextProbe):
    name = "hidden"
    asks = "Where is one of two people, whose ways are sentences hidden in a long text?"
    right_at = (1 / 8, 3 / 8, 1 / 2)
    secrets = re.compile("|".join(PLACES), re.IGNORECASE)

    def draw(self, chance: np.random.Generator) -> Story:
        people = _some(PEOPLE, 2, chance)
        ways, asked, answer = _ways(people, chance)
        facts = tuple(f"\n{one} went to the {place}.\n" for one, place in ways)
        return Story(facts, f"\n{people[asked]} is in the", tuple(f" {place}." for place in PLACES), answer)


def _ways(people: Sequence[str], chance: np.random.Generator) -> tuple[list[tuple[str, str]], int, int]:
    """The ways of two people, one of whom moves twice; the indices of the person asked for and of their last place.

    The person asked for moves last in half of the cases, and moves twice in half of them: neither the last place nor
    that of the person who moved twice is always right.
    """
    turn = 2 if _drawn(chance, 2) else _drawn(chance, 2)
    turns = [0, 0]
    turns.insert(turn, 1)
    places = [_drawn(chance, len(PLACES)) for _ in turns]
    asked = _drawn(chance, 2)
    answer = _drawn(chance, len(PLACES))
    places[max(number for number, one in enumerate(turns) if one == asked)] = answer
    return [(people[one], PLACES[place]) for one, place in zip(turns, places, strict=True)], asked, answer


TEXT_PROBES: dict[str, type[TextProbe]] = {
    probe.name: probe
    for probe in (Passkey, Needle, WordRecall, WordVariables, WordCopying, WordReversal, Entities, Hidden)
}


def text_probe(name: str) -> TextProbe:
    if name not in TEXT_PROBES:
        raise UserError(f"There is no probe {name!r}: there are {', '.join(TEXT_PROBES)}.")
    return TEXT_PROBES[name]()


def whole_distances(distances: Sequence[int]) -> list[int]:
    """The distances without duplicates, sorted; raises a `UserError` for any below 1."""
    if not distances or min(distances) < 1:
        raise UserError(
            "Distances are whole numbers of windows from 1 on, such as 1,2,5,10,100 (0, the same window, is always "
            f"scored as full context): got {', '.join(map(str, distances)) or 'none'}."
        )
    return sorted(set(distances))


def level_by_place(shares: Sequence[float], answers: int) -> float:
    """One answer is asked for; the reader knows all that were stated, in order, and how often (`shares`) each place
    holds the right one. It chooses the answer that is most likely right."""
    total = 0.0
    for said in product(range(answers), repeat=len(shares)):
        weights: dict[int, float] = {}
        for answer, share in zip(said, shares, strict=True):
            weights[answer] = weights.get(answer, 0.0) + share
        total += max(weights.values())
    return total / answers ** len(shares)


def check_length(distance: int, window: int) -> None:
    """Raise a `UserError` for a text that is too long."""
    tokens = (distance + 1) * window
    if tokens > MOST_TOKENS:
        raise UserError(
            f"A text that asks at a distance of {distance:,} windows of {window} has {tokens:,} tokens, but a probe's "
            f"texts have at most {MOST_TOKENS:,}: choose smaller distances or windows."
        )


def clean_filler(documents: Iterable[np.ndarray], tokenizer: "PreTrainedTokenizerBase", probe: TextProbe) -> Filler:
    """The documents' tokens in sequence, from a random place on and in a circle, without pieces that contain a possible
    answer."""

    def clean(ids: np.ndarray) -> bool:
        return probe.secrets.search(tokenizer.decode(ids, clean_up_tokenization_spaces=False)) is None

    kept: list[np.ndarray] = []
    for piece in _pieces(documents):
        if clean(piece) and (not kept or clean(np.concatenate([kept[-1][-SEAM:], piece[:SEAM]]))):
            kept.append(piece)
    while kept and not clean(np.concatenate([kept[-1][-SEAM:], kept[0][:SEAM]])):
        kept.pop()
    if not kept:
        raise UserError(
            f"The haystack of the probe {probe.name!r} has no {PIECE} tokens without a possible answer: give a longer "
            "or another one with --data."
        )
    stream = np.concatenate(kept)

    def fill(count: int, chance: np.random.Generator) -> np.ndarray:
        start = int(chance.integers(len(stream)))
        return np.take(stream, np.arange(start, start + count), mode="wrap")

    return fill


def _pieces(documents: Iterable[np.ndarray]) -> Iterable[np.ndarray]:
    count = 0
    for ids in documents:
        for start in range(0, len(ids) - PIECE + 1, PIECE):
            if count == MOST_PIECES:
                return
            count += 1
            yield ids[start : start + PIECE]


def _hidden(
    facts: Sequence[np.ndarray], filler: np.ndarray, chance: np.random.Generator
) -> tuple[np.ndarray, tuple[tuple[int, int], ...]]:
    """The facts at random places of the filler, in order, and the span of each."""
    cuts = np.sort(chance.integers(len(filler) + 1, size=len(facts)))
    parts: list[np.ndarray] = []
    spans = []
    at = 0
    for fact, piece in zip(facts, np.split(filler, cuts), strict=False):
        parts += [piece, fact]
        at += len(piece)
        spans.append((at, at + len(fact)))
        at += len(fact)
    return np.concatenate([*parts, filler[cuts[-1] :]]), tuple(spans)


def _question_and_candidates(
    tokenizer: "PreTrainedTokenizerBase", story: Story
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    """Encoded together, since a tokenizer may join neighbours; the question is the common beginning."""
    whole = [_encode(tokenizer, story.question + candidate) for candidate in story.candidates]
    most = min(map(len, whole)) - 1
    alike = 0
    while alike < most and len({int(ids[alike]) for ids in whole}) == 1:
        alike += 1
    return whole[0][:alike], tuple(ids[alike:] for ids in whole)


def _encode(tokenizer: "PreTrainedTokenizerBase", text: str) -> np.ndarray:
    return np.asarray(tokenizer.encode(text, add_special_tokens=False), dtype=np.int64)


def _drawn(chance: np.random.Generator, below: int) -> int:
    return int(chance.integers(below))


def _some(words: Sequence[str], count: int, chance: np.random.Generator) -> list[str]:
    return [words[int(index)] for index in chance.choice(len(words), count, replace=False)]
