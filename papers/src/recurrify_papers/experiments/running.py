"""`recurrify experiment run`: everything that is missing, in an order that makes sense, and the result files."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from recurrify.data.documents import load_documents
from recurrify.errors import UserError
from recurrify.mechanisms.carry import CarryConfig
from recurrify.results import load_result, provenance, save_result
from recurrify_papers.experiments import published
from recurrify_papers.experiments.catalogue import EXPERIMENTS, KINDS, Experiment, Stage, experiment_named
from recurrify_papers.experiments.lab import CHOICE, VARIANTS, Lab, chosen_rates
from recurrify_papers.experiments.pool import Outcome
from recurrify_papers.experiments.unit import Unit
from recurrify_papers.experiments.variants import candidate_units

STOPPED = "stopped before the end: the same command goes on from here"


def run_experiments(names: Sequence[str], lab: Lab) -> list[Path]:
    """Run what is not finished and write one result file for each experiment, its missing rows named.

    After Ctrl-C nothing more is begun: the rows that exist are written and the `KeyboardInterrupt` goes on up.
    """
    chosen = [experiment_named(name) for name in names]
    started = time.time()
    for source in filter(None, (lab.books, lab.wiki)):
        load_documents(source, "valid", limit=1)  # a wrong name is told now, not after an hour
    written: list[Path] = []
    try:
        finished = _prepare(chosen, lab, started) and _run(chosen, lab, started, written)
    except KeyboardInterrupt:
        for failure in lab.failures:
            lab.say(failure)
        lab.say(STOPPED)
        raise
    if not finished:
        lab.say(STOPPED)
    _check(Outcome(True, lab.failures))
    return written


def _prepare(chosen: Sequence[Experiment], lab: Lab, started: float) -> bool:
    """The base, the learning rates and the best mechanism, as far as they are needed; False when time ran out."""
    if any(experiment.after >= Stage.BASE for experiment in chosen) and not lab.make_base():
        return False
    if any(experiment.after >= Stage.RATES for experiment in chosen):
        # Finished runs are only looked at; what was chosen is worked out anew, in case the candidates have changed.
        units = EXPERIMENTS[CHOICE].units(lab)
        lab.say(f"learning rates first, on {lab.source('wiki')}: {len(units)} short runs")
        choice = lab.finish(units)
        if not all(unit.is_finished() for unit in units):
            _check(choice)  # others may fail without stopping what does not need them
            return False
        _write(EXPERIMENTS[CHOICE], lab, started)
        lab.rates = {}  # as they stand in the file now
        lab.say("learning rates: " + ", ".join(f"{kind} {lab.learning_rate(kind):g}" for kind in KINDS))
    if lab.size.best_from and any(experiment.after >= Stage.BEST for experiment in chosen):
        lab.say(f"then the best mechanism, on {lab.source('books')}: {', '.join(lab.size.best_from)}")
        every = EXPERIMENTS[VARIANTS] in chosen
        choice = lab.finish(EXPERIMENTS[VARIANTS].units(lab) if every else candidate_units(lab))
        if not all(unit.is_finished() for unit in candidate_units(lab)):
            _check(choice)  # others may fail without stopping what does not need them
            return False
        _write(EXPERIMENTS[VARIANTS], lab, started)
    return True


def _run(chosen: Sequence[Experiment], lab: Lab, started: float, written: list[Path]) -> bool:
    """Every run, then every result file, whose path is added to `written`; False when time ran out before the end."""
    try:
        units_done = lab.finish([unit for experiment in chosen for unit in experiment.units(lab)]).finished
    except KeyboardInterrupt:
        for experiment in chosen:
            _write_what_exists(experiment, lab, started)
        raise
    finished = units_done
    for experiment in chosen:
        measured = lab.folder / f"{experiment.name}.json"
        if experiment.alone and _is_measured(experiment, lab, measured):
            lab.say(f"{experiment.name} was measured already: delete {measured} to measure again")
            written.append(measured)
        elif experiment.alone and not units_done:
            continue
        elif _is_measured_at_once(experiment) and _time_is_up(lab):
            lab.say(f"{experiment.name} was not begun: the time is up")
            finished = False
        else:
            lab.say(f"{experiment.name}: {experiment.title}")
            lab.stopped = False
            try:
                written += _write(experiment, lab, started)
            except KeyboardInterrupt:
                _write_what_exists(experiment, lab, started)
                raise
            finished = finished and not lab.stopped  # rows may have needed runs of their own
    return finished


def _time_is_up(lab: Lab) -> bool:
    return lab.deadline is not None and time.monotonic() >= lab.deadline


def _check(outcome: Outcome) -> None:
    if outcome.failures:
        raise UserError(
            f"{len(outcome.failures)} runs failed: {'; '.join(outcome.failures)}. The same command tries them again."
        )


def _is_measured_at_once(experiment: Experiment) -> bool:
    return experiment.alone and not experiment.keeps_runs


def _is_measured(experiment: Experiment, lab: Lab, path: Path) -> bool:
    units = experiment.units(lab)
    if units or not _is_measured_at_once(experiment):
        return bool(units) and all(unit.run_file.is_file() and unit.is_newer(path) for unit in units)
    return path.is_file() and not load_result(path)["missing"]


def _write_what_exists(experiment: Experiment, lab: Lab, started: float) -> None:
    """The result file as after a deadline that has just passed: no run is begun for it, and nothing measured."""
    if _is_measured_at_once(experiment):
        return
    try:
        _write(experiment, replace(lab, deadline=time.monotonic()), started)
    except UserError as error:  # such as learning rates that are not known yet
        lab.say(str(error))


def _write(experiment: Experiment, lab: Lab, started: float) -> list[Path]:
    """The result file, if there is anything to put into it."""
    rows, missing = experiment.rows(lab)
    path = lab.folder / f"{experiment.name}.json"
    if not rows:
        lab.say(f"nothing of {experiment.name} has been run yet: {len(missing)} rows are missing")
        return []
    if experiment.name == CHOICE and missing:
        raise UserError(f"Learning rates cannot be chosen yet: {len(missing)} runs are missing; run it again.")
    # XLNet, where it stands beside the others, is told apart from them in its own row.
    units = [unit for unit in experiment.units(lab) if not unit.is_xlnet] if experiment.one_recipe else []
    config = {
        "experiment": experiment.name,
        "size": lab.size.name,
        "books": lab.source("books"),
        "wiki": lab.source("wiki"),
        **({} if lab.size.beyond.only is None else {"only": list(lab.size.beyond.only)}),
        "training": usual_unit(lab, units).settings.to_dict() if units else None,
    }
    result: dict[str, Any] = {
        "kind": "experiment",
        "name": experiment.name,
        "size": lab.size.name,
        "title": experiment.title,
        "source": experiment.source,
        "differences": list(experiment.differences(lab)),
        "hyperparameters": hyperparameters(lab, experiment, units, rows) if units else [],
        "layout": experiment.layout,
        "rows": rows,
        "missing": missing,
        "trained": origins(lab.folder, rows),
        "provenance": provenance(config, data_checksum=_checksum(units), started=started),
    }
    save_result(path, result)
    lab.say(f"saved {path}" + (f" ({len(missing)} rows are missing)" if missing else ""))
    return [path]


def origins(folder: Path, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """By which code and on what runs were trained: not always those that put their rows together."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for name in dict.fromkeys(name for row in rows for name in row.get("runs") or []):
        record = folder / "runs" / f"{name}.json"
        if record.is_file():
            made = load_result(record)["provenance"]
            git, machine = made["git"], made["machine"]
            origin = (git["commit"], git["dirty"], machine["gpu"] or machine["cpu"], made["libraries"]["torch"])
            found.setdefault(origin, []).append(name)
    return [
        {"commit": commit, "dirty": dirty, "device": device, "torch": torch, "runs": names}
        for (commit, dirty, device, torch), names in found.items()
    ]


