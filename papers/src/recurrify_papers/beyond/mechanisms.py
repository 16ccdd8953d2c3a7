"""Every mechanism at several sizes: perplexity against all FLOPs, compared with plain windows that overlap."""

from typing import Any

from recurrify_papers.beyond.matching import Comparison
from recurrify_papers.beyond.memories import OURS, PAPERS, Memories, untouched
from recurrify_papers.experiment import Chart, Experiment, gain_headline
from recurrify_papers.plan import Entry, Plan, against_first
from recurrify_papers.sizes import Size

CORPORA = ("books", "wiki")


def mechanism_entries(plan: Plan, corpus: str) -> list[Entry]:
    """Plain windows at the usual overlaps, every memory, and both in longer windows."""
    size, memories = plan.size, Memories(plan)
    own = memories.own
    seeded = ("plain", PAPERS, *own["seeded"], *(own["mechanisms"] if own["all_seeds"] else ()))
    found = []
    for name in ("plain", *memories.names()):
        seeds = size.seeds if name in seeded else size.seeds[:1]
        trained = memories.trained(corpus, name, seeds)
        for overlap in sorted({0, *size.overlaps, *size.plain_overlaps}) if name == "plain" else (0,):
            plain = name == "plain"
            more: dict[str, Any] = {"overlap": overlap, "control": not plain, "rival": plain}
            found.append(memories.entry(corpus, name, trained, **more))
    window = own["longer_window"]
    training = {**size.training, **memories.training(corpus)}
    windows = max(1, round(training["windows"] * size.window / window))
    for name in memories.names(own["longer"]):
        trained = memories.trained(corpus, name, size.seeds[:1], window=window, windows=windows)
        plain = name == "plain"
        longer: dict[str, Any] = {"label": f"{name}-w{window}", "window": window, "control": not plain, "rival": plain}
        found.append(memories.entry(corpus, name, trained, **longer))
    return against_first(found)


def untrained_entries(plan: Plan, corpus: str) -> list[Entry]:
    """Some mechanisms as they start: the base is not trained."""
    memories, size = Memories(plan), plan.size
    found = []
    for name in memories.names(memories.own["untrained"]):
        settings = untouched({**size.training, **memories.training(corpus)})
        label, plain = f"{name}-untrained", name == "plain"
        trained = memories.trained(corpus, name, size.seeds[:1], label=label, **settings)
        found.append(memories.entry(corpus, name, trained, label=label, control=not plain, rival=plain))
    return against_first(found)


def comparison(size: Size) -> Comparison:
    """Trained memories are compared among themselves, and so are untrained ones, on each corpus."""
    plan = Plan(size)
    trained = [mechanism_entries(plan, corpus) for corpus in CORPORA]
    untrained = [untrained_entries(plan, corpus) for corpus in CORPORA]
    return Comparison(plan, Memories(plan).known, trained, untrained)


EXPERIMENTS = (
    Experiment(
        name="mechanisms",
        title="Every mechanism at several sizes: perplexity against all FLOPs",
        source=OURS,
        runs=lambda size: comparison(size).runs(),
        table=lambda size, results: comparison(size).table(results),
        text=(
            "Each memory is compared with plain windows at the largest overlap that costs no more, and with itself "
            "when windows read the memories of other documents (gain by memory)."
        ),
        headlines=(
            gain_headline(
                "lookback-256", "The best memory lowers test perplexity on books by {value}.", dataset="books"
            ),
            gain_headline(PAPERS, "The paper's mechanism lowers it by {value}.", dataset="books"),
        ),
        chart=Chart(x="full_flops", metric="perplexity_per_word", split="test", facet="dataset"),
        ours=True,
    ),
)
