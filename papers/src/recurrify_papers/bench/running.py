"""A benchmark from its parts to its files: each part is saved as soon as it is done, and a finished one is skipped."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from recurrify.data.texts import pick_device
from recurrify.errors import UserError
from recurrify.results import load_result, machine, provenance, save_result
from recurrify.speed.backends import leave_out_cudnn
from recurrify_papers.bench.bench import WAYS, Bar, Bench, Say
from recurrify_papers.bench.ceilings import measure_ceilings
from recurrify_papers.bench.evaluation import covers_kinds, measure_evaluation
from recurrify_papers.bench.generation import measure_generation
from recurrify_papers.bench.lengths import measure_lengths
from recurrify_papers.bench.models import KINDS, USUAL_KINDS
from recurrify_papers.bench.naive import covers_ways, measure_naive
from recurrify_papers.bench.peers import covers_installed, measure_peers
from recurrify_papers.bench.profiling import covers_profile, measure_profile
from recurrify_papers.bench.sizes import size_for
from recurrify_papers.bench.timing import NO_TIME
from recurrify_papers.bench.training import BUDGETED, covers_groups, measure_training

KIND = "bench"
MOST_SIDE_BY_SIDE = 4
"""Processes; each of them loads torch in every turn."""


class Part(NamedTuple):
    purpose: str
    measure: Callable[..., dict[str, Any]]
    needs_ceiling: bool = True
    goes_on: bool = True
    """Whether it takes what an unfinished run has left."""
    covers: Callable[[dict[str, Any], Bench], bool] = lambda earlier, bench: bool(earlier.get("finished"))
    """Whether all that is asked for is there already."""
    stands: bool = False
    """Whether a finished result stays in its file until one with more in it is finished, too."""


PARTS = {
    "ceilings": Part("the device's matrix products and bandwidth", measure_ceilings, False, goes_on=False),
    "training": Part(
        "training steps beside transformers' own GPT-2",
        measure_training,
        covers=covers_groups,
    ),
    "profile": Part(
        "where a training step's time goes",
        measure_profile,
        needs_ceiling=False,
        covers=lambda earlier, bench: covers_profile(earlier, bench),
        stands=True,
    ),
    "lengths": Part("memory and speed of a step against a sequence's length", measure_lengths),
    "generation": Part("time per token, from the beginning to far past the context", measure_generation, False),
    "evaluation": Part(
        "scoring documents side by side",
        measure_evaluation,
        covers=lambda earlier, bench: covers_kinds(earlier, bench.kinds),
        stands=True,
    ),
    "naive": Part(
        "training beside a naive loop over windows",
        measure_naive,
        covers=covers_ways,
        stands=True,
    ),
    "peers": Part(
        "training beside the field's own packages",
        measure_peers,
        needs_ceiling=False,
        covers=lambda earlier, bench: covers_installed(earlier),
        stands=True,
    ),
}


class Asked(NamedTuple):
    """What a user asked for."""

    parts: Sequence[str]
    size: str = "auto"
    device: str = "auto"
    batches: tuple[int, ...] | None = None
    """None: the size's own."""
    ways: tuple[str, ...] | None = None
    """None: all on a GPU, and uncompiled on a CPU, where compiling takes longer than everything else."""
    kinds: tuple[str, ...] = USUAL_KINDS
    """Of ours; plain windows are measured in any case."""
    budgets: tuple[float, ...] = ()
    again: bool = False
    only_checks: bool = False
    max_minutes: float | None = None


class Outcome(NamedTuple):
    unfinished: list[str]
    """Parts for which there was no time."""
    wrong: list[str]
    """Checks that failed."""


def run_bench(asked: Asked, out: Path, say: Say, bar: Bar) -> Outcome:
    """Measure the parts that are not there yet; refuses a folder that holds another size's, device's or number of
    threads'."""
    check_asked(asked)
    device = pick_device(asked.device)
    size = size_for(asked.size, device)
    deadline = None if asked.max_minutes is None else time.monotonic() + 60 * asked.max_minutes
    bench = Bench(
        size,
        device,
        say,
        bar,
        deadline,
        batches=asked.batches or size.batches,
        ways=_ways_on(device, asked.ways, asked.budgets),
        kinds=tuple(kind for kind in KINDS if kind in ("plain", *asked.kinds)),
        budgets=tuple(dict.fromkeys(asked.budgets)),
        side_by_side=_side_by_side_on(device),
        only_checks=asked.only_checks,
    )
    wanted = [name for name in PARTS if name in asked.parts] or list(PARTS)
    if any(PARTS[name].needs_ceiling for name in wanted) and "ceilings" not in wanted:
        wanted.insert(0, "ceilings")
    config = {
        "size": size.name,
        "device": device.type,
        "device_name": _name_of(device),
        "threads": torch.get_num_threads(),
        "batches": bench.batches,
        "ways": bench.ways,
        "kinds": bench.kinds,
        "budgets": bench.budgets,
    }
    anew = [name for name in wanted if asked.again and name in (asked.parts or wanted)]
    for name in wanted:
        if name not in anew:
            _check_folder(out / f"{name}.json", name, config)
    torch.set_float32_matmul_precision("high")
    leave_out_cudnn()  # as in training
    outcome = Outcome([], [])
    for name in wanted:
        result = _run_part(name, bench, config, out, name in anew)
        if result is None or not PARTS[name].covers(result, bench):
            outcome.unfinished.append(name)
        if result is not None:
            outcome.wrong.extend(f"{name}: {check['name']}" for check in result["checks"] if not check["passed"])
            if name == "ceilings":
                bench.ceiling = result["flops_per_second"]
    return outcome


