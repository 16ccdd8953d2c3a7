"""Training steps side by side: transformers' own model and ours, every way, with and without checkpointing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recurrify.bench.bench import WAYS, Bench
from recurrify.bench.checks import WINDOWS, Seen, compare, observe, told_apart, tolerance_on
from recurrify.bench.memory import free_memory
from recurrify.bench.models import KINDS, random_tokens
from recurrify.bench.stepping import Ours, Stepper, Theirs, warm
from recurrify.bench.timing import NO_TIME, Entrant, NotMeasuredError, Row, Timed, ratio, trouble_of
from recurrify.recurrence import RecurrentForCausalLM

USABLE = 0.9
"""The share of a GPU's memory that a step may be expected to take."""


class Variant(NamedTuple):
    """What a row of the table measures."""

    kind: str
    way: str
    checkpoint: bool

    def __str__(self) -> str:
        return f"{self.kind}, {self.way}{', checkpointed' if self.checkpoint else ''}"


def measure_training(bench: Bench, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """One group of interleaved measurements for each batch size.

    Groups of an `earlier` run are kept; one that lacks something is measured again, beside all that it has.
    """
    groups = {group["batch"]: group for group in (earlier or {}).get("groups") or []}
    todo = [batch for batch in sorted(bench.batches) if not (batch in groups and is_whole(groups[batch], bench.ways))]
    if todo:
        steppers: list[Stepper] = [Theirs(bench.size, bench.device)]
        steppers += [Ours(bench.size, kind, bench.device) for kind in KINDS]
        for batch in todo:
            if bench.out_of_time():
                break
            had = groups[batch]["ways"] if batch in groups else ()
            ways = tuple(way for way in WAYS if way in (*bench.ways, *had))
            if set(ways) != {"eager"}:
                torch._dynamo.reset()  # or what was compiled for other batches would be looked through at every step
            known = [row for group in groups.values() for row in group["rows"]]
            measured = Group(replace(bench, ways=ways), steppers, batch, known).measure()
            # What is whole does not give way to what there was no time for.
            if not had or is_whole(measured, ways) or not is_whole(groups[batch], had):
                groups[batch] = measured
            bench.keep(_result(groups, bench))
    return _result(groups, bench)


def _result(groups: dict[int, Row], bench: Bench) -> dict[str, Any]:
    ordered = [groups[batch] for batch in sorted(groups)]
    return {
        "groups": ordered,
        "checks": [{"batch": group["batch"], **check} for group in ordered for check in group["checks"]],
        "missing": [one for one in bench.batches if not (one in groups and is_whole(groups[one], bench.ways))],
    }


def covers_groups(earlier: dict[str, Any], batches: Sequence[int], ways: Sequence[str]) -> bool:
    return set(batches) <= {group["batch"] for group in earlier.get("groups") or () if is_whole(group, ways)}


def is_whole(group: Row, ways: Sequence[str]) -> bool:
    """Whether all that is wanted has been measured in it."""
    return set(ways) <= set(group["ways"]) and all(row["trouble"] != NO_TIME for row in group["rows"])


class Group:
    """All variants of training at one batch size."""

    def __init__(self, bench: Bench, steppers: Sequence[Stepper], batch: int, known: Sequence[Row]) -> None:
        self.bench, self.steppers, self.batch, self.known = bench, steppers, batch, known
        self.ids = random_tokens(bench.size, batch, bench.size.windows * bench.size.window, bench.device)
        self.checked_ids = told_apart(self.ids, bench.size.window)
        self.variants = [
            (Variant(one.kind, way, checkpoint), one)
            for one in steppers
            for way in one.ways
            if way == "eager" or way in bench.ways  # what others are compared with is always run
            for checkpoint in ((False, True) if isinstance(one, Ours) else (False,))
        ]
        self.rows_at_once = {variant: self._first_guess(variant) for variant, _ in self.variants}
        self.checks: list[Row] = []
        self.expected: dict[str, Seen] = {}

    def measure(self) -> Row:
        size = self.bench.size
        timed_ones = [pair for pair in self.variants if pair[0].way in self.bench.ways]
        total = len(self.variants) + self.bench.turns_of(len(timed_ones))
        with self.bench.bar(f"training, batch {self.batch}", total) as advance:
            troubles = {}
            for variant, stepper in self.variants:
                troubles[variant] = self._check(variant, stepper)
                advance(1)
            self.expected.clear()
            entrants = [self._entrant(variant, stepper, troubles[variant]) for variant, stepper in timed_ones]
            found = self.bench.turns(advance).take(entrants)
        rows = [self._row(variant, one, timed) for (variant, one), timed in zip(timed_ones, found, strict=True)]
        return {
            "batch": self.batch,
            "ways": self.bench.ways,
            "windows": size.windows,
            "window": size.window,
            "rows": rows,
            "ratios": ratios(rows),
            "checks": self.checks,
        }

    # ---- right first -----------------------------------------------------------------------------------------

    def _check(self, variant: Variant, stepper: Stepper) -> str | None:
        """Compare with the plainest way; gives the reason why it is not to be timed, if there is one."""
        if self.bench.out_of_time():
            return None  # its turn will say so
        rows = self.rows_at_once[variant]
        # The shape of what is measured later, or it would be compiled once more.
        ids = self._few_windows(rows) if isinstance(stepper, Ours) else stepper.rows_of(self.checked_ids)[:rows]
        plainest = variant.way == "eager" and not variant.checkpoint
        try:
            stepper.prepare(variant.way, variant.checkpoint, rows)
            wrong = None
            if variant.kind == "plain" and plainest:
                wrong = self._check_against_transformers(stepper, ids)
            seen = observe(stepper, ids)
            if not stepper.is_ready():
                raise NotMeasuredError("not captured: such steps run as they do when compiled")
        except Exception as error:
            reason = trouble_of(error)
            if reason is None:
                raise
            del error
            free_memory(self.bench.device, thoroughly=True)
            return reason
        finally:
            stepper.rest()
        free_memory(self.bench.device, thoroughly=variant.way == "graphs")
        if plainest:
            self.expected[variant.kind] = seen
            return wrong
        if variant.kind not in self.expected:
            return f"not checked: {variant.kind} could not be run eagerly"
        return self._add_check(str(variant), self.expected[variant.kind], seen)

    def _few_windows(self, rows: int) -> Tensor:
        return self.checked_ids[:rows, : WINDOWS * self.bench.size.window]

    def _check_against_transformers(self, plain: Stepper, ids: Tensor) -> str | None:
        theirs, ours = self.steppers[0], plain.model
        assert isinstance(ours, RecurrentForCausalLM)
        theirs.model.load_state_dict(ours.base.state_dict())  # smaller batches have trained them apart
        theirs.prepare("eager", False, len(ids))
        expected = observe(theirs, ids, inside_windows=True)
        seen = observe(plain, ids, inside_windows=True)
        return self._add_check("plain, eager, against transformers", expected, seen)

    def _add_check(self, name: str, expected: Seen, seen: Seen) -> str | None:
        check = compare(name, expected, seen, tolerance_on(self.bench.device))
        self.checks.append(check)
        if check["passed"]:
            return None
        self.bench.say(f"{name}: wrong results, and therefore not timed")
        return "wrong results"

    # ---- then fast -------------------------------------------------------------------------------------------

    def _first_guess(self, variant: Variant) -> int:
        """As many rows at once as a smaller batch's memory lets expect, or all."""
        if variant.kind == "transformers":
            return min(self.bench.size.windows_at_once, self.batch * self.bench.size.windows)
        if self.bench.device.type != "cuda":
            return self.batch
        room = USABLE * torch.cuda.get_device_properties(self.bench.device).total_memory
        alike = [row for row in self.known if Variant(row["kind"], row["way"], row["checkpoint"]) == variant]
        return rows_that_fit(self.batch, alike, room)

    def _entrant(self, variant: Variant, stepper: Stepper, trouble: str | None) -> Entrant:
        tried = False

        def run() -> None:
            stepper.step(self.ids, self.rows_at_once[variant])

        def wake() -> None:
            nonlocal tried
            if trouble is not None:
                raise NotMeasuredError(trouble)
            while True:
                rows = self.rows_at_once[variant]
                stepper.prepare(variant.way, variant.checkpoint, rows)
                try:
                    if variant.way == "graphs":
                        warm(stepper, self.ids[:rows])
                    if not tried:
                        run()
                    tried = True
                    return
                except torch.OutOfMemoryError:
                    if rows == 1:
                        raise
                stepper.optimizer.zero_grad(set_to_none=True)
                stepper.rest()
                free_memory(self.bench.device, thoroughly=True)
                self.rows_at_once[variant] = rows // 2

        return Entrant(
            str(variant),
            run,
            wake,
            stepper.rest,
            stepper.own_bytes,
            holds_graphs=variant.way == "graphs",
        )

    def _row(self, variant: Variant, stepper: Stepper, timed: Timed) -> Row:
        rate = timed.rate(self.ids.numel())
        flops = None if rate is None else rate * stepper.flops_per_token
        return {
            "batch": self.batch,
            **variant._asdict(),
            "rows_at_once": self.rows_at_once[variant],
            "tokens": self.ids.numel(),
            "tokens_per_second": rate,
            "flops_per_token": stepper.flops_per_token,
            "flops_per_second": flops,
            "share_of_ceiling": self.bench.share(flops),
            "fixed_bytes": stepper.own_bytes() + sum(p.numel() * p.element_size() for p in stepper.model.parameters()),
            **vars(timed),
        }


def rows_that_fit(batch: int, alike: Sequence[Row], room: float) -> int:
    """The largest of batch, batch / 2, batch / 4, … whose memory, straight from what fewer rows took, fits `room`."""
    measured = [row for row in alike if row["peak_bytes"] is not None]
    if not measured:
        return batch
    last = max(measured, key=lambda row: row["rows_at_once"])
    for_each = max(last["peak_bytes"] - last["fixed_bytes"], 0) / last["rows_at_once"]
    rows = batch
    while rows > 1 and last["fixed_bytes"] + rows * for_each > room:
        rows //= 2
    return rows


def ratios(rows: Sequence[Row]) -> list[Row]:
    """A memory against plain windows and against transformers' own model, and checkpointing against none."""
    by = {Variant(row["kind"], row["way"], row["checkpoint"]): row["seconds"] for row in rows}
    found: list[Row | None] = []

    def add(ours: Variant, theirs: Variant) -> None:
        if ours != theirs and by.get(ours) and by.get(theirs):
            found.append(ratio(f"{ours} / {theirs}", by[ours], by[theirs]))

    for variant in by:
        if variant.kind == "transformers":
            continue
        add(variant, variant._replace(kind="plain"))
        if variant.checkpoint:
            add(variant, variant._replace(checkpoint=False))
        else:
            # Their fastest is what a user would have instead.
            add(variant, Variant("transformers", "eager" if variant.way == "eager" else "compiled", False))
    return [one for one in found if one is not None]
