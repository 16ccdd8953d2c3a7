"""Answers against answers worked out one symbol at a time, and levels against all sequences."""

from itertools import product

import numpy as np
import pytest

from recurrify import UserError
from recurrify_papers.slides.rule_tasks import (
    ANSWER,
    CLOSING,
    IGNORED,
    NOTHING,
    OPENING,
    RULE_TASKS,
    Copying,
    Counting,
    Dyck,
    rule_task,
)

COUNT = 50


def chance(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.mark.parametrize("modulus", [2, 5])
def test_counts_are_those_of_the_marks_so_far(modulus: int) -> None:
    drawn = Counting(modulus).draw(COUNT, 33, chance())
    for inputs, targets in zip(drawn.inputs.tolist(), drawn.targets.tolist(), strict=True):
        assert targets == [2 + sum(inputs[: place + 1]) % modulus for place in range(33)]
    assert set(np.unique(drawn.inputs)) == {0, 1}
    assert drawn.targets.max() < Counting(modulus).vocabulary


def test_brackets_nest_and_the_answer_is_the_innermost_open_one() -> None:
    drawn = Dyck(depth=4).draw(COUNT, 60, chance())
    deepest = 0
    for inputs, targets in zip(drawn.inputs.tolist(), drawn.targets.tolist(), strict=True):
        open_now: list[int] = []
        for symbol, target in zip(inputs, targets, strict=True):
            if symbol < CLOSING:
                open_now.append(symbol - OPENING)
                assert target == IGNORED
            else:
                assert open_now.pop() == symbol - CLOSING
                assert target == (ANSWER + open_now[-1] if open_now else NOTHING)
            deepest = max(deepest, len(open_now))
    assert deepest == 4


def test_copies_come_after_the_separator_and_before_they_can_be_read() -> None:
    task = Copying(symbols=5)
    drawn = task.draw_up_to(COUNT, 12, chance())
    copied = set()
    for inputs, targets in zip(drawn.inputs.tolist(), drawn.targets.tolist(), strict=True):
        size = inputs.index(5)
        word = inputs[:size]
        assert inputs == (word + [5] + word[:-1] + [6] * 12)[:12]
        assert targets == ([IGNORED] * size + word + [IGNORED] * 12)[:12]
        copied.add(size)
    assert copied == set(range(1, 7))
    whole = task.draw(COUNT, 12, chance())
    assert (whole.inputs[:, 6] == 5).all()
    np.testing.assert_array_equal(whole.targets[:, 6:], whole.inputs[:, :6])
    np.testing.assert_array_equal(task.scored(whole.targets), whole.targets)


def test_only_the_last_answer_of_a_sequence_is_scored() -> None:
    drawn = Dyck().draw(COUNT, 40, chance())
    kept = Dyck().scored(drawn.targets)
    for before, after in zip(drawn.targets.tolist(), kept.tolist(), strict=True):
        last = max(place for place in range(40) if before[place] != IGNORED)
        assert after == [before[place] if place == last else IGNORED for place in range(40)]


@pytest.mark.parametrize(("modulus", "memory"), [(2, 1), (3, 6), (5, 7)])
def test_levels_of_counting_are_those_of_all_sequences(modulus: int, memory: int) -> None:
    ends = [sum(marks) % modulus for marks in product((0, 1), repeat=9)]
    right = 0
    for seen in product((0, 1), repeat=memory):
        hidden = [sum((*before, *seen)) % modulus for before in product((0, 1), repeat=9 - memory)]
        right += max(np.bincount(hidden))
    levels = Counting(modulus).levels(9, memory)
    assert levels == pytest.approx((max(np.bincount(ends)) / 2**9, right / 2**9))


def test_levels_of_brackets_are_close_to_the_best_possible() -> None:
    """The expected values are sums over all walks."""
    assert Dyck().levels(60, 40) == pytest.approx((0.394, 0.953), abs=0.01)
    assert Dyck(depth=3).levels(12, 4) == pytest.approx(levels_of_all_walks(3, 12, 4), abs=0.01)
    assert Dyck().levels(40, 40).short_memory == 1.0


def levels_of_all_walks(depth: int, length: int, memory: int) -> tuple[float, float]:
    """Both types of bracket are equally likely to be the innermost."""
    walks: list[tuple[tuple[int, ...], float]] = [((0,), 1.0)]
    for _ in range(length):
        steps = [(path, likely, [one for one in (1, -1) if 0 <= path[-1] + one <= depth]) for path, likely in walks]
        walks = [((*path, path[-1] + one), likely / len(ways)) for path, likely, ways in steps for one in ways]
    sights: dict[tuple[int, ...], list[float]] = {}
    ends, right, scored = [0.0, 0.0], 0.0, 0.0
    for path, likely in walks:
        last = max((place for place in range(1, length + 1) if path[place] < path[place - 1]), default=None)
        if last is None:
            continue
        scored += likely
        ends[path[last] > 0] += likely
        seen = path[max(0, last - memory) : last + 1]
        if last <= memory or min(seen) < seen[-1]:
            right += likely
        else:
            sights.setdefault((last, *np.diff(seen)), [0.0, 0.0])[seen[-1] > 0] += likely
    right += sum(max(nothing, something / 2) for nothing, something in sights.values())
    return max(ends[0], ends[1] / 2) / scored, right / scored


def test_a_copy_is_known_as_long_as_the_symbol_itself_is_in_sight() -> None:
    """In 12 positions a symbol is due when it and six more have been read."""
    assert [Copying(4).levels(12, memory).short_memory for memory in (5, 6, 7, 12)] == [0.25, 0.25, 1.0, 1.0]


@pytest.mark.parametrize("name", list(RULE_TASKS))
def test_a_constant_guess_is_as_good_as_the_chance_level(name: str) -> None:
    task = rule_task(name)
    answers = task.scored(task.draw(8000, 40, chance()).targets)
    answers = answers[answers != IGNORED]
    best = np.bincount(answers).max() / len(answers)
    assert best == pytest.approx(task.levels(40, 40).chance, abs=0.03)


def test_bad_input_raises() -> None:
    with pytest.raises(UserError, match="There is no rule 'sorting': choose one of parity, counting, dyck, copying"):
        rule_task("sorting")
    with pytest.raises(UserError, match="got length=7"):
        Copying().draw(1, 7, chance())
