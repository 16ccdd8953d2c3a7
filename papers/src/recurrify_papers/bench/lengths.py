"""Memory and speed of a training step over one sequence, against its length: with a memory, and all in one context."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from recurrify_papers.bench.bench import Bench
from recurrify_papers.bench.checks import check_each, compare, observe, told_apart, tolerance_on
from recurrify_papers.bench.memory import free_memory
from recurrify_papers.bench.models import random_tokens
from recurrify_papers.bench.stepping import Ours, Stepper, Theirs, warm
from recurrify_papers.bench.timing import DOES_NOT_FIT, NO_TIME, Entrant, NotMeasuredError, Row, Timed, tried

IN_ONE = "transformers, all in one context"
OURS = {"carry, checkpointed": True, "carry": False}
"""Whether it is checkpointed."""
ENTRANTS = len(OURS) + 1


def ways_on(device: torch.device) -> tuple[str, str]:
    """Of ours and of theirs: the fastest that each has."""
    return ("graphs", "compiled") if device.type == "cuda" else ("eager", "eager")


def measure_lengths(bench: Bench, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """Each length is one group of interleaved turns; whole rounds of an `earlier` run are not repeated."""
    lengths = [windows * bench.size.window for windows in bench.size.lengths]
    ours = Ours(bench.size, "carry", bench.device)
    earlier = earlier or {}
    by: dict[int, list[Row]] = {
        length: [row for row in earlier.get("rows") or [] if row["tokens"] == length] for length in lengths
    }
    checks, troubles = _checked(bench, ours, min(lengths), earlier)

    def result() -> dict[str, Any]:
        missing = [length for length in lengths if not _is_whole(by[length], bench.size.rounds)]
        return {"rows": [row for length in lengths for row in by[length]], "checks": checks, "missing": missing}

    with bench.bar("lengths", bench.turns_of(ENTRANTS * len(lengths))) as advance:
        for length in lengths:
            if _is_whole(by[length], bench.size.rounds):
                advance(bench.turns_of(ENTRANTS))
                continue
            if bench.out_of_time():
                break

            def keep(rows: list[Row], length: int = length) -> None:
                by[length] = rows
                bench.keep(result())

            keep(_one_length(bench, ours, length, troubles, by[length], advance, keep))
            free_memory(bench.device, thoroughly=bench.device.type == "cuda")
    return result()


def _is_whole(rows: Sequence[Row], rounds: int) -> bool:
    done = [row["trouble"] not in (None, NO_TIME) or len(row["seconds"]) >= rounds for row in rows]
    return len(rows) == ENTRANTS and all(done)


def _checked(bench: Bench, ours: Ours, length: int, earlier: dict[str, Any]) -> tuple[list[Row], dict[str, str | None]]:
    """At this length, each way of ours beside the plainest; why one is not to be timed, if there is a reason."""
    way = ways_on(bench.device)[0]
    names = {name: f"{name}, {way}" for name, checkpoint in OURS.items() if (way, checkpoint) != ("eager", False)}
    ids = told_apart(random_tokens(bench.size, 1, length, bench.device), bench.size.window)

    def check(name: str) -> Row:
        ours.prepare("eager", False, 1)
        expected = observe(ours, ids)
        ours.prepare(way, OURS[name], 1)
        return compare(names[name], expected, observe(ours, ids), tolerance_on(bench.device))

    return check_each(bench, ours, names, check, earlier)


def _one_length(
    bench: Bench,
    ours: Ours,
    length: int,
    troubles: dict[str, str | None],
    before: Iterable[Row],
    advance: Callable[[int], None],
    keep: Callable[[list[Row]], None],
) -> list[Row]:
    ids = random_tokens(bench.size, 1, length, bench.device)
    theirs = Theirs(bench.size, bench.device, length)
    ways = dict.fromkeys(OURS, ways_on(bench.device)[0]) | {IN_ONE: _their_way(bench, theirs, ids)}
    entrants = [_entrant(ours, ids, name, ways[name], flag, troubles.get(name)) for name, flag in OURS.items()]
    entrants.append(_entrant(theirs, ids, IN_ONE, ways[IN_ONE], False, None))

    def rows(found: list[Timed]) -> list[Row]:
        return [
            _row(bench, one.name, ways[one.name], length, timed, theirs if one.name == IN_ONE else ours)
            for one, timed in zip(entrants, found, strict=True)
        ]

    known = {(row["name"], row["way"]): row for row in before}
    left = [known.get((one.name, ways[one.name])) for one in entrants]
    return rows(bench.turns(advance).take(entrants, left, lambda some: keep(rows(some))))


def _row(bench: Bench, name: str, way: str, length: int, timed: Timed, stepper: Stepper) -> Row:
    rate = timed.rate(length)
    flops = None if rate is None else rate * stepper.flops_per_token
    row = {"name": name, "way": way, "tokens": length, "tokens_per_second": rate}
    return {**row, "flops_per_second": flops, "share_of_ceiling": bench.share(flops), **vars(timed)}


def _their_way(bench: Bench, theirs: Theirs, ids: Tensor) -> str:
    """Eager where it cannot be compiled."""
    way = ways_on(bench.device)[1]
    if way == "eager":
        return way
    theirs.prepare(way, False, 1)
    trouble = tried(lambda: theirs.backward(ids), bench.device)
    theirs.optimizer.zero_grad(set_to_none=True)
    if trouble in (None, DOES_NOT_FIT):
        return way
    bench.say(f"{IN_ONE}, {ids.numel():,} tokens: {trouble}, and therefore run as it is")
    return "eager"


def _entrant(stepper: Stepper, ids: Tensor, name: str, way: str, checkpoint: bool, trouble: str | None) -> Entrant:
    def wake() -> None:
        if trouble is not None:
            raise NotMeasuredError(trouble)
        stepper.prepare(way, checkpoint, 1)
        if way == "graphs":
            warm(stepper, ids)

    return Entrant(
        name, lambda: stepper.step(ids, 1), wake, stepper.rest, stepper.own_bytes, holds_graphs=way == "graphs"
    )
