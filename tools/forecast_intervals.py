"""How the step of interval tracking was chosen: coverage and interval score within validation parts; no test part.

    python tools/forecast_intervals.py papers/results/forecast_intervals.json ETTh1.csv ETTh2.csv WTH.csv ...

An NLinear of one penalty forecasts the validation part. Intervals begin with the errors of its first half and are
scored on the second half. `split` is split conformal prediction without tracking.
"""

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from recurrify.results import provenance, save_result
from recurrify_papers.forecast import ForecastSettings, candidates, read_series, scoring
from recurrify_papers.forecast.forecaster import windows_of
from recurrify_papers.forecast.scoring import LEVELS, Backtest, backtest, tracked_intervals

STEPS = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
WINDOWS = 3000


def halves(found: Backtest) -> list[Backtest]:
    parts = [np.array_split(getattr(found, name), 2) for name in ("first_rows", "forecast", "truth", "spread")]
    return [Backtest(*columns) for columns in zip(*parts, strict=True)]


def interval_score(errors: np.ndarray, half_VNPC: np.ndarray) -> float:
    """Mean over levels of half the width plus the penalty of misses: lower is better."""
    losses = []
    for level, half in zip(LEVELS, half_VNPC, strict=True):
        miss_rate = 1 - level / 100
        losses.append(np.mean(miss_rate * half + np.maximum(errors - half, 0)))
    return float(np.mean(losses))


def measure(path: Path) -> list[dict[str, Any]]:
    series = read_series(path)
    settings = candidates.resolved(ForecastSettings(data=str(path), model="nlinear"), series)
    data = windows_of(settings, series)
    earlier, later = halves(backtest(candidates.fit_ridge(settings, data), data, "valid", WINDOWS))
    rows = []
    for step in STEPS:
        scoring.TRACKING = step
        half, _ = tracked_intervals(earlier, later)
        held = {str(level): float((later.errors <= one).mean()) for level, one in zip(LEVELS, half, strict=True)}
        row = {"data": series.name, "step": step, "windows": len(later.truth), "held": held}
        rows.append(row | {"score": interval_score(later.errors / later.spread, half / later.spread)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("data", type=Path, nargs="+")
    asked, started = parser.parse_args(), time.time()
    candidates.PENALTIES, candidates.SEASONS = (1e-2,), (1, 7)
    rows = [row for path in asked.data for row in measure(path)]
    for step in STEPS:
        own = [row for row in rows if row["step"] == step]
        best = {row["data"]: row["score"] for row in rows if row["step"] == 0}
        apart = np.mean([abs(row["held"]["90"] - 0.9) for row in own])
        relative = np.mean([row["score"] / best[row["data"]] for row in own])
        name = f"step {step}" if step else "split"
        print(f"{name}: 90 % coverage apart {apart:.2%}, score relative to split {relative:.3f}")
    config = {"steps": STEPS, "windows": WINDOWS, "data": [path.name for path in asked.data]}
    save_result(asked.out, {"rows": rows, "provenance": provenance(config, started=started)})


if __name__ == "__main__":
    main()
