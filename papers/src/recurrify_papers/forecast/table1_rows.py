"""From results of single runs to Table 1: means over seeds, standard errors, and a summary."""

import math
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from recurrify.errors import UserError
from recurrify.results import load_result
from recurrify_papers.forecast.published import SETTINGS, Setting
from recurrify_papers.forecast.settings import MODELS, UNTRAINED, ForecastSettings
from recurrify_papers.forecast.table1_training import training_facts

PAIR = ("informer", "rsa-informer")
RECURRENCE = {"recurrence_learning_rate": None, "gate_start": None, "recurrence_rows": "all"}
"""Settings of the recurrence alone, and what models without one have there."""
USUAL = {entry.name: entry.default for entry in fields(ForecastSettings) if entry.default is not MISSING}
OWN = {"out", "data", "model", "learning_rate", "seed", "device", "season", *RECURRENCE}
OWN |= {"past", "label", "horizon", "encoder_layers", "decoder_layers", "factor", "counts"}
"""Settings in which the runs of one table differ, as published or by what they are."""


def table_of(settings: Sequence[Setting], results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The rows, their summary, the checksum of each file they come from, and how the runs learned."""
    table = rows(settings, results)
    checksums = {one["setting"].rpartition("-")[0]: one["provenance"]["data_checksum"] for one in results}
    return {"table1": table, "data_checksums": checksums} | summary(table) | training_facts(results)


def assembled(root: str | Path, settings: Sequence[Setting] = SETTINGS) -> dict[str, Any] | None:
    """The table of all runs that lie in `units` of a root, whichever calls made them; None where there are none.

    `missing` counts, in the settings that were begun, the seeds that other models or settings have.
    """
    paths = sorted((Path(root) / "units").glob("*.json"))
    results = [load_result(path) for path in paths]
    if not results:
        return None
    check_alike(paths, results)
    results.sort(key=lambda one: (MODELS.index(one["model"]), one["seed"]))
    chosen = _at_best_rates(results)
    begun = {one["setting"] for one in results}
    models = dict.fromkeys(one["model"] for one in results)
    seeds = max((one["seed"] + 1 for one in results if one["model"] not in UNTRAINED), default=1)
    wanted = len(begun) * sum(1 if model in UNTRAINED else seeds for model in models)
    table = table_of([setting for setting in settings if setting.name in begun], chosen)
    table["missing"] = wanted - len(chosen)
    for row in table["table1"]:
        for model, ours in row["ours"].items():
            tried = [
                one["learning_rate"] for one in results if (one["setting"], one["model"]) == (row["setting"], model)
            ]
            ours["rates_tried"] = sorted(set(tried))
    return table


def check_alike(paths: Sequence[Path], results: Sequence[dict[str, Any]]) -> None:
    """A table mixes neither recipes nor files of the same name."""
    recipes: dict[str, Any] = {}
    checksums: dict[str, str] = {}
    recurrences: dict[str, dict[str, Any]] = {}
    for path, result in zip(paths, results, strict=True):
        origin, config = result["provenance"], config_of(result)
        recipe = {name: value for name, value in config.items() if name not in OWN}
        recipes = recipes or recipe
        pairs = {name: (recipe.get(name), recipes.get(name)) for name in {**recipe, **recipes}}
        if result["model"].startswith("rsa-"):
            mine = {name: config[name] for name in RECURRENCE}
            theirs = recurrences.setdefault(result["model"], mine)
            pairs |= {name: (value, theirs[name]) for name, value in mine.items()}
        checksum = origin["data_checksum"]
        pairs["data_checksum"] = checksum, checksums.setdefault(config["data"], checksum)
        different = {name: pair for name, pair in sorted(pairs.items()) if pair[0] != pair[1]}
        if different:
            is_there = path.is_file()
            told = ", ".join(f"{name} {own}, theirs {other}" for name, (own, other) in different.items())
            raise UserError(
                f"{path} {'was run' if is_there else 'would be run'} with another {' and '.join(different)} than runs "
                f"beside it ({told}): a table mixes none, so "
                f"{'move one kind to' if is_there else 'repeat their settings, or choose'} another --root."
            )


def config_of(result: dict[str, Any]) -> dict[str, Any]:
    """A run's settings. An option that it did not know yet has its usual value, which is as if it had not been."""
    return USUAL | result["provenance"]["config"]


def _at_best_rates(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each setting and model, the runs at the learning rate that was best on validation with the first seed."""
    chosen = []
    for setting, model in dict.fromkeys((one["setting"], one["model"]) for one in results):
        runs = [one for one in results if (one["setting"], one["model"]) == (setting, model)]
        first = [one for one in runs if one["seed"] == 0 and one["valid_mse"] is not None]
        rate = min(first, key=lambda one: one["valid_mse"])["learning_rate"] if first else runs[0]["learning_rate"]
        chosen += [one for one in runs if one["learning_rate"] == rate]
    return chosen


def rows(settings: Sequence[Setting], results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each setting: what authors and students report, and the mean and standard error of ours over seeds."""
    found = []
    for setting in settings:
        ours = {}
        for model in dict.fromkeys(one["model"] for one in results):
            runs = [one for one in results if (one["setting"], one["model"]) == (setting.name, model)]
            if runs:
                ours[model] = {"learning_rate": runs[0]["learning_rate"], "seeds": len(runs)} | {
                    name: _mean_and_error([one["test"][name] for one in runs]) for name in ("mse", "mae")
                }
        authors, students = (
            {model: None if errors is None else errors._asdict() for model, errors in zip(PAIR, group, strict=True)}
            for group in (setting.authors, setting.students)
        )
        found.append({"setting": setting.name, "authors": authors, "students": students, "ours": ours})
    return found


def _mean_and_error(values: list[float]) -> dict[str, Any]:
    error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
    return {"mean": fmean(values), "standard_error": error, "values": values}


def summary(table: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Mean MSE of both models, and in how many settings RSA-Informer is better, where both have as many seeds; beyond
    one standard error only where both have one."""
    pairs = [
        tuple(row["ours"][model]["mse"] for model in PAIR)
        for row in table
        if all(model in row["ours"] for model in PAIR) and len({row["ours"][model]["seeds"] for model in PAIR}) == 1
    ]
    if not pairs:
        return {}
    # By how much RSA-Informer is better, and the standard error of that.
    judged = [
        (plain["mean"] - rsa["mean"], math.hypot(plain["standard_error"], rsa["standard_error"]))
        for plain, rsa in pairs
        if None not in (plain["standard_error"], rsa["standard_error"])
    ]
    return {
        "settings": len(pairs),
        "settings_with_error": len(judged),
        "mean_mse": {model: fmean(pair[index]["mean"] for pair in pairs) for index, model in enumerate(PAIR)},
        "rsa_better": sum(plain["mean"] > rsa["mean"] for plain, rsa in pairs),
        "rsa_better_beyond_error": sum(gain > error for gain, error in judged),
        "rsa_worse_beyond_error": sum(-gain > error for gain, error in judged),
    }
