"""Every mechanism at several sizes, perplexity against all FLOPs, beside plain windows that overlap."""

from collections.abc import Iterable, Iterator
from typing import Any

from recurrify_papers.experiments.beyond import (
    OURS,
    UNTRAINED,
    all_overlaps,
    control,
    differences,
    family,
    finish_in_turn,
    gain_by_memory,
    longer_names,
    mechanism_unit,
    memory_of,
    memory_row,
    rates_of,
    told_rates,
    tuning,
    untrained_names,
    usual_name,
)
from recurrify_papers.experiments.beyond_rivals import at_overlaps, matched_overlaps, overlaps_by_seed, with_rivals
from recurrify_papers.experiments.beyond_sizes import PAPERS, PLAIN
from recurrify_papers.experiments.catalogue import Experiment, Rows, Stage, register
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.unit import Unit, Wanted

CORPORA = ("books", "wiki")
PLAIN_UNTRAINED = f"{PLAIN}{UNTRAINED}"


def compared(lab: Lab) -> tuple[str, ...]:
    """Names of mechanisms that have rows."""
    return lab.size.beyond.compared(lab.size.beyond.mechanisms)


def seeds_of(lab: Lab, name: str) -> tuple[int, ...]:
    """Main rows take every seed; what is longer or not trained stands beside them."""
    return lab.size.seeds if name in (PLAIN, PAPERS, *lab.size.beyond.seeded) else lab.size.seeds[:1]


def units_of(lab: Lab, corpus: str, name: str) -> list[Unit]:
    """One for each seed; none before its learning rate has been chosen."""
    found = (mechanism_unit(lab, corpus, name, seed) for seed in seeds_of(lab, name))
    return [unit for unit in found if unit is not None]


def rate_units(lab: Lab) -> list[Unit]:
    return rates_of(lab, compared(lab))


def units_by_name(lab: Lab, corpus: str) -> dict[str, list[Unit]]:
    """Plain windows and all memories that have a learning rate."""
    names = (PLAIN, *compared(lab), *longer_names(lab), *untrained_names(lab))
    found = {name: units_of(lab, corpus, name) for name in names}
    return {name: units for name, units in found.items() if units}


def main_units(lab: Lab) -> list[Unit]:
    """Memories, and plain windows at every overlap that something is held against."""
    by_corpus = {corpus: units_by_name(lab, corpus) for corpus in CORPORA}
    matching = {corpus: plain_overlaps(lab, units) for corpus, units in by_corpus.items()}
    wanted = at_overlaps(lab, [0])

    def scores(corpus: str, name: str, seed: int) -> list[Wanted]:
        if usual_name(lab, name) != PLAIN:
            return [*wanted, control(lab)]
        if name in untrained_names(lab):
            return wanted
        return at_overlaps(lab, matching[corpus][name][seed])

    # If time runs out, the aims can be judged on both texts: plain windows, the paper's and the best are there. Then
    # everything once, and other seeds last.
    first = {PLAIN, PAPERS, lab.size.beyond.ours, *longer_plain(lab)}

    def turn(of: tuple[str, Unit]) -> tuple[bool, bool]:
        name, unit = of
        return name not in first, name not in first and unit.settings.seed != lab.size.seeds[0]

    found = [
        (name, unit.with_scores(scores(corpus, name, unit.settings.seed)))
        for corpus, units in by_corpus.items()
        for name, own in units.items()
        for unit in own
    ]
    return [unit for _, unit in sorted(found, key=turn)]


def longer_plain(lab: Lab) -> list[str]:
    """Plain windows of another length, by their names."""
    return [name for name, usual in longer_names(lab).items() if usual == PLAIN]


def plain_overlaps(lab: Lab, units: dict[str, list[Unit]]) -> dict[str, dict[int, list[int]]]:
    """Of plain windows of each length, by name: at which overlaps those of a seed are scored."""
    return {
        plain: overlaps_by_seed(units, all_overlaps(lab), matched_by(lab, units, plain), plain)
        for plain in (PLAIN, *longer_plain(lab))
    }


def matched_by(lab: Lab, units: Iterable[str], plain: str) -> list[str]:
    """The memories to whose cost plain windows are brought: of the usual length those of that length, else all."""
    of = compared(lab) if plain == PLAIN else (*compared(lab), *longer_names(lab))
    return [name for name in units if name in of and usual_name(lab, name) != PLAIN]


def mechanism_rows(lab: Lab) -> tuple[Rows, list[str]]:
    failed = finish_in_turn(lab, [lambda: rate_units(lab), lambda: main_units(lab)])
    rows: Rows = []
    missing: list[str] = []
    for corpus in CORPORA:
        own: Rows = []
        untrained: Rows = []
        found = units_by_name(lab, corpus)
        units: dict[str, list[Unit]] = {}
        overlaps = plain_overlaps(lab, found)
        matched = {plain: matched_overlaps(found, matched_by(lab, found, plain), plain) for plain in overlaps}
        for name, overlap in rows_of(lab, overlaps):
            plain = found.get(PLAIN_UNTRAINED, []) if name in untrained_names(lab) else found.get(PLAIN, [])
            row = memory_row(corpus, name, found[name], plain, overlap) if name in found and plain else None
            if row is None:
                missing.append(f"{corpus}, {name}, overlap {overlap}")
                continue
            matches = matched.get(name, {}).get(overlap, [])
            remembered = None if row["kind"] == PLAIN else gain_by_memory(found[name])
            trained = name not in untrained_names(lab)
            told = {**row, "trained": trained, "matches": matches, "rates": rates_tried(lab, name)}
            (own if trained else untrained).append({**told, "memory_gain": remembered})
            units[row["row"]] = found[name]
            seeds = overlaps.get(name)
            wanted = seeds_of(lab, name) if seeds is None else [seed for seed in seeds if overlap in seeds[seed]]
            where = f"{corpus}, {name}{f', overlap {overlap}' if overlap else ''}"
            missing += [f"{where}, seed {seed}" for seed in wanted if seed not in row["seeds"]]
        rows += with_rivals(own, units, lambda row: row["kind"] == PLAIN)
        rows += with_rivals(
            untrained, units, lambda row: True
        )  # a kind of their own: what has been trained is no rival
    return rows, [*missing, *failed]


def rows_of(lab: Lab, overlaps: dict[str, dict[int, list[int]]]) -> Iterator[tuple[str, int]]:
    """Names and overlaps, plain windows with all that they have at some seed."""
    for name in (PLAIN, *compared(lab), *untrained_names(lab), *longer_names(lab)):
        known = {overlap for own in overlaps.get(name, {}).values() for overlap in own}
        usual = all_overlaps(lab) if name in overlaps else [0]
        yield from ((name, overlap) for overlap in sorted(known or usual))


def rates_tried(lab: Lab, name: str) -> list[dict[str, Any]]:
    """What the learning rate was chosen from."""
    if name in untrained_names(lab):
        return []
    return told_rates(tuning(lab, family(memory_of(lab, usual_name(lab, name)))))


register(
    Experiment(
        name="mechanisms",
        title="Every mechanism at several sizes: perplexity against all FLOPs",
        source=OURS,
        one_recipe=False,
        layout="mechanisms",
        units=rate_units,
        rows=mechanism_rows,
        after=Stage.BASE,
        differences=lambda lab: differences(lab, compared(lab)),
    )
)
