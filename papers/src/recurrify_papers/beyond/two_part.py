"""A task that only a memory can solve: the same small decoder with and without one."""

from typing import Any

from recurrify_papers.declare import number_experiment
from recurrify_papers.experiment import Chart, Headline
from recurrify_papers.plan import Entry, Plan

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


def two_part_entries(plan: Plan) -> list[Entry]:
    """One training for each model and seed."""
    own: dict[str, Any] = {"seeds": SEEDS, "steps": STEPS, "batch": BATCH, "documents": DOCUMENTS}
    own |= plan.size.own.get("two-part", {})
    seeds = own.pop("seeds")
    found = []
    for model, recurrence in MODELS.items():
        runs = {}
        for seed in seeds:
            name = f"two-part-{model}-s{seed}"
            run = plan.run("beyond.two_part_run:two_part_run", name, recurrence=recurrence, seed=seed, **own)
            runs[seed] = (run,)
        found.append(Entry(label=model, model=model, trained=runs))
    return found


EXPERIMENTS = (
    number_experiment(
        two_part_entries,
        name="two-part",
        title="A task that only a memory can solve: two signs in the first window, the rule in the last",
        source="ours; not published",
        differences=(),
        headlines=(
            Headline(
                label="recurrent",
                metric="accuracy",
                sentence="With a memory, {value} of the answers are correct; {published}.",
            ),
        ),
        chart=Chart(x="label", metric="accuracy", title="Accuracy"),
        ours=True,
    ),
)
