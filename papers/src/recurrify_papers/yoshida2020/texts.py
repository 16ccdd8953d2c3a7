"""Section 5.3.1 and tables 4 and 5: what models write after a context that only memory can reach."""

from typing import Any

from recurrify_papers.experiment import Chart, Experiment, Headline, Row, Table
from recurrify_papers.plan import KINDS, LABELS, Plan
from recurrify_papers.runner import Results, Run
from recurrify_papers.sizes import Size
from recurrify_papers.yoshida2020 import published
from recurrify_papers.yoshida2020.published import SOURCE

NEW_TOKENS = 30
SHOWN = 8
TOPICS, TOPIC_TEXTS = 20, 5_000
CONTEXTS = 8_000
RUN = "topics"


def text_runs(size: Size) -> list[Run]:
    """Continuations of each model, then the topics of all."""
    plan = Plan(size)
    contexts = size.own.get("topics", {}).get("contexts", CONTEXTS)
    common: dict[str, Any] = {"data": size.books, "window": size.window, "contexts": contexts, "new_tokens": NEW_TOKENS}
    written = {}
    for kind in KINDS:
        run = plan.train("books", kind, seed=size.seeds[0])
        function = "recurrify_papers.yoshida2020.continuations:continuations_run"
        settings = {"run": run, **common}
        written[kind] = plan.add(Run(name=f"{run}-written", function=function, settings=settings, needs=(run,)))
    settings = {"data": size.books, "texts": TOPIC_TEXTS, "topics": TOPICS, "named": SHOWN, "runs": written}
    function = "recurrify_papers.yoshida2020.topics:topics_run"
    plan.add(Run(name=RUN, function=function, settings=settings, needs=tuple(written.values())))
    return list(plan.runs.values())


def topic_table(size: Size, results: Results) -> Table:
    """Distances of continuations from their contexts."""
    if RUN not in results:
        return Table(missing=list(KINDS))
    rows = []
    for one in results[RUN]["rows"]:
        kind, printed = one["kind"], published.TOPICS.get(one["kind"], {})
        low, high = one["interval"] or (None, None)
        common: dict[str, Any] = {"label": LABELS[kind], "model": kind, "dataset": "books", "split": "valid"}
        bounds: dict[str, Any] = {"low": low, "high": high, "published": printed.get("divergence")}
        rows.append(Row(metric="divergence", value=one["divergence"], **bounds, **common))
        if one["closer_share"] is not None:
            note = f"p = {one['p_value']:.2g}, {one['ties']} ties of {one['contexts']} contexts"
            share: dict[str, Any] = {"published": printed.get("closer share"), "note": note}
            rows.append(Row(metric="closer share", value=one["closer_share"], **share, **common))
        rows += [
            Row(metric=name.replace("_", " "), value=one[name], **common)
            for name in ("divergence_nats", "distance", "without_words")
        ]
        if one["with_words"]:
            rows.append(Row(metric="divergence, texts with words", value=one["with_words"]["divergence"], **common))
    return Table(rows)


def continuation_table(size: Size, results: Results) -> Table:
    """The first sampled contexts, not a selection."""
    written = {kind: results.get(f"{Plan(size).train('books', kind, seed=size.seeds[0])}-written") for kind in KINDS}
    found = {kind: texts for kind, texts in written.items() if texts is not None}
    missing = [kind for kind in KINDS if kind not in found]
    if missing or RUN not in results:
        return Table(missing=missing or [RUN])
    contexts = found["plain"]["contexts"][:SHOWN]
    texts = [
        {"context": context, "topic": results[RUN]["names"][index]}
        | {LABELS[kind]: one["first_tokens"][index] + one["continuations"][index] for kind, one in found.items()}
        for index, context in enumerate(contexts)
    ]
    return Table(texts=texts)


EXPERIMENTS = (
    Experiment(
        name="topics",
        title="Whether continuations stay with the topic of their context",
        source=f"{SOURCE}, section 5.3.1",
        runs=text_runs,
        table=topic_table,
        text="Mean Jensen–Shannon divergence (bits) between the topics of a context and of its continuation.",
        headlines=(
            Headline(
                label=LABELS["carry"],
                metric="closer share",
                percent=True,
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
