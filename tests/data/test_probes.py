"""Probes: independent readers find the answers, and nothing else reveals them."""

import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from recurrify.data.probes import (
    ASK,
    FIRST_ANSWER,
    FIRST_NOISE,
    IS,
    SYMBOL_PROBES,
    probe_stream,
    repetitions,
    symbol_probe,
    whole_distances,
)
from recurrify.data.probes_guess import level_by_place, most_frequent
from recurrify.data.probes_questions import Answering
from recurrify.data.probes_text import PEOPLE, PLACES, TEXT_PROBES, ProbeText, TextProbe, clean_filler, text_probe
from recurrify.data.questions import Question
from recurrify.data.sequences import IGNORED
from recurrify.errors import UserError
from recurrify.modeling.loading import model_tokenizer

WINDOW = 24
TEXT_WINDOW = 160


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
        assert level_by_place([0.0, 0.5, 0.5], 8) == pytest.approx(9 / 16)

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
            (lambda: whole_distances([0, 3]), "from 1 on"),
        ],
        ids=["task", "setting", "pairs", "names", "window", "distance", "distances"],
    )
    def test_invalid_input_raises(self, make: Callable[[], Any], words: str) -> None:
        with pytest.raises(UserError, match=re.escape(words)):
            make()


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return model_tokenizer("shipped:base")


@pytest.fixture(scope="module")
def documents(tokenizer: Any) -> list[np.ndarray]:
    """Long text, with things in it that could be answers."""
    rain = [
        f"In week {number} it rained on the hills for {number % 7} days, and no one went out. " for number in range(90)
    ]
    spoilt = ["The kitchen had a violet lantern, and the pass key was 48213. zorb = 123\n"] * 5
    texts = ["".join(rain[:50] + spoilt), "".join(spoilt + rain[50:])]
    return [np.array(tokenizer.encode(text), dtype=np.int32) for text in texts]


def in_words(tokenizer: Any, text: ProbeText) -> list[str]:
    """Facts, question and candidates as text."""
    facts = [tokenizer.decode(text.ids[first:end]) for first, end in text.facts]
    return [" ".join(facts), tokenizer.decode(text.ids[text.question :]), *map(tokenizer.decode, text.candidates)]


def find_answer(name: str, said: str, asked: str) -> str:
    """An independent reader for every probe."""
    if name == "passkey":
        return re.findall(r"\d{5}", said)[0]
    if name in ("needle", "recall"):
        return re.findall(re.escape(asked.strip()) + r" (\w+)", said)[0]
    if name == "variables":
        values: dict[str, str] = {}
        for variable, value in re.findall(r"(\w+) = (\w+)", said):
            values[variable] = values.get(value, value)
        return values[asked.split()[0]]
    if name in ("copying", "reversal"):
        words = re.findall(r"\w+", said.partition(":")[2])
        return ", ".join(words if name == "copying" else words[::-1])
    where = dict(re.findall(r"(\w+) (?:went|took the \w+) to the (\w+)", said))
    thing = asked.split()[1]
    who = re.findall(rf"(\w+) took the {thing}", said)[0] if name == "entities" else asked.split()[0]
    return str(where[who])


