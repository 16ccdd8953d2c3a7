"""The cost of recurrence: the rows of the table and how they are computed; no test depends on the clock."""

from typing import Any

import pytest
import torch

from recurrify import CarryConfig, NoRecurrence, UserError, add_recurrence
from recurrify_papers.bench.timing import Timing
from recurrify_papers.thesis import cost
from recurrify_papers.thesis.convergence import convergence, tokens_to, validation_curve
from recurrify_papers.thesis.cost import Workload, measure_cost
from support.models import tiny

WINDOW = 8
SMALL: dict[str, Any] = {"rows": 2, "windows": 3, "lengths": (8, 20), "new_tokens": 3, "repeats": 2}


def pair(**more: Any) -> tuple[Any, Any]:
    plain = add_recurrence(tiny("gpt2"), NoRecurrence(window=WINDOW, **more))
    return plain, add_recurrence(tiny("gpt2"), CarryConfig(window=WINDOW, hidden_size=12, **more))


def measured(models: tuple[Any, Any], **more: Any) -> list[dict[str, Any]]:
    return measure_cost(models, Workload(**{**SMALL, **more}), lambda text: None)


def test_every_measurement_has_both_models_and_their_ratio() -> None:
    models = pair()
    found = measured(models)
    ratios = [number for number in found if number["metric"].endswith(", ratio")]
    assert [number["metric"].removesuffix(", ratio") for number in ratios] == [
        "parameters",
        *["training tokens per second", "peak memory of a training step"] * 2,
        *["latency of reading a document", "reading throughput"] * 2,
        "latency of a generated token",
        "generated tokens per second",
    ]
    for plain, recurrent, ratio in zip(found[::3], found[1::3], ratios, strict=True):
        assert (plain["model"], recurrent["model"], ratio["model"]) == ("plain", "carry", None)
        if "memory" in plain["metric"]:
            assert ratio["value"] is None  # not measured on a CPU
        else:
            assert ratio["value"] == recurrent["value"] / plain["value"]
    added = sum(parameter.numel() for parameter in models[1].added_parameters().values())
    assert found[1]["value"] - found[0]["value"] == pytest.approx(4 * added / 2**20)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns take 1, 3 and 5 seconds in plain windows and 2, 4 and 6 seconds with a memory."""
    timings = [Timing([1.0, 3.0, 5.0]), Timing([2.0, 4.0, 6.0])]
    monkeypatch.setattr(cost, "interleave", lambda *_: timings)


@pytest.mark.usefixtures("turns")
def test_numbers_are_medians_of_turns() -> None:
    device = torch.device("cpu")
    assert cost.timed([], 3, device, 60) == ([20.0, 15.0], ["single turns 0.500 to 0.833"])
    assert cost.timed([], 3, device, 1, "ms") == ([3000.0, 4000.0], ["single turns 1.200 to 2.000"])


@pytest.mark.usefixtures("turns")
def test_overlapping_windows_count_their_tokens_once() -> None:
    speed = next(number for number in measured(pair(overlap=3)) if number["metric"].startswith("training tokens"))
    assert speed["value"] == 2 * (8 + 5 + 5) / 3


def test_convergence_interpolates_between_validations() -> None:
    history = [{"step": 1, "loss": 9.0}, {"step": 2, "eval_loss": 4.0}, {"step": 4, "eval_loss": 3.0}]
    curve = validation_curve({"history": history, "tokens": 40, "steps": 4})
    assert curve == [(20.0, 4.0), (40.0, 3.0)]
    assert tokens_to(curve, 3.5) == 30.0
    assert tokens_to(curve, 5.0) == 20.0
    assert tokens_to(curve, 2.0) is None
    levels = convergence(curve, [(20.0, 3.8), (40.0, 2.0)])
    assert [level for level, _, _ in levels] == pytest.approx([3.6, 3.4, 3.2, 3.0])
    assert levels[-1][1] == 40.0
    with pytest.raises(UserError, match="smaller `valid_every`"):
        convergence([], curve)