def check_asked(asked: Asked) -> None:
    for name in asked.parts:
        if name not in PARTS:
            raise UserError(f"There is no part {name!r}: there are {', '.join(PARTS)}.")
    for way in asked.ways or ():
        if way not in WAYS:
            raise UserError(f"There is no way {way!r} of training: there are {', '.join(WAYS)}.")
    for kind in asked.kinds:
        if kind not in KINDS:
            raise UserError(f"There is no kind {kind!r} of model to measure: there are {', '.join(KINDS)}.")
    for budget in asked.budgets:
        if not 0 <= budget < 1:
            raise UserError(f"A memory budget is a share of at least 0 and below 1, such as 0.5: got {budget:g}.")
    if asked.budgets and (BUDGETED not in asked.kinds or (asked.parts and "training" not in asked.parts)):
        raise UserError(
            f"A memory budget, here {asked.budgets[0]:g}, is for training steps of {BUDGETED}: add {BUDGETED} to "
            "--kinds and training to the parts, or leave out --budgets."
        )
    if asked.again and asked.only_checks:
        raise UserError("`--again` drops what was timed, and `--only-checks` times nothing: leave one of them out.")
    for batch in asked.batches or ():
        if batch < 1:
            raise UserError(f"A batch has at least 1 sequence: got {batch}.")


def _ways_on(device: torch.device, asked: tuple[str, ...] | None, budgets: tuple[float, ...]) -> tuple[str, ...]:
    ways = asked or (WAYS if device.type == "cuda" else ("eager",))
    if ways == ("graphs",) and device.type != "cuda":
        raise UserError(
            f"Graphs are for CUDA GPUs, and this is a {device.type.upper()}: add eager or compiled to --ways."
        )
    if budgets and set(ways) == {"eager"}:
        raise UserError(
            f"A memory budget, here {budgets[0]:g}, is for compiled training steps: add compiled to --ways."
        )
    return ways


def _side_by_side_on(device: torch.device) -> int:
    """As many processes of one thread as those who run alone have threads, if there is a core for each."""
    if device.type != "cpu":
        return 1
    return min(machine()["cores"] or 1, torch.get_num_threads(), MOST_SIDE_BY_SIDE)


def _name_of(device: torch.device) -> str:
    """As a data sheet names it; of a CPU, how many cores there are matters as much."""
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    here = machine()
    return f"{here['cpu']}, {here['cores']} cores"


def _check_folder(path: Path, name: str, config: dict[str, Any]) -> None:
    if not path.exists():
        return
    before = load_result(path)
    held = (before.get("provenance") or {}).get("config") or {}
    told = {"size": "size {}", "device": "device {}", "device_name": "device {}", "threads": "{} threads"}
    for key, what in told.items():
        # Before threads were noted, nobody can say how many there were.
        if held.get(key, config[key] if key == "threads" else None) != config[key]:
            raise UserError(
                f"{path} was measured with {what.format(held.get(key))}, not {config[key]}: choose another --out, "
                f"or measure it anew with `recurrify bench {name} --again`."
            )


def _run_part(name: str, bench: Bench, config: dict[str, Any], out: Path, again: bool) -> dict[str, Any] | None:
    """The part's result, measured or found; None where there was no time to begin."""
    path = out / f"{name}.json"
    earlier = load_result(path) if path.exists() and not again else None
    if earlier is not None and PARTS[name].covers(earlier, bench):
        bench.say(f"{name}: done before, skipped ({path}; --again measures it anew)")
        return earlier
    if bench.out_of_time():
        bench.say(f"{name}: no time left")
        return earlier
    bench.say(f"{name}: {PARTS[name].purpose}")
    started, part = time.time(), PARTS[name]
    standing = earlier if part.stands and earlier is not None and earlier.get("finished") else None
    left = earlier if standing is None else (standing.get("begun") or [standing])[0]
    runs = _runs_of(left) if part.goes_on else []

    def whole(found: dict[str, Any]) -> dict[str, Any]:
        result = {
            "kind": KIND,
            "part": name,
            "finished": _is_finished(found),
            **found,
            "provenance": provenance(config, seed=0, started=started),
            "earlier_runs": runs,
        }
        return result if standing is None or result["finished"] else {**standing, "begun": [result]}

    bench.keep = lambda found: save_result(path, whole(found))
    result = whole(part.measure(bench, left) if part.goes_on else part.measure(bench))
    save_result(path, result)
    if earlier is not None and bench.out_of_time() and _done(result) <= _done(earlier):
        bench.say(f"{name}: no further than before: --max-minutes may be too short for a check or a round of turns")
    return load_result(path)


def _runs_of(found: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The provenance of all runs that a result goes on from: of its numbers, some are theirs."""
    if found is None:
        return []
    return [*(found.get("earlier_runs") or []), *([found["provenance"]] if found.get("provenance") else [])]


def _done(found: dict[str, Any]) -> int:
    """How much has been measured, in checks and repeats."""
    groups = [*found.get("groups", [found]), *found.get("begun", [])]
    rows = [row for group in groups for row in group.get("rows", [])]
    repeats = sum(len(row["seconds"]) for row in rows if isinstance(row.get("seconds"), list))
    return (
        repeats
        + sum(row.get("peak_bytes") is not None for row in rows)
        + sum(len(group.get("checks", [])) for group in groups)
    )


def _is_finished(found: dict[str, Any]) -> bool:
    rows = [row for group in found.get("groups", [found]) for row in group.get("rows", [])]
    return not found.get("missing") and all(row.get("trouble") != NO_TIME for row in rows)
