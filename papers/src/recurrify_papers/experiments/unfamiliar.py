"""Two reasons why the gain on books may be small: a base that knows such text already, and a short fine-tuning.

A second base is pretrained like the first, with its tokenizer, on wiki text alone. Plain windows and the paper's
mechanism are fine-tuned on books from both, each at the learning rate that is best on validation of the same
candidates; then again, at that rate, for as many epochs as the paper trains.
"""

from dataclasses import replace
from typing import Any

from recurrify_papers.experiments.beyond import finish_in_turn
from recurrify_papers.experiments.catalogue import PAIR, Experiment, Rows, Stage, register
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.rows import best_on_validation, perplexity_row
from recurrify_papers.experiments.sizes import LABELS
from recurrify_papers.experiments.unit import Unit

NAME = "unfamiliar"
FOLDER = "base-wiki"
"""Of the second base, beside the first."""
LONG: dict[str, Any] = {"epochs": 2.0, "max_tokens": None}
"""The paper's length, in epochs."""
BASES = {False: "the usual base", True: "a base of wiki text alone"}
"""By whether it has never seen books."""


def unfamiliar_unit(lab: Lab, kind: str, unseen: bool, rate: float, long: bool = False) -> Unit:
    label = "-".join(["unseen" if unseen else "seen", "long" if long else "usual", kind])
    unit = lab.unit(
        "books", kind, seed=lab.size.seeds[0], label=label, learning_rate=rate, **(LONG if long else {})
    ).with_scores([lab.wanted(split, 0) for split in ("valid", "test")])
    if unseen:
        unit = replace(unit, settings=replace(unit.settings, model=str(lab.folder / FOLDER / "model")))
    return unit


def candidates(lab: Lab, kind: str, unseen: bool) -> list[Unit]:
    return [unfamiliar_unit(lab, kind, unseen, rate) for rate in lab.size.unfamiliar_candidates]


def chosen(lab: Lab, unseen: bool, long: bool) -> dict[str, Unit]:
    """By kind, those whose learning rate is known."""
    best = {kind: unit for kind in PAIR if (unit := best_on_validation(candidates(lab, kind, unseen))) is not None}
    if not long:
        return best
    return {
        kind: unfamiliar_unit(lab, kind, unseen, unit.settings.learning_rate, long=True) for kind, unit in best.items()
    }


def unfamiliar_rows(lab: Lab) -> tuple[Rows, list[str]]:
    if lab.size.base is not None:
        return [], [f"nothing: the base of size {lab.size.name} is not pretrained here"]
    if not lab.make_base(FOLDER, ("wiki",), tokenizer=lab.base()):
        lab.stopped = True
        return [], ["the second base"]
    finish_in_turn(
        lab,
        [
            lambda: [unit for unseen in BASES for kind in PAIR for unit in candidates(lab, kind, unseen)],
            lambda: [unit for unseen in BASES for unit in chosen(lab, unseen, long=True).values()],
        ],
    )
    rows: Rows = []
    missing = []
    for long in (False, True):
        for unseen, base in BASES.items():
            units = chosen(lab, unseen, long)
            plain = [units["plain"]] if "plain" in units else []
            about = f"{base}, two epochs" if long else base
            for kind in PAIR:
                row = perplexity_row(kind, [units[kind]], plain, 0) if kind in units else None
                if row is None:
                    missing.append(f"{kind}, {about}")
                    continue
                rate = units[kind].settings.learning_rate
                rows.append({**row, "label": f"{LABELS[kind]}; {about}, learning rate {rate:g}"})
    return rows, missing


register(
    Experiment(
        name=NAME,
        title="Why the gain may be small: a base that never saw books, and the paper's epochs of training",
        source="ours; not published",
        layout="variants",
        units=lambda lab: [],
        rows=unfamiliar_rows,
        after=Stage.BASE,
        one_recipe=False,
        differences=lambda _: (
            "Both bases read as many tokens in pretraining: the one of wiki text alone goes over it more often.",
            "Learning rates are chosen on books here, from the same candidates for both bases and both models.",
            "Two epochs are the paper's length, of far fewer books.",
        ),
    )
)
