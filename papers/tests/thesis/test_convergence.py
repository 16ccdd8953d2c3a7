"""Training tokens until a loss is reached, and how the cost of a memory becomes rows."""

from statistics import median

import pytest

from recurrify import UserError
from recurrify_papers.thesis.convergence import convergence, tokens_to, validation_curve
from recurrify_papers.thesis.cost import numbers_of


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


def test_costs_are_of_both_models_run_in_the_same_way() -> None:
    timings = {"plain": [1.0, 3.0, 5.0], "carry": [2.0, 4.0, 6.0], "transformers": [9.0]}
    rows = [
        {
            "model": model,
            "mode": "eager",
            "tokens_per_second": 60 / median(seconds),
            "seconds": seconds,
            "peak_bytes": 2**30,
        }
        for model, seconds in timings.items()
    ]
    checkpointed = {**rows[0], "checkpoint": True}
    found = list(numbers_of("training", {"batch": 4, "rows": [*rows[:2], checkpointed, rows[2]]}))
    assert {number["label"] for number in found} == {"eager, batch 4"}
    speeds = {number["model"]: number["value"] for number in found if "tokens/s" in number["metric"]}
    assert speeds == {"plain": 20.0, "carry": 15.0}
    assert found[-1]["value"] == 0.75
    assert found[-1]["note"].endswith("single turns 0.500 to 0.833")
    assert [number["value"] for number in found if "GiB" in number["metric"]] == [1.0, 1.0]
