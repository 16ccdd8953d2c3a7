"""Every mechanism at several sizes: perplexity against all FLOPs, compared with plain windows that overlap."""

from recurrify_papers.beyond.matching import Comparison
from recurrify_papers.beyond.memories import OURS, PAPERS, Memories, all_memories, names_of, settings_of
from recurrify_papers.experiment import Chart, Experiment, gain_headline
from recurrify_papers.plan import Entry, Plan, against_first
from recurrify_papers.sizes import Size

CORPORA = ("books", "wiki")


def mechanism_entries(memories: Memories, corpus: str) -> list[Entry]:
    """Plain windows at the usual overlaps, every memory, and both in longer windows."""
    size = memories.size
    own = settings_of(size)
    seeded = ("plain", PAPERS, *own["seeded"], *(own["mechanisms"] if own["all_seeds"] else ()))
    found = []
    for name in ("plain", *names_of(size)):
        trained = memories.trained(corpus, name, size.seeds if name in seeded else size.seeds[:1])
        found += memories.entries(corpus, name, trained, **role(name))
    window = own["longer_window"]
    windows = max(1, round(memories.training(corpus)["windows"] * size.window / window))
    for name in names_of(size, own["longer"]):
        trained = memories.trained(corpus, name, size.seeds[:1], window=window, windows=windows)
        found.append(memories.entry(corpus, name, trained, label=f"{name}-w{window}", window=window, **role(name)))
    return against_first(found)


def untrained_entries(memories: Memories, corpus: str) -> list[Entry]:
    """Some mechanisms as they start: the base is not trained."""
    names = names_of(memories.size, settings_of(memories.size)["untrained"])
    return against_first(
        memories.entry(corpus, name, memories.untrained(corpus, name), label=f"{name}-untrained", **role(name))
        for name in names
    )


def role(name: str) -> dict[str, bool]:
    """Plain windows are the rival; memories are also scored with those of other documents."""
    return {"rival": name == "plain", "control": name != "plain"}


def comparison(size: Size) -> Comparison:
    """Trained memories are compared among themselves, and so are untrained ones, on each corpus."""
    memories = all_memories(Plan(size))
    trained, untrained = (
        [entries(memories, corpus) for corpus in CORPORA] for entries in (mechanism_entries, untrained_entries)
    )
    return Comparison(memories, trained, untrained)


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
