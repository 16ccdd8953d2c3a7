"""A task that only a memory can solve: the same small decoder with and without one."""

from typing import Any

from recurrify_papers.experiment import Chart, Experiment, Headline, Row, Table, mean_of
from recurrify_papers.runner import Results, Run
from recurrify_papers.sizes import Size

SEEDS, STEPS, BATCH, DOCUMENTS = (0, 1, 2), 2000, 64, 2000
MODELS = {
    "disjoint": {"mechanism": "none"},
    "recurrent": {
        "mechanism": "carry",
        "pooling": "attention",
        "insert_layer": "all",
        "slots": 2,
        "hidden_layers": 1,
        "standardize": True,
    },
    # The paper's mechanism for question answering: one vector of the last layer's mean, at one layer.
    "recurrent_as_for_answers": {
        "mechanism": "carry",
        "pooled_layers": "last",
        "insert_layer": 2,
        "hidden_layers": 2,
        "hidden_size": 768,
    },
}


def two_part_runs(size: Size) -> list[Run]:
    """One training for each model and seed."""
    own = {"seeds": SEEDS, "steps": STEPS, "batch": BATCH, "documents": DOCUMENTS, **size.own.get("two-part", {})}
    seeds = own.pop("seeds")
    function = "recurrify_papers.beyond.two_part_run:two_part_run"
    return [
        Run(name=_name(model, seed), function=function, settings={"recurrence": recurrence, "seed": seed, **own})
        for seed in seeds
        for model, recurrence in MODELS.items()
    ]


def _name(model: str, seed: int) -> str:
    return f"two-part-{model}-s{seed}"


def two_part_table(size: Size, results: Results) -> Table:
    """The classification metrics of each model."""
    seeds = size.own.get("two-part", {}).get("seeds", SEEDS)
    table = Table()
    for model in MODELS:
        found = [results[_name(model, seed)] for seed in seeds if _name(model, seed) in results]
        table.missing += [f"{model}, seed {seed}" for seed in seeds if _name(model, seed) not in results]
        if found:
            table.rows += metric_rows(model, [one["metrics"] for one in found], found[0]["chance"])
    return table


def metric_rows(model: str, found: list[dict[str, float]], chance: float) -> list[Row]:
    """Means over seeds."""
    rows = []
    for metric in found[0]:
        value, spread = mean_of([one[metric] for one in found])
        note = f"chance {chance:g}" if metric == "accuracy" else None
        common: dict[str, Any] = {"label": model, "model": model, "split": "test", "seeds": len(found)}
        rows.append(Row(metric=metric, value=value, spread=spread, note=note, **common))
    return rows


EXPERIMENTS = (
    Experiment(
        name="two-part",
        title="A task that only a memory can solve: two signs in the first window, the rule in the last",
        source="ours; not published",
        runs=two_part_runs,
        table=two_part_table,
        differences=(),
        headlines=(
            Headline(
                label="recurrent",
                metric="accuracy",
                percent=True,
                sentence="With a memory, {value} of the answers are correct; {published}.",
            ),
        ),
        chart=Chart(x="label", metric="accuracy", title="Accuracy"),
        ours=True,
    ),
)
