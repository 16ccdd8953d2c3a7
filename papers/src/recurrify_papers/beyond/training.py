"""How memories are trained: on a frozen base, with how many tokens, from which start, on a base that is unfamiliar."""

from collections.abc import Mapping, Sequence
from typing import Any

from recurrify.mechanisms import mechanism_config
from recurrify_papers.beyond.memories import (
    OURS,
    PAPERS,
    Memories,
    all_memories,
    family,
    memory_rows,
    names_of,
    settings_of,
)
from recurrify_papers.declare import perplexity_experiment
from recurrify_papers.experiment import Chart, Row, Table, gain_headline
from recurrify_papers.plan import LABELS, Entry, Plan, against_first, model_of
from recurrify_papers.runner import Results
from recurrify_papers.sizes import Size
from recurrify_papers.thesis.convergence import Curve, curve_of, validation_curve

WARM_UP_SHARE = 10
"""A warm-up takes at most one step in so many of a run."""


# ---- a frozen base ---------------------------------------------------------------------------------------

FROZEN: dict[str, Any] = {
    "names": ("carry-1", "tail-16", "tail-64", "lookback-64", "memory-tokens-16", "summary-16", "compress-32"),
    "rates": (3e-4, 1e-3, 3e-3, 1e-2, 3e-2),
}


def frozen_entries(plan: Plan) -> list[Entry]:
    """Each memory trained with its base and on a frozen one.

    The gain on a frozen base is over the base as it is, that of a trained one over the trained base.
    """
    memories, size = all_memories(plan), plan.size
    own = FROZEN | dict(size.own.get("frozen", {}))
    seed = size.seeds[0]
    names = names_of(size, own["names"])
    as_it_is = memories.untrained("books", "plain")
    base = memories.entry("books", "plain", as_it_is, label="plain, base as it is", rival=True)
    plain = memories.entry("books", "plain", memories.trained("books", "plain", [seed]), label="plain", rival=True)
    found = [base, plain]
    first = {family(memories.known[name]): name for name in reversed(names)}
    for name in names:
        trained = memories.trained("books", name, [seed])
        found.append(memories.entry("books", name, trained, against=plain, control=True))
        frozen: dict[str, Any] = {"freeze_base": True, "added_rate": 1.0}
        tuner = first[family(memories.known[name])]
        tried = {
            rate: memories.train(
                "wiki", tuner, seed, rate=rate, label=f"frozen-rate-{tuner}", **frozen, **plan.shorter()
            )
            for rate in own["rates"]
        }
        run = memories.train("books", name, seed, rate=plan.best_rate(tried), label=f"frozen-{name}", **frozen)
        label = f"{name}, frozen base"
        found.append(memories.entry("books", name, {seed: (run,)}, label=label, against=base, control=True))
    return found


def add_shares(plan: Plan, entries: Sequence[Entry], results: Results, table: Table) -> None:
    """What memories take, and which share of the gain by memory remains without training the base."""
    from recurrify_papers.rows import gain_by_memory

    by_label = {entry.label: entry for entry in entries}
    for entry in entries:
        table.rows += memory_rows(entry, results)
        whole = by_label.get(entry.label.removesuffix(", frozen base"))
        if whole is None or whole is entry:
            continue
        gains = gain_by_memory(whole, results), gain_by_memory(entry, results)
        if all(gain is not None and not gain.within_noise and gain.relative_gain > 0 for gain in gains):
            share = gains[1].relative_gain / gains[0].relative_gain  # type: ignore[union-attr]
            common: dict[str, Any] = {"label": entry.label, "model": entry.model, "dataset": entry.dataset}
            table.rows.append(Row(metric="remaining share of the gain by memory", value=share, **common))


# ---- how many tokens -------------------------------------------------------------------------------------

TOKENS: dict[str, Any] = {
    "counts": (1_000_000, 3_000_000, 10_000_000, 30_000_000, 100_000_000),
    "seeded": 10_000_000,
    "times": (1.0, 2.0),
}
"""Lengths of fine-tuning; up to `seeded` with every seed, beyond with the better of so many `times` the learning rate,
which short runs have chosen."""


