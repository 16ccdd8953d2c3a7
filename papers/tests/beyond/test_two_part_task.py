"""The last window says nothing about the label by itself, and both ends together say everything."""

from collections import Counter

import numpy as np

from recurrify_papers.beyond.two_part_task import END, TwoPartTask, two_part_documents

TASK = TwoPartTask(window=6, windows=3, labels=3, fillers=5)


def read(row: np.ndarray) -> tuple[int, int, int]:
    """A document's two signs and its rule."""
    first, last = row[: TASK.window].tolist(), row[-TASK.window :].tolist()
    signs = [[label for label in range(3) if TASK.sign(kind, label) in first] for kind in range(2)]
    rules = [kind for kind in range(2) if TASK.rules + kind in last]
    assert [len(found) for found in (*signs, rules)] == [1, 1, 1]
    return signs[0][0], signs[1][0], rules[0]


def test_the_label_is_the_sign_that_the_rule_names() -> None:
    made = two_part_documents(180, seed=0, task=TASK)
    cases = Counter()
    for row, label in zip(made.tokens, made.labels.tolist(), strict=True):
        *signs, rule = read(row)
        assert label == signs[rule]
        assert row[-1] == END
        cases[(*signs, rule)] += 1
    assert cases == dict.fromkeys(cases, 10)
    assert len(cases) == 18


def test_signs_and_rules_stand_nowhere_else() -> None:
    made = two_part_documents(100, seed=1, task=TASK)
    special = (made.tokens > END) & (made.tokens < TASK.rules + 2)
    assert special.sum(1).tolist() == [3] * 100
    assert special[:, : TASK.window].sum() == 200
    assert special[:, -TASK.window :].sum() == 100
    assert made.tokens.max() < TASK.vocabulary


def test_given_the_last_window_all_labels_are_equally_likely() -> None:
    made = two_part_documents(360, seed=2, task=TASK)
    pairs = Counter((read(row)[2], int(label)) for row, label in zip(made.tokens, made.labels, strict=True))
    assert pairs == {(rule, label): 60 for rule in range(2) for label in range(3)}


def test_seeds() -> None:
    first, again, other = (two_part_documents(20, seed=seed) for seed in (3, 3, 4))
    assert np.array_equal(first.tokens, again.tokens)
    assert not np.array_equal(first.tokens, other.tokens)
