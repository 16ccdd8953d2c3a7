"""Training the paper's mechanism: this library against the loop that one would write down first."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everyone's name for it
from torch import Tensor, nn

from recurrify.evaluate.flops import full_flops_per_token
from recurrify_papers.bench.bench import WAYS, Bench
from recurrify_papers.bench.checks import WINDOWS, Seen, check_each, compare, observe, told_apart, tolerance_on
from recurrify_papers.bench.models import base_model, random_tokens, recurrent_model
from recurrify_papers.bench.sizes import Size
from recurrify_papers.bench.stepping import Ours, Stepper, warm
from recurrify_papers.bench.timing import Entrant, NotMeasuredError, Row, Timed, ratio, still_missing
from recurrify_papers.bench.workers import Workers

BATCH = 4
"""The demo's."""
NAIVE, OURS = "naive loop", "ours"


class NaiveLoop(Stepper):
    """Window after window through the layers; all hidden states kept and pooled at the end; all logits at once.

    The optimiser is as fast as ours: it is no part of what is compared.
    """

    def __init__(self, size: Size, device: torch.device) -> None:
        # The same weights as ours, without what we attach to a base's layers.
        twin = recurrent_model(base_model(size, device), size, "carry")
        assert twin.mechanism is not None
        model = nn.ModuleDict({"base": base_model(size, device), "mechanism": twin.mechanism})
        super().__init__(NAIVE, model, device, full_flops_per_token(twin))
        self.window = size.window
        self.base: Any = model["base"]
        self.mechanism: Any = twin.mechanism

    def prepare(self, way: str, checkpoint: bool, rows: int, memory_budget: float = 1.0) -> None:
        assert way == "eager"
        assert not checkpoint

    def loss(self, ids: Tensor, inside_windows: bool = False) -> Tensor:
        body, receiver = self.base.transformer, self.mechanism.config.insert_layer - 1
        carried: Tensor | None = None
        logits = []
        for piece in ids.split(self.window, dim=1):
            hidden = body.wte(piece) + body.wpe(torch.arange(piece.shape[1], device=ids.device))
            outputs = []
            for number, block in enumerate(body.h):
                slots = 0
                if number == receiver and carried is not None:
                    hidden, slots = torch.cat([carried, hidden], dim=1), carried.shape[1]
                found = block(hidden)
                hidden = (found[0] if isinstance(found, tuple) else found)[:, slots:]
                outputs.append(hidden)
            logits.append(self.base.lm_head(body.ln_f(hidden)))
            weights = self.mechanism.layer_scores.softmax(0)[:, None, None, None]
            pooled = (weights * torch.stack(outputs)).sum(0).mean(1)
            carried = self.mechanism.network(pooled)[:, None]
        return F.cross_entropy(torch.cat(logits, dim=1).flatten(0, 1).float(), ids.roll(-1, 1).flatten())


def covers_ways(earlier: dict[str, Any], bench: Bench) -> bool:
    """Whether all is there that is asked for; compiled steps were not taken side by side at first."""
    if not earlier.get("finished") or not set(bench.ways) <= set(earlier.get("ways") or ()):
        return False
    there = {row["name"] for row in earlier.get("rows") or ()}
    taken = [way for way in bench.ways if f"{OURS}, {way}" in there]  # not every device has every way
    return bench.side_by_side == 1 or {_many(f"{OURS}, {way}", bench.side_by_side) for way in taken} <= there


