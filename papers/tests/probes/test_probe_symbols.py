"""Probes of symbols: independent readers find the answers, and nothing else reveals them."""

import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from recurrify import UserError
from recurrify.data import IGNORED
from recurrify_papers.probes.symbols import (
    ASK,
    FIRST_ANSWER,
    FIRST_NOISE,
    IS,
    SYMBOL_PROBES,
    most_frequent,
    probe_stream,
    repetitions,
    symbol_probe,
)

WINDOW = 24


def read_pairs(said: list[int], names: range) -> dict[int, int]:
    return {here: behind for here, behind in pairwise(said) if here in names}


def read_assignments(said: list[int], names: range) -> dict[int, int]:
    values: dict[int, int] = {}
    for place, symbol in enumerate(said):
        if symbol == IS:
            source = said[place + 1]
            values[said[place - 1]] = values[source] if source in names else source
    return values


class TestSymbols:
    @pytest.fixture(params=["recall", "variables"])
    def asked(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.mark.parametrize("distance", [0, 1, 7])
    def test_reader_of_the_first_window_finds_every_answer(self, asked: str, distance: int) -> None:
        probe = symbol_probe(asked)
        texts = probe.make(distance, 50, WINDOW, probe_stream("test", 3))
        names = range(probe.first_name, probe.vocabulary)
        read = read_pairs if asked == "recall" else read_assignments
        for inputs, targets in zip(texts.inputs.tolist(), texts.targets.tolist(), strict=True):
            question = inputs.index(ASK)
            known = read(inputs[: min(WINDOW, question)], names)
            due = [place for place, target in enumerate(targets) if target != IGNORED]
            assert [inputs[place - 1] for place in due] == [ASK] * len(due)
            assert [known[inputs[place]] for place in due] == [targets[place] for place in due]
            assert due[-1] == len(inputs) - 1

    @pytest.mark.parametrize("name", ["copying", "reversal"])
    def test_copying_and_reversal(self, name: str) -> None:
        texts = symbol_probe(name, symbols=5).make(3, 20, 12, probe_stream("test", 1))
        for inputs, targets in zip(texts.inputs.tolist(), texts.targets.tolist(), strict=True):
            first = inputs.index(IS)
            said = inputs[first + 1 : first + 6]
            wanted = [target for target in targets if target != IGNORED]
            assert wanted == (said if name == "copying" else said[::-1])
            question = inputs.index(ASK)
            assert targets[question:] == wanted
            assert inputs[question + 1 :] == wanted[:-1]

    @pytest.mark.parametrize("name", list(SYMBOL_PROBES))
    def test_distances_are_exact_with_only_noise_between(self, name: str) -> None:
        probe = symbol_probe(name)
        for distance in (1, 2, 9):
            inputs, targets = probe.make(distance, 30, WINDOW, probe_stream("train", 0, distance))
            assert inputs.shape == (30, (distance + 1) * WINDOW)
            noise = (inputs >= FIRST_NOISE) & (inputs < FIRST_ANSWER)
            asking = inputs.shape[1] - probe.question_length
            assert noise[:, WINDOW:asking].all()
            assert not noise[:, asking:].any()
            assert ((~noise[:, :WINDOW]).sum(axis=1) == probe.facts * probe.fact_length).all()
            assert asking // WINDOW == distance
            assert (targets[:, :asking] == IGNORED).all()

    @pytest.mark.parametrize("name", list(SYMBOL_PROBES))
    def test_answers_are_uniform_and_independent(self, name: str) -> None:
        probe = symbol_probe(name, answers=4)
        targets = probe.make(1, 2000, WINDOW, probe_stream("test", 0)).targets
        wanted = targets[targets != IGNORED].reshape(2000, -1)
        shares = np.bincount(wanted.ravel() - FIRST_ANSWER, minlength=4) / wanted.size
        assert np.abs(shares - probe.chance_level).max() < 0.03
        # Were they drawn without replacement, two would never be the same.
        assert (wanted[:, 0] == wanted[:, 1]).mean() == pytest.approx(0.25, abs=0.04)

    @pytest.mark.parametrize("name", list(SYMBOL_PROBES))
    def test_guess_level_equals_a_guessing_reader(self, name: str) -> None:
        probe = symbol_probe(name, answers=3)
        right = 0.0
        targets = probe.make(1, 4000, WINDOW, probe_stream("test", 0)).targets
        wanted = targets[targets != IGNORED].reshape(4000, -1)
        for answers in wanted.tolist():
            left = Counter(answers)
            for answer in answers:
                likeliest = [one for one, count in left.items() if count == max(left.values())]
                right += (answer in likeliest) / len(likeliest)
                left -= Counter([answer])
        assert right / wanted.size == pytest.approx(probe.guess_level, abs=0.015)

    def test_guess_levels_by_hand(self) -> None:
        # Of two among sixteen: alike in one case of sixteen, else one in two; then the last one is known.
        assert symbol_probe("recall", pairs=2).guess_level == pytest.approx((17 / 32 + 1) / 2)
        # Heads or tails three times: all alike in one case of four, else two of three.
        assert most_frequent(3, 2) == pytest.approx(9 / 4)

    def test_facts_are_uniform_in_their_window(self) -> None:
        inputs = symbol_probe("recall", pairs=1).make(2, 2000, 6, probe_stream("test", 0)).inputs
        shares = (inputs[:, :6] >= symbol_probe("recall", pairs=1).first_name).mean(axis=0)
        assert shares == pytest.approx([0.2] * 5 + [0.0], abs=0.04)

    def test_training_and_test_are_different(self) -> None:
        probe = symbol_probe("recall")
        made = [probe.make(1, 5, WINDOW, probe_stream(part, 0)).inputs for part in ("train", "test", "test")]
        assert (made[0] != made[1]).any()
        assert (made[1] == made[2]).all()

    @pytest.mark.parametrize(
        ("make", "words"),
        [
            (lambda: symbol_probe("nothing"), "there are recall, variables, copying, reversal"),
            (lambda: symbol_probe("recall", colours=3), "it has answers, pairs, different_names"),
            (lambda: symbol_probe("recall", pairs=0), "`pairs` must be at least 1"),
            (lambda: symbol_probe("recall", pairs=20), "`different_names` must be at least 20"),
            (lambda: symbol_probe("recall").make(1, 1, 18, probe_stream("test", 0)), "windows of 19 symbols"),
            (lambda: symbol_probe("recall").make(-1, 1, 19, probe_stream("test", 0)), "cannot be negative"),
        ],
        ids=["task", "setting", "pairs", "names", "window", "distance"],
    )
    def test_invalid_input_raises(self, make: Callable[[], Any], words: str) -> None:
        with pytest.raises(UserError, match=re.escape(words)):
            make()


@pytest.mark.parametrize(("vocabulary", "window"), [(40, 24), (40, 25), (9, 24)])
def test_repetitions_need_lookup(vocabulary: int, window: int) -> None:
    texts = repetitions(vocabulary, 400, window, np.random.default_rng(0))
    length = min(window // 2, vocabulary)
    assert texts.inputs.shape == texts.targets.shape == (400, 2 * length)
    sources: Counter[int] = Counter()
    for said, wanted in zip(texts.inputs.tolist(), texts.targets.tolist(), strict=True):
        assert sorted(said[:length]) == sorted(said[length:])
        assert len(set(said[:length])) == length
        behind = dict(pairwise(said[:length]))
        assert wanted[:length] == [IGNORED] * length
        assert wanted[length:] == [behind.get(symbol, IGNORED) for symbol in said[length:]]
        sources[said.index(said[length])] += 1
    assert len(sources) == length
    assert max(sources.values()) < 3 * 400 / length