def _checksum(units: Sequence[Unit]) -> str | None:
    """Of the text that the runs were trained on."""
    for unit in units:
        if unit.run_file.is_file():
            checksum: str | None = load_result(unit.run_file)["provenance"]["data_checksum"]
            return checksum
    return None


def usual_unit(lab: Lab, units: Sequence[Unit]) -> Unit:
    """One of an experiment's own runs, with the usual window."""
    usual = [unit for unit in units if unit.settings.recurrence["window"] == lab.size.window]
    return (usual or units)[-1]


def hyperparameters(
    lab: Lab, experiment: Experiment, units: Sequence[Unit], rows: Sequence[dict[str, Any]]
) -> list[dict[str, str]]:
    """Published beside ours."""
    unit = usual_unit(lab, units)
    used = unit.settings
    seeds = len({unit.settings.seed for unit in units})
    times = lab.size.added_rate
    often = used.max_tokens is None or used.valid_every < used.max_tokens
    validated = f"every {used.valid_every:,} tokens" if often else "at the end"
    rates = lab.rates or chosen_rates([row for row in rows if "chosen" in row])
    told = ", ".join(f"{kind} {rate:g}" for kind, rate in rates.items())
    pretrained = "GPT-2 architecture: {layers} layers, {width} wide, pretrained here"
    ours = {
        "base model": lab.size.base or pretrained.format(**lab.size.pretraining),
        "data": used.data,
        "window": str(lab.size.window),
        "windows in a training sequence": str(used.windows),
        "length": unit.length,
        "optimiser": f"AdamW, weight decay {used.weight_decay:g}",
        "learning rate": f"{told}; candidates {', '.join(f'{rate:g}' for rate in lab.size.candidates)}",
        "learning rate of what was added": "the same" if times == 1 else f"{times:g} × the base's",
        "schedule": f"linear warm-up over {used.warmup_steps} steps, then {used.schedule.removesuffix('_with_warmup')}",
        "validation": f"{validated}, first {used.valid_tokens:,} tokens of each document, best weights kept",
        "network": f"{CarryConfig.hidden_layers} hidden layers of {CarryConfig.hidden_size}",
        "insertion layer": str(CarryConfig.insert_layer),
        "seeds": f"{seeds} without overlap, 1 elsewhere" if seeds > 1 else "1",
    }
    known = published.hyperparameters(experiment.source)
    lines = [{"name": name, "published": value, "ours": ours[name]} for name, value in known.items()]
    if lab.size.best_from and (lab.folder / f"{VARIANTS}.json").is_file():
        best = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in lab.recurrence("best").items())
        told = f"{best}; the best on the validation set of {', '.join(lab.size.best_from)}"
        lines.append({"name": "best found here", "published": "not published", "ours": told})
    return lines
