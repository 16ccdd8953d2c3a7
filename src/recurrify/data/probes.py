"""Sequences of symbols that ask, so many windows later, for what an early window said.

The first window states facts among noise. So many windows of noise lie between, drawn without a look at the facts, and
the last window asks: a model that carries nothing into it is right by chance. The distance counts windows: at 1 the
question stands in the window after the facts, at 0 in the same one, which is what full context can do.

Answers are drawn independently of each other and of all else: to a reader that remembers nothing, none tells of
another. Those of earlier questions are read like any other symbol, as in language modelling. A reader that remembers
which answers were said, but not whose they are, can therefore strike out those that it has read and guess among the
rest: `guess_level` is how often that one is right, far above chance where few are said.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, NamedTuple

import numpy as np

from recurrify.data.probes_guess import level_by_elimination
from recurrify.errors import UserError

IGNORED = -100
"""The target where no answer is due; torch's losses leave it out."""
STREAMS = {"train": 0, "test": 1}
"""Sequences to train on and to test with are drawn from independent streams, whatever their seeds."""
ASK, IS = 0, 1
"""Two symbols that every probe has; then come its noise, its answers, and whatever else it needs."""
NOISE = 8
"""Different symbols of noise."""
FIRST_NOISE = 2
FIRST_ANSWER = FIRST_NOISE + NOISE


class SymbolTexts(NamedTuple):
    """Sequences of one distance."""

    inputs: np.ndarray
    """(sequences, (distance + 1) · window)"""
    targets: np.ndarray
    """What should follow each input where an answer is due, `IGNORED` elsewhere: in the last window only."""