class TestTexts:
    @pytest.fixture(params=list(TEXT_PROBES))
    def probe(self, request: pytest.FixtureRequest) -> TextProbe:
        return text_probe(request.param)

    def test_reader_of_the_facts_finds_the_answer(
        self, probe: TextProbe, tokenizer: Any, documents: list[np.ndarray]
    ) -> None:
        filler = probe.filler(documents, tokenizer)
        answers = []
        for seed in range(40):
            text = probe.make(1 + seed % 3, (0, seed), TEXT_WINDOW, tokenizer, filler)
            said, asked, *candidates = in_words(tokenizer, text)
            # A tokenizer may have joined the question's end to the answer.
            whole = [asked + candidate for candidate in candidates]
            right = [find_answer(probe.name, said, asked) in one.replace(asked, "", 1) for one in whole]
            assert right == [number == text.answer for number in range(probe.candidates)]
            assert len(set(whole)) == probe.candidates == 1 / probe.chance_level
            answers.append(text.answer)
        assert len(set(answers)) > probe.candidates / 2

    @pytest.mark.parametrize("distance", [0, 1, 2, 11])
    def test_distances_are_exact(
        self, probe: TextProbe, distance: int, tokenizer: Any, documents: list[np.ndarray]
    ) -> None:
        text = probe.make(distance, (5, 0), TEXT_WINDOW, tokenizer, probe.filler(documents, tokenizer))
        assert len(text.ids) + max(map(len, text.candidates)) == (distance + 1) * TEXT_WINDOW
        assert all(0 <= first < end <= TEXT_WINDOW for first, end in text.facts)
        assert text.question // TEXT_WINDOW == distance
        assert text.facts[-1][1] <= text.question < len(text.ids)

    def test_no_answer_outside_the_facts(self, probe: TextProbe, tokenizer: Any, documents: list[np.ndarray]) -> None:
        for seed in range(10):
            text = probe.make(20, (0, seed), TEXT_WINDOW, tokenizer, probe.filler(documents, tokenizer))
            facts = np.concatenate([np.arange(*span) for span in text.facts])
            rest = np.delete(text.ids[: text.question], facts)
            words = tokenizer.decode(rest)
            if probe.name == "entities":
                # The last one may be cut short by the question.
                others = re.findall(r"(\w+) (?:went|walked|came) to the (\w+)", words)[:-1]
                assert {who for who, _ in others} == set(PEOPLE[3:])
                # All places alike: none is named for being the right one, nor missing for it.
                assert {place for _, place in others} == set(PLACES)
            else:
                assert probe.secrets.search(words) is None
                assert not any(tokenizer.decode(one).strip(" .\n") in words for one in text.candidates)

    def test_same_seed_same_text(self, probe: TextProbe, tokenizer: Any, documents: list[np.ndarray]) -> None:
        filler = probe.filler(documents, tokenizer)
        first, again, *others = (
            probe.make(2, seed, TEXT_WINDOW, tokenizer, filler) for seed in ((1, 3), (1, 3), (1, 4), (3, 1), (2, 3))
        )
        assert (first.ids == again.ids).all()
        for other in others:
            assert len(first.ids) != len(other.ids) or (first.ids != other.ids).any()

    def test_guess_level_equals_a_guessing_reader(
        self, probe: TextProbe, tokenizer: Any, documents: list[np.ndarray]
    ) -> None:
        """Of all ways to choose by what is said and its order, the best is right as often as the guess level says."""
        chance = np.random.default_rng(0)
        texts = 100 if probe.name in ("copying", "reversal") else 4000
        stories = [probe.draw(chance) for _ in range(texts)]
        if probe.name in ("copying", "reversal"):
            # Every candidate has the words that were said.
            assert all(len({frozenset(re.findall(r"\w+", c)) for c in story.candidates}) == 1 for story in stories)
            assert probe.guess_level == probe.chance_level
            return
        tallies: dict[tuple[int, ...], np.ndarray] = {}
        for story in stories:
            said = "".join(story.facts)
            keys = [candidate.strip(" .\n") for candidate in story.candidates]
            found = re.findall("|".join(keys), said)
            # Which of the places hold the same: then it does not matter which answers these are.
            pattern = tuple(found.index(one) for one in found)
            tally = tallies.setdefault(pattern, np.zeros(len(found)))
            tally[[number for number, one in enumerate(found) if one == keys[story.answer]]] += 1
        best = sum(tally.max() for tally in tallies.values()) / texts
        assert best == pytest.approx(probe.guess_level, abs=0.025)

    def test_no_answer_across_pieces_of_filler(self, tokenizer: Any) -> None:
        """Digits alone: every piece is clean by itself, and none may follow another."""
        four = np.array(tokenizer.encode(" then 12") * 40)
        probe = text_probe("passkey")
        pieces = np.concatenate([four, np.array(tokenizer.encode("345" + " and so on" * 40))])
        filler = clean_filler([pieces], tokenizer, probe)
        everything = filler(len(pieces) * 3, np.random.default_rng(0))
        assert re.search(r"\d{5}", tokenizer.decode(everything)) is None

    def test_invalid_input_raises(self, tokenizer: Any, documents: list[np.ndarray]) -> None:
        with pytest.raises(UserError, match="There is no probe 'nothing'"):
            text_probe("nothing")
        probe = text_probe("passkey")
        filler = probe.filler(documents, tokenizer)
        with pytest.raises(UserError, match="too many for windows of 10"):
            probe.make(1, (0, 0), 10, tokenizer, filler)
        with pytest.raises(UserError, match="has 16,777,300 tokens, but a probe's texts have at most 16,777,216"):
            probe.make(167_772, (0, 0), 100, tokenizer, filler)
        assert not probe.fits_one_window(20, tokenizer, filler, (0, 0))
        with pytest.raises(UserError, match="give a longer or another one with --data"):
            probe.filler([np.array(tokenizer.encode("12345 " * 60))], tokenizer)


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


def test_questions_about_paragraphs() -> None:
    questions = [Question(str(n), f"Who is {n}?", f"Here is person{n}x.", (f"person{n}x",)) for n in range(30)]
    long = Question("long", "Who?", "Here is someone. " * 100, ("someone",))
    probe = Answering([*questions, long, long._replace(answers=("elsewhere",)), long._replace(answers=())])
    assert len(probe.questions) == 30
    chance = np.random.default_rng(0)
    drawn = [probe.draw(chance) for _ in range(400)]
    for story in drawn:
        (paragraph,) = story.facts
        assert [one.strip() in paragraph for one in story.candidates] == [n == story.answer for n in range(8)]
        assert len(set(story.candidates)) == 8
    counts = np.bincount([story.answer for story in drawn], minlength=8)
    assert counts.min() > 25
    with pytest.raises(UserError, match=r"needs 16 different answers .* got 10"):
        Answering(questions[:10])
