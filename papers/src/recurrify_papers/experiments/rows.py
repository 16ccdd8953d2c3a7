"""Evaluations of several seeds to one row of a table, ours beside the published."""

import statistics
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from recurrify.evaluate.bootstrap import interval, relative_gain
from recurrify.evaluate.evaluation import METRICS, Evaluation
from recurrify.results import load_result
from recurrify_papers.experiments import published
from recurrify_papers.experiments.sizes import LABELS
from recurrify_papers.experiments.unit import Unit, Wanted

SPLITS = ("valid", "test")
Table = dict[str, dict[int, published.Perplexities]]


def perplexity_row(
    kind: str,
    units: Sequence[Unit],
    plain: Sequence[Unit],
    overlap: int,
    table: Table | None = None,
    splits: Sequence[str] = SPLITS,
    label: str | None = None,
) -> dict[str, Any] | None:
    """One row, or None when nothing of it has been run. `units` are its seeds, `plain` the baseline's.

    `memory` is what the model's takes, as counted where it was trained; None for XLNet, whose own is of another kind.
    Seeds count as long as they were scored on every split; the gain takes the seeds that both sides have.
    """
    done = [unit for unit in units if all(unit.evaluation(split, overlap) for split in splits)]
    if not done:
        return None
    window = done[0].settings.recurrence["window"]
    first = load_result(done[0].score_file(Wanted(splits[0], overlap, None)))
    return {
        "row": f"{label or kind}/w{window}/o{overlap}",
        "kind": kind,
        "label": label or LABELS[kind],
        "window": window,
        "overlap": overlap,
        **published.row(table, kind, overlap),
        "seeds": [unit.settings.seed for unit in done],
        "scores": {split: _score(done, split, overlap) for split in splits},
        "flops_per_token": first["flops_per_token"],
        "full_flops_per_token": first["full_flops_per_token"],
        "memory": load_result(done[0].run_file).get("memory"),
        "gain": None if kind == "plain" else {split: _gain(plain, done, split, overlap) for split in splits},
        "runs": [unit.name for unit in done],
    }


def best_on_validation(units: Sequence[Unit]) -> Unit | None:
    """The candidate with the lowest loss; None until every one has been run."""
    found = [(unit.evaluation("valid", 0), unit) for unit in units]
    losses = [(evaluation.total_nll, unit) for evaluation, unit in found if evaluation is not None]
    return min(losses, key=lambda pair: pair[0])[1] if losses and len(losses) == len(found) else None


def _score(units: Sequence[Unit], split: str, overlap: int) -> dict[str, Any]:
    found = _evaluations(units, split, overlap)
    words = [evaluation.perplexity_per_word for evaluation in found]
    return {
        **{metric: statistics.mean(evaluation.metric(metric) for evaluation in found) for metric in METRICS},
        "spread": statistics.stdev(words) if len(words) > 1 else None,
        "per_seed": words,
        "interval": interval(found),
        "loss_by_position": _mean([evaluation.loss_by_position for evaluation in found]),
        "loss_by_window": _mean([evaluation.loss_by_window for evaluation in found]),
        "documents": len(found[0].tokens),
        "tokens": int(found[0].tokens.sum()),
        "files": [str(unit.score_file(Wanted(split, overlap, None)).relative_to(unit.folder)) for unit in units],
    }


def _gain(plain: Sequence[Unit], units: Sequence[Unit], split: str, overlap: int) -> dict[str, Any] | None:
    """Seed by seed: the same seed gave both sides the same batches in the same order."""
    by_seed = {unit.settings.seed: unit for unit in plain if unit.evaluation(split, overlap)}
    both = [unit for unit in units if unit.settings.seed in by_seed]
    if not both:
        return None
    partners = [by_seed[unit.settings.seed] for unit in both]
    gain = relative_gain(
        _evaluations(partners, split, overlap), _evaluations(both, split, overlap), paired_seeds=True, samples=2000
    )
    return {**asdict(gain), "seeds": len(both)}


def _evaluations(units: Sequence[Unit], split: str, overlap: int) -> list[Evaluation]:
    found = (unit.evaluation(split, overlap) for unit in units)
    return [evaluation for evaluation in found if evaluation is not None]


def _mean(rows: Sequence[Sequence[float | None]]) -> list[float | None]:
    """Column by column; documents may have different numbers of windows, never seeds."""
    values = np.array([[np.nan if value is None else value for value in row] for row in rows])
    return [None if np.isnan(value) else float(value) for value in values.mean(0)]
