"""Generated sequences whose answers follow a recurrent rule, so that any length can be scored.

At every position of a sequence an answer may be due: the target there, which never occurs in the input up to it. Where
none is due the target is `IGNORED`. Answers have symbols of their own, except in copying, which predicts the input.

- Counting (parity is counting modulo 2): marks and blanks, each as likely; the answer at every position is the number
  of marks so far, modulo the modulus.
- Dyck-2: brackets of two types, properly nested and at most so many deep, from a walk that opens or closes with equal
  chances where it may do both. The answer is what may close next: the type of the innermost open bracket, or nothing.
  It is due after closing brackets alone: after an opening one it is that bracket.
- Copying: symbols, a separator, and the symbols again, each to be predicted before it is read.

The chance level is the accuracy of the best constant guess, computed and not sampled. The short-memory level is the
best accuracy possible from the rule, the position and the last symbols alone: a task where it is high does not need
more memory, however long its sequences are.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recurrify import UserError

IGNORED = -100
"""The target where no answer is due; torch's losses leave it out."""
SYMBOL_TYPE = np.int16
STREAMS = {"train": 0, "valid": 1, "test": 2, "sampled level": 3}
"""Sequences of different parts are drawn from independent streams, whatever their seeds."""
SAMPLED_SEQUENCES = 20_000
"""For a level that has no formula: its standard error is then at most 0.35 %."""


class RuleSequences(NamedTuple):
    inputs: np.ndarray
    """(sequences, length)"""
    targets: np.ndarray
    """(sequences, length), `IGNORED` where no answer is due."""


class RuleTask(ABC):
    """A rule, and how sequences that follow it are drawn."""

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """How many symbols there are, those of the answers included."""

    @abstractmethod
    def draw(self, count: int, length: int, chance: np.random.Generator) -> RuleSequences:
        """Sequences of exactly `length` positions, with every answer that is due."""

    @abstractmethod
    def chance_level(self, length: int) -> float:
        """The share of right answers of the best constant guess, among those that `last_answers` keeps."""

    def short_memory_level(self, length: int, memory: int) -> float:
        """The share of right answers, among the same, that the last `memory` symbols up to the answer allow."""
        if memory < 1:
            raise UserError(f"`memory` must be at least 1 symbol: got {memory}.")
        return 1.0 if length <= memory else self._short_memory_level(length, memory)

    @abstractmethod
    def _short_memory_level(self, length: int, memory: int) -> float:
        """The same where some symbols are out of sight."""

    def draw_up_to(self, count: int, length: int, chance: np.random.Generator) -> RuleSequences:
        """For training: sequences of any length up to `length`, at the end of the same number of positions.

        Where an answer is due at every position, one sequence holds all the shorter ones.
        """
        return self.draw(count, length, chance)

    def last_answers(self, targets: np.ndarray) -> np.ndarray:
        """The targets with none but the last answer of each sequence: the one that `length` makes hard."""
        due = targets != IGNORED
        if not due.any(axis=1).all():
            raise UserError("a sequence without an answer cannot be scored: ask for longer ones.")
        last = targets.shape[1] - 1 - np.argmax(due[:, ::-1], axis=1)
        kept = np.full_like(targets, IGNORED)
        rows = np.arange(len(targets))
        kept[rows, last] = targets[rows, last]
        return kept


@dataclass(frozen=True)
class Counting(RuleTask):
    """Marks counted modulo a number."""

    modulus: int

    def __post_init__(self) -> None:
        if self.modulus < 2:
            raise UserError(f"`modulus` must be at least 2: got {self.modulus}.")

    @property
    def vocabulary(self) -> int:
        """A blank, a mark, and the answers."""
        return 2 + self.modulus

    def draw(self, count: int, length: int, chance: np.random.Generator) -> RuleSequences:
        marks = chance.integers(2, size=(count, length), dtype=SYMBOL_TYPE)
        return RuleSequences(marks, (2 + np.cumsum(marks, axis=1) % self.modulus).astype(SYMBOL_TYPE))

    def chance_level(self, length: int) -> float:
        by_rest = np.zeros(self.modulus)
        for marks in range(length + 1):
            by_rest[marks % self.modulus] += math.comb(length, marks) / 2**length
        return float(by_rest.max())

    def _short_memory_level(self, length: int, memory: int) -> float:
        """The seen marks say nothing about the count of the unseen ones, which has to be guessed."""
        return self.chance_level(length - memory)


