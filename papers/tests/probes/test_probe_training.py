"""`recurrify probe train`, called as a function; its scores compared with direct computation."""

import json
from inspect import signature
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from recurrify import CarryConfig, State, UserError, add_recurrence
from recurrify.data import IGNORED
from recurrify.evaluate import share_interval
from recurrify.modeling import RecurrentForCausalLM
from recurrify_papers.commands.probe_train import train_command
from recurrify_papers.probes.symbols import SymbolTexts, probe_stream, symbol_probe
from recurrify_papers.probes.training import SymbolTraining, score_symbols
from support.commands import invoke
from support.models import tiny

QUICK: dict[str, Any] = {"steps": 3, "batch": 2, "windows": 2, "window": 20, "distances": "3,1", "examples": 4}


class TestSymbols:
    @pytest.mark.parametrize("distance", [0, 2])
    def test_scores_equal_those_of_all_logits(self, distance: int) -> None:
        probe = symbol_probe("recall", answers=5, pairs=2)
        texts = probe.make(distance, 7, 10, probe_stream("test", 0))
        model: RecurrentForCausalLM = add_recurrence(tiny("gpt2"), CarryConfig(window=10, neutral_start=False)).eval()
        score = score_symbols(model, probe, texts, rows=3, windows_per_call=1)
        with torch.no_grad():
            logits = model(torch.from_numpy(texts.inputs)).logits.double().numpy()
        right, sure = [], []
        for row, place in np.argwhere(texts.targets != IGNORED):
            shares = np.exp(logits[row, place, probe.answer_symbols])
            wanted = texts.targets[row, place] - probe.answer_symbols[0]
            right.append(shares.argmax() == wanted)
            sure.append(shares[wanted] / shares.sum())
        assert score.answers == 14
        assert score.interval == share_interval(score.accuracy * 7, 7)
        assert score.accuracy == pytest.approx(np.mean(right))
        assert score.probability == pytest.approx(np.mean(sure), rel=1e-5)

    def test_perfect_and_guessing_models(self) -> None:
        probe = symbol_probe("copying", answers=4)
        texts = probe.make(1, 30, 12, probe_stream("test", 2))
        knowing: Any = Answering(texts, probe.vocabulary, knows=True)
        guessing: Any = Answering(texts, probe.vocabulary, knows=False)
        assert score_symbols(knowing, probe, texts, rows=30).accuracy == 1
        assert score_symbols(guessing, probe, texts, rows=30).accuracy == probe.chance_level


class Answering:
    """Predicts the targets; or a symbol that is never an answer."""

    device = torch.device("cpu")
    recurrence = SimpleNamespace(window=12, overlap=0)

    def __init__(self, texts: SymbolTexts, vocabulary: int, knows: bool) -> None:
        wanted = torch.from_numpy(texts.targets[:, -12:]).clamp(min=0)
        self.logits = torch.nn.functional.one_hot(wanted if knows else torch.zeros_like(wanted), vocabulary) * 9.0

    def __call__(self, input_ids: Any, state: State, **_: Any) -> Any:
        return SimpleNamespace(state=state, logits=self.logits)


def test_training_and_one_page_for_two(tmp_path: Path) -> None:
    once = tmp_path / "once"
    train_command(mechanism="tail", settings=["tail=4"], repetitions=2, **QUICK, out=once)
    result = json.loads((once / "result.json").read_text())
    assert result["provenance"]["config"]["repetitions"] == 2
    assert result["provenance"]["config"]["recurrence"]["tail"] == 4
    assert result["tasks"][0]["chance"] == 1 / 16
    assert result["tasks"][0]["full_context"]["answers"] == 4 * 4
    assert [row["distance"] for row in result["tasks"][0]["rows"]] == [1, 3]
    assert [point["step"] for point in result["curve"]] == [1, 2, 3, 4, 5]
    (tmp_path / "other.json").write_text((once / "result.json").read_text().replace('"tail"', '"another"'))
    shown = invoke("probe", "page", once, tmp_path / "other.json", "--out", tmp_path / "both")
    lines = [line.split()[:2] for line in shown.splitlines() if line]
    assert [line for line in lines if line[0] in ("tail", "another")] == [
        [name, distance] for name in ("tail", "another") for distance in ("full", "1", "3")
    ]
    assert "trained up to here" in (tmp_path / "both" / "index.html").read_text()


def test_a_given_base_is_trained(tmp_path: Path) -> None:
    given = {"model": "shipped:base", "mechanism": "carry", "task": "copying", "task_set": ["symbols=2"]}
    train_command(**QUICK | given | {"window": None}, out=tmp_path)
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["name"] == "carry on shipped:base"
    assert result["provenance"]["config"]["repetitions"] == 0
    assert result["window"] == 32


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"task": "passkey"}, "There is no probe of symbols 'passkey'"),
        ({"mechanism": "nothing"}, "Unknown mechanism 'nothing'"),
        ({"mechanism": "kv"}, "'kv' needs a model with rotary positions"),
        ({"mechanism": "kv", "model": "shipped:base"}, "'kv' needs a model with rotary positions"),
        ({"settings": ["overlap=3"]}, "without overlap"),
        ({"task_set": ["pairs=many"]}, "`pairs` of the probe 'recall' must be a whole number"),
        ({"task_set": ["pairs"]}, "A setting is name=value"),
        ({"window": 10}, "needs windows of 19 symbols"),
        ({"distances": "99999999"}, "at most 268,435,456 are made at once: choose smaller `distances`"),
        ({"windows": 99999999}, "at most 268,435,456 are made at once: choose smaller `windows` or `batch`"),
        ({"repetitions": -1}, "`repetitions` must be at least 0: got -1"),
        ({"learning_rate": float("nan")}, "`learning_rate` must be a positive number: got nan"),
        ({"task": "copying", "task_set": ["symbols=1"], "window": 3}, "too short for repetitions"),
    ],
    ids=str,
)
def test_invalid_input_raises(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        train_command(**options, out=tmp_path)
    assert words in str(caught.value)


def test_defaults_of_options_are_those_of_the_settings() -> None:
    shown = {name: parameter.default for name, parameter in signature(train_command).parameters.items()}
    for name in ("task", "windows", "examples", "steps", "batch", "learning_rate"):
        assert shown[name] == getattr(SymbolTraining, name), name
