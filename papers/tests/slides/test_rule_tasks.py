"""Rules' answers against answers worked out one symbol at a time, and chance levels against all or many sequences."""

from itertools import pairwise, product

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
    SAMPLED_SEQUENCES,
    Copying,
    Counting,
    Dyck,
    rule_stream,
    rule_task,
)

COUNT = 50


@pytest.mark.parametrize("modulus", [2, 5])
def test_counts_are_those_of_the_marks_so_far(modulus: int) -> None:
    drawn = Counting(modulus).draw(COUNT, 33, rule_stream("train", 0))
    for inputs, targets in zip(drawn.inputs.tolist(), drawn.targets.tolist(), strict=True):
        assert targets == [2 + sum(inputs[: place + 1]) % modulus for place in range(33)]
    assert set(np.unique(drawn.inputs)) == {0, 1}
    assert drawn.targets.max() < Counting(modulus).vocabulary


def test_brackets_nest_and_the_answer_is_the_innermost_open_one() -> None:
    drawn = Dyck(depth=4).draw(COUNT, 60, rule_stream("train", 1))
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
    drawn = task.draw_up_to(COUNT, 12, rule_stream("train", 2))
    copied = set()
    for inputs, targets in zip(drawn.inputs.tolist(), drawn.targets.tolist(), strict=True):
        size = inputs.index(5)
        word = inputs[:size]
        assert inputs == (word + [5] + word[:-1] + [6] * 12)[:12]
        assert targets == ([IGNORED] * size + word + [IGNORED] * 12)[:12]
        copied.add(size)
    assert copied == set(range(1, 7))
    whole = task.draw(COUNT, 12, rule_stream("test", 2))
    assert (whole.inputs[:, 6] == 5).all()
    np.testing.assert_array_equal(whole.targets[:, 6:], whole.inputs[:, :6])
    np.testing.assert_array_equal(task.last_answers(whole.targets), whole.targets)


def test_only_the_last_answer_of_a_sequence_is_scored() -> None:
    drawn = Dyck().draw(COUNT, 40, rule_stream("test", 0))
    kept = Dyck().last_answers(drawn.targets)
    for before, after in zip(drawn.targets.tolist(), kept.tolist(), strict=True):
        last = max(place for place in range(40) if before[place] != IGNORED)
        assert after == [before[place] if place == last else IGNORED for place in range(40)]


@pytest.mark.parametrize("modulus", [2, 3, 5])
def test_the_chance_of_counting_is_that_of_all_sequences(modulus: int) -> None:
    ends = [sum(marks) % modulus for marks in product((0, 1), repeat=9)]
    assert Counting(modulus).chance_level(9) == pytest.approx(max(np.bincount(ends)) / 2**9)


Walk = tuple[tuple[int, ...], float]
"""Depths from the beginning on, and how likely they are."""


def one_step_longer(walks: list[Walk], depth: int) -> list[Walk]:
    longer: list[Walk] = []
    for path, likely in walks:
        ways = [step for step in (1, -1) if 0 <= path[-1] + step <= depth]
        longer += [((*path, path[-1] + step), likely / len(ways)) for step in ways]
    return longer


@pytest.mark.parametrize(("depth", "length"), [(1, 7), (2, 9), (3, 12)])
def test_the_chance_of_brackets_is_that_of_all_walks(depth: int, length: int) -> None:
    """Every walk with its probability; both types of bracket are equally likely to be the innermost."""
    nothing = something = 0.0
    walks: list[Walk] = [((0,), 1.0)]
    for _ in range(length):
        walks = one_step_longer(walks, depth)
    for path, likely in walks:
        closed = [after for before, after in pairwise(path) if after < before]
        if closed:
            nothing, something = nothing + likely * (closed[-1] == 0), something + likely * (closed[-1] > 0)
    expected = max(nothing, something / 2) / (nothing + something)
    assert Dyck(depth).chance_level(length) == pytest.approx(expected)


@pytest.mark.parametrize(("modulus", "memory"), [(2, 1), (2, 8), (3, 6), (5, 7)])
def test_what_a_short_memory_counts_is_the_best_guess_among_all_sequences(modulus: int, memory: int) -> None:
    right = 0
    for seen in product((0, 1), repeat=memory):
        ends = [sum((*before, *seen)) % modulus for before in product((0, 1), repeat=9 - memory)]
        right += max(np.bincount(ends))
    assert Counting(modulus).short_memory_level(9, memory) == pytest.approx(right / 2**9)


