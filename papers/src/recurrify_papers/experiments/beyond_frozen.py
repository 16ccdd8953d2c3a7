"""A frozen base, of which only what recurrence added is trained: how much of the gain remains, for how many kB."""

from typing import Any

from recurrify_papers.experiments.beyond import (
    OURS,
    beyond_unit,
    chosen_rate,
    control,
    differences,
    family,
    finish_in_turn,
    gain_by_memory,
    mechanism_unit,
    memory_row,
    rates_of,
    shorter,
    told_rates,
    untouched,
)
from recurrify_papers.experiments.beyond_sizes import PLAIN
from recurrify_papers.experiments.catalogue import Experiment, Rows, Stage, register
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.rows import SPLITS
from recurrify_papers.experiments.unit import Unit

BYTES = 4
"""Of a weight as it is saved."""


def compared(lab: Lab) -> tuple[str, ...]:
    """Names of mechanisms that have rows."""
    return lab.size.beyond.compared(lab.size.beyond.frozen)


def frozen_unit(lab: Lab, corpus: str, name: str, rate: float, label: str, **settings: Any) -> Unit:
    seed = lab.size.seeds[0]
    return beyond_unit(lab, corpus, name, rate, seed, label, added_learning_rate=rate, freeze_base=True, **settings)


def frozen_tuning(lab: Lab, name: str) -> dict[float, Unit]:
    """The runs that choose the added weights' learning rate, for each mechanism from the same candidates."""
    mechanisms = lab.size.beyond.mechanisms
    of = family(mechanisms[name])
    first = next(one for one in lab.size.beyond.frozen if family(mechanisms[one]) == of)
    return {
        rate: frozen_unit(lab, "wiki", first, rate, f"frozen-rate-{first}", **shorter(lab)).with_scores(
            [lab.wanted("valid", 0)]
        )
        for rate in lab.size.beyond.frozen_candidates
    }


def rate_units(lab: Lab) -> list[Unit]:
    """For a frozen base, and for one that is trained too; mechanisms of a family share theirs."""
    names = compared(lab)
    return [*rates_of(lab, names), *(unit for name in names for unit in frozen_tuning(lab, name).values())]


def base_unit(lab: Lab) -> Unit:
    """The base as it is, in plain windows."""
    rate, seed = lab.size.candidates[0], lab.size.seeds[0]
    plain = beyond_unit(lab, "books", PLAIN, rate, seed)
    return beyond_unit(lab, "books", PLAIN, rate, seed, **untouched(plain, "untouched"))


def pair(lab: Lab, name: str) -> dict[str, Unit]:
    """A mechanism trained with its base and on a frozen one, as far as their learning rates have been chosen."""
    tuned = mechanism_unit(lab, "books", name, lab.size.seeds[0])
    if name == PLAIN:
        return {"base": base_unit(lab), "trained": tuned} if tuned is not None else {}
    rate = chosen_rate(frozen_tuning(lab, name))
    frozen = None if rate is None else frozen_unit(lab, "books", name, rate, f"frozen-{name}")
    return {how: unit for how, unit in (("trained", tuned), ("frozen", frozen)) if unit is not None}


def main_units(lab: Lab) -> list[Unit]:
    wanted = [lab.wanted(split, 0) for split in SPLITS]
    return [
        unit.with_scores(wanted if name == PLAIN else [*wanted, control(lab)])
        for name in (PLAIN, *compared(lab))
        for unit in pair(lab, name).values()
    ]


def frozen_rows(lab: Lab) -> tuple[Rows, list[str]]:
    """The gain of a frozen model is over the base as it is, that of a trained one over the trained base; added weights
    also learn what any weights would, so that what remains is of the gain by memory."""
    failed = finish_in_turn(lab, [lambda: rate_units(lab), lambda: main_units(lab)])
    rows: Rows = []
    missing: list[str] = []
    against = pair(lab, PLAIN)
    for name in (PLAIN, *compared(lab)):
        units = pair(lab, name)
        gains: dict[str, Any] = {}
        for how in ("base", "trained") if name == PLAIN else ("trained", "frozen"):
            partner = "base" if how in ("base", "frozen") else "trained"
            ready = how in units and partner in against
            row = memory_row("books", name, [units[how]], [against[partner]]) if ready else None
            if row is None:
                missing.append(f"{name}, {how}")
                continue
            gains[how] = None if name == PLAIN else gain_by_memory([units[how]])
            if name != PLAIN and gains[how] is None:
                missing.append(f"{name}, {how}, with another document's memory")
            rows.append(
                {
                    **row,
                    "trained": how,
                    "memory_gain": gains[how],
                    "added_kilobytes": row["added_parameters"] * BYTES / 1000,
                    "remaining": _remaining(gains) if how == "frozen" else None,
                    "rates": told_rates(frozen_tuning(lab, name)) if how == "frozen" else [],
                }
            )
    return rows, [*missing, *failed]


def _remaining(gains: dict[str, Any]) -> float | None:
    """The share of the gain by memory that is there without training the base; a gain within noise has no share."""
    whole, left = gains.get("trained"), gains.get("frozen")
    if whole is None or left is None or whole["within_noise"] or left["within_noise"] or whole["relative_gain"] <= 0:
        return None
    return float(left["relative_gain"] / whole["relative_gain"])


register(
    Experiment(
        name="frozen",
        title="A frozen base: only what was added is trained",
        source=OURS,
        one_recipe=False,
        layout="frozen",
        units=rate_units,
        rows=frozen_rows,
        after=Stage.BASE,
        differences=lambda lab: differences(lab, compared(lab)),
    )
)
