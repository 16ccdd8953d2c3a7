"""`recurrify forecast train --data FILE` with no other option, compared with seasonal naive, NLinear and AutoETS.

    python tools/forecast_table.py papers/results/forecast_auto.json ETTh1.csv ETTh2.csv ETTm1.csv WTH.csv ...

Runs the command once per file and reads what it wrote. Files that the result already holds are skipped. AutoETS is
fitted to each window, so it is scored on `ETS_WINDOWS` windows spread evenly over the test part, and only for files
with few columns; the chosen model is scored on the same windows for comparison.
"""

import argparse
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from recurrify.results import load_result, provenance, save_result
from recurrify_papers.forecast import ForecastSettings, load_trained, read_series
from recurrify_papers.forecast.candidates import resolved, statistical_model
from recurrify_papers.forecast.forecaster import rolling_test
from recurrify_papers.forecast.scoring import backtest, scores

ETS_WINDOWS, ETS_COLUMNS = 20, 12
KEPT = ("mse", "mae", "mase", "smape", "windows")


def measure(path: Path, run: Path, max_minutes: float | None = None) -> dict[str, Any]:
    """Scores of one file, and the time of the command; with `max_minutes`, its budget, and without AutoETS."""
    started, before = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "recurrify", "forecast", "train", "--data", str(path), "--out", str(run)]
    subprocess.run(command + ([] if max_minutes is None else ["--max-minutes", str(max_minutes)]), check=True)
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.time() - started
    found, trained = load_result(run / "evaluation.json"), load_result(run / "result.json")
    own, *others = found["scores"]
    series = read_series(path)
    return {
        "data": series.name,
        "rows": len(series.dates),
        "columns": len(series.columns),
        "horizon": found["horizon"],
        "chosen": found["model"],
        "auto": {key: own[key] for key in (*KEPT, "crps")},
        "candidates": {row["model"]: {key: row[key] for key in (*KEPT, "shared")} for row in others},
        "valid": {one.pop("model"): one for one in trained["candidates"]},
        "coverage": {str(one["level"]): one["held"] for one in own["coverage"]},
        "seconds": round(seconds, 1),
        "cpu_seconds": round(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1),
        "max_minutes": max_minutes,
        "checksum": series.checksum,
    } | (compared_with_ets(path, run) if max_minutes is None and len(series.columns) <= ETS_COLUMNS else {})


def compared_with_ets(path: Path, run: Path) -> dict[str, Any]:
    """AutoETS and the chosen model on the same windows."""
    series, settings, trained = read_series(path), ForecastSettings(data=str(path)), load_trained(run)
    tested = rolling_test(trained, series, settings)
    model = statistical_model(replace(resolved(settings, series), model="ets"), tested.data)
    few = backtest(model, tested.data, "test", ETS_WINDOWS)
    shared = np.isin(tested.found.first_rows, few.first_rows)
    same = replace(few, forecast=tested.found.forecast[shared], truth=tested.found.truth[shared])
    rows = {"ets": few, "auto_same_windows": same}
    scored = {name: scores(one, tested.data, trained.season) for name, one in rows.items()}
    return {name: {key: one[key] for key in KEPT} for name, one in scored.items()}


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of docs/reproductions/forecasting.md."""
    header = ["data", "rows × columns", "horizon", "chosen", "auto", "relative to seasonal naive"]
    header += ["above the best other candidate", "seasonal naive", "NLinear", "AutoETS (auto on the same windows)"]
    lines = [[*header, "90 % intervals hold", "seconds"], ["---"] * (len(header) + 2)]
    for row in rows:
        found = row["candidates"]
        nlinear = found.get("nlinear", row["auto"])
        naive, size = found["seasonal"], f"{row['rows']:,} × {row['columns']}"
        relative = " / ".join(f"{row['auto'][name] / naive[name]:.3f}" for name in ("mse", "mae"))
        best = " / ".join(_above_best(found, name) for name in ("mse", "mae"))
        ets = f"{_errors(row['ets'])} ({_errors(row['auto_same_windows'])})" if "ets" in row else "–"
        parts = [_errors(row["auto"]), relative, best, _errors(naive), _errors(nlinear), ets]
        ends = [f"{row['coverage']['90']:.1%}", f"{row['seconds']:.0f}"]
        lines.append([row["data"], size, str(row["horizon"]), row["chosen"], *parts, *ends])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _above_best(found: dict[str, dict[str, Any]], name: str) -> str:
    """How much higher an error is than that of the best other candidate, which is named, on the windows of both."""
    above = {model: row["shared"]["chosen"][name] / row["shared"]["other"][name] - 1 for model, row in found.items()}
    best = max(above, key=lambda model: above[model])
    return f"{above[best]:+.1%}".replace("-", "−") + f" ({best})"


def _errors(row: dict[str, Any]) -> str:
    return f"{row['mse']:.3g} / {row['mae']:.3g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("data", type=Path, nargs="+")
    parser.add_argument("--max-minutes", type=float, help="a smaller budget, which leaves networks and AutoETS out")
    asked = parser.parse_args()
    rows = load_result(asked.out)["rows"] if asked.out.is_file() else []
    for path in asked.data:
        if path.name.split(".")[0] in [row["data"] for row in rows]:
            continue
        with TemporaryDirectory() as folder:
            row = measure(path, Path(folder) / "run", asked.max_minutes)
        print(row["data"], row["chosen"], row["auto"], row["coverage"], row["seconds"], row["cpu_seconds"], flush=True)
        rows.append(row)
        save_result(asked.out, {"rows": rows, "provenance": provenance({"data": [row["data"] for row in rows]})})
    print(markdown(rows))


if __name__ == "__main__":
    main()
