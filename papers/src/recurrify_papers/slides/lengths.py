"""The slides' claim on lengths outside the training distribution: trained on sequences up to 40, tested up to 400.

Every model has about 150,000 parameters, sees the same sequences for the same number of steps, and takes its learning
rate from the same candidates by its loss on validation sequences of training length.
"""

from typing import Any

from recurrify_papers.declare import number_experiment
from recurrify_papers.experiment import Chart, Headline
from recurrify_papers.plan import Entry, Plan

SOURCE = "Lecture slides, RNNs (using LSTMs and GRUs) vs. transformers"
_LAYERS: dict[str, Any] = {"layers": 3, "width": 64, "heads": 8, "head_width": 8, "inner": 256, "dropout": 0.0}
MODELS: dict[str, tuple[dict[str, Any], int | None, str]] = {
    "transformer": (_LAYERS, None, "whole sequences; no position beyond the training length was trained"),
    "rsa": (
        # Half of the heads with a recurrence, as published; regular ones, and a pair that turns.
        {**_LAYERS, "rsa.counts": (2, 1, 1, 0, 0, 0), "rsa.dilations": ()},
        None,
        "whole sequences, the recurrence over all of them; positions as the transformer's",
    ),
    "xl": (
        # Segments of half the training length: else training would never see a memory.
        {**_LAYERS, "inner": 232, "memory_length": 20},
        20,
        "segments of 20 with the 20 positions before as memory, without gradient",
    ),
    "brt": (
        {**_LAYERS, "inner": 160, "window": 20, "block": 10, "states": 16},
        40,
        "segments of 40 in a sliding window of 20; 16 states are written every 10 positions",
    ),
    "lstm": ({"layers": 2, "width": 96, "dropout": 0.0}, None, "whole sequences, position by position"),
    "gru": ({"layers": 2, "width": 112, "dropout": 0.0}, None, "whole sequences, position by position"),
}
"""By architecture: its settings, positions read at a time (None: all), and how it reads."""
STUDY: dict[str, Any] = {
    "tasks": ("parity", "counting", "dyck", "copying"),
    "seeds": (0, 1, 2),
    "rates": (3e-4, 1e-3, 3e-3),
    "steps": 2000,
    "batch": 128,
    "length": 40,
    "lengths": (20, 40, 60, 80, 120, 160, 200, 300, 400),
    "valid_sequences": 1024,
    "test_sequences": 1024,
}
"""`length` is the longest of training; the first seed chooses the learning rate."""
COMMON = ("steps", "batch", "length", "lengths", "valid_sequences", "test_sequences")


def length_entries(plan: Plan) -> list[Entry]:
    """Every architecture on every rule, and the levels to compare with."""
    study = STUDY | dict(plan.size.own.get("slides-lengths", {}))
    function = "recurrify_papers.slides.rule_training:rule_run"
    found = []
    for task in study["tasks"]:
        for arch, (model, segment, reads) in MODELS.items():
            settings: dict[str, Any] = {"task": task, "arch": arch, "model": model, "segment": segment}
            settings |= {name: study[name] for name in COMMON}
            trained = plan.tuned(f"rule-{task}-{arch}", function, settings, study["rates"], study["seeds"])
            found.append(Entry(label=arch, model=arch, dataset=task, trained=trained, note=f"reads {reads}"))
        own = {"length": study["length"], "lengths": study["lengths"]}
        levels = plan.run("slides.rule_training:levels_run", f"rule-{task}-levels", task=task, **own)
        found.append(Entry(label="levels", model="levels", dataset=task, trained={0: (levels,)}))
    return found


EXPERIMENTS = (
    number_experiment(
        length_entries,
        name="slides-lengths",
        title="Recurrent rules at lengths that were never trained",
        source=f"{SOURCE}, out-of-distribution generalization (a claim, no numbers)",
        differences=("The slides print no numbers: rules, lengths, models and budgets are ours.",),
        headlines=(
            Headline(
                label="lstm",
                dataset="parity",
                at=400.0,
                metric="accuracy",
                sentence="At ten times the training length an LSTM computes parity correctly in {value} of cases.",
            ),
            Headline(
                label="transformer",
                dataset="parity",
                at=400.0,
                metric="accuracy",
                sentence="A transformer does in {value}.",
            ),
        ),
        chart=Chart(x="at", metric="accuracy", facet="dataset", title="Accuracy against length"),
    ),
)
