"""How many training tokens models take to the same validation losses."""

from collections.abc import Mapping
from typing import Any

from recurrify import UserError

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
