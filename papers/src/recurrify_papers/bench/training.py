"""Training steps side by side: transformers' own model and ours, every way, with and without checkpointing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from recurrify.modeling.heads import RecurrentForCausalLM
from recurrify_papers.bench.bench import WAYS, Bench
from recurrify_papers.bench.checks import WINDOWS, Seen, compare, observe, told_apart, tolerance_on
from recurrify_papers.bench.memory import free_memory
from recurrify_papers.bench.models import KINDS, USUAL_KINDS, random_tokens
from recurrify_papers.bench.stepping import Ours, Stepper, Theirs, warm
from recurrify_papers.bench.timing import (
    DOES_NOT_FIT,
    NO_TIME,
    WRONG,
    Entrant,
    NotMeasuredError,
    Row,
    Timed,
    ratio,
    still_missing,
    tried,
    trouble_of,
    whole_rounds,
)

USABLE = 1.02
"""The share of a GPU's memory that a step may be expected to take: what fewer rows took lets expect up to a tenth too
much of more, and who does not fit after all is halved."""
BUDGETED = "carry"
"""The kind of which steps are compiled within memory budgets, too."""


class Variant(NamedTuple):
    """What a row of the table measures."""

    kind: str
    way: str
    checkpoint: bool
    memory_budget: float = 1.0

    def __str__(self) -> str:
        budget = "" if self.memory_budget == 1 else f", budget {self.memory_budget:g}"
        return f"{self.kind}, {self.way}{', checkpointed' if self.checkpoint else ''}{budget}"


def variant_of(row: Mapping[str, Any]) -> Variant:
    return Variant(row["kind"], row["way"], row["checkpoint"], row.get("memory_budget", 1.0))


def measure_training(bench: Bench, earlier: dict[str, Any] | None = None) -> dict[str, Any]:
    """One group of interleaved measurements for each batch size.

    Groups of an `earlier` run are kept; of one that is not finished, checks and whole rounds are. One that lacks a way,
    a kind or a budget is measured again, beside all that it has, and stands until that is done.
    """
    groups, begun = ({one["batch"]: one for one in (earlier or {}).get(key) or []} for key in ("groups", "begun"))
    steppers: dict[str, Stepper] = {}

    def keep(group: Row) -> None:
        batch = group["batch"]
        if batch in groups and is_complete(groups[batch]) and not is_complete(group):
            begun[batch] = group
        else:
            groups[batch] = group
            begun.pop(batch, None)
        bench.keep(_result(groups, begun, bench))

    for batch in sorted(bench.batches):
        if batch in groups and is_whole(groups[batch], bench):
            continue
        if bench.out_of_time():
            break
        left = begun.get(batch) or groups.get(batch)
        wanted = bench if left is None else widened(bench, left)
        if set(wanted.ways) != {"eager"}:
            torch._dynamo.reset()  # or what was compiled for other batches would be looked through at every step
        if not steppers:
            steppers["transformers"] = Theirs(bench.size, bench.device)
        steppers |= {kind: Ours(bench.size, kind, bench.device) for kind in wanted.kinds if kind not in steppers}
        known = [row for group in groups.values() for row in group["rows"]]
        keep(Group(wanted, steppers, batch, known, left).measure(keep))
    return _result(groups, begun, bench)


def _result(groups: dict[int, Row], begun: dict[int, Row], bench: Bench) -> dict[str, Any]:
    ordered = [groups[batch] for batch in sorted(groups)]
    return {
        "groups": ordered,
        "begun": [begun[batch] for batch in sorted(begun)],
        "checks": [{"batch": group["batch"], **check} for group in ordered for check in group["checks"]],
        "missing": [one for one in bench.batches if not (one in groups and is_whole(groups[one], bench))],
    }


def covers_groups(earlier: dict[str, Any], bench: Bench) -> bool:
    return set(bench.batches) <= {group["batch"] for group in earlier.get("groups") or () if is_whole(group, bench)}


def is_complete(group: Row) -> bool:
    """Whether all that it set out to measure has been measured."""
    return not group.get("missing") and all(row["trouble"] != NO_TIME for row in group["rows"])


def is_whole(group: Row, bench: Bench) -> bool:
    """Whether all that is wanted has been measured in it."""
    kinds, budgets = group.get("kinds", USUAL_KINDS), group.get("budgets", ())
    there = set(bench.ways) <= set(group["ways"]) and set(bench.kinds) <= set(kinds)
    return there and set(bench.budgets) <= set(budgets) and is_complete(group)


def widened(bench: Bench, group: Row) -> Bench:
    """With the ways, kinds and budgets that a group has already."""
    return replace(
        bench,
        ways=tuple(way for way in WAYS if way in (*bench.ways, *group["ways"])),
        kinds=tuple(kind for kind in KINDS if kind in (*bench.kinds, *group.get("kinds", USUAL_KINDS))),
        budgets=tuple(sorted({*bench.budgets, *group.get("budgets", ())}, reverse=True)),
    )


class Group:
    """All variants of training at one batch size; `left` is what an unfinished run has left of it."""

    def __init__(
        self,
        bench: Bench,
        steppers: Mapping[str, Stepper],
        batch: int,
        known: Sequence[Row],
        left: Row | None = None,
    ) -> None:
        self.bench, self.steppers, self.batch, self.known = bench, steppers, batch, known
        self.ids = random_tokens(bench.size, batch, bench.size.windows * bench.size.window, bench.device)
        self.checked_ids = told_apart(self.ids, bench.size.window)
        self.before = {variant_of(row): row for row in (left or {}).get("rows") or []}
        self.checked: dict[str, str | None] = dict((left or {}).get("checked") or {})
        """Why a variant that was checked is not to be timed, if there is a reason."""
        self.checks: list[Row] = list((left or {}).get("checks") or []) if self.checked else []
        self.variants = self._variants()
        self.timed = [(variant, one) for variant, one in self.variants if bench.wants(variant.kind, variant.way)]
        self.rows_at_once = {variant: self._first_guess(variant) for variant, _ in self.variants}
        self.expected: tuple[str, int, Seen] | None = None

    def _variants(self) -> list[tuple[Variant, Stepper]]:
        found: list[tuple[Variant, Stepper]] = []
        for kind in ("transformers", *self.bench.kinds):
            one = self.steppers[kind]
            for way in one.ways:
                if way != "eager" and not self.bench.wants(kind, way):  # what others are compared with is always run
                    continue
                found.append((Variant(kind, way, False), one))
                if isinstance(one, Ours):
                    found.append((Variant(kind, way, True), one))
                if kind == BUDGETED and way != "eager":
                    found += [(Variant(kind, way, False, budget), one) for budget in self.bench.budgets]
        return found

    def measure(self, keep: Callable[[Row], None] = lambda group: None) -> Row:
        """`keep` is told what there is after each check and each round."""
        left = [self.before.get(variant) for variant, _ in self.timed]
        total = len(self.variants) + self.bench.turns_of(len(self.timed))
        with self.bench.bar(f"training, batch {self.batch}", total) as advance:
            for variant, stepper in self.variants:
                if str(variant) not in self.checked and not self.bench.out_of_time():
                    self.checked[str(variant)] = self._check(variant, stepper)
                    keep(self._group(whole_rounds(left)))
                advance(1)
            self.expected = None
            entrants = [self._entrant(variant, stepper) for variant, stepper in self.timed]
            found = self.bench.turns(advance).take(entrants, left, lambda some: keep(self._group(some)))
        return self._group(found)

    def _group(self, found: Sequence[Timed]) -> Row:
        rows = [self._row(variant, one, timed) for (variant, one), timed in zip(self.timed, found, strict=True)]
        return {
            "batch": self.batch,
            "ways": self.bench.ways,
            "kinds": self.bench.kinds,
            "budgets": self.bench.budgets,
            "windows": self.bench.size.windows,
            "window": self.bench.size.window,
            "rows": rows,
            "ratios": ratios(rows),
            "checks": self.checks,
            "checked": self.checked,
            "missing": still_missing([str(variant) for variant, _ in self.timed], found, self.bench.size.rounds),
        }

    # ---- right first -----------------------------------------------------------------------------------------

    def _check(self, variant: Variant, stepper: Stepper) -> str | None:
        """Compare with the plainest way; gives the reason why it is not to be timed, if there is one."""
        reason = tried(lambda: self._compare(variant, stepper), self.bench.device)
        stepper.rest()
        free_memory(self.bench.device, thoroughly=variant.way == "graphs")
        return reason

    def _compare(self, variant: Variant, stepper: Stepper) -> None:
        rows = self.rows_at_once[variant]
        # The shape of what is measured later, or it would be compiled once more.
        ids = self._few_windows(rows) if isinstance(stepper, Ours) else stepper.rows_of(self.checked_ids)[:rows]
        plainest = Variant(variant.kind, "eager", False)
        if variant == plainest:
            if variant.kind == "plain":
                self._compare_with_transformers(stepper, ids)
            self._expected(plainest, stepper, ids)
            return
        if self.checked.get(str(plainest)) == WRONG:
            raise NotMeasuredError(WRONG)
        try:
            expected = self._expected(plainest, stepper, ids)
        except Exception as error:
            if trouble_of(error) != DOES_NOT_FIT:
                raise
            raise NotMeasuredError(f"not checked: {variant.kind} could not be run eagerly") from None
        self._add_check(str(variant), expected, self._seen(variant, stepper, ids))

    def _expected(self, plainest: Variant, stepper: Stepper, ids: Tensor) -> Seen:
        """What the plainest way computes for as many rows; only the latest is held."""
        if self.expected is None or self.expected[:2] != (plainest.kind, len(ids)):
            self.expected = None
            self.expected = (plainest.kind, len(ids), self._seen(plainest, stepper, ids))
        return self.expected[2]

    def _seen(self, variant: Variant, stepper: Stepper, ids: Tensor) -> Seen:
        stepper.prepare(variant.way, variant.checkpoint, len(ids), variant.memory_budget)
        seen = observe(stepper, ids)
        if not stepper.is_ready():
            raise NotMeasuredError("not captured: such steps run as they do when compiled")
        return seen

    def _few_windows(self, rows: int) -> Tensor:
        return self.checked_ids[:rows, : WINDOWS * self.bench.size.window]

    def _compare_with_transformers(self, plain: Stepper, ids: Tensor) -> None:
        theirs, ours = self.steppers["transformers"], plain.model
        assert isinstance(ours, RecurrentForCausalLM)
        theirs.model.load_state_dict(ours.base.state_dict())  # smaller batches have trained them apart
        theirs.prepare("eager", False, len(ids))
        plain.prepare("eager", False, len(ids))
        expected = observe(theirs, ids, inside_windows=True)
        self._add_check("plain, eager, against transformers", expected, observe(plain, ids, inside_windows=True))

    def _add_check(self, name: str, expected: Seen, seen: Seen) -> None:
        check = compare(name, expected, seen, tolerance_on(self.bench.device))
        self.checks.append(check)
        if not check["passed"]:
            self.bench.say(f"{name}: wrong results, and therefore not timed")
            raise NotMeasuredError(WRONG)

    # ---- then fast -------------------------------------------------------------------------------------------

    def _first_guess(self, variant: Variant) -> int:
        """As many rows at once as a smaller batch's memory lets expect, or all."""
        if variant.kind == "transformers":
            return min(self.bench.size.windows_at_once, self.batch * self.bench.size.windows)
        before = self.before.get(variant)
        if before is not None and before["peak_bytes"] is not None:
            return int(before["rows_at_once"])  # turns of one row of the table are alike
        if self.bench.device.type != "cuda":
            return self.batch
        room = USABLE * torch.cuda.get_device_properties(self.bench.device).total_memory
        alike = [row for row in self.known if variant_of(row) == variant]
        return rows_that_fit(self.batch, alike, room)

    def _entrant(self, variant: Variant, stepper: Stepper) -> Entrant:
        trouble = self.checked.get(str(variant), NO_TIME)
        fits = False

        def run() -> None:
            stepper.step(self.ids, self.rows_at_once[variant])

        def wake() -> None:
            nonlocal fits
            if trouble is not None:
                raise NotMeasuredError(trouble)
            while True:
                rows = self.rows_at_once[variant]
                stepper.prepare(variant.way, variant.checkpoint, rows, variant.memory_budget)
                try:
                    if variant.way == "graphs":
                        warm(stepper, self.ids[:rows])
                    if not fits:
                        run()
                    fits = True
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
    """A memory against plain windows and against transformers' own model; checkpointing or a budget against none."""
    by = {variant_of(row): row["seconds"] for row in rows}
    found: list[Row | None] = []

    def add(ours: Variant, theirs: Variant) -> None:
        if ours != theirs and by.get(ours) and by.get(theirs):
            found.append(ratio(f"{ours} / {theirs}", by[ours], by[theirs]))

    for variant in by:
        if variant.kind == "transformers":
            continue
        add(variant, variant._replace(kind="plain"))
        add(variant, variant._replace(checkpoint=False, memory_budget=1.0))
        if not variant.checkpoint:
            # Their fastest is what a user would have instead.
            add(variant, Variant("transformers", "eager" if variant.way == "eager" else "compiled", False))
    return [one for one in found if one is not None]