OPENING, CLOSING, ANSWER, NOTHING = 0, 2, 4, 6
"""Of Dyck-2: two opening brackets, their closing ones, the answers for both, and the answer that nothing is open."""


@dataclass(frozen=True)
class Dyck(RuleTask):
    """Brackets of two types, nested at most `depth` deep."""

    depth: int = 8

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise UserError(f"`depth` must be at least 1: got {self.depth}.")

    @property
    def vocabulary(self) -> int:
        return NOTHING + 1

    def draw(self, count: int, length: int, chance: np.random.Generator) -> RuleSequences:
        inputs = np.empty((count, length), SYMBOL_TYPE)
        targets = np.full((count, length), IGNORED, SYMBOL_TYPE)
        # The open brackets of each sequence, outermost first; below them all lies nothing.
        stack = np.full((count, self.depth + 1), NOTHING - ANSWER, SYMBOL_TYPE)
        deep = np.zeros(count, np.int64)
        rows = np.arange(count)
        for place in range(length):
            opens = ((chance.random(count) < 0.5) | (deep == 0)) & (deep < self.depth)
            kinds = chance.integers(2, size=count, dtype=SYMBOL_TYPE)
            inputs[:, place] = np.where(opens, OPENING + kinds, CLOSING + stack[rows, deep])
            deep += np.where(opens, 1, -1)
            stack[rows[opens], deep[opens]] = kinds[opens]
            targets[:, place] = np.where(opens, IGNORED, ANSWER + stack[rows, deep])
        return RuleSequences(inputs, targets)

    def chance_level(self, length: int) -> float:
        """From the walk over the depth after the last closing bracket and the present depth."""
        # Before any bracket closes, the depth is as if one had just closed at depth 0; such sequences have no answer.
        never = np.zeros(self.depth + 1)
        never[0] = 1.0
        reached = np.zeros((self.depth + 1, self.depth + 1))
        opening = np.array([1.0] + [0.5] * (self.depth - 1) + [0.0])
        for _ in range(length):
            closing = (reached.sum(axis=0) + never) * (1 - opening)
            reached = _shifted(reached * opening) + np.diag(np.append(closing[1:], 0.0))
            never = _shifted((never * opening)[None])[0]
        answers = reached.sum(axis=1) / reached.sum()
        return float(max(answers[0], (1 - answers[0]) / 2))

    def _short_memory_level(self, length: int, memory: int) -> float:
        """Sampled, with the chances of the best guess for each sample: the walks in sight are too many for a sum.

        The walk in sight has its own levels, which begin at 0, wherever it began in truth. If it has been below the
        level where it ends, the innermost open bracket was opened in sight.
        """
        drawn = self.draw(SAMPLED_SEQUENCES, length, rule_stream("sampled level", length, memory))
        due = drawn.targets != IGNORED
        last = length - 1 - np.argmax(due[:, ::-1], axis=1)
        answered = due.any(axis=1)
        hidden = answered & (last >= memory)
        if not hidden.any():
            return 1.0
        begins = last[hidden] - memory + 1
        sight = begins[:, None] + np.arange(memory)[None]
        steps = np.where(np.take_along_axis(drawn.inputs[hidden], sight, axis=1) < CLOSING, 1, -1)
        levels = np.pad(np.cumsum(steps, axis=1), ((0, 0), (1, 0)))
        nothing_open = self._chance_of_nothing(levels, self._depths(length)[begins])
        guessed = np.maximum(nothing_open, (1 - nothing_open) / 2)
        right = np.where(levels.min(axis=1) < levels[:, -1], 1.0, guessed)
        return float((right.sum() + answered.sum() - hidden.sum()) / answered.sum())

    def _depths(self, length: int) -> np.ndarray:
        """How likely each depth is (columns) before each position (rows)."""
        opening = np.array([1.0] + [0.5] * (self.depth - 1) + [0.0])
        depths = np.zeros((length + 1, self.depth + 1))
        depths[0, 0] = 1.0
        for place in range(length):
            now = depths[place]
            depths[place + 1, 1:] += (now * opening)[:-1]
            depths[place + 1, :-1] += (now * (1 - opening))[1:]
        return depths

    def _chance_of_nothing(self, levels: np.ndarray, first_depths: np.ndarray) -> np.ndarray:
        """How likely it is, for walks of these levels, that they end at depth 0, given their first depths' chances."""
        first = np.arange(self.depth + 1)
        possible = (levels.min(axis=1)[:, None] + first >= 0) & (levels.max(axis=1)[:, None] + first <= self.depth)
        # Every step has a chance of 1/2, but from depth 0 and from the greatest it is certain.
        depths = levels[:, :-1, None] + first
        certain = ((depths == 0) | (depths == self.depth)).sum(axis=1)
        weights = np.where(possible, first_depths * 2.0**certain, 0.0)
        ends_at_nothing = levels[:, -1:] + first == 0
        found: np.ndarray = (weights * ends_at_nothing).sum(axis=1) / weights.sum(axis=1)
        return found


