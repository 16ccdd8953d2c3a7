"""A benchmark from its parts to its files: each part is saved as soon as it is done, and a finished one is skipped."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from recurrify.bench.bench import WAYS, Bar, Bench, Say
from recurrify.bench.ceilings import measure_ceilings
from recurrify.bench.evaluation import measure_evaluation
from recurrify.bench.generation import measure_generation
from recurrify.bench.lengths import measure_lengths
from recurrify.bench.naive import measure_naive
from recurrify.bench.peers import measure_peers
from recurrify.bench.sizes import size_for
from recurrify.bench.timing import NO_TIME
from recurrify.bench.training import is_whole, measure_training
from recurrify.errors import UserError
from recurrify.jobs import pick_device
from recurrify.results import load_result, provenance, save_result

KIND = "bench"


class Part(NamedTuple):
    purpose: str
    measure: Callable[..., dict[str, Any]]
    needs_ceiling: bool = True
    goes_on: bool = False
    """Whether it takes what an unfinished run has left."""


PARTS = {
    "ceilings": Part("the device's matrix products and bandwidth", measure_ceilings, needs_ceiling=False),
    "training": Part("training steps beside transformers' own GPT-2", measure_training, goes_on=True),
    "lengths": Part("memory and speed of a step against a sequence's length", measure_lengths),
    "generation": Part("time per token, from the beginning to far past the context", measure_generation, False),
    "evaluation": Part("scoring documents side by side", measure_evaluation),
    "naive": Part("training beside a naive loop over windows", measure_naive),
    "peers": Part("training beside the field's own packages", measure_peers, needs_ceiling=False),
}


class Asked(NamedTuple):
    """What a user asked for."""

    parts: Sequence[str]
    size: str = "auto"
    device: str = "auto"
    batches: tuple[int, ...] | None = None
    """None: the size's own."""
    ways: tuple[str, ...] = WAYS
    again: bool = False
    max_minutes: float | None = None


class Outcome(NamedTuple):
    unfinished: list[str]
    """Parts for which there was no time."""
    wrong: list[str]
    """Checks that failed."""


def run_bench(asked: Asked, out: Path, say: Say, bar: Bar) -> Outcome:
    """Measure the parts that are not there yet; refuses a folder that holds another size's or device's."""
    check_asked(asked)
    device = pick_device(asked.device)
    size = size_for(asked.size, device)
    deadline = None if asked.max_minutes is None else time.monotonic() + 60 * asked.max_minutes
    bench = Bench(size, device, say, bar, deadline, batches=asked.batches or size.batches, ways=asked.ways)
    wanted = [name for name in PARTS if name in asked.parts] or list(PARTS)
    if any(PARTS[name].needs_ceiling for name in wanted) and "ceilings" not in wanted:
        wanted.insert(0, "ceilings")
    config = {"size": size.name, "device": device.type, "batches": bench.batches, "ways": bench.ways}
    for name in wanted:
        _check_folder(out / f"{name}.json", config, asked.again)
    torch.set_float32_matmul_precision("high")
    outcome = Outcome([], [])
    for name in wanted:
        result = _run_part(name, bench, config, out, asked.again and name in (asked.parts or wanted))
        if result is None or not result["finished"]:
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
    for way in asked.ways:
        if way not in WAYS:
            raise UserError(f"There is no way {way!r} of training: there are {', '.join(WAYS)}.")
    for batch in asked.batches or ():
        if batch < 1:
            raise UserError(f"A batch has at least 1 sequence: got {batch}.")


def _check_folder(path: Path, config: dict[str, Any], again: bool) -> None:
    if again or not path.exists():
        return
    before = load_result(path)
    held = (before.get("provenance") or {}).get("config") or {}
    for what in ("size", "device"):
        if held.get(what) != config[what]:
            raise UserError(
                f"{path} was measured with {what} {held.get(what)}, not {config[what]}: choose another --out, "
                "or measure it anew with --again."
            )


def _run_part(name: str, bench: Bench, config: dict[str, Any], out: Path, again: bool) -> dict[str, Any] | None:
    """The part's result, measured or found; None where there was no time to begin."""
    path = out / f"{name}.json"
    earlier = load_result(path) if path.exists() and not again else None
    if earlier is not None and _covers(earlier, name, config):
        bench.say(f"{name}: done before, skipped ({path}; --again measures it anew)")
        return earlier
    if bench.out_of_time():
        bench.say(f"{name}: no time left")
        return earlier
    bench.say(f"{name}: {PARTS[name].purpose}")
    started, part = time.time(), PARTS[name]

    def whole(found: dict[str, Any]) -> dict[str, Any]:
        return {
            "kind": KIND,
            "part": name,
            "finished": _is_finished(found),
            **found,
            "provenance": provenance(config, seed=0, started=started),
        }

    bench.keep = lambda found: save_result(path, whole(found))
    result = whole(part.measure(bench, earlier) if part.goes_on else part.measure(bench))
    save_result(path, result)
    return load_result(path)


def _covers(earlier: dict[str, Any], name: str, config: dict[str, Any]) -> bool:
    if not earlier.get("finished"):
        return False
    if not PARTS[name].goes_on:
        return True
    return set(config["batches"]) <= {one["batch"] for one in earlier["groups"] if is_whole(one, config["ways"])}


def _is_finished(found: dict[str, Any]) -> bool:
    rows = [row for group in found.get("groups", [found]) for row in group.get("rows", [])]
    return not found.get("missing") and all(row.get("trouble") != NO_TIME for row in rows)