def measure_naive(bench: Bench, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """The demo's shape of batch, in turns; whole rounds of an `earlier` run are not repeated, unless its ways are
    measured again, beside those that it lacks."""
    size, earlier = bench.size, earlier or {}
    ways = [way for way in WAYS if way in (*bench.ways, *(earlier.get("ways") or ()))]
    ids = random_tokens(size, BATCH, size.windows * size.window, bench.device)
    ours, naive = Ours(size, "carry", bench.device), NaiveLoop(size, bench.device)
    here = [way for way in ours.ways if way in ways]
    checks, troubles = _checked(bench, ours, naive, ids, here, earlier)
    entrants = {NAIVE: Entrant(NAIVE, lambda: naive.step(ids, BATCH), own_bytes=naive.own_bytes)}
    entrants |= {f"{OURS}, {way}": _entrant(ours, ids, way, troubles.get(way)) for way in here}
    side_by_side = bench.side_by_side
    theirs, mine = _many(NAIVE, side_by_side), [_many(f"{OURS}, {way}", side_by_side) for way in here]
    if side_by_side > 1:
        entrants[theirs] = _in_processes(NAIVE, "eager", size, side_by_side)
        entrants |= {
            name: _in_processes(OURS, way, size, side_by_side, troubles.get(way))
            for name, way in zip(mine, here, strict=True)
        }

    def result(found: list[Timed]) -> dict[str, Any]:
        rows: list[Row] = []
        for name, timed in zip(entrants, found, strict=True):
            rate = timed.rate(ids.numel())
            flops = None if rate is None else rate * ours.flops_per_token
            row = {"name": name, "batch": BATCH, "tokens_per_second": rate, "share_of_ceiling": bench.share(flops)}
            rows.append({**row, **vars(timed)})
        ratios = [ratio(f"{row['name']} / {NAIVE}", row["seconds"], rows[0]["seconds"]) for row in rows[1:]]
        if side_by_side > 1:
            seconds = {row["name"]: row["seconds"] for row in rows}
            ratios += [ratio(f"{name} / {theirs}", seconds[name], seconds[theirs]) for name in mine]
        missing = still_missing(entrants, found, size.rounds)
        known = [one for one in ratios if one is not None]
        asked = {"ways": ways, "side_by_side": side_by_side}
        return {**asked, "rows": rows, "ratios": known, "checks": checks, "missing": missing}

    before = {row["name"]: row for row in earlier.get("rows") or []}
    with bench.bar("naive", bench.turns_of(len(entrants))) as advance:
        left = [before.get(name) for name in entrants]
        turns = bench.turns(advance, warm_ups=2)
        found = turns.take(list(entrants.values()), left, lambda some: bench.keep(result(some)))
    return result(found)


def _checked(
    bench: Bench, ours: Ours, naive: NaiveLoop, ids: Tensor, ways: Sequence[str], earlier: dict[str, Any]
) -> tuple[list[Row], dict[str, str | None]]:
    """Each way of ours against the loop; why one is not to be timed, if there is a reason."""
    few = told_apart(ids[:, : WINDOWS * bench.size.window], bench.size.window)
    names = {
        way: "ours against the naive loop" if way == "eager" else f"ours, {way}, against the naive loop" for way in ways
    }
    expected: list[Seen] = []

    def check(way: str) -> Row:
        if not expected:
            expected.append(observe(naive, few))
        ours.prepare(way, False, BATCH)
        seen = observe(ours, few)
        if not ours.is_ready():
            raise NotMeasuredError("not captured: such steps run as they do when compiled")
        return compare(names[way], expected[0], seen, tolerance_on(bench.device))

    return check_each(bench, ours, names, check, earlier)


def _entrant(ours: Ours, ids: Tensor, way: str, trouble: str | None) -> Entrant:
    def wake() -> None:
        if trouble is not None:
            raise NotMeasuredError(trouble)
        ours.prepare(way, False, len(ids))
        if way == "graphs":
            warm(ours, ids)

    return Entrant(way, lambda: ours.step(ids, len(ids)), wake, ours.rest, ours.own_bytes, way == "graphs")


def _many(name: str, count: int) -> str:
    return f"{name}, {count} side by side"


def _in_processes(who: str, way: str, size: Size, count: int, trouble: str | None = None) -> Entrant:
    """Steps of batches of their own, in processes of one thread each; what they compute is checked in this one."""
    workers = Workers(partial(steps_of, who, way, size), count)

    def wake() -> None:
        if trouble is not None:
            raise NotMeasuredError(trouble)
        workers.wake()

    return Entrant(_many(who, count), workers.step, wake, workers.rest, repeats=count, elsewhere=True)


def steps_of(who: str, way: str, size: Size, number: int) -> Callable[[], None]:
    """A worker's step, on a CPU."""
    device = torch.device("cpu")
    stepper = NaiveLoop(size, device) if who == NAIVE else Ours(size, "carry", device)
    stepper.prepare(way, False, BATCH)
    ids = random_tokens(size, BATCH, size.windows * size.window, device, seed=number)
    return lambda: stepper.step(ids, BATCH)