@pytest.mark.parametrize(("depth", "length", "memory"), [(1, 7, 3), (2, 9, 2), (3, 12, 4), (3, 12, 5), (8, 12, 1)])
def test_what_a_short_memory_says_of_brackets_is_the_best_guess_among_all_walks(
    depth: int, length: int, memory: int
) -> None:
    """For each sight, a place and the steps up to it, the chances of every depth there; then the guess from them."""
    walks: list[Walk] = [((0,), 1.0)]
    sights: dict[tuple[int, ...], dict[int, float]] = {}
    for _ in range(length):
        walks = one_step_longer(walks, depth)
        for path, likely in walks:
            depths = sights.setdefault(sight(path, memory), {})
            depths[path[-1]] = depths.get(path[-1], 0.0) + likely
    right = scored = 0.0
    for path, likely in walks:
        last = max((place for place in range(1, length + 1) if path[place] < path[place - 1]), default=None)
        if last is None:
            continue
        scored += likely
        here = path[: last + 1]
        opened = max(place for place in range(last + 1) if place == 0 or here[place - 1] < here[place] == here[-1])
        if last <= memory or (here[-1] > 0 and opened > last - memory):
            right += likely
            continue
        depths = sights[sight(here, memory)]
        nothing = depths.get(0, 0.0) / sum(depths.values())
        right += likely * max(nothing, (1 - nothing) / 2)
    found = Dyck(depth).short_memory_level(length, memory)
    assert found == pytest.approx(right / scored, abs=4 * np.sqrt(0.25 / SAMPLED_SEQUENCES))


def sight(path: tuple[int, ...], memory: int) -> tuple[int, ...]:
    """The place, and the last steps of a walk up to it."""
    steps = [after - before for before, after in pairwise(path)]
    return (len(steps), *steps[-memory:])


def test_a_copy_is_known_as_long_as_the_symbol_itself_is_in_sight() -> None:
    """In 12 positions a symbol is due when it and six more have been read."""
    drawn = Copying(4).draw(COUNT, 12, rule_stream("test", 4))
    for place in range(6, 12):
        np.testing.assert_array_equal(drawn.targets[:, place], drawn.inputs[:, place - 6])
    assert [Copying(4).short_memory_level(12, memory) for memory in (5, 6, 7, 12)] == [0.25, 0.25, 1.0, 1.0]


def test_brackets_hardly_need_more_than_the_trained_length_and_the_other_rules_do() -> None:
    levels = {name: task.short_memory_level(400, 40) for name, task in RULE_TASKS.items()}
    assert levels["dyck"] == pytest.approx(0.943, abs=0.01)
    assert levels["dyck"] == RULE_TASKS["dyck"].short_memory_level(400, 40)
    for name in ("parity", "counting", "copying"):
        assert levels[name] == pytest.approx(RULE_TASKS[name].chance_level(400), abs=1e-6)
    assert {task.short_memory_level(40, 40) for task in RULE_TASKS.values()} == {1.0}


@pytest.mark.parametrize("name", list(RULE_TASKS))
def test_a_constant_guess_is_as_good_as_the_chance_level(name: str) -> None:
    task = rule_task(name)
    drawn = task.draw(8000, 40, rule_stream("test", 3))
    answers = task.last_answers(drawn.targets)
    answers = answers[answers != IGNORED]
    best = np.bincount(answers).max() / len(answers)
    assert best == pytest.approx(task.chance_level(40), abs=4 * np.sqrt(0.25 / len(answers)))


def test_parts_and_seeds_have_sequences_of_their_own() -> None:
    def drawn(part: str, *seeds: int) -> np.ndarray:
        return Counting(2).draw(COUNT, 40, rule_stream(part, *seeds)).inputs

    rows = [row.tobytes() for part in ("train", "valid", "test") for seed in (0, 1) for row in drawn(part, seed)]
    rows += [row.tobytes() for row in drawn("test", 0, 40)]
    assert len(set(rows)) == len(rows) == 7 * COUNT
    np.testing.assert_array_equal(drawn("train", 1), drawn("train", 1))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: rule_task("sorting"), "There is no rule 'sorting': choose one of parity, counting, dyck, copying"),
        (lambda: Counting(1), "`modulus` must be at least 2: got 1"),
        (lambda: Dyck(0), "`depth` must be at least 1: got 0"),
        (lambda: Copying(1), "`symbols` must be at least 2: got 1"),
        (lambda: Copying().draw(1, 7, rule_stream("test", 0)), "got length=7"),
        (lambda: Dyck().short_memory_level(40, 0), "`memory` must be at least 1 symbol: got 0"),
        (lambda: Dyck().last_answers(np.full((1, 3), IGNORED)), "ask for longer ones"),
    ],
    ids=["name", "modulus", "depth", "symbols", "odd", "memory", "unanswered"],
)
def test_bad_input_raises(make: object, sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make()  # type: ignore[operator]
