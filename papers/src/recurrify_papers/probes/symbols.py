"""Sequences of symbols that ask, some windows later, for what an early window stated.

The first window states facts among noise. Windows of noise follow, drawn independently of the facts, and the last
window asks: a model without memory is right by chance. The distance counts windows: at 1 the question is in the window
after the facts, at 0 in the same one, as with full context.

Answers are drawn independently of each other and of everything else. Answers to earlier questions are read like any
other symbol, as in language modelling. A reader that remembers which answers were stated, but not to what, can
therefore eliminate those that it has read and guess among the rest: `guess_level` is how often it is right, far above
chance where few are stated.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.polynomial.polynomial import polypow

from recurrify import UserError
from recurrify.data import IGNORED

STREAMS = {"train": 0, "test": 1}
"""Training and test sequences come from independent streams, whatever their seeds."""
ASK, IS = 0, 1
"""Two symbols that every probe has; then come noise, answers, and the names that some probes need."""
NOISE = 8
"""The number of noise symbols."""
FIRST_NOISE = 2
FIRST_ANSWER = FIRST_NOISE + NOISE


class SymbolTexts(NamedTuple):
    """Sequences of one distance."""

    inputs: np.ndarray
    """(sequences, (distance + 1) · window)"""
    targets: np.ndarray
    """The symbol after each input where an answer is due, `IGNORED` elsewhere: in the last window only."""


class SymbolProbe(ABC):
    """Facts and questions about them. Subclasses are dataclasses whose fields are the task's settings."""

    name: ClassVar[str]
    asks: ClassVar[str]
    """The question, for people."""
    answers: int
    """The number of different answers."""
    names: int = 0
    """The number of symbols that facts are about."""
    facts: int
    """The number of facts."""
    fact_length: int
    """Symbols of one fact."""
    asked: int
    """The number of answers stated; every one is asked for."""
    question_length: int
    """Symbols of all questions with their answers; the last answer is predicted but never an input."""

    @property
    def chance_level(self) -> float:
        return 1 / self.answers

    @property
    def guess_level(self) -> float:
        """The accuracy of a reader that knows the stated answers, but neither their names nor their order."""
        return level_by_elimination(self.asked, self.answers)

    @property
    def vocabulary(self) -> int:
        return FIRST_ANSWER + self.answers + self.names

    @property
    def first_name(self) -> int:
        return FIRST_ANSWER + self.answers

    @property
    def answer_symbols(self) -> range:
        return range(FIRST_ANSWER, FIRST_ANSWER + self.answers)

    @abstractmethod
    def state_and_ask(self, count: int, chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(count, facts, fact_length) facts in their order; (count, question_length) questions; and their targets."""

    def make(self, distance: int, count: int, window: int, chance: np.random.Generator) -> SymbolTexts:
        """`count` sequences whose questions are in the window `distance` windows after that of the facts."""
        self._check(distance, window)
        length = (distance + 1) * window
        inputs = chance.integers(FIRST_NOISE, FIRST_ANSWER, size=(count, length))
        targets = np.full((count, length), IGNORED)
        facts, questions, answers = self.state_and_ask(count, chance)
        inputs[:, -self.question_length :] = questions
        targets[:, -self.question_length :] = answers
        room = window - (self.question_length if distance == 0 else 0)
        rows = np.arange(count)
        for number, first in enumerate(self._places(count, room, chance).T):
            for part in range(self.fact_length):
                inputs[rows, first + part] = facts[:, number, part]
        return SymbolTexts(inputs, targets)

    def _places(self, count: int, room: int, chance: np.random.Generator) -> np.ndarray:
        """(count, facts): the first symbols of facts, in order and without overlap, uniformly drawn."""
        free = room - self.facts * self.fact_length
        # Draw places as if each fact were one symbol.
        places = chance.permuted(np.tile(np.arange(free + self.facts), (count, 1)), axis=1)[:, : self.facts]
        return np.sort(places, axis=1) + (self.fact_length - 1) * np.arange(self.facts)

    def _check(self, distance: int, window: int) -> None:
        if distance < 0:
            raise UserError(f"A distance counts windows and cannot be negative: got {distance}.")
        needed = self.facts * self.fact_length + self.question_length
        if window < needed:
            raise UserError(
                f"The probe {self.name!r} needs windows of {needed} symbols, for its facts and its questions: "
                f"got window={window}."
            )


@dataclass(frozen=True)
class Recall(SymbolProbe):
    """Names and their values; each name is asked for once, in another order."""

    name: ClassVar[str] = "recall"
    asks: ClassVar[str] = "Which value follows this name? Several pairs, every one is asked for."

    answers: int = 16
    pairs: int = 4
    different_names: int = 16

    def __post_init__(self) -> None:
        _at_least(self, answers=2, pairs=1, different_names=self.pairs)
        _derive(self, names=self.different_names, facts=self.pairs, fact_length=2)
        _derive(self, asked=self.pairs, question_length=3 * self.pairs - 1)

    def state_and_ask(self, count: int, chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        names = self.first_name + _distinct(count, self.pairs, self.different_names, chance)
        values = chance.integers(FIRST_ANSWER, self.first_name, size=(count, self.pairs))
        order = _distinct(count, self.pairs, self.pairs, chance)
        return (np.stack([names, values], axis=2), *_ask(_by(names, order), _by(values, order)))


@dataclass(frozen=True)
class Variables(SymbolProbe):
    """Chains of assignments: a value to a name, that name to another, and so on; each chain's last is asked for."""

    name: ClassVar[str] = "variables"
    asks: ClassVar[str] = "What is the value of the last name of a chain of assignments?"

    answers: int = 16
    chains: int = 2
    hops: int = 2
    """Names in a chain."""
    different_names: int = 16

    def __post_init__(self) -> None:
        _at_least(self, answers=2, chains=1, hops=1, different_names=self.chains * self.hops)
        _derive(self, names=self.different_names, facts=self.chains * self.hops, fact_length=3)
        _derive(self, asked=self.chains, question_length=3 * self.chains - 1)

    def state_and_ask(self, count: int, chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        shape = (count, self.chains, self.hops)
        names = (self.first_name + _distinct(count, self.facts, self.different_names, chance)).reshape(shape)
        values = chance.integers(FIRST_ANSWER, self.first_name, size=(count, self.chains))
        given = np.concatenate([values[:, :, None], names[:, :, :-1]], axis=2)
        # The assignments of all chains in random order, each chain's own in sequence.
        turns = np.tile(np.repeat(np.arange(self.chains), self.hops), (count, 1))
        by_chain = np.argsort(chance.permuted(turns, axis=1), axis=1, kind="stable")
        facts = np.empty((count, self.facts, 3), dtype=np.int64)
        rows = np.arange(count)[:, None]
        facts[rows, by_chain, 0] = names.reshape(count, -1)
        facts[:, :, 1] = IS
        facts[rows, by_chain, 2] = given.reshape(count, -1)
        order = _distinct(count, self.chains, self.chains, chance)
        return (facts, *_ask(_by(names[:, :, -1], order), _by(values, order)))


@dataclass(frozen=True)
class Copying(SymbolProbe):
    """A list of symbols to repeat."""

    name: ClassVar[str] = "copying"
    asks: ClassVar[str] = "Which symbols were in the list, in order?"
    backwards: ClassVar[bool] = False

    answers: int = 16
    symbols: int = 4
    """The length of the list."""

    def __post_init__(self) -> None:
        _at_least(self, answers=2, symbols=1)
        _derive(self, facts=1, fact_length=1 + self.symbols, asked=self.symbols, question_length=self.symbols)

    def state_and_ask(self, count: int, chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        said = chance.integers(FIRST_ANSWER, self.first_name, size=(count, self.symbols))
        wanted = said[:, ::-1] if self.backwards else said
        asked = np.full((count, 1), ASK)
        facts = np.concatenate([np.full((count, 1), IS), said], axis=1)[:, None]
        return facts, np.concatenate([asked, wanted[:, :-1]], axis=1), wanted


@dataclass(frozen=True)
class Reversal(Copying):
    """A list of symbols to repeat backwards."""

    name: ClassVar[str] = "reversal"
    asks: ClassVar[str] = "Which symbols were in the list, the last one first?"
    backwards: ClassVar[bool] = True


SYMBOL_PROBES: dict[str, type[SymbolProbe]] = {probe.name: probe for probe in (Recall, Variables, Copying, Reversal)}


def symbol_probe(name: str, **settings: int) -> SymbolProbe:
    """The probe of this name, with some of its settings changed."""
    if name not in SYMBOL_PROBES:
        raise UserError(f"There is no probe of symbols {name!r}: there are {', '.join(SYMBOL_PROBES)}.")
    known = [field.name for field in fields(SYMBOL_PROBES[name])]  # type: ignore[arg-type]
    for setting, value in settings.items():
        if setting not in known:
            raise UserError(f"The probe {name!r} has no setting {setting!r}: it has {', '.join(known)}.")
        if not isinstance(value, int) or isinstance(value, bool):
            raise UserError(f"`{setting}` of the probe {name!r} must be a whole number: got {value!r}.")
    return SYMBOL_PROBES[name](**settings)


def probe_stream(part: str, seed: int, number: int = 0) -> np.random.Generator:
    """The random generator of a part's sequences; `number` is the step or the distance."""
    return np.random.default_rng([STREAMS[part], seed, number])


def _ask(names: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`? name value` for each, without the last value; and the targets, due where a name is read."""
    asked = np.stack([np.full_like(names, ASK), names, values], axis=2)
    targets = np.full_like(asked, IGNORED)
    targets[:, :, 1] = values
    return asked.reshape(len(names), -1)[:, :-1], targets.reshape(len(names), -1)[:, :-1]


def repetitions(vocabulary: int, count: int, window: int, chance: np.random.Generator) -> SymbolTexts:
    """`count` sequences within a window that repeat a list of different symbols from another place on: the next symbol
    is found only by looking up what followed the same symbol before."""
    stretch = _distinct(count, min(window // 2, vocabulary), vocabulary, chance)
    length = stretch.shape[1]
    order = (chance.integers(length, size=(count, 1)) + np.arange(length)) % length
    following = _by(stretch, (order + 1) % length)
    following[order == length - 1] = IGNORED  # nothing follows the last symbol
    return SymbolTexts(
        np.concatenate([stretch, _by(stretch, order)], axis=1),
        np.concatenate([np.full_like(stretch, IGNORED), following], axis=1),
    )


def _distinct(count: int, drawn: int, of: int, chance: np.random.Generator) -> np.ndarray:
    """(count, drawn) different numbers below `of`, in random order."""
    return chance.permuted(np.tile(np.arange(of), (count, 1)), axis=1)[:, :drawn]


def _by(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, order, axis=1)


def _derive(probe: SymbolProbe, **values: int) -> None:
    """Set what follows from the settings of a frozen dataclass."""
    for name, value in values.items():
        object.__setattr__(probe, name, value)


def _at_least(probe: SymbolProbe, **least: int) -> None:
    for name, fewest in least.items():
        if getattr(probe, name) < fewest:
            raise UserError(f"`{name}` must be at least {fewest}: got {getattr(probe, name)}.")


def level_by_elimination(said: int, answers: int) -> float:
    """Every one of `said` answers is asked for in random order and read after its question: the reader chooses the most
    frequent of those left. The mean over all questions."""
    return sum(most_frequent(left, answers) / left for left in range(1, said + 1)) / said


def most_frequent(drawn: int, answers: int) -> float:
    """The expected count of the most frequent of `drawn` answers."""
    # An expectation is the sum of the probabilities to exceed 0, 1, 2 and so on.
    return sum(1 - _share_up_to(most, drawn, answers) for most in range(drawn))


def _share_up_to(most: int, drawn: int, answers: int) -> float:
    """The probability that no answer is drawn more than `most` times.

    The number of ways to draw is a coefficient of (1 + x + x² / 2! + … up to x^most / most!) ^ answers.
    """
    ways = polypow([1 / math.factorial(times) for times in range(most + 1)], answers)
    return float(ways[drawn]) * math.factorial(drawn) / answers**drawn if drawn < len(ways) else 0.0
