"""Probe scores compared with direct computation and with synthetic readers of known memory."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from recurrify.data.probes_text import ProbeText
from recurrify.errors import UserError
from recurrify.evaluate.probing import score_of, score_texts
from recurrify.mechanisms import NoRecurrence
from recurrify.mechanisms.carry import CarryConfig
from recurrify.modeling.heads import RecurrentForCausalLM, add_recurrence
from recurrify.state import State
from support.models import VOCABULARY, tiny

WINDOW = 8
FACT, KEY, SECOND = 50, 51, 9


class Reader:
    """Remembers the tokens of the last `reach` windows: what followed a FACT there is likely, everything else equal."""

    device = torch.device("cpu")
    base = SimpleNamespace(config=SimpleNamespace(vocab_size=VOCABULARY))
    recurrence = SimpleNamespace(window=WINDOW, overlap=0)

    def __init__(self, reach: int) -> None:
        self.reach = reach

    def __call__(self, input_ids: Any, state: State, logits_to_keep: int, **_: Any) -> Any:
        kept = input_ids[:, :0] if state.memory is None else state.memory
        seen = torch.cat([kept, input_ids], dim=1)
        logits = torch.zeros(*input_ids.shape, VOCABULARY)
        logits[:, :, SECOND] = 100.0
        for row, ids in enumerate(seen.tolist()):
            if FACT in ids:
                logits[row, input_ids[row] == KEY, ids[ids.index(FACT) + 1]] = 2.9
        logits[input_ids == KEY, SECOND] = 0.0
        memory = state._replace(memory=seen[:, -self.reach * WINDOW :])
        return SimpleNamespace(state=memory, logits=logits[:, -logits_to_keep:])


def probe_text(distance: int, answer: int, chance: np.random.Generator) -> ProbeText:
    """A fact at a random place of the first window; candidates of one and two tokens."""
    ids = chance.integers(4, 40, size=(distance + 1) * WINDOW - 2)
    place = int(chance.integers(WINDOW - 4))
    ids[place : place + 2] = FACT, 40 + answer
    ids[-1] = KEY
    candidates = tuple(np.array([40 + number] + [SECOND] * (number % 2)) for number in range(4))
    return ProbeText(ids, candidates, answer, ((place, place + 2),), len(ids) - 1)


def texts_at(distance: int, count: int = 12) -> list[ProbeText]:
    chance = np.random.default_rng(distance)
    return [probe_text(distance, number % 4, chance) for number in range(count)]


class TestTexts:
    @pytest.mark.parametrize(("distance", "accuracy"), [(0, 1.0), (1, 1.0), (3, 1.0), (4, 0.25), (30, 0.25)])
    def test_a_reader_that_remembers_three_windows(self, distance: int, accuracy: float) -> None:
        model: Any = Reader(reach=3)
        score = score_texts(model, texts_at(distance), rows=5, windows_per_call=2)
        assert score.accuracy == accuracy
        assert score.answers == 12
        sure = 1 / (1 + 3 * np.exp(-2.9))
        assert score.probability == pytest.approx(sure if accuracy == 1 else 0.25, rel=1e-5)

    @pytest.mark.parametrize("distance", [0, 3])
    def test_likelihoods_are_those_of_the_whole_text(self, distance: int) -> None:
        torch.manual_seed(1)
        config = CarryConfig(window=WINDOW, neutral_start=False)
        model: RecurrentForCausalLM = add_recurrence(tiny("gpt2"), config).eval()
        texts = texts_at(distance, 6)
        done: list[int] = []
        score = score_texts(model, texts, rows=4, windows_per_call=2, progress=done.append)
        likelihoods = np.array([[whole_likelihood(model, text, one) for one in text.candidates] for text in texts])
        right = np.arange(6) % 4
        shares = np.exp(likelihoods) / np.exp(likelihoods).sum(axis=1, keepdims=True)
        assert score.accuracy == (likelihoods.argmax(axis=1) == right).mean()
        assert score.probability == pytest.approx(shares[np.arange(6), right].mean(), rel=1e-5)
        assert sum(done) == 6 * (distance + 1) * WINDOW

    def test_invalid_input_raises(self) -> None:
        model: RecurrentForCausalLM = add_recurrence(tiny("gpt2"), NoRecurrence(window=WINDOW, overlap=2)).eval()
        with pytest.raises(UserError, match=r"overlap=2"):
            score_texts(model, texts_at(1))
        model.set_recurrence(overlap=0)
        strange = texts_at(1, 1)[0]
        with pytest.raises(UserError, match="the model knows 0 to 59"):
            score_texts(model, [strange._replace(candidates=(np.array([60]),))])


def whole_likelihood(model: RecurrentForCausalLM, text: ProbeText, candidate: np.ndarray) -> float:
    """The text and the candidate in one call, from the logits."""
    ids = torch.from_numpy(np.concatenate([text.ids, candidate]))[None]
    with torch.no_grad():
        logs = model(ids).logits[0].double().log_softmax(dim=-1)
    first = len(text.ids)
    return float(sum(logs[first - 1 + step, int(token)] for step, token in enumerate(candidate)))


def test_ties_share_the_point() -> None:
    likelihoods = np.log([[0.5, 0.5, 0.1, 0.1], [0.4, 0.1, 0.4, 0.1], [0.2, 0.2, 0.2, 0.2], [0.1, 0.9, 0.2, 0.2]])
    assert score_of(likelihoods, np.array([0, 1, 2, 1]), 4).accuracy == (0.5 + 0 + 0.25 + 1) / 4


def test_values_that_are_not_finite_raise() -> None:
    with pytest.raises(UserError, match="not finite"):
        score_of(np.array([[0.0, np.nan]]), np.array([0]), 1)
