"""Tries of ours at what might raise the gain: short runs on books, each set apart from the paper's by one thing."""

from dataclasses import dataclass, field
from typing import Any

from recurrify.experiments.catalogue import Experiment, Rows, register
from recurrify.experiments.lab import Lab
from recurrify.experiments.rows import perplexity_row
from recurrify.experiments.unit import Unit


@dataclass(frozen=True)
class Variant:
    kind: str
    """Whose learning rate it takes."""
    recurrence: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    added_rate: float | None = None
    """The added weights' learning rate, as a multiple of the base's; None is the size's own."""


VARIANTS = {
    "plain": Variant("plain"),
    "carry": Variant("carry"),
    "carry-standardized": Variant("carry", {"standardize": True}),
    "carry-random-start": Variant("carry", {"neutral_start": False}),
    "carry-rate-x1": Variant("carry", added_rate=1.0),
    "carry-rate-x20": Variant("carry", added_rate=20.0),
    "carry-4-vectors": Variant("carry", {"slots": 4}),
    "carry-every-layer": Variant("carry", {"insert_layer": "all"}),
    "carry-layer-4": Variant("carry", {"insert_layer": 4}),
    "carry-5-windows": Variant("carry", settings={"windows": 5}),
    "tail-16-one-layer": Variant("best", {"tail": 16, "pooled_slots": 0, "until_layer": 2}),
    "tail-16": Variant("best", {"tail": 16, "pooled_slots": 0}),
    "tail-16-pooled-1": Variant("best", {"tail": 16, "pooled_slots": 1}),
    "tail-32-pooled-1": Variant("best", {"tail": 32, "pooled_slots": 1}),
}


def variant_unit(lab: Lab, name: str) -> Unit:
    variant = VARIANTS[name]
    settings = {"max_tokens": lab.size.tuning_tokens, **variant.settings}
    if "windows" in variant.settings:
        # The same tokens in a step.
        settings["batch"] = lab.size.training["batch"] * lab.size.training["windows"] // variant.settings["windows"]
    if variant.added_rate is not None:
        settings["added_learning_rate"] = variant.added_rate * lab.learning_rate(variant.kind)
    return lab.unit("books", variant.kind, recurrence=variant.recurrence, label=f"try-{name}", **settings)


def variant_units(lab: Lab) -> list[Unit]:
    return [variant_unit(lab, name).with_scores([lab.wanted("valid", 0)]) for name in VARIANTS]


def variant_rows(lab: Lab) -> tuple[Rows, list[str]]:
    rows, missing = [], []
    plain = [variant_unit(lab, "plain")]
    for name, variant in VARIANTS.items():
        row = perplexity_row(variant.kind, [variant_unit(lab, name)], plain, 0, splits=("valid",), label=name)
        if row is None:
            missing.append(name)
        else:
            rows.append(row)
    return rows, missing


register(
    Experiment(
        name="variants",
        title="Tries at a larger gain: short runs on books",
        source="ours; the paper's authors tried several of these and found none much better",
        layout="variants",
        units=variant_units,
        rows=variant_rows,
    )
)
