"""What a memory is held against: plain windows at the largest overlap that costs no more, ranked on seeds all have.

Plain windows of T inputs that share o of them cost T / (T − o) times their layers, and the head once. So there is for
each memory an overlap at which plain windows are just not dearer, and that one is scored beside the usual ones.
"""

import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from typing import Any

import torch
from transformers import PretrainedConfig

from recurrify.evaluate.bootstrap import gain_beyond
from recurrify.evaluate.flops import full_flops_per_token, paper_flops_per_token
from recurrify.mechanisms.base import recurrence_config
from recurrify.modeling.config import RecurrentConfig
from recurrify.modeling.heads import RecurrentForCausalLM
from recurrify.modeling.loading import load_model
from recurrify_papers.experiments.beyond import TEST, UNTRAINED, gain_over
from recurrify_papers.experiments.beyond_sizes import PAPERS, PLAIN
from recurrify_papers.experiments.catalogue import Rows
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.rows import SPLITS
from recurrify_papers.experiments.unit import Unit, Wanted

Units = Mapping[str, Sequence[Unit]]
DOUBLE = 2.0
"""How many times the paper's gain the best is meant to reach."""


# ---- overlaps --------------------------------------------------------------------------------------------


def dearest_overlap(unit: Unit, plain: Unit) -> int:
    """The largest overlap at which plain windows cost no more than this unit, all counted."""
    (_, most), (layers, whole) = costs(unit), costs(plain)
    window = int(plain.settings.recurrence["window"])
    affordable = (o for o in range(window) if layers * window / (window - o) + whole - layers <= most)
    return max(affordable, default=0)


def costs(unit: Unit) -> tuple[float, float]:
    """FLOPs per token without overlap: of the layers alone, and all counted. Shapes decide, so that they are known
    before anything is trained."""
    return _counted_costs(unit.settings.model, json.dumps(unit.settings.recurrence))


@cache
def _counted_costs(base: str, recurrence: str) -> tuple[float, float]:
    config = RecurrentConfig(text_config=_config(base), recurrence=recurrence_config(json.loads(recurrence)).to_dict())
    with torch.device("meta"):
        model = RecurrentForCausalLM(config)
    return paper_flops_per_token(model), full_flops_per_token(model)


@cache
def _config(base: str) -> PretrainedConfig:
    config: PretrainedConfig = load_model(base)[0].base.config
    return config


def matched_overlaps(units: Units, learned: Iterable[str], plain: str = PLAIN) -> dict[int, list[str]]:
    """By overlap of the plain windows of that name, the learned memories whose cost it comes closest to from below."""
    found: dict[int, list[str]] = {}
    for name in learned:
        overlap = dearest_overlap(units[name][0], units[plain][0]) if {name, plain} <= set(units) else 0
        if overlap:
            found.setdefault(overlap, []).append(name)
    return found


def overlaps_by_seed(
    units: Units, usual: Iterable[int], learned: Iterable[str], plain: str = PLAIN
) -> dict[int, list[int]]:
    """At which overlaps plain windows of each seed are scored: the usual ones, and those that match a learned memory
    that has this seed."""
    matched = matched_overlaps(units, learned, plain)
    found = {}
    for unit in units.get(plain, []):
        seed = unit.settings.seed
        own = {
            overlap
            for overlap, names in matched.items()
            if any(one.settings.seed == seed for name in names for one in units[name])
        }
        found[seed] = sorted({0, *own, *usual})
    return found


def at_overlaps(lab: Lab, overlaps: Iterable[int]) -> list[Wanted]:
    """The scores of plain windows that share so many tokens."""
    return [lab.wanted(split, overlap) for overlap in overlaps for split in SPLITS]


# ---- rows ------------------------------------------------------------------------------------------------


