"""What a memory is held against: plain windows at the largest overlap that costs no more, ranked on seeds all have.

Plain windows of T inputs that share o of them cost T / (T − o) times their layers, and the head once. So there is for
each memory an overlap at which plain windows are just not dearer, and that one is scored beside the usual ones.
"""

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from recurrify.experiments.beyond import PLAIN, TEST, gain_over
from recurrify.experiments.catalogue import Rows
from recurrify.experiments.lab import Lab
from recurrify.experiments.rows import SPLITS
from recurrify.experiments.unit import Unit, Wanted
from recurrify.results import load_result

Units = Mapping[str, Sequence[Unit]]


# ---- overlaps --------------------------------------------------------------------------------------------


def dearest_overlap(units: Sequence[Unit], plain: Sequence[Unit]) -> int | None:
    """The largest overlap at which plain windows cost no more than these units, all counted; None before both have
    been scored."""
    ours, theirs = _costs(units), _costs(plain)
    if ours is None or theirs is None:
        return None
    (_, most), (layers, whole) = ours, theirs
    window = int(plain[0].settings.recurrence["window"])
    affordable = (o for o in range(window) if layers * window / (window - o) + whole - layers <= most)
    return max(affordable, default=0)


def _costs(units: Sequence[Unit]) -> tuple[float, float] | None:
    """FLOPs per token without overlap: of the layers alone, and all counted."""
    done = next((unit for unit in units if unit.evaluation(TEST, 0) is not None), None)
    if done is None:
        return None
    found = load_result(done.score_file(Wanted(TEST, 0, None)))
    return found["flops_per_token"], found["full_flops_per_token"]


def matched_overlaps(units: Units) -> dict[int, list[str]]:
    """By overlap, the memories among `units`, by name, whose cost it comes closest to from below."""
    found: dict[int, list[str]] = {}
    for name, own in units.items():
        overlap = dearest_overlap(own, units[PLAIN]) if name != PLAIN else None
        if overlap:
            found.setdefault(overlap, []).append(name)
    return found


def overlaps_by_seed(lab: Lab, units: Units, usual: Iterable[int], learned: Iterable[str]) -> dict[int, list[int]]:
    """At which overlaps plain windows of each seed are scored: the usual ones for the first seed alone, as in the
    paper's tables, and those that match a learned memory for each seed that it has."""
    matched = matched_overlaps({PLAIN: units[PLAIN], **{name: units[name] for name in learned}})
    first = lab.size.seeds[0]
    found = {}
    for unit in units[PLAIN]:
        seed = unit.settings.seed
        own = {
            overlap
            for overlap, names in matched.items()
            if any(one.settings.seed == seed for name in names for one in units[name])
        }
        found[seed] = sorted({0, *own, *(usual if seed == first else ())})
    return found


def plain_units(lab: Lab, plain: Sequence[Unit], overlaps: Mapping[int, Sequence[int]]) -> list[Unit]:
    """Plain windows with the scores they need beside those of other tables."""
    return [
        unit.with_scores([lab.wanted(split, o) for o in overlaps[unit.settings.seed] for split in SPLITS])
        for unit in plain
    ]


# ---- rows ------------------------------------------------------------------------------------------------


def with_rivals(rows: Rows, units: Units, rivals: Callable[[dict[str, Any]], bool]) -> Rows:
    """The rows of a text on the seeds that all of them have, and each that is no rival beside the best rival that
    costs no more, all counted; `units` are those of rows. What is gained over that one is told for all seeds that
    both have."""
    rows = on_shared_seeds(rows, units)
    told = []
    for row in rows:
        cheaper = [one for one in rows if rivals(one) and one["full_flops_per_token"] <= row["full_flops_per_token"]]
        if rivals(row) or not cheaper or not row["shared"]["seeds"]:
            told.append({**row, "rival": None})
            continue
        best = min(cheaper, key=lambda one: one["shared"]["perplexity_per_word"][TEST])
        gain = gain_over(units[best["row"]], best["overlap"], units[row["row"]], row["overlap"])
        named = {key: best[key] for key in ("label", "kind", "overlap", "full_flops_per_token")}
        told.append({**row, "rival": None if gain is None else {**named, **gain}})
    return told


def on_shared_seeds(rows: Rows, units: Units) -> Rows:
    """Each row with what it comes to on the seeds that every row has: `shared`, with its perplexities and its gains
    over plain windows without overlap. Means over different seeds cannot be ranked."""
    seeds = sorted(set.intersection(*(set(row["seeds"]) for row in rows))) if rows else []
    bare = next((row for row in rows if row["kind"] == PLAIN and row["overlap"] == 0), None)
    told = []
    for row in rows:
        shared: dict[str, Any] = {"seeds": seeds, "perplexity_per_word": {}, "gain": None}
        if seeds:
            at = [row["seeds"].index(seed) for seed in seeds]
            shared["perplexity_per_word"] = {
                split: statistics.mean(score["per_seed"][index] for index in at)
                for split, score in row["scores"].items()
            }
        if seeds and bare is not None and row is not bare:
            sides = [[unit for unit in units[one["row"]] if unit.settings.seed in seeds] for one in (bare, row)]
            shared["gain"] = {split: gain_over(sides[0], 0, sides[1], row["overlap"], split) for split in row["scores"]}
        told.append({**row, "shared": shared})
    return told
