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
)
from recurrify.experiments.beyond_rivals import matched_overlaps, overlaps_by_seed, plain_units, with_rivals
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


def units_by_name(lab: Lab, corpus: str) -> dict[str, list[Unit]]:
    """Plain windows and all memories that have a learning rate."""
    found = {name: units_of(lab, corpus, name) for name in (PLAIN, *lab.size.beyond.mechanisms)}
    return {name: units for name, units in found.items() if units}


def main_units(lab: Lab) -> list[Unit]:
    wanted = [lab.wanted(split, 0) for split in SPLITS]
    return [
        unit.with_scores(wanted)
        for corpus in CORPORA
        for units in units_by_name(lab, corpus).values()
        for unit in units
    ]


def rival_units(lab: Lab) -> list[Unit]:
    """Plain windows at every overlap that something is held against: nothing is trained for it."""
    found = []
    for corpus in CORPORA:
        units = units_by_name(lab, corpus)
        found += plain_units(lab, units[PLAIN], plain_overlaps(lab, units))
    return found


def plain_overlaps(lab: Lab, units: dict[str, list[Unit]]) -> dict[int, list[int]]:
    return overlaps_by_seed(lab, units, all_overlaps(lab), [name for name in units if name != PLAIN])


def mechanism_rows(lab: Lab) -> tuple[Rows, list[str]]:
    failed = finish_in_turn(lab, [lambda: rate_units(lab), lambda: main_units(lab), lambda: rival_units(lab)])
    rows: Rows = []
    missing: list[str] = []
    for corpus in CORPORA:
        own: Rows = []
        found = units_by_name(lab, corpus)
        units: dict[str, list[Unit]] = {}
        overlaps, matched = plain_overlaps(lab, found), matched_overlaps(found)
        for name, overlap in rows_of(lab, overlaps):
            row = memory_row(corpus, name, found[name], found[PLAIN], overlap) if name in found else None
            if row is None:
                missing.append(f"{corpus}, {name}, overlap {overlap}")
                continue
            matches = matched.get(overlap, []) if name == PLAIN else []
            own.append({**row, "matches": matches, "rates": rates_tried(lab, name)})
            units[row["row"]] = found[name]
            wanted = seeds_of(lab, name) if name != PLAIN else [seed for seed in overlaps if overlap in overlaps[seed]]
            where = f"{corpus}, {name}{f', overlap {overlap}' if overlap else ''}"
            missing += [f"{where}, seed {seed}" for seed in wanted if seed not in row["seeds"]]
        rows += with_rivals(own, units, lambda row: row["kind"] == PLAIN)
    return rows, [*missing, *failed]


def rows_of(lab: Lab, overlaps: dict[int, list[int]]) -> Iterator[tuple[str, int]]:
    """Names and overlaps, plain windows with all that they have at some seed."""
    yield from ((PLAIN, overlap) for overlap in sorted({o for own in overlaps.values() for o in own}))
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
