"""The slides' claim on lengths outside the training distribution: trained on sequences up to 40, who is right at 400?

Every model has about 150,000 parameters, sees the same sequences for as many steps, and takes its learning rate from
the same candidates by its loss on validation sequences of training length.
"""

from typing import Any

from recurrify_papers.experiment import Chart, Experiment, Headline, Row, Table, mean_of
from recurrify_papers.runner import Results, Run
from recurrify_papers.sizes import Size

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
        {**_LAYERS, "inner": 232, "target_length": 20, "memory_length": 20},
        20,
        "segments of 20 with the 20 positions before as memory, without gradient",
    ),
    "brt": (
        {**_LAYERS, "inner": 160, "target_length": 40, "window": 20, "block": 10, "states": 16},
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


def length_runs(size: Size) -> list[Run]:
    """Candidates with the first seed, then the other seeds at the chosen rate."""
    study = STUDY | dict(size.own.get("slides-lengths", {}))
    runs = []
    for task in study["tasks"]:
        for arch, (model, segment, _) in MODELS.items():
            common: dict[str, Any] = {"task": task, "arch": arch, "model": model, "segment": segment}
            common |= {name: study[name] for name in COMMON}
            function = "recurrify_papers.slides.rule_training:rule_run"
            first, *others = study["seeds"]
            tried = {_name(task, arch, first, rate): rate for rate in study["rates"]}
            for name, rate in tried.items():
                settings = {**common, "seed": first, "learning_rate": rate}
                runs.append(Run(name=name, function=function, settings=settings))
            for seed in others:
                settings = {**common, "seed": seed, "learning_rate": {"best_of": tried}}
                runs.append(Run(name=_name(task, arch, seed), function=function, settings=settings, needs=tuple(tried)))
    return runs


def _name(task: str, arch: str, seed: int, rate: float | None = None) -> str:
    return f"rule-{task}-{arch}-s{seed}" + ("" if rate is None else f"-lr{rate:g}")


def length_table(size: Size, results: Results) -> Table:
    """Accuracy at each length; what a constant guess and a memory of the training length reach."""
    study, table = STUDY | dict(size.own.get("slides-lengths", {})), Table()
    first, *others = study["seeds"]
    for task in study["tasks"]:
        for arch, (_, _, reads) in MODELS.items():
            tried = {rate: results.get(_name(task, arch, first, rate)) for rate in study["rates"]}
            done = {rate: one for rate, one in tried.items() if one is not None and one["valid"]["loss"] is not None}
            if None in tried.values() or not done:
                table.missing.append(f"{task}, {arch}")
                continue
            rate = min(done, key=lambda rate: done[rate]["valid"]["loss"])
            seeds = [done[rate], *(one for seed in others if (one := results.get(_name(task, arch, seed))))]
            table.missing += [f"{task}, {arch}, seed {s}" for s in others if _name(task, arch, s) not in results]
            common: dict[str, Any] = {"label": arch, "model": arch, "dataset": task, "seeds": len(seeds)}
            note = f"reads {reads}; learning rate {rate:g}; {seeds[0]['parameters']:,} parameters"
            for length in map(str, study["lengths"]):
                right = [one["test"][length]["accuracy"] for one in seeds]
                value, spread = mean_of(right)
                more: dict[str, Any] = {"spread": spread, "note": note}
                table.rows.append(Row(metric="accuracy", value=value, at=float(length), **more, **common))
        table.rows += _levels(task, study, results)
    return table


def _levels(task: str, study: dict[str, Any], results: Results) -> list[Row]:
    """Levels to compare with; every run of a task computes them."""
    names = (_name(task, arch, study["seeds"][0], rate) for arch in MODELS for rate in study["rates"])
    found: dict[str, Any] = next((results[name]["levels"] for name in names if name in results), {})
    labels = {"chance": "best constant guess", "short_memory": f"best with the last {study['length']} symbols"}
    return [
        Row(label=label, model=label, dataset=task, metric="accuracy", at=float(length), value=found[length][name])
        for name, label in labels.items()
        for length in found
    ]


EXPERIMENTS = (
    Experiment(
        name="slides-lengths",
        title="Recurrent rules at lengths that were never trained",
        source=f"{SOURCE}, out-of-distribution generalization (a claim, no numbers)",
        runs=length_runs,
        table=length_table,
        differences=("The slides print no numbers: rules, lengths, models and budgets are ours.",),
        headlines=(
            Headline(
                label="lstm",
                dataset="parity",
                at=400.0,
                metric="accuracy",
                percent=True,
                sentence="At ten times the training length an LSTM computes parity correctly in {value} of cases.",
            ),
            Headline(
                label="transformer",
                dataset="parity",
                at=400.0,
                metric="accuracy",
                percent=True,
                sentence="A transformer does in {value}.",
            ),
        ),
        chart=Chart(x="at", metric="accuracy", facet="dataset", title="Accuracy against length"),
    ),
)
