"""Memory and speed of a training step over one sequence, against its length: with a memory, and all in one context."""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from recurrify.bench.bench import Bench
from recurrify.bench.memory import free_memory
from recurrify.bench.models import base_model, random_tokens
from recurrify.bench.stepping import Ours, Stepper, warm
from recurrify.bench.timing import NO_TIME, Entrant, Row
from recurrify.evaluate import full_flops_per_token

IN_ONE = "transformers, all in one context"
ENTRANTS = 3
"""The memory with and without checkpointing, and all in one context."""


class InOneContext(Stepper):
    """transformers' own model with as many positions as the sequence has tokens."""

    def __init__(self, bench: Bench, length: int) -> None:
        model = base_model(bench.size, bench.device, positions=length)
        super().__init__(IN_ONE, model, bench.device, full_flops_per_token(model, length, 0))

    def loss(self, ids: Tensor, inside_windows: bool = False) -> Tensor:
        loss: Tensor = self.model(ids, labels=ids, use_cache=False).loss
        return loss


def measure_lengths(bench: Bench, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """Each length is one group of interleaved turns; groups of an `earlier` run are not repeated."""
    ours = Ours(bench.size, "carry", bench.device)
    rows: list[Row] = []
    lengths = [windows * bench.size.window for windows in bench.size.lengths]
    result: dict[str, Any] = {"rows": rows, "checks": []}
    with bench.bar("lengths", bench.turns_of(ENTRANTS * len(lengths))) as advance:
        for number, length in enumerate(lengths, 1):
            before = [row for row in (earlier or {}).get("rows") or [] if row["tokens"] == length]
            if len(before) == ENTRANTS and all(row["trouble"] != NO_TIME for row in before):
                rows += before
                advance(bench.turns_of(ENTRANTS))
                continue
            rows += _one_length(bench, ours, length, advance)
            result["missing"] = lengths[number:]
            bench.keep(result)
            free_memory(bench.device, thoroughly=bench.device.type == "cuda")
    return {**result, "missing": []}


def _one_length(bench: Bench, ours: Ours, length: int, advance: Callable[[int], None]) -> list[Row]:
    quick = bench.device.type == "cuda"
    ways = {
        "carry, checkpointed": ("graphs" if quick else "eager", True),
        "carry": ("graphs" if quick else "eager", False),
    }
    ids = random_tokens(bench.size, 1, length, bench.device)
    theirs = InOneContext(bench, length)
    entrants = [_entrant(ours, ids, name, *how) for name, how in ways.items()]
    entrants.append(Entrant(IN_ONE, lambda: theirs.step(ids, 1), own_bytes=theirs.own_bytes))
    rows: list[Row] = []
    for entrant, timed in zip(entrants, bench.turns(advance).take(entrants), strict=True):
        rate = timed.rate(length)
        by = theirs if entrant.name == IN_ONE else ours
        flops = None if rate is None else rate * by.flops_per_token
        row = {"name": entrant.name, "way": ways.get(entrant.name, ("eager", False))[0], "tokens": length}
        row |= {"tokens_per_second": rate, "flops_per_second": flops, "share_of_ceiling": bench.share(flops)}
        rows.append({**row, **vars(timed)})
    return rows


def _entrant(stepper: Ours, ids: Tensor, name: str, way: str, checkpoint: bool) -> Entrant:
    def wake() -> None:
        stepper.prepare(way, checkpoint, 1)
        if way == "graphs":
            warm(stepper, ids)

    return Entrant(
        name, lambda: stepper.step(ids, 1), wake, stepper.rest, stepper.own_bytes, holds_graphs=way == "graphs"
    )
