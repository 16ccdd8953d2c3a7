"""Probes: independent readers find the answers, and nothing else reveals them."""

import re
from typing import Any

import numpy as np
import pytest

from recurrify.data.probes_questions import Answering
from recurrify.data.probes_text import (
    PEOPLE,
    PLACES,
    TEXT_PROBES,
    ProbeText,
    TextProbe,
    clean_filler,
    level_by_place,
    text_probe,
    whole_distances,
)
from recurrify.data.questions import Question
from recurrify.errors import UserError
from recurrify.modeling.loading import model_tokenizer

TEXT_WINDOW = 160


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
        with pytest.raises(UserError, match="too many for 2 windows of 10"):
            probe.make(1, (0, 0), 10, tokenizer, filler)
        with pytest.raises(UserError, match="has 16,777,300 tokens, but a probe's texts have at most 16,777,216"):
            probe.make(167_772, (0, 0), 100, tokenizer, filler)
        assert not probe.fits_one_window(20, tokenizer, filler, (0, 0))
        with pytest.raises(UserError, match="give a longer or another one with --data"):
            probe.filler([np.array(tokenizer.encode("12345 " * 60))], tokenizer)


def test_questions_about_paragraphs() -> None:
    questions = [Question(str(n), f"Who is {n}?", f"Here is person{n}x.", (f"person{n}x",)) for n in range(30)]
    long = Question("long", "Who?", "Here is someone. " * 100, ("someone",))
    asked = [*questions, long, long._replace(answers=("elsewhere",)), long._replace(answers=())]
    assert len(Answering(asked, room=750).questions) == 31
    probe = Answering(asked, room=749)
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
        Answering(questions[:10], room=300)


def test_a_context_longer_than_a_window(documents: list[np.ndarray], tokenizer: Any) -> None:
    questions = [Question(str(n), "Who?", f"Here is person{n}x. " * 20, (f"person{n}x",)) for n in range(30)]
    probe = Answering(questions, room=300)
    text = probe.make(10, (0, 0), 30, tokenizer, probe.filler(documents, tokenizer))
    ((start, stop),) = text.facts
    assert (start, text.question >= 300) == (0, True)
    assert 30 < stop < 300
    right = tokenizer.decode(text.candidates[text.answer]).strip()
    assert tokenizer.decode(text.ids[start:stop]).count(right) == 20
    assert len(text.ids) + max(map(len, text.candidates)) == 330


def test_guess_level_by_hand() -> None:
    assert level_by_place([0.0, 0.5, 0.5], 8) == pytest.approx(9 / 16)


def test_distance_of_zero_raises() -> None:
    with pytest.raises(UserError, match="from 1 on"):
        whole_distances([0, 3])
