"""Section 5.3.1 and tables 4 and 5: what models write after a context that only memory can reach."""

from typing import Any

from recurrify_papers.declare import number_experiment
from recurrify_papers.experiment import Chart, Experiment, Headline, Row, Table
from recurrify_papers.plan import KINDS, LABELS, Entry, Plan
from recurrify_papers.runner import Results, Run
from recurrify_papers.sizes import Size
from recurrify_papers.yoshida2020.published import SOURCE, TOPIC_NUMBERS

NEW_TOKENS = 30
SHOWN = 8
TOPICS, TOPIC_TEXTS = 20, 5_000
CONTEXTS = 8_000
RUN = "topics"


def text_entries(plan: Plan) -> list[Entry]:
    """Continuations of each model, then the topics of all."""
    size = plan.size
    contexts = size.own.get("topics", {}).get("contexts", CONTEXTS)
    common: dict[str, Any] = {"data": size.books, "window": size.window, "contexts": contexts, "new_tokens": NEW_TOKENS}
    written = {}
    for kind in KINDS:
        run = plan.train("books", kind, seed=size.seeds[0])
        made = plan.run("yoshida2020.continuations:continuations_run", f"{run}-written", run={"run": run}, **common)
        written[kind] = {"run": made}
    settings = {"data": size.books, "texts": TOPIC_TEXTS, "topics": TOPICS, "shown": SHOWN, "runs": written}
    plan.run("yoshida2020.topics:topics_run", RUN, **settings)
    return [Entry(label="all models", model="carry", dataset="books", trained={size.seeds[0]: (RUN,)})]


def published(row: Row) -> float | None:
    """The paper's divergences and share."""
    return TOPIC_NUMBERS.get(row.model or "", {}).get(row.metric)


def text_runs(size: Size) -> list[Run]:
    """The runs of both experiments."""
    plan = Plan(size)
    text_entries(plan)
    return list(plan.runs.values())


def continuation_table(size: Size, results: Results) -> Table:
    """The first sampled contexts, not a selection."""
    return Table(texts=results[RUN]["examples"]) if RUN in results else Table(missing=[RUN])


EXPERIMENTS = (
    number_experiment(
        text_entries,
        published,
        name="topics",
        title="Whether continuations stay with the topic of their context",
        source=f"{SOURCE}, section 5.3.1",
        text="Mean Jensen–Shannon divergence (bits) between the topics of a context and of its continuation.",
        headlines=(
            Headline(
                label=LABELS["carry"],
                metric="closer share",
                sentence="In {value} of contexts the recurrent model stays closer to the topic; {published}.",
            ),
        ),
        chart=Chart(x="label", metric="divergence", title="Divergence from the context's topics"),
    ),
    Experiment(
        name="continuations",
        title="Greedy continuations after a context that only memory can reach",
        source=f"{SOURCE}, Tables 4 and 5",
        runs=text_runs,
        table=continuation_table,
        text="The first sampled contexts, not a selection, and what each model writes in a fresh window.",
    ),
)
