"""A memory compared with its base: settings, equal FLOPs, the same tokens."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recurrify import CarryConfig, KVConfig, NoRecurrence, UserError, add_recurrence
from recurrify.data import TokenizedDocument
from recurrify.evaluate import (
    compare_with_base,
    comparison_settings,
    comparison_tokens,
    evaluate_documents,
    full_flops_per_token,
    matched_overlap,
    matched_window,
    relative_gain,
    training_differences,
)
from recurrify.evaluate.comparison import (
    ComparisonRow,
    ComparisonSetting,
    comparison_rows,
    evaluation_of_parts,
    gain_rows,
    strongest_rival,
)
from support.models import POSITIONS, text, tiny

WINDOW = 8


def documents(*lengths: int) -> list[TokenizedDocument]:
    return [
        TokenizedDocument(f"d{index}", text(1, length, seed=index)[0].numpy(), length, 5 * length, 5 * length)
        for index, length in enumerate(lengths)
    ]


@pytest.fixture(scope="module")
def base() -> Any:
    return tiny("llama")


@pytest.mark.parametrize("window", [2, 8, 20])
def test_matched_overlap_and_window_are_the_smallest_that_cost_as_much(base: Any, window: int) -> None:
    plain = full_flops_per_token(base, window, 0)
    assert matched_overlap(base, plain, window) == 0
    assert matched_window(base, plain, window, 99) == window
    assert matched_overlap(base, 1e12, window) == window - 1
    assert matched_window(base, 1e12, window, 99) == 99
    for factor in (1.01, 1.2, 1.9):
        overlap = matched_overlap(base, factor * plain, window)
        assert overlap == 0 or full_flops_per_token(base, window, overlap - 1) < factor * plain
        assert overlap == window - 1 or full_flops_per_token(base, window, overlap) >= factor * plain
        longer = matched_window(base, factor * plain, window, 2000)
        assert full_flops_per_token(base, longer - 1, 0) < factor * plain <= full_flops_per_token(base, longer, 0)


def test_settings_of_the_four_comparisons(base: Any) -> None:
    model = add_recurrence(base, KVConfig(window=WINDOW, keep=6, sinks=1))
    settings = {setting.role: setting for setting in comparison_settings(model, documents(100, 20))}
    assert list(settings) == ["memory", "windows", "overlap", "longer window", "full context"]
    assert settings["windows"][1:] == (WINDOW, 0, full_flops_per_token(base, WINDOW, 0))
    assert settings["full context"][1:3] == (POSITIONS, 0)
    flops = settings["memory"].flops_per_token
    assert flops == full_flops_per_token(model)
    assert settings["overlap"].window == WINDOW
    assert settings["overlap"].overlap >= 1
    assert settings["longer window"].window > WINDOW
    assert min(settings[name].flops_per_token for name in ("overlap", "longer window")) >= flops
    # Shorter documents are read whole, which is not the full context, and cost less.
    short = {setting.role: setting for setting in comparison_settings(model, documents(21, 11))}["whole text"]
    assert short.window == 20
    expected = (20 * full_flops_per_token(base, 20, 0) + 10 * full_flops_per_token(base, 10, 0)) / 30
    assert short.flops_per_token == pytest.approx(expected)


def test_rows_score_the_same_tokens_as_separate_evaluations(base: Any) -> None:
    texts = documents(70, 50, 33)
    config = CarryConfig(window=WINDOW, neutral_start=False)
    scored: list[int] = []
    rows = compare_with_base(base, texts, config, progress=scored.append)
    model = add_recurrence(base, config)
    memory = evaluate_documents(model, texts)
    assert len(rows) == 5
    for row in rows:
        assert row.evaluation.tokens.tolist() == [69, 49, 32]
        assert row.evaluation.window == row.setting.window
    for row in rows[1:]:
        alone = evaluate_documents(base, texts, window=row.setting.window, overlap=row.setting.overlap)
        np.testing.assert_allclose(row.evaluation.nll, alone.nll, rtol=1e-5)
        assert row.gain is not None
        assert row.gain.interval is not None
    same = rows[1]
    assert same.gain == relative_gain(same.evaluation, rows[0].evaluation, "perplexity_per_token")
    assert rows[0].evaluation.words.tolist() == memory.words.tolist()
    assert sum(scored) == comparison_tokens([row.setting for row in rows], texts)
    saved = json.loads(json.dumps([row.to_dict() for row in rows]))
    assert saved[1]["label"] == "plain windows of 8"
    assert len(saved[1]["bits_per_character_interval"]) == 2
    gains = gain_rows(rows)
    # These texts are so short that the longer window is the full context, which is listed once.
    assert rows[3].setting[1:] == rows[4].setting[1:]
    assert {gain["against"] for gain in gains} == {"windows", "overlap", "full context"}
    strongest = strongest_rival(rows).setting
    assert gains[0]["against"] == ("full context" if strongest.role == "longer window" else strongest.role)


def made_up_rows(*levels: float) -> list[ComparisonRow]:
    """Readings with these losses per token: memory, windows, overlap, longer window and full context."""
    flops = (1.0, 0.9, 1.0, 1.04, 2.0)
    roles = ("memory", "windows", "overlap", "longer window", "full context")
    settings = [ComparisonSetting(role, 8, 0, cost) for role, cost in zip(roles, flops, strict=True)]
    found = [
        evaluation_of_parts(np.random.default_rng(1).normal(level, 0.01, 64), ["word "] * 65, 8) for level in levels
    ]
    return comparison_rows(settings, found)


def test_strongest_rival_costs_no_more_than_the_memory() -> None:
    assert strongest_rival(made_up_rows(3.0, 3.3, 3.2, 3.1, 2.9)).setting.role == "longer window"


def test_equal_settings_are_scored_once_and_another_base_is_used(base: Any) -> None:
    model = add_recurrence(tiny("llama", seed=1), CarryConfig(window=POSITIONS))
    texts = documents(40, 40)
    scored: list[int] = []
    rows = compare_with_base(model, texts, base=add_recurrence(base, NoRecurrence(window=4)), progress=scored.append)
    assert [row.setting.role for row in rows if row.setting.window == POSITIONS] == [row.setting.role for row in rows]
    assert sum(scored) == comparison_tokens([row.setting for row in rows], texts) == 3 * 78
    assert rows[1].evaluation is rows[4].evaluation
    alone = evaluate_documents(base, texts, window=POSITIONS, overlap=0)
    np.testing.assert_allclose(rows[1].evaluation.nll, alone.nll, rtol=1e-5)


def test_models_without_or_with_memory_raise(base: Any) -> None:
    with pytest.raises(UserError, match="has no memory to compare"):
        compare_with_base(base, documents(20))
    model = add_recurrence(base, CarryConfig(window=WINDOW))
    with pytest.raises(UserError, match="must be a model without memory"):
        compare_with_base(model, documents(20), base=model)


def test_training_differences(tmp_path: Path) -> None:
    def run(name: str, **changes: Any) -> str:
        record = {"model": "gpt2", "seed": 0, "data_checksum": "a", "recurrence": {"window": 8}, **changes}
        (tmp_path / name / "model").mkdir(parents=True)
        (tmp_path / name / "run.json").write_text(json.dumps(record))
        return str(tmp_path / name)

    one, same, other = run("one"), run("same"), run("other", seed=1, data_checksum="b", recurrence={"window": 9})
    assert training_differences([one, f"{same}/model"]) == []
    assert training_differences(["gpt2", "shipped:base"]) == []
    assert "gpt2 was not: the difference" in training_differences([one, "gpt2"])[0]
    (sentence,) = training_differences([one, other])
    assert "(seed 0 and 1; window 8 and 9; different training data)" in sentence
