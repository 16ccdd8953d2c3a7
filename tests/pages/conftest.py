"""Invented results of the shape that the commands write; no number in them was measured."""

import math
from typing import Any

import pytest

WINDOW, OVERLAPS = 64, (0, 8)
ROLES = {
    "memory": ("memory, windows of 300", 300, 33.0, 2.97e8),
    "windows": ("plain windows of 300", 300, 44.0, 2.79e8),
    "overlap": ("windows of 300, overlap 18", 300, 41.0, 2.97e8),
    "longer window": ("plain windows of 800", 800, 36.0, 2.97e8),
    "full context": ("full context of 8000", 8000, 30.0, 5.45e8),
}
PIECES = ["Miss", " Mar", "jor", "\n", "<b>&\"'", "\x0c", "", "é", "\ud800", " end"]


def _row(model: str, weights: str, overlap: int, level: float) -> dict[str, Any]:
    return {
        "model": model,
        "weights": weights,
        "window": WINDOW,
        "overlap": overlap,
        "perplexity_per_token": level,
        "perplexity_per_token_interval": [level * 0.96, level * 1.04],
        "perplexity_per_word": level**2,
        "bits_per_character": math.log2(level) / 2.6,
        "full_flops_per_token": (1.14e6 if model != "recurrent" else 1.21e6) * WINDOW / (WINDOW - overlap),
    }


def _gain(weights: str, overlap: int, middle: float, noise: bool) -> dict[str, Any]:
    interval = [middle - 0.007, middle + 0.007]
    entry = {"weights": weights, "overlap": overlap, "relative_gain": middle, "interval": interval}
    return {**entry, "within_noise": noise, "unit": "token"}


def _real() -> dict[str, Any]:
    rows = [
        {
            "role": role,
            "model": role,
            "label": label,
            "window": window,
            "overlap": 18 if role == "overlap" else 0,
            "full_flops_per_token": flops,
            "perplexity_per_token": level,
            "perplexity_per_token_interval": [level - 2, level + 2],
            "perplexity_per_word": level * 4,
            "bits_per_character": 1.1,
            "loss_by_position": [5 - place / 9 for place in range(9)] if role in ("memory", "windows") else None,
        }
        for role, (label, window, level, flops) in ROLES.items()
    ]
    gains = [
        {
            "model": "memory",
            "label": ROLES["memory"][0],
            "against": role,
            "against_label": ROLES[role][0],
            "unit": "token",
            "relative_gain": 1 - 33 / ROLES[role][2],
            "interval": [1 - 34 / ROLES[role][2], 1 - 32 / ROLES[role][2]],
            "within_noise": False,
        }
        for role in list(ROLES)[1:]
    ]
    losses = {
        role: [None, *(3.0 + math.sin(place * (1 + number)) for place in range(1, len(PIECES)))]
        for number, role in enumerate(ROLES)
    }
    return {
        "model": "smollm2",
        "mechanism": "kv",
        "recurrence": {"window": 5},
        "memory": {"state_floats": 3_000_000, "added_parameters": 0},
        "source": "a novel",
        "note": "",
        "rows": rows,
        "gains": gains,
        "tokens": {"text": PIECES, **losses},
        "continuation": {"prompt_end": "so it", "truth": "was", "plain": "is</code>", "recurrent": "was <b>"},
    }


@pytest.fixture
def result() -> dict[str, Any]:
    """Of `recurrify demo`."""
    rows = [_row("base", "shipped", 0, 33.4)]
    for weights, overlap, more in (("shipped", 0, 0.0), ("shipped", 8, -1.0), ("live", 0, 2.5)):
        rows.append(_row("plain", weights, overlap, 30.12 + more))
        rows.append(_row("recurrent", weights, overlap, 28.83 + more))
    positions = [2.0 + 4 / (1 + place) for place in range(WINDOW)]
    curve = {"tokens": [10_000, 20_000], "loss": [3.0, 2.5]}
    return {
        "kind": "demo",
        "unit": "token",
        "real": _real(),
        "settings": {"live_tokens": 80_000, "window": WINDOW},
        "rows": rows,
        "gains": [*(_gain("shipped", o, 0.043, False) for o in OVERLAPS), _gain("live", 0, 0.004, True)],
        "loss_by_position": {name: {"plain": positions, "recurrent": positions} for name in ("shipped", "live")},
        "curves": {"plain": curve, "recurrent": curve},
        "provenance": {"machine": {"cpu": "Example CPU", "gpu": None}},
    }


@pytest.fixture
def evaluation() -> dict[str, Any]:
    """Of `recurrify evaluate`."""
    rows = [_row("base", "", 0, 30.0), _row("base", "", 8, 28.5), _row("recurrent", "", 0, 27.0)]
    gain = _gain("", 0, 0.1, False) | {"model": "recurrent", "against": "base"}
    by_position = [2.0 + 4 / (1 + place) for place in range(WINDOW)]
    return {
        "kind": "evaluation",
        "rows": rows,
        "gains": [gain],
        "speed": {"base": {"tokens_per_second": 1200.0}},
        "documents": {name: [{"loss_by_position": by_position}] for name in ("base", "recurrent")},
        "notes": ["These models were not trained on the same data."],
        "provenance": {"config": {"models": ["base", "recurrent"]}},
    }


@pytest.fixture
def inspection() -> dict[str, Any]:
    """Of `recurrify inspect`."""
    return {
        "kind": "inspection",
        "model": "some/model",
        "plain": None,
        "mechanism": "tail",
        "recurrence": {"window": 5, "overlap": 0, "bptt_windows": None},
        "memory": {"extra_share": 0.064},
        "document": "a <text>",
        "tokens": {
            "text": PIECES,
            "plain": [None, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 9.0],
            "recurrent": [None, 1.95, 1.9, 1.0, 5.5, 2.35, 2.0, 0.0, 3.0, 4.0],
        },
        "windows": [
            {"first": 1, "stop": 6, "plain": 2.0, "recurrent": 2.54},
            {"first": 6, "stop": 10, "plain": 3.75, "recurrent": 2.25},
        ],
        "slot_attention": {
            "layers": [2, 3],
            "slots": [1, 3],
            "windows": 1,
            "mass": [[0.5, 0.25, 0.2, 0.1, math.nan], [0.7, 0.45, 0.4, 0.3, math.nan]],
            "by_token": [None, *[[math.nan, math.nan]] * 5, *[[0.5, 0.7]] * 4],
            "places": [None, *[[math.nan] * 3] * 5, *[[0.1, 0.2, 0.3]] * 4],
        },
        "gradients": {"windows": [2], "norms": [[4.0, 0.5, 1e-6, 0.0]], "mean": [4.0, 0.5, 1e-6, 0.0]},
        "states": {"norm": [3.0, 5.0], "change": [None, 4.0]},
        "provenance": {"config": {"model": "some/model"}},
    }
