"""Tables 1 and 2, figures 4 and 5, the choice of learning rates, and variants of the mechanism."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from recurrify_papers.declare import perplexity_experiment
from recurrify_papers.experiment import Chart, Experiment, Row, Table, gain_headline
from recurrify_papers.plan import KINDS, LABELS, VARIANTS, Entry, Plan, against_first
from recurrify_papers.runner import Results, Run
from recurrify_papers.sizes import Size
from recurrify_papers.yoshida2020 import published
from recurrify_papers.yoshida2020.published import SOURCE, Perplexities

# ---- tables 1 and 2: perplexity against overlap ----------------------------------------------------------


def overlap_entries(plan: Plan, corpus: str, printed: Perplexities, plain_alone: Iterable[int] = ()) -> list[Entry]:
    """Plain windows, the paper's mechanism and the best found here, by overlap; all seeds without overlap."""
    size = plan.size
    rows = [
        (kind, overlap)
        for overlap in size.overlaps
        for kind in KINDS
        if kind != "best" or overlap in size.best_overlaps
    ]
    plain: dict[int, Entry] = {}
    found = []
    for kind, overlap in [*rows, *(("plain", overlap) for overlap in plain_alone)]:
        seeds = size.seeds if overlap == 0 else size.seeds[:1]
        names = {seed: (plan.train(corpus, kind, overlap=overlap, seed=seed),) for seed in seeds}
        entry = Entry(
            label=LABELS[kind],
            model=kind,
            dataset=corpus,
            trained=names,
            window=size.window,
            overlap=overlap,
            published=published.at(printed, kind, overlap),
            against=None if kind == "plain" else plain[overlap],
        )
        if kind == "plain":
            plain[overlap] = entry
        found.append(entry)
    return found


# ---- figures 4 and 5: window sizes and FLOPs -------------------------------------------------------------


def window_entries(plan: Plan, overlaps: Iterable[int] = ()) -> list[Entry]:
    """Both models at every window size, and plain windows at more overlaps, on the validation set."""
    size = plan.size
    found = []
    for window in size.window_sizes:
        # Sequences stay as long in tokens, so that every model sees as much before each token.
        windows = max(1, round(size.training["windows"] * size.window / window))
        own = []
        for kind in ("plain", "carry"):
            name = plan.train("books", kind, window=window, seed=size.seeds[0], windows=windows)
            trained = {size.seeds[0]: (name,)}
            label = f"{LABELS[kind]}, window {window}"
            own.append(
                Entry(label=label, model=kind, dataset="books", trained=trained, window=window, splits=("valid",))
            )
        found += against_first(own)
        found += [replace(own[0], overlap=overlap) for overlap in overlaps if 0 < overlap < window]
    return found


def variant_entries(plan: Plan) -> list[Entry]:
    """Every variant against plain windows of the same short length."""
    return against_first(
        Entry(
            label=name,
            model=settings.get("kind", "carry"),
            dataset="books",
            trained={0: (plan.variant(name),)},
            window=plan.size.window,
            splits=("valid",),
            note="candidate for the best mechanism" if name in plan.size.best_from else None,
        )
        for name, settings in VARIANTS.items()
    )


# ---- learning rates --------------------------------------------------------------------------------------


def rate_runs(size: Size) -> list[Run]:
    """Every kind at every candidate."""
    plan = Plan(size)
    for kind in KINDS:
        plan.best_rate(plan.tuning(kind))
    return list(plan.runs.values())


def rate_table(size: Size, results: Results) -> Table:
    """Validation losses; the lowest of each kind is chosen."""
    plan, table = Plan(size), Table()
    for kind in KINDS:
        scores = {rate: results.get(f"{name}-valid-o0") for rate, name in plan.tuning(kind).items()}
        table.missing += [f"{kind}, {rate:g}" for rate, score in scores.items() if score is None]
        losses = {rate: score["loss"] for rate, score in scores.items() if score is not None}
        for rate, loss in losses.items():
            chosen = len(losses) == len(scores) and loss == min(losses.values())
            common: dict[str, Any] = {
                "label": LABELS[kind],
                "model": kind,
                "dataset": "wiki",
                "split": "valid",
                "at": rate,
            }
            table.rows.append(Row(metric="loss", value=loss, note="chosen" if chosen else None, **common))
    return table


OVERLAP: dict[str, Any] = {
    "curves": True,
    "settings": published.hyperparameters,
    "headlines": (
        gain_headline(LABELS["carry"], "Recurrence lowers test perplexity without overlap by {value}; {published}."),
        gain_headline(LABELS["best"], "With the best mechanism found here, {value} lower."),
    ),
    "chart": Chart(x="overlap", metric="perplexity_per_word", split="test"),
}
"""What tables 1 and 2 share."""
WINDOWS = gain_headline(
    f"{LABELS['carry']}, window 300",
    "With windows of 300, recurrence lowers validation perplexity by {value}; {published}.",
    split="valid",
)
EXPERIMENTS = (
    Experiment(
        name="learning-rates",
        title="Learning rates, chosen for each model from the same candidates",
        source=f"{SOURCE}, section 5",
        runs=rate_runs,
        table=rate_table,
        text="Each model takes the learning rate with the lowest validation loss on wiki text.",
        chart=Chart(x="at", metric="loss", title="Validation loss against learning rate", log=True),
    ),
    perplexity_experiment(
        lambda plan: overlap_entries(plan, "wiki", published.TABLE_1),
        name="table1",
        title="Perplexity on encyclopaedia articles against overlap",
        source=f"{SOURCE}, Table 1 (WikiText-103)",
        **OVERLAP,
    ),
    perplexity_experiment(
        lambda plan: overlap_entries(plan, "books", published.TABLE_2, plan.size.plain_overlaps),
        name="table2",
        title="Perplexity on books against overlap",
        source=f"{SOURCE}, Table 2 (PG-19)",
        **OVERLAP,
    ),
    perplexity_experiment(
        window_entries,
        name="figure4",
        title="Perplexity on books against the size of the window",
        source=f"{SOURCE}, Figure 4 (PG-19 validation set; a picture, no numbers)",
        headlines=(WINDOWS,),
        chart=Chart(x="window", metric="perplexity_per_word", split="valid"),
    ),
    perplexity_experiment(
        lambda plan: window_entries(plan, plan.size.frontier_overlaps),
        name="figure5",
        title="Perplexity on books against FLOPs per token",
        source=f"{SOURCE}, Figure 5 (PG-19 validation set; a picture, no numbers)",
        headlines=(WINDOWS,),
        chart=Chart(x="flops", metric="perplexity_per_word", split="valid"),
    ),
    perplexity_experiment(
        variant_entries,
        name="variants",
        title="Variants of the mechanism: short runs on books",
        source="ours; the paper's authors tried several of these and found none much better",
        headlines=(
            gain_headline(
                "tail-64-pooled", "A tail of 64 positions lowers validation perplexity by {value}.", split="valid"
            ),
        ),
        chart=Chart(x="label", metric="gain", split="valid", title="Gain over plain windows"),
    ),
)