def _shifted(by_depth: np.ndarray) -> np.ndarray:
    """One bracket more is open."""
    return np.pad(by_depth, ((0, 0), (1, 0)))[:, :-1]


@dataclass(frozen=True)
class Copying(RuleTask):
    """Symbols, a separator, the symbols again."""

    symbols: int = 16

    def __post_init__(self) -> None:
        if self.symbols < 2:
            raise UserError(f"`symbols` must be at least 2: got {self.symbols}.")

    @property
    def vocabulary(self) -> int:
        """The symbols, a separator, and what fills up shorter sequences."""
        return self.symbols + 2

    def draw(self, count: int, length: int, chance: np.random.Generator) -> RuleSequences:
        """Half the positions hold symbols; the last symbol of the copy is predicted, never read."""
        _check_copy_length(length)
        return self._copies(chance, np.full(count, length // 2), length)

    def draw_up_to(self, count: int, length: int, chance: np.random.Generator) -> RuleSequences:
        _check_copy_length(length)
        return self._copies(chance, chance.integers(1, length // 2 + 1, size=count), length)

    def _copies(self, chance: np.random.Generator, copied: np.ndarray, length: int) -> RuleSequences:
        words = chance.integers(self.symbols, size=(len(copied), length // 2), dtype=SYMBOL_TYPE)
        own, place = copied[:, None], np.arange(length)[None]
        # After the separator, at `own`, the symbols are repeated, one place later than they are due.
        first = np.where(place < own, place, place - own - 1)
        inputs = np.take_along_axis(words, first.clip(0, length // 2 - 1), axis=1)
        inputs[place == own] = self.symbols
        inputs[place >= 2 * own] = self.symbols + 1
        answers = np.take_along_axis(words, (place - own).clip(0, length // 2 - 1), axis=1)
        due = (place >= own) & (place < 2 * own)
        return RuleSequences(inputs, np.where(due, answers, IGNORED).astype(SYMBOL_TYPE))

    def chance_level(self, length: int) -> float:
        return 1 / self.symbols

    def _short_memory_level(self, length: int, memory: int) -> float:
        """A symbol is asked for half the length after it was read; the other symbols say nothing about it."""
        _check_copy_length(length)
        return 1.0 if length // 2 < memory else 1 / self.symbols

    def last_answers(self, targets: np.ndarray) -> np.ndarray:
        """All of them: every symbol of the copy is as far from its first as any other."""
        return targets


def _check_copy_length(length: int) -> None:
    if length < 2 or length % 2:
        raise UserError(f"a copy needs an even number of positions, half of them symbols: got length={length}.")


RULE_TASKS: dict[str, RuleTask] = {
    "parity": Counting(2),
    "counting": Counting(5),
    "dyck": Dyck(),
    "copying": Copying(),
}


def rule_task(name: str) -> RuleTask:
    if name not in RULE_TASKS:
        raise UserError(f"There is no rule {name!r}: choose one of {', '.join(RULE_TASKS)}.")
    return RULE_TASKS[name]


def rule_stream(part: str, *seeds: int) -> np.random.Generator:
    """Where the sequences of a part are drawn from: train, valid or test."""
    return np.random.default_rng([STREAMS[part], *seeds])
