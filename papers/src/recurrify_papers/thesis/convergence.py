"""How many training tokens models take to the same validation losses."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recurrify import UserError
from recurrify.results import load_result, provenance
from recurrify_papers.plan import LABELS
from recurrify_papers.runner import RESULT_FILE, Say

LEVELS = (0.25, 0.5, 0.75, 1.0)
"""Shares of the way from the first validation to the lowest loss of the run that ends higher."""
Curve = list[tuple[float, float]]


def validation_curve(run: Mapping[str, Any]) -> Curve:
    """Training tokens and loss of each validation of a training result."""
    per_step = run["tokens"] / run["steps"]
    return [
        (entry.get("num_input_tokens_seen", entry["step"] * per_step), entry["eval_loss"])
        for entry in run["history"]
        if entry.get("eval_loss")
    ]


def convergence(plain: Curve, recurrent: Curve) -> list[tuple[float, float | None, float | None]]:
    """Losses, and the training tokens after which each run first reaches them; None: never.

    Between two validations the loss is interpolated. A loss above that of the first validation counts as reached there.
    """
    if not plain or not recurrent:
        raise UserError("A run has no validation: train with a smaller `valid_every`.")
    end = max(min(loss for _, loss in curve) for curve in (plain, recurrent))
    start = min(plain[0][1], recurrent[0][1])
    levels = [start + share * (end - start) for share in LEVELS] if start > end else [end]
    return [(level, tokens_to(plain, level), tokens_to(recurrent, level)) for level in levels]


def convergence_run(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """The tokens to each loss and the validation curves of two runs, by model and label."""
    results = {model: load_result(Path(run) / RESULT_FILE) for model, run in settings["runs"].items()}
    curves = {model: validation_curve(result) for model, result in results.items()}
    numbers = [
        {"label": f"loss {level:.4f}", "model": model, "metric": "training tokens", "at": level, "value": value}
        for level, *tokens in convergence(*curves.values())
        for model, value in zip(curves, tokens, strict=True)
    ]
    drawn = [curve_of(LABELS[model], curve) for model, curve in curves.items()]
    return {"kind": "convergence", "numbers": numbers, "curves": drawn, "provenance": provenance(settings)}


def curve_of(name: str, curve: Curve) -> dict[str, Any]:
    """A validation curve as it is drawn."""
    x, y = [tokens for tokens, _ in curve], [loss for _, loss in curve]
    return {"name": name, "x_label": "training tokens", "y_label": "validation loss", "x": x, "y": y}


def tokens_to(curve: Curve, level: float) -> float | None:
    """Training tokens after which a loss is first reached."""
    before: tuple[float, float] | None = None
    for tokens, loss in sorted(curve):
        if loss <= level:
            if before is None:
                return tokens
            return before[0] + (tokens - before[0]) * (before[1] - level) / (before[1] - loss)
        before = (tokens, loss)
    return None
