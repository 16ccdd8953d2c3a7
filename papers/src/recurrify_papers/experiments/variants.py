"""Tries of ours at what might raise the gain: short runs on books, each set apart from the paper's by one thing."""

from dataclasses import dataclass, field
from typing import Any

from recurrify_papers.experiments.catalogue import Experiment, Rows, Stage, register
from recurrify_papers.experiments.lab import VARIANTS, Lab
from recurrify_papers.experiments.rows import perplexity_row
from recurrify_papers.experiments.sizes import CARRY
from recurrify_papers.experiments.unit import Unit

TAIL: dict[str, Any] = {"mechanism": "tail"}


@dataclass(frozen=True)
class Variant:
    kind: str
    """Whose learning rate it takes."""
    recurrence: dict[str, Any]
    settings: dict[str, Any] = field(default_factory=dict)
    added_rate: float | None = None
    """The added weights' learning rate, as a multiple of the base's; None is the size's own."""


TRIES = {
    "plain": Variant("plain", {"mechanism": "none"}),
    "carry": Variant("carry", CARRY),
    "carry-standardized": Variant("carry", CARRY | {"standardize": True}),
    "carry-random-start": Variant("carry", CARRY | {"neutral_start": False}),
    "carry-rate-x1": Variant("carry", CARRY, added_rate=1.0),
    "carry-rate-x20": Variant("carry", CARRY, added_rate=20.0),
    "carry-4-vectors": Variant("carry", CARRY | {"slots": 4}),
    "carry-every-layer": Variant("carry", CARRY | {"insert_layer": "all"}),
    "carry-layer-4": Variant("carry", CARRY | {"insert_layer": 4}),
    "carry-5-windows": Variant("carry", CARRY, settings={"windows": 5}),
    "tail-16-one-layer": Variant("best", TAIL | {"tail": 16, "until_layer": 2}),
    "tail-16": Variant("best", TAIL | {"tail": 16}),
    "tail-16-pooled": Variant("best", TAIL | {"tail": 16, "pooled_slots": 1}),
    "tail-16-copies": Variant("best", TAIL | {"tail": 16, "pooled_slots": 1, "neutral_start": False}),
    "tail-32-pooled": Variant("best", TAIL | {"tail": 32, "pooled_slots": 1}),
    "tail-64-pooled": Variant("best", TAIL | {"tail": 64, "pooled_slots": 1}),
}


def variant_unit(lab: Lab, name: str) -> Unit:
    variant = TRIES[name]
    settings = {"max_tokens": lab.size.tuning_tokens, **variant.settings}
    if "windows" in variant.settings:
        # The same tokens in a step.
        settings["batch"] = lab.size.training["batch"] * lab.size.training["windows"] // variant.settings["windows"]
    if variant.added_rate is not None:
        settings["added_learning_rate"] = variant.added_rate * lab.learning_rate(variant.kind)
    return lab.unit("books", variant.kind, recurrence=variant.recurrence, label=f"try-{name}", **settings)


def variant_units(lab: Lab) -> list[Unit]:
    return [variant_unit(lab, name).with_scores([lab.wanted("valid", 0)]) for name in TRIES]


def candidate_units(lab: Lab) -> list[Unit]:
    """What has to be run before the best mechanism can be chosen."""
    return [variant_unit(lab, name).with_scores([lab.wanted("valid", 0)]) for name in lab.size.best_from]


def variant_rows(lab: Lab) -> tuple[Rows, list[str]]:
    """Of the size's candidates for the best mechanism, when all are there, one is marked as chosen."""
    rows: Rows = []
    missing = []
    plain = [variant_unit(lab, "plain")]
    for name, variant in TRIES.items():
        row = perplexity_row(variant.kind, [variant_unit(lab, name)], plain, 0, splits=("valid",), label=name)
        if row is None:
            missing.append(name)
        else:
            rows.append({**row, "recurrence": variant.recurrence, "chosen": False})
    candidates = [row for row in rows if row["label"] in lab.size.best_from]
    if candidates and len(candidates) == len(lab.size.best_from):
        min(candidates, key=lambda row: row["scores"]["valid"]["perplexity_per_token"])["chosen"] = True
    return rows, missing


register(
    Experiment(
        name=VARIANTS,
        title="Tries at a larger gain: short runs on books",
        source="ours; the paper's authors tried several of these and found none much better",
        layout="variants",
        units=variant_units,
        rows=variant_rows,
        after=Stage.RATES,
    )
)
