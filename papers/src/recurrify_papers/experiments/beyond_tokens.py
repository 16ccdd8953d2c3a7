"""What is learned with how many fine-tuning tokens, and what starts fast."""

from dataclasses import dataclass, field, replace
from typing import Any

from recurrify.results import load_result
from recurrify_papers.cost import validation_curve
from recurrify_papers.experiments.beyond import (
    OURS,
    chosen_rate,
    differences,
    finish_in_turn,
    mechanism_unit,
    memory_row,
    rates_of,
    told_rates,
    training_of,
)
from recurrify_papers.experiments.beyond_sizes import PAPERS, PLAIN
from recurrify_papers.experiments.catalogue import Experiment, Rows, Stage, register
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.rows import SPLITS
from recurrify_papers.experiments.unit import Unit

WARM_UP_SHARE = 10
"""A warm-up takes at most one step in so many of a run."""


# ---- how many tokens -------------------------------------------------------------------------------------


def steps(lab: Lab, tokens: int) -> int:
    training = training_of(lab)
    return max(1, tokens // (training["batch"] * training.get("accumulate", 1) * training["windows"] * lab.size.window))


def warm_up(lab: Lab, tokens: int) -> int:
    """The size's own, but for runs so short that it would take much of them."""
    return max(1, min(training_of(lab).get("warmup_steps", 100), steps(lab, tokens) // WARM_UP_SHARE))


def compared(lab: Lab) -> dict[str, str]:
    """Names of mechanisms by kind."""
    return {PLAIN: PLAIN, "carry": PAPERS, "best": lab.size.beyond.ours}


def counted_units(lab: Lab, kind: str, tokens: int) -> list[Unit]:
    """One for each seed, none before its learning rate has been chosen; the longest runs have one alone."""
    if tried := tried_units(lab, kind, tokens):
        rate = chosen_rate(tried)
        return [] if rate is None else [tried[rate]]
    units = [counted_unit(lab, kind, tokens, seed) for seed in lab.size.seeds]
    return [unit for unit in units if unit is not None]


def tried_units(lab: Lab, kind: str, tokens: int) -> dict[float, Unit]:
    """Of a long run, by learning rate, those from which one is chosen; none of a shorter one."""
    if tokens <= lab.size.beyond.seeded_tokens:
        return {}
    found = [counted_unit(lab, kind, tokens, lab.size.seeds[0], times) for times in lab.size.beyond.token_rates]
    return {unit.settings.learning_rate: unit for unit in found if unit is not None}


def counted_unit(lab: Lab, kind: str, tokens: int, seed: int = 0, times: float = 1.0) -> Unit | None:
    """A run of its own for each length: its learning rate falls to nothing at its end."""
    name = compared(lab)[kind]
    return mechanism_unit(
        lab,
        "books",
        name,
        seed,
        times,
        label=f"{name}-of-{tokens}-tokens",
        max_tokens=tokens,
        epochs=1000.0,
        schedule="cosine",
        warmup_steps=warm_up(lab, tokens),
        valid_every=max(1, tokens // 4),
        patience=0,
    )


def token_units(lab: Lab) -> list[Unit]:
    """The shortest first: where time runs out, most lengths are there."""
    wanted = [lab.wanted(split, 0) for split in SPLITS]

    def units(kind: str, tokens: int) -> list[Unit]:
        return [*tried_units(lab, kind, tokens).values()] or counted_units(lab, kind, tokens)

    counts = sorted(lab.size.beyond.token_counts)
    return [unit.with_scores(wanted) for tokens in counts for kind in compared(lab) for unit in units(kind, tokens)]


def token_rows(lab: Lab) -> tuple[Rows, list[str]]:
    failed = finish_in_turn(lab, [lambda: token_units(lab)])
    rows: Rows = []
    missing = []
    for tokens in lab.size.beyond.token_counts:
        plain = counted_units(lab, PLAIN, tokens)
        for kind, name in compared(lab).items():
            units = counted_units(lab, kind, tokens)
            row = memory_row("books", name, units, plain) if units and plain else None
            if row is None:
                alone = ", for want of plain windows" if units and not plain else ""
                missing.append(f"{name}, {tokens:,} tokens{alone}")
            else:
                rates = told_rates(tried_units(lab, kind, tokens))
                rows.append({**row, "kind": kind, "wanted_tokens": tokens, "rates": rates})
    return rows, [*missing, *failed]


register(
    Experiment(
        name="tokens",
        title="What is learned with how many fine-tuning tokens",
        source=OURS,
        one_recipe=False,
        layout="tokens",
        units=lambda lab: rates_of(lab, compared(lab).values()),
        rows=token_rows,
        after=Stage.BASE,
        differences=differences,
    )
)


# ---- what starts fast ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Start:
    kind: str
    """Whose mechanism and learning rate it takes."""
    about: str
    changed: dict[str, Any] = field(default_factory=dict)
    """In the mechanism."""
    added_rate: float | None = None
    """The added weights' learning rate, as a multiple of the base's; None is the size's own."""
    curriculum: bool = False
    """Whether training sequences grow."""
    only: str | None = None
    """The mechanism without which it means nothing."""


STARTS = {
    "plain": Start(PLAIN, "plain windows"),
    "carry": Start("carry", "as in the paper, started neutral"),
    "carry-random-start": Start("carry", "started at random", {"neutral_start": False}),
    "carry-standardized": Start("carry", "inputs standardised", {"standardize": True}),
    "carry-rate-x1": Start("carry", "added weights learn at the base's rate", added_rate=1.0),
    "carry-rate-x20": Start("carry", "added weights learn at 20 times the base's rate", added_rate=20.0),
    "carry-standardized-rate-x20": Start("carry", "both of these", {"standardize": True}, added_rate=20.0),
    "carry-curriculum": Start("carry", "training sequences grow", curriculum=True),
    "slots": Start("slots", "a tail as slots, started neutral"),
    "slots-copies": Start("slots", "started as copies of what slots come from", {"neutral_start": False}),
    "slots-gated": Start("slots", "with gates, which start closed", {"gated": True}),
    "slots-gated-half-open": Start("slots", "with gates, which start half open", {"gated": True, "gate_start": 0.0}),
    "best": Start("best", "the best found, as it starts"),
    "best-unmoved": Start("best", "keys and values start where they stood", {"moved_start": False}, only="lookback"),
    "best-rate-x1": Start("best", "added weights learn at the base's rate", added_rate=1.0),
    "best-rate-x20": Start("best", "added weights learn at 20 times the base's rate", added_rate=20.0),
    "best-curriculum": Start("best", "training sequences grow", curriculum=True),
}


def started(lab: Lab) -> dict[str, str]:
    """Names of mechanisms by kind."""
    beyond = lab.size.beyond
    return compared(lab) | ({"slots": beyond.slots} if beyond.compared([beyond.slots]) else {})


def starts(lab: Lab) -> dict[str, Start]:
    ours = lab.size.beyond.mechanisms[lab.size.beyond.ours]["mechanism"]
    known = started(lab)
    return {name: start for name, start in STARTS.items() if start.only in (None, ours) and start.kind in known}


def stages(lab: Lab, name: str, seed: int = 0) -> list[Unit]:
    """One run; with a curriculum several, each going on with the model that the one before left. None before its
    learning rate has been chosen."""
    start, beyond = STARTS[name], lab.size.beyond
    mechanism = started(lab)[start.kind]
    usual = mechanism_unit(lab, "books", mechanism, seed)
    if usual is None:
        return []
    usually = training_of(lab)
    plan = beyond.curriculum if start.curriculum else ((usually["windows"], 1.0),)
    units: list[Unit] = []
    for number, (windows, share) in enumerate(plan):
        tokens = round(share * beyond.start_tokens)
        settings: dict[str, Any] = {
            "label": f"start-{name}-{number + 1}" if start.curriculum else f"start-{name}",
            "max_tokens": tokens,
            "epochs": 1000.0,
            "schedule": "constant_with_warmup",
            "warmup_steps": warm_up(lab, tokens),
            "valid_every": max(1, beyond.start_tokens // beyond.start_points),
            "patience": 0,
            "windows": windows,
            # The same tokens in a step.
            "batch": max(1, usually["batch"] * usually["windows"] // windows),
        }
        if start.added_rate is not None:
            settings["added_learning_rate"] = start.added_rate * usual.settings.learning_rate
        if start.changed:
            settings["changed"] = start.changed
        unit = mechanism_unit(lab, "books", mechanism, seed, **settings)
        assert unit is not None
        unit = unit.with_scores([lab.wanted("valid", 0)])
        if units:
            unit = replace(unit, settings=replace(unit.settings, model=str(units[-1].run_folder / "model")))
        units.append(unit)
    return units


def with_needed(units: list[Unit]) -> list[Unit]:
    """The stages of a start, those marked whose model the next has yet to go on with."""
    told: list[Unit] = []
    for unit in reversed(units):
        told.insert(0, replace(unit, needed=bool(told) and told[0].must_be_trained()))
    return told


def start_round(lab: Lab, number: int) -> list[Unit]:
    """The stage of this number of every start that has one."""
    every = [with_needed(stages(lab, name, seed)) for seed in lab.size.seeds for name in starts(lab)]
    return [found[number] for found in every if len(found) > number]


def start_rows(lab: Lab) -> tuple[Rows, list[str]]:
    rounds = range(len(lab.size.beyond.curriculum))
    failed = finish_in_turn(lab, [lambda number=number: start_round(lab, number) for number in rounds])  # type: ignore[misc]
    rows: Rows = []
    missing = []
    seeds = lab.size.seeds
    plain = [unit for seed in seeds for unit in stages(lab, PLAIN, seed)]
    for name, start in starts(lab).items():
        every = {seed: units for seed in seeds if (units := stages(lab, name, seed))}
        row = (
            memory_row("books", name, [units[-1] for units in every.values()], plain, splits=("valid",))
            if every
            else None
        )
        missing += [f"{name}, seed {seed}" for seed in seeds if row is None or seed not in row["seeds"]]
        if row is None:
            continue
        done = [every[seed] for seed in row["seeds"]]
        tokens = sum(load_result(unit.run_file)["tokens"] for unit in done[0])
        curves = [curve(units) for units in done]
        rows.append({**row, "kind": start.kind, "about": start.about, "tokens": tokens, "curves": curves})
    return rows, [*missing, *failed]


def curve(units: list[Unit]) -> list[list[float]]:
    """Training tokens and validation losses of a run, or of several that go on with each other."""
    points: list[list[float]] = []
    before = 0
    for unit in units:
        run = load_result(unit.run_file)
        found = validation_curve(run["history"], run["tokens"] / run["steps"])
        points += [[before + tokens, loss] for tokens, loss in found]
        before += run["tokens"]
    return points


register(
    Experiment(
        name="starts",
        title="What starts fast: the first fine-tuning tokens",
        source=OURS,
        one_recipe=False,
        layout="starts",
        units=lambda lab: rates_of(lab, started(lab).values()),
        rows=start_rows,
        after=Stage.BASE,
        differences=differences,
    )
)
