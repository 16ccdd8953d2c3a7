"""Small models on recurrent rules: they learn what can be learned, and scores are what they say."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from recurrify_papers.models.language import language_model
from recurrify_papers.slides.rule_tasks import Counting
from recurrify_papers.slides.rule_training import RuleTraining, read_sequences, score_rule, train_on_rule, validate_rule

CPU = torch.device("cpu")


def small(**more: Any) -> RuleTraining:
    settings: dict[str, Any] = {
        "task": "parity",
        "arch": "gru",
        "model": {"layers": 1, "width": 32, "dropout": 0.0},
        "length": 6,
        "steps": 300,
        "batch": 64,
        "learning_rate": 2e-2,
        "warmup": 10,
        "seed": 0,
    }
    return RuleTraining(**{**settings, **more})


def test_recurrent_model_learns_parity_and_generalises() -> None:
    training = small()
    model = train_on_rule(training, CPU)
    assert validate_rule(model, training, 200).accuracy > 0.99
    assert score_rule(model, training, 30, 200).accuracy > 0.95


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
    training = small(task="counting", length=10, segment=segment)
    oracle = Oracle(right_until=20)
    assert score_rule(oracle, training, 20, 30).accuracy == 1.0
    assert score_rule(oracle, training, 21, 30) == (pytest.approx(50.0), 0.0)
    valid = validate_rule(Oracle(right_until=7), training, 30)
    assert valid == pytest.approx((0.3 * 50, 0.7))


@pytest.mark.parametrize("arch", ["xl", "brt"])
def test_segments_with_their_state_are_a_whole_sequence(arch: str) -> None:
    """Where the memory reaches back to the start, reading in pieces changes nothing."""
    shape = {"layers": 2, "width": 16, "heads": 2, "head_width": 8, "inner": 32, "dropout": 0.0}
    own = {"memory_length": 24} if arch == "xl" else {"window": 24, "block": 4, "states": 3}
    torch.manual_seed(0)
    model = language_model(arch, 4, **shape, **own, target_length=8).eval()
    ids = torch.from_numpy(Counting(2).draw(3, 24, small().draw("test")).inputs).long()
    torch.testing.assert_close(read_sequences(model, ids, 8), read_sequences(model, ids, None), atol=1e-5, rtol=1e-4)


def test_the_seed_decides_the_model_and_nothing_else_does() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, other, third = (train_on_rule(small(steps=3, seed=seed), CPU) for seed in (1, 1, 2))
    assert torch.rand(1) == expected
    for name, value in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], value, rtol=0, atol=0)
    assert any(not torch.equal(value, third.state_dict()[name]) for name, value in one.state_dict().items())


def test_parts_have_sequences_of_their_own() -> None:
    def drawn(part: str, *seeds: int) -> bytes:
        return Counting(2).draw(9, 40, small(seed=seeds[0]).draw(part, *seeds[1:])).inputs.tobytes()

    streams = [(part, seed) for part in ("train", "valid", "test") for seed in (0, 1)]
    assert len({drawn(*stream) for stream in [*streams, ("test", 0, 40)]}) == 7