class SymbolProbe(ABC):
    """What is said, and what is asked."""

    name: ClassVar[str]
    asks: ClassVar[str]
    """In words, for people."""
    answers: int
    """Different answers."""

    @property
    def chance_level(self) -> float:
        return 1 / self.answers

    @property
    def guess_level(self) -> float:
        """How often a reader is right that knows the answers said, but neither whose they are nor their order."""
        return level_by_elimination(self.asked, self.answers)

    @property
    @abstractmethod
    def asked(self) -> int:
        """How many answers are said; every one is asked for."""

    @property
    def vocabulary(self) -> int:
        return FIRST_ANSWER + self.answers + self.names

    @property
    def names(self) -> int:
        """Symbols besides: what facts are about."""
        return 0

    @property
    def first_name(self) -> int:
        return FIRST_ANSWER + self.answers

    @property
    def answer_symbols(self) -> range:
        return range(FIRST_ANSWER, FIRST_ANSWER + self.answers)

    @property
    @abstractmethod
    def fact_length(self) -> int:
        """Symbols of one fact."""

    @property
    @abstractmethod
    def facts(self) -> int:
        """How many facts are stated."""

    @property
    @abstractmethod
    def question_length(self) -> int:
        """Symbols of all questions with their answers; the last answer is predicted and never read."""

    @abstractmethod
    def state_and_ask(self, count: int, chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(count, facts, fact_length) facts in their order; (count, question_length) questions; and their targets."""

    def make(self, distance: int, count: int, window: int, chance: np.random.Generator) -> SymbolTexts:
        """`count` sequences whose questions stand in the window `distance` windows after that of the facts."""
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
        """(count, facts): where each fact begins, in order and clear of each other, all ways as likely."""
        free = room - self.facts * self.fact_length
        # As if each fact were one symbol: choose which of the places hold one.
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
    """Names and their values, each name asked for once, in another order."""

    name: ClassVar[str] = "recall"
    asks: ClassVar[str] = "Which value stood behind this name? Several pairs, every one asked for."

    answers: int = 16
    pairs: int = 4
    different_names: int = 16

    def __post_init__(self) -> None:
        _at_least(self, answers=2, pairs=1, different_names=self.pairs)

    @property
    def names(self) -> int:
        return self.different_names

    @property
    def asked(self) -> int:
        return self.pairs

    @property
    def fact_length(self) -> int:
        return 2

    @property
    def facts(self) -> int:
        return self.pairs

    @property
    def question_length(self) -> int:
        return 3 * self.pairs - 1

    def state_and_ask(self, count: int, chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        names = self.first_name + _distinct(count, self.pairs, self.different_names, chance)
        values = chance.integers(FIRST_ANSWER, self.first_name, size=(count, self.pairs))
        order = _distinct(count, self.pairs, self.pairs, chance)
        return (np.stack([names, values], axis=2), *_ask(_by(names, order), _by(values, order)))


@dataclass(frozen=True)
class Variables(SymbolProbe):
    """Chains of assignments: a value to a name, that name to another, and so on; each chain's last is asked for."""

    name: ClassVar[str] = "variables"
    asks: ClassVar[str] = "What does the last name of a chain of assignments stand for?"

    answers: int = 16
    chains: int = 2
    hops: int = 2
    """Names in a chain."""
    different_names: int = 16

    def __post_init__(self) -> None:
        _at_least(self, answers=2, chains=1, hops=1, different_names=self.facts)

    @property
    def names(self) -> int:
        return self.different_names

    @property
    def asked(self) -> int:
        return self.chains

    @property
    def fact_length(self) -> int:
        return 3

    @property
    def facts(self) -> int:
        return self.chains * self.hops

    @property
    def question_length(self) -> int:
        return 3 * self.chains - 1

    def state_and_ask(self, count: int, chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        shape = (count, self.chains, self.hops)
        names = (self.first_name + _distinct(count, self.facts, self.different_names, chance)).reshape(shape)
        values = chance.integers(FIRST_ANSWER, self.first_name, size=(count, self.chains))
        given = np.concatenate([values[:, :, None], names[:, :, :-1]], axis=2)
        # The chains' assignments mixed at random, each chain's own in order.
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
    """Symbols in a row, to be said again."""

    name: ClassVar[str] = "copying"
    asks: ClassVar[str] = "Which symbols stood there, in their order?"
    backwards: ClassVar[bool] = False

    answers: int = 16
    symbols: int = 4
    """How many are copied."""

    def __post_init__(self) -> None:
        _at_least(self, answers=2, symbols=1)

    @property
    def asked(self) -> int:
        return self.symbols

    @property
    def fact_length(self) -> int:
        return 1 + self.symbols

    @property
    def facts(self) -> int:
        return 1

    @property
    def question_length(self) -> int:
        return self.symbols

    def state_and_ask(self, count: int, chance: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        said = chance.integers(FIRST_ANSWER, self.first_name, size=(count, self.symbols))
        wanted = said[:, ::-1] if self.backwards else said
        asked = np.full((count, 1), ASK)
        facts = np.concatenate([np.full((count, 1), IS), said], axis=1)[:, None]
        return facts, np.concatenate([asked, wanted[:, :-1]], axis=1), wanted


@dataclass(frozen=True)
class Reversal(Copying):
    """Symbols in a row, to be said backwards."""

    name: ClassVar[str] = "reversal"
    asks: ClassVar[str] = "Which symbols stood there, the last one first?"
    backwards: ClassVar[bool] = True


SYMBOL_PROBES: dict[str, type[SymbolProbe]] = {probe.name: probe for probe in (Recall, Variables, Copying, Reversal)}


def symbol_probe(name: str, **settings: int) -> SymbolProbe:
    """The probe of a name, with some of its numbers changed."""
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
    """The generator of a part's sequences; `number` tells apart steps or distances."""
    return np.random.default_rng([STREAMS[part], seed, number])


def _ask(names: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """`? name value` for each, without the last value; and the targets, due where a name is read."""
    asked = np.stack([np.full_like(names, ASK), names, values], axis=2)
    targets = np.full_like(asked, IGNORED)
    targets[:, :, 1] = values
    return asked.reshape(len(names), -1)[:, :-1], targets.reshape(len(names), -1)[:, :-1]


def repetitions(vocabulary: int, count: int, window: int, chance: np.random.Generator) -> SymbolTexts:
    """`count` sequences within a window that say a stretch of different symbols twice, the second time from another
    place on: what comes next tells only a look at what stood behind the same symbol before."""
    stretch = _distinct(count, min(window // 2, vocabulary), vocabulary, chance)
    length = stretch.shape[1]
    order = (chance.integers(length, size=(count, 1)) + np.arange(length)) % length
    following = _by(stretch, (order + 1) % length)
    following[order == length - 1] = IGNORED  # nothing stood behind the last
    return SymbolTexts(
        np.concatenate([stretch, _by(stretch, order)], axis=1),
        np.concatenate([np.full_like(stretch, IGNORED), following], axis=1),
    )


def _distinct(count: int, drawn: int, of: int, chance: np.random.Generator) -> np.ndarray:
    """(count, drawn) different numbers below `of`, in random order."""
    return chance.permuted(np.tile(np.arange(of), (count, 1)), axis=1)[:, :drawn]


def _by(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    return np.take_along_axis(values, order, axis=1)


def _at_least(probe: SymbolProbe, **least: int) -> None:
    for name, fewest in least.items():
        if getattr(probe, name) < fewest:
            raise UserError(f"`{name}` must be at least {fewest}: got {getattr(probe, name)}.")


def whole_distances(distances: Sequence[int]) -> list[int]:
    """Each once, the nearest first; refuses what no question can stand at."""
    if not distances or min(distances) < 1:
        raise UserError(
            "Distances are whole numbers of windows from 1 on, such as 1,2,5,10,100 (0, the same window, is always "
            f"scored as full context): got {', '.join(map(str, distances)) or 'none'}."
        )
    return sorted(set(distances))
