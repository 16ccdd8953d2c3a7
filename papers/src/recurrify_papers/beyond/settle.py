"""Why does the paper gain 10 % and we 1 %? One controlled experiment for each hypothesis, on a base that anybody can
fetch, each memory also scored with the memories of other documents."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from recurrify_papers.beyond.memories import OURS, PAPERS, Memories
from recurrify_papers.declare import perplexity_experiment
from recurrify_papers.experiment import Chart, gain_headline
from recurrify_papers.plan import Entry, Plan
from recurrify_papers.sizes import CARRY, PLAIN, Settings, Size

SETTLE: dict[str, Any] = {
    "model": "smollm2",
    "seeds": (0,),
    "rates": (1e-4, 3e-4),
    "tuning_tokens": 1_500_000,
    "test_tokens": 15_000,
    "short_window": 100,
    "tokens": 16_000_000,
    "more_tokens": 48_000_000,
    "most_tokens": 100_000_000,
    "overlaps": (5, 10, 30, 50),
    "training": {},
}
"""`model` None takes the size's base; `overlaps` are those of the paper's tables."""
TEST = "test"
MECHANISMS: dict[str, Settings] = {
    "plain": PLAIN,
    PAPERS: CARRY,
    "standardized": CARRY | {"standardize": True},
    "every-layer": CARRY | {"insert_layer": "all"},
    "both": CARRY | {"standardize": True, "insert_layer": "all"},
}
CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "inputs standardised": ("standardized", {}),
    "at every layer": ("every-layer", {}),
    "both": ("both", {}),
    "random start": (PAPERS, {"changed": {"neutral_start": False}}),
    "learns at the base's rate": (PAPERS, {"added_rate": 1.0}),
    "constant rate": (PAPERS, {"schedule": "constant_with_warmup"}),
}
"""By what differs in optimisation: a mechanism, and settings of the run."""
ABOUT = {
    "boundaries": "Window boundaries seen in training",
    "optimisation": "Optimisation",
    "overlap": "Not all of the published gain may be memory: its profile over overlaps",
}
"""The hypotheses, as notes of their rows. A familiar base is tested by the choice of the base, and the quality of the
base by the rows of plain windows that overlap."""


def settled_size(size: Size) -> Size:
    """The size with the settings of this experiment."""
    own = settings_of(size)
    return replace(
        size,
        base=own["model"] or size.base,
        rates=own["rates"],
        seeds=own["seeds"],
        tuning_tokens=own["tuning_tokens"],
        test_tokens=own["test_tokens"],
        training={**size.training, **own["training"]},
    )


def settings_of(size: Size) -> dict[str, Any]:
    """The size's settings of this experiment."""
    return SETTLE | dict(size.own.get("settle", {}))


def settle_entries(plan: Plan) -> list[Entry]:
    """Every row, with its gain over plain windows that were trained alike."""
    own = settings_of(plan.size)
    base = plan.base() if plan.size.base is None else plan.size.base
    memories = Memories(plan, MECHANISMS, "settle", base, tuned_on="books", tuning=plan.shorter())
    # Each model is scored right after its training: a run that is cut short leaves whole rows.
    return [plan.scored([entry])[0] for entry in _entries(memories, own)]


def _entries(memories: Memories, own: dict[str, Any]) -> Iterator[Entry]:
    usual, short = memories.size.window, own["short_window"]
    few, more, most = own["tokens"], own["more_tokens"], own["most_tokens"]
    lengths = {"boundaries": ((short, few), (usual, more)), "optimisation": ((usual, most),)}
    plain = _entry(memories, "plain", usual, few)
    yield plain
    yield _entry(memories, PAPERS, usual, few, against=plain, note=ABOUT["boundaries"])
    for window, tokens in lengths["boundaries"]:
        rival = _entry(memories, "plain", window, tokens)
        yield rival
        yield _entry(memories, PAPERS, window, tokens, against=rival, note=ABOUT["boundaries"])
    for label, (name, changed) in CHANGES.items():
        rival, note = plain, ABOUT["optimisation"]
        if "schedule" in changed:
            rival = _entry(memories, "plain", usual, few, label=f"plain, {label}", **changed)
            yield rival
        yield _entry(memories, name, usual, few, label=f"{PAPERS}, {label}", against=rival, note=note, **changed)
    for window, tokens in lengths["optimisation"]:
        rival = _entry(memories, "plain", window, tokens)
        yield rival
        for name, label in ((PAPERS, PAPERS), ("both", f"{PAPERS}, both")):
            yield _entry(memories, name, window, tokens, label=label, against=rival, note=ABOUT["optimisation"])
    for overlap in own["overlaps"]:
        rival = replace(plain, overlap=overlap)
        yield rival
        for added_rate in (None, 1.0):
            label = PAPERS if added_rate is None else f"{PAPERS}, learns at the base's rate"
            changed = {} if added_rate is None else {"added_rate": added_rate}
            entry = _entry(memories, PAPERS, usual, few, label=label, against=rival, note=ABOUT["overlap"], **changed)
            yield replace(entry, overlap=overlap)


def _entry(
    memories: Memories,
    name: str,
    window: int,
    tokens: int,
    *,
    label: str | None = None,
    against: Entry | None = None,
    note: str | None = None,
    **changed: Any,
) -> Entry:
    """A row: trained with so many tokens in windows of this length. A step has as many tokens in all of them."""
    size = memories.size
    training = memories.training("books")
    settings: dict[str, Any] = {"max_tokens": tokens, "epochs": 1000.0, "valid_every": tokens, "window": window}
    settings["batch"] = max(1, round(training["batch"] * size.window / window))
    slug = (label or name).replace(", ", "-").replace(" ", "-").replace("'", "")
    run = f"{slug}-w{window}-of-{tokens}-tokens"
    trained = {seed: (memories.train("books", name, seed, label=run, **settings, **changed),) for seed in size.seeds}
    about: dict[str, Any] = {"label": label or name, "against": against, "note": note, "at": float(tokens)}
    about |= {"window": window, "splits": (TEST,), "control": name != "plain", "rival": name == "plain"}
    return memories.entry("books", name, trained, **about)


SETTLED = perplexity_experiment(
    settle_entries,
    name="settle",
    title="Why does the paper gain 10 % and we 1 %?",
    source=OURS,
    text=(
        "Each row tests a hypothesis about the difference to the paper's Table 2. The gain is over plain windows "
        "trained alike; the gain by memory is over the same model when it reads the memories of other documents."
    ),
    differences=(
        "The base is SmolLM2-135M, which anybody can fetch, instead of GPT-2 small: it has rotary positions.",
        "Text, budgets and rows are ours; learning rates come from the same candidates for all models.",
    ),
    headlines=(
        gain_headline(PAPERS, "The paper's mechanism lowers test perplexity by {value}."),
        gain_headline(f"{PAPERS}, both", "Standardised and at every layer, it lowers it by {value}."),
    ),
    chart=Chart(x="label", metric="gain by memory", split="test", title="Gain by memory"),
    ours=True,
)
EXPERIMENTS = (
    replace(
        SETTLED,
        runs=lambda size: SETTLED.runs(settled_size(size)),
        table=lambda size, results: SETTLED.table(settled_size(size), results),
    ),
)
