"""Two reasons why the gain on books may be small: a base that knows such text already, and a short fine-tuning.

A second base is pretrained like the first, with its tokenizer, on wiki text alone. Plain windows and the paper's
mechanism are then fine-tuned on books from it, at several learning rates, each with its best on validation; and from
both bases for as long as the paper trains.
"""

from dataclasses import replace
from typing import Any

from recurrify.experiments.catalogue import PAIR, Experiment, Rows, register
from recurrify.experiments.lab import Lab
from recurrify.experiments.rows import perplexity_row
from recurrify.experiments.sizes import LABELS
from recurrify.experiments.unit import Unit

NAME = "unfamiliar"
FOLDER = "base-wiki"
"""Of the second base, beside the first."""
LONG: dict[str, Any] = {"epochs": 2.0, "max_tokens": None}
"""The paper's length."""
UNSEEN, SEEN = "a base of wiki text alone", "the usual base"


def unfamiliar_unit(lab: Lab, kind: str, *, unseen: bool, long: bool, rate: float | None = None) -> Unit:
    """`rate` None is the one chosen for the usual base."""
    label = "-".join(["unseen" if unseen else "seen", "long" if long else "usual", kind])
    unit = lab.unit(
        "books", kind, seed=lab.size.seeds[0], label=label, learning_rate=rate, **(LONG if long else {})
    ).with_scores([lab.wanted(split, 0) for split in ("valid", "test")])
    if unseen:
        unit = replace(unit, settings=replace(unit.settings, model=str(lab.folder / FOLDER / "model")))
    return unit


def candidates(lab: Lab, kind: str) -> list[Unit]:
    return [unfamiliar_unit(lab, kind, unseen=True, long=False, rate=rate) for rate in lab.size.unfamiliar_candidates]


def best_candidate(lab: Lab, kind: str) -> Unit | None:
    """On validation; None until all have been run."""
    scored = [(unit.evaluation("valid", 0), unit) for unit in candidates(lab, kind)]
    losses = [(found.total_nll, unit) for found, unit in scored if found is not None]
    return min(losses, key=lambda pair: pair[0])[1] if len(losses) == len(scored) else None


def long_units(lab: Lab, *, unseen: bool) -> dict[str, Unit]:
    """By kind, those whose learning rate is known."""
    found = {}
    for kind in PAIR:
        best = best_candidate(lab, kind) if unseen else None
        if best is not None or not unseen:
            rate = None if best is None else best.settings.learning_rate
            found[kind] = unfamiliar_unit(lab, kind, unseen=unseen, long=True, rate=rate)
    return found


def unfamiliar_rows(lab: Lab) -> tuple[Rows, list[str]]:
    if lab.size.base is not None:
        return [], [f"nothing: the base of size {lab.size.name} is not pretrained here"]
    if not lab.make_base(FOLDER, ("wiki",), tokenizer=lab.base()):
        return [], ["the second base: the same command goes on with it"]
    lab.finish([*(unit for kind in PAIR for unit in candidates(lab, kind)), *long_units(lab, unseen=False).values()])
    lab.finish(long_units(lab, unseen=True).values())
    groups = [
        (UNSEEN, {kind: unit for kind in PAIR if (unit := best_candidate(lab, kind)) is not None}),
        (f"{SEEN}, two epochs", long_units(lab, unseen=False)),
        (f"{UNSEEN}, two epochs", long_units(lab, unseen=True)),
    ]
    rows: Rows = []
    missing = []
    for about, units in groups:
        plain = [units["plain"]] if "plain" in units else []
        for kind in PAIR:
            row = perplexity_row(kind, [units[kind]], plain, 0) if kind in units else None
            if row is None:
                missing.append(f"{kind}, {about}")
            else:
                rate = units[kind].settings.learning_rate
                rows.append({**row, "label": f"{LABELS[kind]}; {about}, learning rate {rate:g}", "chosen": False})
    return rows, missing


register(
    Experiment(
        name=NAME,
        title="Why the gain may be small: a base that never saw books, and the paper's length of training",
        source="ours; not published",
        layout="variants",
        units=lambda lab: [],
        rows=unfamiliar_rows,
        one_recipe=False,
    )
)
