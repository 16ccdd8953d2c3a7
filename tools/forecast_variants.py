"""Variants of RSA-Informer on ETTh1 that Table 1 leaves out, chosen on validation, many runs at a time.

    python tools/forecast_variants.py --data DIR --out variants.json --jobs 14 --device cuda

First every variant is trained once at each learning rate. Then, per setting, the variant and rate with the lowest
validation MSE are trained with two more seeds. Test errors take no part in the choice. The file is written after each
run; the same command resumes from it.
"""

import argparse
import json
import time
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd

from recurrify.results import load_result, provenance, save_result
from recurrify_papers.forecast.table1 import RECIPE, SETTINGS, Mean, Recipe, Row, runs, train_one

PUBLISHED = {"epochs": 8, "patience": 3, "halve_every": 1, "schedule": "published", "epoch_windows": None}
CLOSED, SELECTED = {"gate_start": -2.0}, {"recurrence_rows": "selected"}
VARIANTS: dict[str, dict[str, Any]] = {
    "gates_closed": CLOSED,
    "selected_rows": SELECTED,
    "selected_rows_gates_closed": SELECTED | CLOSED,
    "mix": {"mix": True},
    "dropout_0": {"dropout": 0.0},
    "dropout_0.1": {"dropout": 0.1},
    "dropout_0.2": {"dropout": 0.2},
    "published_schedule": PUBLISHED,
    "published_schedule_mix": PUBLISHED | {"mix": True},
}
"""By name, what differs from the recipe of the table; validation always has the table's windows."""
GOALS = {"ETTh1-24": 0.414, "ETTh1-48": 0.467, "ETTh1-168": 0.753, "ETTh1-336": 0.895}
MORE_SEEDS = (1, 2)


def key(row: Row) -> tuple[Any, ...]:
    return row["variant"], row["setting"], row["learning_rate"], row["seed"]


def first_runs(asked: argparse.Namespace) -> list[Row]:
    """Every variant, setting and rate with seed 0, the rate in the middle first."""
    settings = [one for one in SETTINGS if one.name in asked.settings]
    found = []
    for variant in asked.variants:
        changed = {"precision": asked.precision} | VARIANTS[variant] | json.loads(asked.changed)
        recipe = Recipe(models=("rsa-informer",), rates=asked.rates, changed=changed, device=asked.device)
        for run in runs(asked.data, settings, recipe, range(1)):
            setting = run.name.split("-rsa-informer")[0]
            row = {"variant": variant, "setting": setting, "config": dict(run.settings)}
            found.append(row | {name: run.settings[name] for name in ("learning_rate", "seed")})
    return sorted(found, key=lambda row: asked.rates.index(row["learning_rate"]))


def train(planned: Row) -> Row:
    """In a process of its own: one run, and where it was made."""
    import torch

    torch.set_num_threads(1)
    with TemporaryDirectory() as folder:
        found = train_one(planned["config"], Path(folder) / "run", lambda _: None)
    assert found is not None
    return found["row"] | {name: planned[name] for name in ("variant", "setting")}


def best_rows(rows: Iterable[Row]) -> dict[str, Row]:
    """Per setting, the run of the first seed with the lowest validation MSE."""
    first = sorted((row for row in rows if row["seed"] == 0), key=lambda row: row["valid_mse"], reverse=True)
    return {row["setting"]: row for row in first}


def run_missing(planned: list[Row], rows: list[Row], pool: ProcessPoolExecutor, save: Any) -> None:
    known = set(map(key, rows))
    waiting = {pool.submit(train, one): one for one in planned if key(one) not in known}
    for done, future in enumerate(as_completed(waiting), start=1):
        one = waiting[future]
        if future.exception() is not None:
            print(f"{key(one)} failed: {future.exception()}", flush=True)
            continue
        rows.append(future.result())
        save(rows)
        row = rows[-1]
        found = f"validation {row['valid_mse']:.4f}, test {row['mse']:.4f}, {row['seconds']:.0f} s"
        print(f"{done} of {len(waiting)}: {key(row)}: {found}", flush=True)


def summary(rows: list[Row]) -> list[str]:
    """Per setting, the chosen variant, its test MSE over seeds and the authors' number."""
    lines = []
    for setting, best in sorted(best_rows(rows).items()):
        own = [row for row in rows if key(row)[:3] == key(best)[:3]]
        errors = pd.Series([row["mse"] for row in own])
        found = Mean(errors.mean(), errors.sem())
        lines.append(
            f"{setting}: {best['variant']} at {best['learning_rate']:g}, validation {best['valid_mse']:.4f}, test MSE "
            f"{found} over {len(own)} seeds, authors {GOALS[setting]}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", type=Path, required=True, help="folder with ETTh1.csv")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=14)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--variants", type=lambda text: text.split(","), default=list(VARIANTS))
    parser.add_argument("--settings", type=lambda text: text.split(","), default=list(GOALS))
    parser.add_argument(
        "--rates", type=lambda text: [float(one) for one in text.split(",")], default=[1e-4, 3e-5, 3e-4]
    )
    parser.add_argument("--changed", default="{}", help="further settings of every run, as JSON")
    asked, started = parser.parse_args(), time.time()
    config = {name: value for name, value in vars(asked).items() if name not in ("data", "out")}
    config |= {"recipe": RECIPE, "variants": {name: VARIANTS[name] for name in asked.variants}}

    def save(rows: list[Row]) -> None:
        save_result(asked.out, {"rows": rows, "provenance": provenance(config, started=started)})

    rows = load_result(asked.out)["rows"] if asked.out.is_file() else []
    first = first_runs(asked)
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn")) as pool:
        run = partial(run_missing, rows=rows, pool=pool, save=save)
        run(first)
        chosen = set(map(key, best_rows(rows).values()))
        planned = [one for one in first if key(one) in chosen]
        run([one | {"seed": seed, "config": one["config"] | {"seed": seed}} for one in planned for seed in MORE_SEEDS])
    print("\n".join(summary(rows)))


if __name__ == "__main__":
    main()
