"""Every mechanism at several sizes: perplexity against all FLOPs, compared with plain windows that overlap."""

from typing import Any

from recurrify_papers.beyond.matching import matched_entries, matched_runs
from recurrify_papers.beyond.memories import OURS, PAPERS, Memories, memory_rows, untouched
from recurrify_papers.experiment import Chart, Experiment, Headline, Table
from recurrify_papers.plan import Entry, Plan
from recurrify_papers.runner import Results, Run
from recurrify_papers.sizes import Size

CORPORA = ("books", "wiki")


def mechanism_entries(plan: Plan, corpus: str) -> list[Entry]:
    """Plain windows at the usual overlaps, every memory, and both in longer windows."""
    size, memories = plan.size, Memories(plan)
    own = memories.own
    seeded = ("plain", PAPERS, *own["seeded"], *(own["mechanisms"] if own["all_seeds"] else ()))
    bare: Entry | None = None
    found = []
    for name in ("plain", *memories.names()):
        seeds = size.seeds if name in seeded else size.seeds[:1]
        trained = memories.trained(corpus, name, seeds)
        for overlap in sorted({0, *size.overlaps, *size.plain_overlaps}) if name == "plain" else (0,):
            plain = name == "plain"
            more: dict[str, Any] = {"overlap": overlap, "against": bare, "control": not plain, "rival": plain}
            found.append(memories.entry(corpus, name, trained, **more))
            bare = bare or found[0]
    window = own["longer_window"]
    training = {**size.training, **memories.training(corpus)}
    windows = max(1, round(training["windows"] * size.window / window))
    for name in memories.names(own["longer"]):
        trained = memories.trained(corpus, name, size.seeds[:1], window=window, windows=windows)
        plain = name == "plain"
        longer: dict[str, Any] = {"label": f"{name}-w{window}", "window": window, "control": not plain, "rival": plain}
        found.append(memories.entry(corpus, name, trained, against=bare, **longer))
    return found


def untrained_entries(plan: Plan, corpus: str) -> list[Entry]:
    """Some mechanisms as they start: the base is not trained."""
    memories, size = Memories(plan), plan.size
    bare: Entry | None = None
    found = []
    for name in memories.names(memories.own["untrained"]):
        settings = untouched({**size.training, **memories.training(corpus)})
        label = f"{name}-untrained"
        trained = memories.trained(corpus, name, size.seeds[:1], label=label, **settings)
        plain = name == "plain"
        found.append(memories.entry(corpus, name, trained, label=label, against=bare, control=not plain, rival=plain))
        bare = bare or found[0]
    return found


def mechanism_runs(size: Size) -> list[Run]:
    """Trainings, scores and controls."""
    plan = Plan(size)
    for corpus in CORPORA:
        entries = plan.scored(mechanism_entries(plan, corpus))
        plan.scored(untrained_entries(plan, corpus))
        matched_runs(plan, entries, Memories(plan).known)
    return list(plan.runs.values())


def mechanism_table(size: Size, results: Results) -> Table:
    """Rows by corpus; trained memories and untrained ones are compared among themselves."""
    from recurrify_papers.rows import perplexity_table, rival_rows

    results, table, plan = dict(results), Table(), Plan(size)
    for corpus in CORPORA:
        entries = mechanism_entries(plan, corpus)
        entries += matched_entries(matched_runs(plan, entries, Memories(plan).known), entries, results)
        for part in (entries, untrained_entries(plan, corpus)):
            made = perplexity_table(part, results)
            table.rows += made.rows
            table.rows += [row for entry in part for row in memory_rows(entry, results)]
            table.rows += rival_rows(part, results, PAPERS, size.window)
            table.missing += made.missing
    return table


EXPERIMENTS = (
    Experiment(
        name="mechanisms",
        title="Every mechanism at several sizes: perplexity against all FLOPs",
        source=OURS,
        runs=mechanism_runs,
        table=mechanism_table,
        text=(
            "Each memory is compared with plain windows at the largest overlap that costs no more, and with itself "
            "when windows read the memories of other documents (gain by memory)."
        ),
        headlines=(
            Headline(
                label="lookback-256",
                dataset="books",
                metric="gain",
                split="test",
                percent=True,
                sentence="The best memory lowers test perplexity on books by {value}.",
            ),
            Headline(
                label=PAPERS,
                dataset="books",
                metric="gain",
                split="test",
                percent=True,
                sentence="The paper's mechanism lowers it by {value}.",
            ),
        ),
        chart=Chart(x="full_flops", metric="perplexity_per_word", split="test", facet="dataset"),
        ours=True,
    ),
)