def _warm_up(size: Size, training: Mapping[str, Any], tokens: int) -> int:
    """The size's own, but for runs so short that it would take much of them."""
    step = training["batch"] * training.get("accumulate", 1) * training["windows"] * size.window
    return max(1, min(training.get("warmup_steps", 100), tokens // step // WARM_UP_SHARE))


def token_entries(plan: Plan) -> list[Entry]:
    """Plain windows, the paper's mechanism and the best, with a run of its own for each length."""
    memories, size = all_memories(plan), plan.size
    own = TOKENS | dict(size.own.get("tokens", {}))
    training, ours = memories.training("books"), settings_of(size)["ours"]
    found = []
    for tokens in sorted(own["counts"]):
        settings = {"max_tokens": tokens, "epochs": 1000.0, "schedule": "cosine", "patience": 0}
        settings |= {"warmup_steps": _warm_up(size, training, tokens), "valid_every": max(1, tokens // 4)}
        long = tokens > own["seeded"]
        entries = []
        for name in ("plain", PAPERS, ours):
            trained: dict[int, Sequence[str]] = {}
            for seed in size.seeds[:1] if long else size.seeds:
                trained[seed] = tuple(
                    memories.train("books", name, seed, times=times, label=_counted(name, tokens, times), **settings)
                    for times in (own["times"] if long else (1.0,))
                )
            entries.append(memories.entry("books", name, trained, at=float(tokens)))
        found += against_first(entries)
    return found


def _counted(name: str, tokens: int, times: float) -> str:
    return f"{name}-of-{tokens}-tokens" + ("" if times == 1 else f"-rate-x{times:g}")


# ---- what starts fast ------------------------------------------------------------------------------------

STARTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "plain": ("plain", "plain windows", {}),
    "carry": ("carry", "as in the paper, neutral start", {}),
    "carry-random-start": ("carry", "random start", {"changed": {"neutral_start": False}}),
    "carry-standardized": ("carry", "inputs standardised", {"changed": {"standardize": True}}),
    "carry-rate-x1": ("carry", "the memory learns at the base's rate", {"added_rate": 1.0}),
    "carry-rate-x20": ("carry", "the memory learns at 20 times the base's rate", {"added_rate": 20.0}),
    "carry-standardized-rate-x20": ("carry", "both", {"changed": {"standardize": True}, "added_rate": 20.0}),
    "carry-curriculum": ("carry", "training sequences grow", {"curriculum": True}),
    "slots": ("slots", "a tail as slots, neutral start", {}),
    "slots-copies": ("slots", "started as copies of their sources", {"changed": {"neutral_start": False}}),
    "slots-gated": ("slots", "with gates that start closed", {"changed": {"gated": True}}),
    "slots-gated-half-open": ("slots", "with half-open gates", {"changed": {"gated": True, "gate_start": 0.0}}),
    "best": ("best", "the best memory as it starts", {}),
    "best-unmoved": ("best", "keys and values start where they were", {"changed": {"moved_start": False}}),
    "best-rate-x1": ("best", "the memory learns at the base's rate", {"added_rate": 1.0}),
    "best-rate-x20": ("best", "the memory learns at 20 times the base's rate", {"added_rate": 20.0}),
    "best-curriculum": ("best", "training sequences grow", {"curriculum": True}),
}
"""By name: whose mechanism and learning rate it takes, a description, and what differs."""
START: dict[str, Any] = {"tokens": 5_000_000, "points": 10, "curriculum": ((2, 0.2), (5, 0.3), (20, 0.5))}
"""Length of the runs, how often they are validated; windows in a sequence and for which share of the tokens."""


def starts(memories: Memories) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Those that apply: not all memories can start with moved keys."""
    moves = hasattr(mechanism_config(memories.known[settings_of(memories.size)["ours"]]["mechanism"]), "moved_start")
    return {name: start for name, start in STARTS.items() if moves or name != "best-unmoved"}


def stages(memories: Memories, name: str, seed: int) -> list[str]:
    """One run; with a curriculum several, each continuing the model of the one before."""
    size, (kind, _, changes) = memories.plan.size, starts(memories)[name]
    own = START | dict(size.own.get("starts", {}))
    changes = dict(changes)
    grows = changes.pop("curriculum", False)
    best = settings_of(size)
    mechanism = {"plain": "plain", "carry": PAPERS, "slots": best["slots"], "best": best["ours"]}[kind]
    training = memories.training("books")
    runs: list[str] = []
    for number, (windows, share) in enumerate(own["curriculum"] if grows else ((training["windows"], 1.0),)):
        tokens = round(share * own["tokens"])
        settings: dict[str, Any] = {
            "label": f"start-{name}-{number + 1}" if grows else f"start-{name}",
            "max_tokens": tokens,
            "epochs": 1000.0,
            "schedule": "constant_with_warmup",
            "warmup_steps": _warm_up(size, training, tokens),
            "valid_every": max(1, own["tokens"] // own["points"]),
            "patience": 0,
            "windows": windows,
            "batch": max(1, training["batch"] * training["windows"] // windows),  # the same tokens per step
        }
        if runs:
            settings["base"] = model_of(runs[-1])
        runs.append(memories.train("books", mechanism, seed, **settings, **changes))
    return runs


def start_entries(plan: Plan) -> list[Entry]:
    """The last stage of each start, on validation."""
    memories, size = all_memories(plan), plan.size
    return against_first(
        Entry(
            label=name,
            model=kind,
            dataset="books",
            trained={seed: (stages(memories, name, seed)[-1],) for seed in size.seeds},
            window=size.window,
            splits=("valid",),
            note=about,
        )
        for name, (kind, about, _) in starts(memories).items()
    )


def add_curves(plan: Plan, entries: Sequence[Entry], results: Results, table: Table) -> None:
    """Validation losses over training tokens of the first seed."""
    for entry in entries:
        curve: Curve = []
        before = 0
        for run in stages(all_memories(plan), entry.label, plan.size.seeds[0]):
            found = results.get(run, {"tokens": 0, "steps": 1, "history": []})
            curve += [(before + tokens, loss) for tokens, loss in validation_curve(found)]
            before += found["tokens"]
        if curve:
            table.curves.append(curve_of(entry.label, curve))


# ---- a base that never saw books -------------------------------------------------------------------------

UNFAMILIAR_RATES = (1e-4, 3e-4, 1e-3)
NEEDS_BASE = "runs only at a size whose base is pretrained here: small"


def unfamiliar_entries(plan: Plan) -> list[Entry]:
    """Both models from both bases, each at its best learning rate; then for the paper's two epochs."""
    size = plan.size
    if size.base is not None:
        return []
    rates = size.own.get("unfamiliar", {}).get("rates", UNFAMILIAR_RATES)
    seed = size.seeds[0]
    bases = {"usual base": ("seen", plan.base()), "base of wiki text": ("unseen", plan.base("base-wiki", ("wiki",)))}
    found = []
    for long in (False, True):
        for about, (word, base) in bases.items():
            entries = []
            for kind in ("plain", "carry"):
                tried = {
                    rate: plan.train("books", kind, seed=seed, label=f"{word}-usual-{kind}", rate=rate, base=base)
                    for rate in rates
                }
                names: Sequence[str] = tuple(tried.values())
                if long:
                    more: dict[str, Any] = {"epochs": 2.0, "max_tokens": None, "label": f"{word}-long-{kind}"}
                    names = (plan.train("books", kind, seed=seed, rate=plan.best_rate(tried), base=base, **more),)
                label = f"{LABELS[kind]}; {about}" + (", two epochs" if long else "")
                trained = {seed: names}
                entries.append(Entry(label=label, model=kind, dataset="books", trained=trained, window=size.window))
            found += against_first(entries)
    return found


EXPERIMENTS = (
    perplexity_experiment(
        start_entries,
        name="starts",
        title="What starts fast: the first fine-tuning tokens",
        source=OURS,
        more=add_curves,
        headlines=(
            gain_headline(
                "best",
                "After the first fine-tuning tokens, the best memory lowers validation perplexity by {value}.",
                split="valid",
            ),
        ),
        chart=Chart(x="label", metric="gain", split="valid", title="Gain over plain windows"),
        ours=True,
    ),
    perplexity_experiment(
        frozen_entries,
        name="frozen",
        title="A frozen base: only the memory is trained",
        source=OURS,
        more=add_shares,
        headlines=(
            gain_headline(
                "lookback-64, frozen base", "On a frozen base, lookback-64 lowers test perplexity by {value}."
            ),
        ),
        chart=Chart(x="label", metric="gain", split="test", title="Gain over plain windows"),
        ours=True,
    ),
    perplexity_experiment(
        token_entries,
        name="tokens",
        title="What is learned with how many fine-tuning tokens",
        source=OURS,
        headlines=(
            gain_headline(
                "lookback-256", "With the fewest training tokens, the best memory lowers test perplexity by {value}."
            ),
        ),
        chart=Chart(x="at", metric="perplexity_per_word", split="test", log=True),
        ours=True,
    ),
    perplexity_experiment(
        unfamiliar_entries,
        name="unfamiliar",
        title="Why the gain may be small: a base that never saw books, and the paper's epochs of training",
        source=OURS,
        needs=NEEDS_BASE,
        differences=(
            "Both bases read as many tokens in pretraining: the one of wiki text alone reads it more often.",
            "Learning rates are chosen on books here, from the same candidates for both bases and both models.",
            "Two epochs are the paper's length, of far fewer books.",
        ),
        chart=Chart(x="label", metric="gain", split="test", title="Gain over plain windows"),
        ours=True,
    ),
)
