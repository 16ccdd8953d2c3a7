"""`recurrify experiment run`: everything that is missing, in an order that makes sense, and the result files."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recurrify.errors import UserError
from recurrify.experiments import published
from recurrify.experiments.catalogue import EXPERIMENTS, Experiment, experiment_named
from recurrify.experiments.lab import CHOICE, Lab
from recurrify.experiments.pool import Outcome
from recurrify.results import provenance, save_result

OUT_OF_TIME = "time ran out: the same command goes on from here"


def run_experiments(names: Sequence[str], lab: Lab) -> list[Path]:
    """Run what is not finished and write one result file for each experiment, its missing rows named."""
    chosen = [experiment_named(name) for name in names]
    started = time.time()
    if not lab.make_base():
        lab.say(OUT_OF_TIME)
        return []
    if any(experiment.needs_rates for experiment in chosen) and not _rates_are_chosen(lab):
        lab.say("choosing learning rates")
        _check(lab.finish(EXPERIMENTS[CHOICE].units(lab)))
        if lab.out_of_time():
            lab.say(OUT_OF_TIME)
            return []
        _write(EXPERIMENTS[CHOICE], lab, started)
    outcome = lab.finish([unit for experiment in chosen for unit in experiment.units(lab)])
    written = []
    for experiment in chosen:
        if not (experiment.alone and lab.out_of_time()):
            lab.say(f"{experiment.name}: {experiment.title}")
            written += _write(experiment, lab, started)
    if not outcome.finished:
        lab.say(OUT_OF_TIME)
    _check(outcome)
    return written


def _check(outcome: Outcome) -> None:
    if outcome.failures:
        raise UserError(
            f"{len(outcome.failures)} runs failed: {'; '.join(outcome.failures)}. The same command tries them again."
        )


def _rates_are_chosen(lab: Lab) -> bool:
    return (lab.folder / f"{CHOICE}.json").is_file()


def _write(experiment: Experiment, lab: Lab, started: float) -> list[Path]:
    """The result file, if there is anything to put into it."""
    rows, missing = experiment.rows(lab)
    path = lab.folder / f"{experiment.name}.json"
    if not rows:
        lab.say(f"nothing of {experiment.name} has been run yet: {len(missing)} rows are missing")
        return []
    if experiment.name == CHOICE and missing:
        raise UserError(f"Learning rates cannot be chosen yet: {len(missing)} runs are missing; run it again.")
    config = {"experiment": experiment.name, "size": lab.size.name, "training": lab.size.training}
    result: dict[str, Any] = {
        "kind": "experiment",
        "name": experiment.name,
        "size": lab.size.name,
        "title": experiment.title,
        "source": experiment.source,
        "differences": list(lab.size.differences),
        "hyperparameters": hyperparameters(lab),
        "layout": experiment.layout,
        "rows": rows,
        "missing": missing,
        "provenance": provenance(config, started=started),
    }
    save_result(path, result)
    lab.say(f"saved {path}" + (f" ({len(missing)} rows are missing)" if missing else ""))
    return [path]


def hyperparameters(lab: Lab) -> list[dict[str, str]]:
    """Published beside ours; ours are read off the settings that are really used."""
    training = lab.size.training
    rates = ", ".join(f"{kind} {rate:g}" for kind, rate in lab.rates.items()) or "not chosen yet"
    tokens = training.get("max_tokens")
    ours = {
        "base model": lab.size.base
        or "GPT-2 architecture: {layers} layers, {width} wide, pretrained here".format(**lab.size.pretraining),
        "window": str(lab.size.window),
        "windows in a training sequence": str(training.get("windows", 20)),
        "epochs": f"{tokens:,} tokens" if tokens else f"{training.get('epochs', 2):g}",
        "optimiser": "AdamW without weight decay",
        "learning rate": f"{rates}; candidates {', '.join(f'{rate:g}' for rate in lab.size.candidates)}",
        "learning rate of what was added": f"{lab.size.added_rate:g} × the base's",
        "schedule": f"linear warm-up over {training.get('warmup_steps', 100)} steps, then "
        + training.get("schedule", "constant_with_warmup").removesuffix("_with_warmup"),
        "validation": f"every {training.get('valid_every', 2_000_000):,} tokens, first {lab.size.valid_tokens:,} "
        "tokens of each document, best weights kept",
        "network": "3 hidden layers of 200",
        "insertion layer": "2",
        "seeds": f"{len(lab.size.seeds)} without overlap, 1 elsewhere",
    }
    return [
        {"name": name, "published": value, "ours": ours.get(name, "the same")}
        for name, value in published.HYPERPARAMETERS.items()
    ]
