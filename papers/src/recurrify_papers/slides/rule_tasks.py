"""Generated sequences whose answers follow a recurrent rule, so that any length can be scored.

An answer may be due at every position of a sequence: the target there, which never occurs in the input up to it. Where
none is due, the target is `IGNORED`. Answers have their own symbols, except in copying, which predicts the input.

- Counting (parity is counting modulo 2): marks and blanks with equal probability. The answer at every position is the
  number of marks so far, modulo the modulus.
- Dyck-2: properly nested brackets of two types with a maximum depth, from a walk that opens or closes with equal
  probability where both are possible. The answer is what may close next: the type of the innermost open bracket, or
  nothing. It is due only after closing brackets: after an opening one it is that bracket.
- Copying: symbols, a separator, and the symbols again. Each symbol is predicted before it is read.

Two levels put accuracies in context: that of the best constant guess, and that of the best guess from the last symbols
alone. A task with a high second level does not need more memory, however long its sequences are.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from recurrify import UserError

IGNORED = -100
"""The target where no answer is due; torch's losses ignore it."""
SYMBOL_TYPE = np.int16
STREAMS = {"train": 0, "valid": 1, "test": 2, "levels": 3}
"""Sequences of different parts are drawn from independent streams, whatever their seeds."""
SAMPLED_SEQUENCES = 20_000
"""For levels without a formula: the standard error is at most 0.35 %."""


class RuleSequences(NamedTuple):
    inputs: np.ndarray
    """(sequences, length)"""
    targets: np.ndarray
    """(sequences, length), `IGNORED` where no answer is due."""


class Levels(NamedTuple):
    """Accuracies to compare with."""

    chance: float
    """Of the best constant guess."""
    short_memory: float
    """Of the best guess from the last symbols."""


class RuleTask(ABC):
    """A rule, and how sequences that follow it are drawn."""

    @property
    @abstractmethod
    def vocabulary(self) -> int:
        """Number of symbols, including those of the answers."""

    @abstractmethod
    def draw(self, count: int, length: int, chance: np.random.Generator) -> RuleSequences:
        """Sequences of exactly `length` positions, with every answer that is due."""

    @abstractmethod
    def levels(self, length: int, memory: int) -> Levels:
        """The levels of the scored answers, for a reader that sees the last `memory` symbols."""

    def draw_up_to(self, count: int, length: int, chance: np.random.Generator) -> RuleSequences:
        """For training: sequences of any length up to `length`, padded to `length`.

        Where an answer is due at every position, one sequence contains all shorter ones.
        """
        return self.draw(count, length, chance)

    def draw_test(self, count: int, length: int, seed: int) -> RuleSequences:
        """Test sequences with the answers that are scored. Each length has its own: the shorter ones would otherwise be
        prefixes of the longer."""
        drawn = self.draw(count, length, stream("test", seed, length))
        return RuleSequences(drawn.inputs, self.scored(drawn.targets))

    def scored(self, targets: np.ndarray) -> np.ndarray:
        """The targets without all but the last answer of each sequence: the one that `length` makes hard."""
        rows, last = np.arange(len(targets)), last_due(targets)
        kept = np.full_like(targets, IGNORED)
        kept[rows, last] = targets[rows, last]
        return kept


def last_due(targets: np.ndarray) -> np.ndarray:
    """(sequences,): the position of the last answer."""
    found: np.ndarray = targets.shape[1] - 1 - np.argmax(targets[:, ::-1] != IGNORED, axis=1)
    return found


@dataclass(frozen=True)
class Counting(RuleTask):
    """Marks counted modulo a number. Symbols: a blank, a mark, and the answers."""

    modulus: int

    @property
    def vocabulary(self) -> int:
        return 2 + self.modulus

    def draw(self, count: int, length: int, chance: np.random.Generator) -> RuleSequences:
        marks = chance.integers(2, size=(count, length), dtype=SYMBOL_TYPE)
        return RuleSequences(marks, (2 + np.cumsum(marks, axis=1) % self.modulus).astype(SYMBOL_TYPE))

    def levels(self, length: int, memory: int) -> Levels:
        """Visible marks say nothing about the number of the others, which has to be guessed."""
        return Levels(self._chance(length), 1.0 if length <= memory else self._chance(length - memory))

    def _chance(self, length: int) -> float:
        by_rest = np.zeros(self.modulus)
        for marks in range(length + 1):
            by_rest[marks % self.modulus] += math.comb(length, marks) / 2**length
        return float(by_rest.max())


OPENING, CLOSING, ANSWER, NOTHING = 0, 2, 4, 6
"""Dyck-2: two opening brackets, their closing ones, the answers for both, and the answer that nothing is open."""


