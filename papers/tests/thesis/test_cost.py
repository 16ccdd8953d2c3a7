"""The cost of recurrence: the rows of the table and how they are computed; no test depends on the clock."""

from typing import Any

import pytest

from recurrify import CarryConfig, NoRecurrence, UserError, add_recurrence
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


@pytest.fixture
def slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock on which the calls take 1, 2, 3, ... seconds, in the order in which they are made."""
    seconds = [0.0]
    readings = [0]

    def read() -> float:
        readings[0] += 1
        if readings[0] % 2 == 0:  # odd readings begin a call, even ones end it
            seconds[0] += readings[0] // 2
        return seconds[0]

    monkeypatch.setattr(cost.time, "perf_counter", read)
    monkeypatch.setattr(cost, "WARM_UP", 0)


def test_every_cost_is_a_row() -> None:
    models = pair()
    found = measured(models)
    assert [row["measure"] for row in found] == [
        "parameters",
        *["training tokens per second", "training time of the same tokens", "peak memory of a training step"] * 2,
        *["latency of reading a document", "reading throughput"] * 2,
        "latency of a generated token",
        "generated tokens per second",
    ]
    for row in found:
        if row["measure"] == "peak memory of a training step":
            assert row["ratio"] is None  # not measured on a CPU
        else:
            assert row["ratio"] == row["recurrent"] / row["plain"]
    added = sum(parameter.numel() for parameter in models[1].added_parameters().values())
    assert found[0]["recurrent"] - found[0]["plain"] == pytest.approx(4 * added / 2**20)


@pytest.mark.usefixtures("slow_clock")
def test_numbers_are_medians_of_turns() -> None:
    found = measured(pair(), repeats=3)
    # The first six calls are training steps without checkpointing: plain 1, 3, 5 s, recurrent 2, 4, 6 s.
    speed, hours, _ = found[1:4]
    tokens = 2 * 3 * WINDOW
    assert (speed["plain"], speed["recurrent"]) == (tokens / 3, tokens / 4)
    assert speed["spread"] == pytest.approx([1 / 2, 5 / 6])
    assert (hours["plain"], hours["recurrent"]) == (24.0, pytest.approx(32.0))


@pytest.mark.usefixtures("slow_clock")
def test_overlapping_windows_count_their_tokens_once() -> None:
    assert measured(pair(overlap=3), repeats=1)[1]["plain"] == 2 * (8 + 5 + 5)


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