def with_rivals(rows: Rows, units: Units, rivals: Callable[[dict[str, Any]], bool]) -> Rows:
    """The rows of a text on the seeds that all of them have, and each that is no rival beside the best rival that
    costs no more, all counted; `units` are those of rows. What is gained over that one is told for all seeds that
    both have. The memory that validates best is `chosen`, and held against the aims."""
    rows = on_shared_seeds(rows, units)
    bare = bare_row(rows)
    chosen = chosen_row([row for row in rows if not rivals(row)], bare)
    told = []
    for row in rows:
        cheaper = [one for one in rows if rivals(one) and one["full_flops_per_token"] <= row["full_flops_per_token"]]
        rival = None if rivals(row) or not row["shared"]["seeds"] else best_rival(row, cheaper, units)
        told.append({**row, "rival": rival, "chosen": row is chosen})
        if row is chosen and bare is not None:
            told[-1]["beyond_papers"] = beyond_papers(row, bare, rows, units)
            told[-1]["beaten_by"] = beaten_by(row, [one for one in rows if rivals(one)], units)
    return told


def best_rival(row: dict[str, Any], cheaper: Rows, units: Units) -> dict[str, Any] | None:
    if not cheaper:
        return None
    best = min(cheaper, key=lambda one: one["shared"]["perplexity_per_word"][TEST])
    return _held_against(best, gain_over(units[best["row"]], best["overlap"], units[row["row"]], row["overlap"]))


def _held_against(other: dict[str, Any], gain: dict[str, Any] | None) -> dict[str, Any] | None:
    named = {key: other[key] for key in ("label", "kind", "window", "overlap", "full_flops_per_token")}
    return None if gain is None else {**named, **gain}


def bare_row(rows: Rows) -> dict[str, Any] | None:
    """Plain windows of the usual length, without overlap; of rows that were not trained, those that were not."""
    bare = (PLAIN, f"{PLAIN}{UNTRAINED}")
    return next((row for row in rows if row["label"] in bare and row["overlap"] == 0), None)


# ---- aims ------------------------------------------------------------------------------------------------


def chosen_row(memories: Rows, bare: dict[str, Any] | None) -> dict[str, Any] | None:
    """The best memory by validation, of those in windows of the usual length that have all seeds."""
    if bare is None:
        return None
    seeds = bare["seeds"]
    able = [row for row in memories if row["window"] == bare["window"] and set(seeds) <= set(row["seeds"])]

    def validated(row: dict[str, Any]) -> float:
        return statistics.mean(row["scores"]["valid"]["per_seed"][row["seeds"].index(seed)] for seed in seeds)

    return min(able, key=validated, default=None)


def beyond_papers(row: dict[str, Any], bare: dict[str, Any], rows: Rows, units: Units) -> dict[str, Any] | None:
    """By how much it gains more than twice what the paper's mechanism does, on the seeds that all three have."""
    papers = next((one for one in rows if one["label"] == PAPERS), None)
    if papers is None or papers is row:
        return None
    sides = [
        {unit.settings.seed: found for unit in units[one["row"]] if (found := unit.evaluation(TEST, one["overlap"]))}
        for one in (bare, papers, row)
    ]
    seeds = sorted(set.intersection(*(set(side) for side in sides)))
    if not seeds:
        return None
    plain, known, new = ([side[seed] for seed in seeds] for side in sides)
    gain = gain_beyond(plain, known, new, DOUBLE)
    reached = None if gain.within_noise else gain.relative_gain > 0
    return {"times": DOUBLE, "reached": reached, **asdict(gain), "seeds": len(seeds)}


def beaten_by(row: dict[str, Any], rivals: Rows, units: Units) -> list[dict[str, Any]]:
    """Rivals that cost as much or more, and are better."""
    found = []
    for rival in rivals:
        if rival["full_flops_per_token"] < row["full_flops_per_token"]:
            continue
        gain = gain_over(units[row["row"]], row["overlap"], units[rival["row"]], rival["overlap"])
        told = _held_against(rival, gain)
        if told is not None and told["relative_gain"] > 0:
            found.append(told)
    return found


# ---- seeds -----------------------------------------------------------------------------------------------


def on_shared_seeds(rows: Rows, units: Units) -> Rows:
    """Each row with what it comes to on the seeds that every row has: `shared`, with its perplexities and its gains
    over plain windows without overlap. Means over different seeds cannot be ranked."""
    seeds = sorted(set.intersection(*(set(row["seeds"]) for row in rows))) if rows else []
    bare = bare_row(rows)
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