@dataclass(frozen=True)
class Dyck(RuleTask):
    """Brackets of two types, nested at most `depth` deep."""

    depth: int = 8

    @property
    def vocabulary(self) -> int:
        return NOTHING + 1

    def draw(self, count: int, length: int, chance: np.random.Generator) -> RuleSequences:
        opens = np.empty((count, length), bool)
        deep = np.zeros(count, np.int64)
        for place in range(length):
            opens[:, place] = ((chance.random(count) < 0.5) | (deep == 0)) & (deep < self.depth)
            deep += np.where(opens[:, place], 1, -1)
        return nested(opens, chance.integers(2, size=(count, length), dtype=SYMBOL_TYPE))

    def levels(self, length: int, memory: int) -> Levels:
        """Sampled. Where the innermost open bracket was opened out of sight, a guess depends on the height of the
        visible walk, on how often it reaches its lowest depth, and on whether its position is even."""
        drawn = self.draw(SAMPLED_SEQUENCES, length, stream("levels", length))
        last = last_due(drawn.targets)
        answers = np.take_along_axis(drawn.targets, last[:, None], axis=1)[:, 0]
        counted = np.bincount(answers[answers != IGNORED])
        longer = (last >= memory) & (answers != IGNORED)
        sight = last[longer, None] - np.arange(memory)[::-1]
        steps = np.where(np.take_along_axis(drawn.inputs[longer], sight, axis=1) < CLOSING, 1, -1)
        walks = np.pad(np.cumsum(steps, axis=1), ((0, 0), (1, 0)))
        lowest = walks.min(axis=1)
        hidden = lowest == walks[:, -1]
        touches = (walks == lowest[:, None]).sum(axis=1)
        cases = np.stack([np.ptp(walks, axis=1), touches, last[longer] % 2], axis=1)[hidden]
        _, case = np.unique(cases, axis=0, return_inverse=True)
        nothing = np.bincount(case[answers[longer][hidden] == NOTHING], minlength=case.max(initial=0) + 1)
        something = np.bincount(case, minlength=len(nothing)) - nothing
        # Both types of bracket are equally likely.
        wrong = len(case) - np.maximum(nothing, something / 2).sum()
        return Levels(float(counted.max() / counted.sum()), float(1 - wrong / counted.sum()))


def nested(opens: np.ndarray, kinds: np.ndarray) -> RuleSequences:
    """The brackets of walks (sequences, length), and their answers; `kinds` are those of the brackets that open."""
    inputs, targets = np.empty_like(kinds), np.full_like(kinds, IGNORED)
    count, length = kinds.shape
    # The open brackets of each sequence, outermost first; below them all lies nothing.
    stack = np.full((count, length + 1), NOTHING - ANSWER, SYMBOL_TYPE)
    deep, rows = np.zeros(count, np.int64), np.arange(count)
    for place in range(length):
        now = opens[:, place]
        inputs[:, place] = np.where(now, OPENING + kinds[:, place], CLOSING + stack[rows, deep])
        deep += np.where(now, 1, -1)
        stack[rows[now], deep[now]] = kinds[now, place]
        targets[:, place] = np.where(now, IGNORED, ANSWER + stack[rows, deep])
    return RuleSequences(inputs, targets)


@dataclass(frozen=True)
class Copying(RuleTask):
    """Symbols, a separator, the symbols again. Two more symbols: the separator and padding."""

    symbols: int = 16

    @property
    def vocabulary(self) -> int:
        return self.symbols + 2

    def draw(self, count: int, length: int, chance: np.random.Generator) -> RuleSequences:
        """Half the positions hold symbols; the last symbol of the copy is predicted, never read."""
        return self._copies(chance, np.full(count, length // 2), length)

    def draw_up_to(self, count: int, length: int, chance: np.random.Generator) -> RuleSequences:
        return self._copies(chance, chance.integers(1, length // 2 + 1, size=count), length)

    def _copies(self, chance: np.random.Generator, copied: np.ndarray, length: int) -> RuleSequences:
        if length % 2:
            raise UserError(f"A copy needs an even number of positions, half of them symbols: got length={length}.")
        words = chance.integers(self.symbols, size=(len(copied), length // 2), dtype=SYMBOL_TYPE)
        own, place = copied[:, None], np.arange(length)[None]
        # After the separator, at `own`, the symbols are repeated, one position later than they are due.
        first = np.where(place < own, place, place - own - 1)
        inputs = np.take_along_axis(words, first.clip(0, length // 2 - 1), axis=1)
        inputs[place == own] = self.symbols
        inputs[place >= 2 * own] = self.symbols + 1
        answers = np.take_along_axis(words, (place - own).clip(0, length // 2 - 1), axis=1)
        due = (place >= own) & (place < 2 * own)
        return RuleSequences(inputs, np.where(due, answers, IGNORED).astype(SYMBOL_TYPE))

    def levels(self, length: int, memory: int) -> Levels:
        """A symbol is due half the length after it was read; the other symbols say nothing about it."""
        return Levels(1 / self.symbols, 1.0 if length // 2 < memory else 1 / self.symbols)

    def scored(self, targets: np.ndarray) -> np.ndarray:
        """All of them: every symbol of the copy is equally far from its original."""
        return targets


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


def stream(part: str, *seeds: int) -> np.random.Generator:
    """Where the sequences of a part are drawn from."""
    return np.random.default_rng([STREAMS[part], *seeds])
