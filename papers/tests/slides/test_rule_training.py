"""Small models on recurrent rules: they learn what can be learned, and scores are what they say."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recurrify_papers.models.language import language_model
from recurrify_papers.slides.rule_tasks import Counting, stream
from recurrify_papers.slides.rule_training import read_sequences, rule_run, score_rule

SETTINGS: dict[str, Any] = {
    "task": "parity",
    "arch": "gru",
    "model": {"layers": 1, "width": 32, "dropout": 0.0},
    "segment": None,
    "length": 6,
    "steps": 250,
    "batch": 64,
    "learning_rate": 2e-2,
    "seed": 0,
    "lengths": (6, 30),
    "valid_sequences": 200,
    "test_sequences": 200,
}


def run(folder: Path, **changed: Any) -> dict[str, Any]:
    folder.mkdir()
    found = rule_run({**SETTINGS, **changed}, folder, lambda text: None)
    assert found is not None
    assert not list(folder.iterdir())
    return found


def test_recurrent_model_learns_parity_and_generalises(tmp_path: Path) -> None:
    found = run(tmp_path / "run")
    assert found["loss"] < 0.05
    assert {number["at"]: number["value"] > 0.95 for number in found["numbers"]} == {6.0: True, 30.0: True}


def test_stopped_run_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run(tmp_path / "whole", steps=3)
    assert run(tmp_path / "other", steps=3, seed=1)["loss"] != whole["loss"]
    few = {**SETTINGS, "steps": 3}
    with monkeypatch.context() as patch:
        patch.setattr("recurrify_papers.slides.rule_training.minutes_left", lambda: 1e-9)
        assert rule_run(few, tmp_path / "stopped", lambda text: None) is None
    resumed = rule_run(few, tmp_path / "stopped", lambda text: None)
    assert resumed is not None
    assert (resumed["loss"], resumed["numbers"]) == (whole["loss"], whole["numbers"])


class Oracle(nn.Module):
    """Counts marks by itself, through a state, and is wrong on purpose from some position on."""

    def __init__(self, right_until: int) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.zeros(1))
        self.right_until = right_until

    def forward(self, ids_BQ: Tensor, state: tuple[Tensor, int] | None = None) -> tuple[Tensor, tuple[Tensor, int]]:
        before, seen = (0, 0) if state is None else state
        counts = before + ids_BQ.cumsum(1)
        wrong = torch.arange(seen, seen + ids_BQ.shape[1]) >= self.right_until
        answers = 2 + (counts + wrong) % 5
        return 50.0 * nn.functional.one_hot(answers, 7), (counts[:, -1:], seen + ids_BQ.shape[1])


@pytest.mark.parametrize("segment", [None, 4], ids=["whole", "segments"])
def test_scores_are_of_the_last_answer_and_states_are_carried(segment: int | None) -> None:
    task, oracle = Counting(5), Oracle(right_until=20)
    assert score_rule(oracle, task.draw_test(30, 20, seed=0), segment).accuracy == 1.0
    assert score_rule(oracle, task.draw_test(30, 21, seed=0), segment) == (pytest.approx(50.0), 0.0)
    valid = task.draw_up_to(30, 10, stream("valid", 0))
    assert score_rule(Oracle(right_until=7), valid, segment) == pytest.approx((0.3 * 50, 0.7))


@pytest.mark.parametrize("arch", ["xl", "brt"])
def test_segments_with_their_state_are_a_whole_sequence(arch: str) -> None:
    """Where the memory reaches back to the start, reading in pieces changes nothing."""
    shape = {"layers": 2, "width": 16, "heads": 2, "head_width": 8, "inner": 32, "dropout": 0.0}
    own = {"memory_length": 24} if arch == "xl" else {"window": 24, "block": 4, "states": 3}
    torch.manual_seed(0)
    model = language_model(arch, 4, **shape, **own, target_length=8).eval()
    ids = torch.from_numpy(Counting(2).draw(3, 24, stream("test", 0)).inputs).long()
    torch.testing.assert_close(read_sequences(model, ids, 8), read_sequences(model, ids, None), atol=1e-5, rtol=1e-4)


def test_parts_have_sequences_of_their_own() -> None:
    streams = [(part, seed) for part in ("train", "valid", "test") for seed in (0, 1)]
    drawn = {Counting(2).draw(9, 40, stream(*one)).inputs.tobytes() for one in [*streams, ("test", 0, 40)]}
    assert len(drawn) == 7
