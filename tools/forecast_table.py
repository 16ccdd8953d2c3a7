"""`recurrify forecast train --data FILE` with defaults against seasonal naive, AutoETS and NLinear on several files.

    python tools/forecast_table.py papers/results/forecast_auto.json ETTh1.csv ETTh2.csv ETTm1.csv WTH.csv ...

AutoETS is fitted to each window, so it is scored on `ETS_WINDOWS` windows spread evenly over the test part, and only
for files with few columns; `auto` is scored on the same windows for comparison.
"""

import argparse
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from recurrify.results import load_result, provenance, save_result
from recurrify_papers.forecast.candidates import AUTO_NETWORKS, AUTO_WINDOWS, resolved, statistical_model
from recurrify_papers.forecast.forecaster import fit_series, rolling_test
from recurrify_papers.forecast.reading import read_series
from recurrify_papers.forecast.scoring import backtest, scores
from recurrify_papers.forecast.settings import ForecastSettings

ETS_WINDOWS, ETS_COLUMNS = 20, 4
KEPT = ("mse", "mae", "mase", "smape", "windows")


def measure(path: Path, max_minutes: float | None) -> dict[str, Any]:
    """Scores of one file; `seconds` is what the command takes, before AutoETS is scored."""
    started, cpu = time.time(), time.process_time()
    series = read_series(path)
    settings = ForecastSettings(out="", max_minutes=max_minutes)
    fitted = fit_series(settings, series, print)
    tested = rolling_test(fitted.trained, series, settings)
    season, data = fitted.trained.season, tested.data
    own = scores(tested.found, data, season, tested.half_widths)
    limits = dict.fromkeys(AUTO_NETWORKS, AUTO_WINDOWS)
    tests = {one.name: backtest(one.model, data, "test", limits.get(one.name)) for one in fitted.candidates}
    found = {name: scores(one, data, season) for name, one in tests.items()}
    rows = {name: {key: one[key] for key in KEPT} for name, one in found.items()}
    result: dict[str, Any] = {
        "data": series.name,
        "rows": len(series.dates),
        "columns": len(series.columns),
        "horizon": data.horizon,
        "chosen": fitted.trained.name,
        "auto": {key: own[key] for key in (*KEPT, "crps")},
        "candidates": rows,
        "coverage": {str(one["level"]): one["held"] for one in own["coverage"]},
        "seconds": round(time.time() - started, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
    }
    if data.channels <= ETS_COLUMNS:
        known = replace(resolved(settings, series), model="ets")
        few = backtest(statistical_model(known, fitted.data), data, "test", ETS_WINDOWS)
        shared = np.isin(tested.found.first_rows, few.first_rows)
        same = replace(tested.found, first_rows=few.first_rows, forecast=tested.found.forecast[shared],
                       truth=tested.found.truth[shared])  # fmt: skip
        for name, one in (("ets", few), ("auto_same_windows", same)):
            result[name] = {key: scores(one, data, season)[key] for key in KEPT}
    return result | {"checksum": series.checksum}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--max-minutes", type=float, help="budget of auto; default: that of the command")
    asked = parser.parse_args()
    rows = load_result(asked.out)["rows"] if asked.out.is_file() else []
    for path in asked.data:
        row = measure(path, asked.max_minutes)
        print(row["data"], row["chosen"], row["auto"], row["coverage"], row["seconds"], row["cpu_seconds"], flush=True)
        rows = [one for one in rows if one["data"] != row["data"]] + [row]
        save_result(asked.out, {"rows": rows, "provenance": provenance({"max_minutes": asked.max_minutes})})


if __name__ == "__main__":
    main()
