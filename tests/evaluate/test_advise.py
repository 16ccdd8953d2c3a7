"""Advice: all readings score the same tokens, and a memory is recommended only where it clearly pays."""

from typing import Any

import numpy as np
import pytest

from recurrify import UserError
from recurrify.data import TokenizedDocument
from recurrify.evaluate import Advice, Reading, advise, candidate_memories, evaluate_documents, measure_readings
from recurrify.evaluate.advise import Cost, advice_tokens
from recurrify.evaluate.comparison import ComparisonRow, ComparisonSetting, evaluation_of_parts
from support.models import POSITIONS, text, tiny


def reading(role: str, flops: float, loss: float, state: int = 1, seed: int = 1) -> Reading:
    losses = np.random.default_rng(seed).normal(loss, 0.01, 64)
    evaluation = evaluation_of_parts(losses, ["word "] * 65, 8)
    return Reading(ComparisonRow(ComparisonSetting(role, int(flops), 0, flops), evaluation, None), Cost(flops, state))


READINGS = [
    reading("windows", 300, 3.4),
    reading("memory", 320, 3.0, state=2),
    reading("longer window", 325, 3.1, state=3),
    reading("full context", 500, 2.8, state=9),
]


def said(advice: Advice) -> str:
    return " ".join(advice.sentences)


def test_without_a_budget_the_full_context_wins_and_the_price_of_the_memory_is_named() -> None:
    advice = advise(READINGS)
    assert not advice.memory_pays
    assert "Use full context of 500 if you can afford it" in said(advice)
    assert "For at most 320 FLOPs per token, use the memory, windows of 320: 9.5 % lower" in said(advice)


@pytest.mark.parametrize("budget", [{"flops": 400.0}, {"state_bytes": 3.0}])
def test_within_a_budget_the_memory_is_held_against_the_best_plain_reading(budget: dict[str, float]) -> None:
    advice = advise(READINGS, **budget)
    assert advice.memory_pays
    assert advice.rival is READINGS[2]
    assert "within this budget" in said(advice)
    assert "than the best without a memory, plain windows of 325" in said(advice)


def test_a_memory_within_noise_is_not_recommended() -> None:
    same = [reading("windows", 300, 3.0), reading("memory", 320, 2.9975, seed=2)]
    advice = advise(same)
    assert not advice.memory_pays
    assert advice.best.perplexity > same[1].perplexity  # which needs an explanation
    assert "No memory is worth it: plain windows of 300 is the best buy" in said(advice)
    assert "With the best memory, in windows of 320, perplexity was" in said(advice)
    assert "within noise). That may be chance, so the simpler reading is recommended" in said(advice)


def test_impossible_budget_raises() -> None:
    with pytest.raises(UserError, match="the cheapest takes 300 FLOPs per token"):
        advise(READINGS, flops=10)


def test_readings_are_measured_once() -> None:
    base: Any = tiny("llama")
    texts = [
        TokenizedDocument(str(length), text(1, length)[0].numpy(), length, length, length) for length in (200, 120)
    ]
    memories = candidate_memories(base, texts)
    assert {config.mechanism for config in memories} == {"kv"}
    scored: list[int] = []
    found = measure_readings(base, texts, memories, progress=scored.append)
    assert sum(scored) == advice_tokens(base, texts, memories)
    assert [one.row.setting.role for one in found].count("memory") == 2
    assert [one.cost.flops for one in found] == sorted(one.cost.flops for one in found)
    (full,) = [one for one in found if one.row.setting.window == POSITIONS]
    assert full.row.setting.label == f"full context of {POSITIONS}"
    alone = evaluate_documents(base, texts, window=POSITIONS, overlap=0)
    np.testing.assert_allclose(full.row.evaluation.nll, alone.nll, rtol=1e-5)
    memory = next(one for one in found if one.row.setting.role == "memory")
    assert memory.cost.state_bytes > next(one for one in found if one.row.setting.role == "windows").cost.state_bytes


def test_the_length_of_the_sample_is_not_called_the_full_context() -> None:
    base: Any = tiny("llama")
    length = POSITIONS // 2
    texts = [TokenizedDocument("short", text(1, length)[0].numpy(), length, length, length)]
    found = measure_readings(base, texts, candidate_memories(base, texts))
    (whole,) = [one for one in found if one.row.setting.window == length - 1]
    assert whole.row.setting.label == f"whole text of up to {length - 1}"
