"""Runs that nobody made: what finished units leave, with losses and costs that can be worked out by hand."""

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from recurrify.evaluate.bootstrap import gain_beyond, interval, relative_gain
from recurrify.evaluate.evaluation import Evaluation
from recurrify.mechanisms.base import recurrence_config
from recurrify.results import save_result
from recurrify_papers.experiments import beyond, beyond_rivals
from recurrify_papers.experiments import rows as rows_module
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.pool import Outcome
from recurrify_papers.experiments.unit import Unit

TOKENS, WORDS = np.array([100, 300]), np.array([50, 150])
LOSSES = {"none": 3.0, "carry": 2.98, "tail": 2.9, "memory_tokens": 2.95, "kv": 2.85}
FLOPS = {"none": 1000.0, "carry": 1010.0, "tail": 1700.0, "memory_tokens": 1200.0, "kv": 1100.0}
HEAD = 100.0
"""Of the FLOPs: what is counted once per token, whatever the overlap."""
FEW = {"samples": 20}
SEED = 0.001
"""What the second seed loses beside the first."""
BEST_RATE = 1e-2
"""Where every made-up run is at its best."""


def loss_of(unit: Unit, overlap: int) -> float:
    """By mechanism, seed and learning rate; a frozen base loses 0.02 beside, overlap helps plain windows."""
    settings = unit.settings
    away = 0.1 * abs(math.log10(settings.learning_rate / BEST_RATE))
    frozen = 0.02 if settings.freeze_base else 0.0
    return LOSSES[settings.recurrence["mechanism"]] + away + frozen - 0.03 * overlap + SEED * settings.seed


def flops_of(unit: Unit, overlap: int) -> dict[str, float]:
    window = unit.settings.recurrence["window"]
    longer = 50 if window == 16 else 0
    layers, whole = FLOPS["none"] - HEAD + longer, FLOPS[unit.settings.recurrence["mechanism"]] + longer
    more = window / (window - overlap) if window == 16 else 8 / (8 - overlap)
    return {"flops_per_token": layers * more, "full_flops_per_token": (whole - HEAD) * more + HEAD}


def pretend(unit: Unit) -> None:
    """Leave what a finished unit leaves."""
    mechanism = unit.settings.recurrence["mechanism"]
    config = replace(unit.settings, recurrence=recurrence_config(unit.settings.recurrence).to_dict())
    memory = {
        "added_parameters": 250,
        "state_floats": 16,
        "extra_flops_per_token": FLOPS[mechanism] - FLOPS["none"],
        "extra_share": 0.5,
    }
    history = [{"step": 1, "loss": 9.0}, {"step": 2, "eval_loss": 3.0}, {"step": 4, "eval_loss": 2.5}]
    run = {"memory": memory, "tokens": 80, "steps": 4, "history": history, "provenance": {"config": config.to_dict()}}
    save_result(unit.run_file, run)
    for wanted in unit.wanted:
        others = (0.02 if unit.settings.freeze_base else 0.04) if wanted.exchanged else 0.0
        nll = (loss_of(unit, wanted.overlap) + others) * TOKENS
        sizes = {"tokens": TOKENS, "words": WORDS, "characters": TOKENS, "bytes": TOKENS}
        found = Evaluation(8, wanted.overlap, ("a", "b"), nll, **sizes, loss_by_position=(), loss_by_window=())
        costs = flops_of(unit, wanted.overlap)
        save_result(unit.score_file(wanted), {**costs, "tokens": wanted.tokens, "evaluation": found.to_dict()})


def draw_few_samples(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows_module, "interval", partial(interval, **FEW))
    for module in (rows_module, beyond):
        patch.setattr(module, "relative_gain", lambda *sides, **more: relative_gain(*sides, **more | FEW))
    patch.setattr(beyond_rivals, "gain_beyond", partial(gain_beyond, **FEW))


@pytest.fixture
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Intervals are not what is tested here."""
    draw_few_samples(monkeypatch)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[list[Unit]]:
    """The units of each round, pretended instead of run."""
    seen: list[list[Unit]] = []

    def finish(lab: Lab, units: Iterable[Unit]) -> Outcome:
        seen.append(list(units))
        for unit in seen[-1]:
            pretend(unit)
        return Outcome(True, [])

    monkeypatch.setattr(Lab, "finish", finish)
    monkeypatch.setattr(beyond_rivals, "costs", lambda unit: tuple(flops_of(unit, 0).values()))
    return seen


def perplexity(loss: float) -> float:
    return math.exp(loss * TOKENS.sum() / WORDS.sum())


def by_name(rows: list[dict[str, Any]], **where: Any) -> dict[tuple[str, int], dict[str, Any]]:
    return {
        (row["label"], row["overlap"]): row for row in rows if all(row[key] == value for key, value in where.items())
    }
