"""Every mechanism at several sizes, perplexity against all FLOPs, beside plain windows that overlap."""

from collections.abc import Iterator
from typing import Any

from recurrify.experiments.beyond import (
    OURS,
    PLAIN,
    all_overlaps,
    family,
    finish_in_turn,
    kind_of,
    mechanism_unit,
    memory_row,
    told_rates,
    tuning,
    with_rivals,
)
from recurrify.experiments.catalogue import Experiment, Rows, register
from recurrify.experiments.lab import Lab
from recurrify.experiments.rows import SPLITS
from recurrify.experiments.unit import Unit

CORPORA = ("books", "wiki")


def seeds_of(lab: Lab, name: str) -> tuple[int, ...]:
    """Main rows take every seed."""
    every = kind_of(lab, name) is not None or name in lab.size.beyond.seeded
    return lab.size.seeds if every else lab.size.seeds[:1]


def units_of(lab: Lab, corpus: str, name: str) -> list[Unit]:
    """One for each seed; none before its learning rate has been chosen."""
    found = (mechanism_unit(lab, corpus, name, seed) for seed in seeds_of(lab, name))
    return [unit for unit in found if unit is not None]


def rate_units(lab: Lab) -> list[Unit]:
    families = dict.fromkeys(family(recurrence) for recurrence in lab.size.beyond.mechanisms.values())
    return [unit for of in families for unit in tuning(lab, of).values()]


def main_units(lab: Lab) -> list[Unit]:
    units = []
    for corpus in CORPORA:
        for name in (PLAIN, *lab.size.beyond.mechanisms):
            for unit in units_of(lab, corpus, name):
                # As in the paper's tables: overlaps beyond none for the first seed alone.
                more = all_overlaps(lab) if name == PLAIN and unit.settings.seed == lab.size.seeds[0] else [0]
                units.append(unit.with_scores([lab.wanted(split, overlap) for overlap in more for split in SPLITS]))
    return units


def mechanism_rows(lab: Lab) -> tuple[Rows, list[str]]:
    failed = finish_in_turn(lab, [lambda: rate_units(lab), lambda: main_units(lab)])
    rows: Rows = []
    missing: list[str] = []
    for corpus in CORPORA:
        own: Rows = []
        units: dict[str, list[Unit]] = {}
        for name, overlap in rows_of(lab):
            found = units_of(lab, corpus, name)
            row = memory_row(corpus, name, found, units_of(lab, corpus, PLAIN), overlap) if found else None
            if row is None:
                missing.append(f"{corpus}, {name}, overlap {overlap}")
                continue
            own.append({**row, "rates": rates_tried(lab, name)})
            units[row["row"]] = found
            wanted = seeds_of(lab, name) if overlap == 0 else lab.size.seeds[:1]
            missing += [f"{corpus}, {name}, seed {seed}" for seed in wanted if seed not in row["seeds"]]
        rows += with_rivals(own, units, lambda row: row["kind"] == PLAIN)
    return rows, [*missing, *failed]


def rows_of(lab: Lab) -> Iterator[tuple[str, int]]:
    yield from ((PLAIN, overlap) for overlap in all_overlaps(lab))
    yield from ((name, 0) for name in lab.size.beyond.mechanisms)


def rates_tried(lab: Lab, name: str) -> list[dict[str, Any]]:
    """What the learning rate was chosen from; plain windows' is in the experiment on the paper's kinds."""
    if name == PLAIN:
        return []
    return told_rates(tuning(lab, family(lab.size.beyond.mechanisms[name])))


register(
    Experiment(
        name="mechanisms",
        title="Every mechanism at several sizes: perplexity against all FLOPs",
        source=OURS,
        one_recipe=False,
        layout="mechanisms",
        units=rate_units,
        rows=mechanism_rows,
    )
)
