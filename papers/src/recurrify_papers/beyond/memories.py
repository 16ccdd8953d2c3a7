"""What the experiments beyond the papers share: mechanisms by name, their learning rates, and rows about memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from recurrify_papers.experiment import Row
from recurrify_papers.plan import SPLITS, UNTRAINED, Entry, Plan
from recurrify_papers.runner import Results
from recurrify_papers.sizes import CARRY, PLAIN, Settings, Size, tail

OURS = "ours; not published"
PAPERS = "carry-1"
"""The paper's own mechanism."""
BYTES = 4
"""Of a saved weight."""


def memory_tokens(tokens: int, **more: Any) -> dict[str, Any]:
    """Memory tokens by their number."""
    return {"mechanism": "memory_tokens", "tokens": tokens, **more}


MECHANISMS: dict[str, Settings] = {
    "carry-1": CARRY,
    "carry-4": CARRY | {"slots": 4},
    "carry-every-layer": CARRY | {"insert_layer": "all"},
    "tail-16": tail(16),
    "tail-32": tail(32),
    "tail-64": tail(64),
    "tail-256": tail(256),
    "gated-tail-16": tail(16, gated=True),
    "gated-tail-64": tail(64, gated=True),
    "lookback-64": {"mechanism": "lookback", "keep": 64},
    "lookback-256": {"mechanism": "lookback", "keep": 256},
    "memory-tokens-4": memory_tokens(4),
    "memory-tokens-16": memory_tokens(16),
    "gated-memory-tokens-16": memory_tokens(16, gated=True),
    "summary-4": {"mechanism": "summary", "tokens": 4, "limit": 4},
    "summary-16": {"mechanism": "summary", "tokens": 16, "limit": 4},
    "compress-32": {"mechanism": "compress", "size": 32},
    "compress-64": {"mechanism": "compress", "size": 64},
}
"""The first of each family is the one whose learning rate is chosen."""
DEFAULTS: dict[str, Any] = {
    "mechanisms": MECHANISMS,
    "seeded": ("tail-64", "lookback-256", "memory-tokens-16", "compress-32"),
    "all_seeds": False,
    "longer": ("plain", "lookback-256"),
    "longer_window": 600,
    "untrained": ("plain", "lookback-64", "lookback-256"),
    "ours": "lookback-256",
    "slots": "tail-64",
    "only": None,
}
"""`seeded` mechanisms take every seed, `longer` ones are also trained in longer windows, `untrained` ones are also
scored as they start; `ours` is the best, `slots` the best that works by slots; `only` restricts rows to some names."""


def settings_of(size: Size) -> dict[str, Any]:
    """The size's settings of this comparison."""
    return DEFAULTS | dict(size.own.get("mechanisms", {}))


def names_of(size: Size, wanted: Sequence[str] | None = None) -> list[str]:
    """Mechanisms that have rows."""
    own = settings_of(size)
    always = ("plain", PAPERS, own["ours"])
    found = own["mechanisms"] if wanted is None else wanted
    return [name for name in found if own["only"] is None or name in own["only"] or name in always]


def family(recurrence: Settings) -> str:
    """What shares a learning rate: a mechanism at any size."""
    kinds = [word for word in ("gated", "sliding") if recurrence.get(word)]
    return " ".join([*kinds, "plain" if recurrence["mechanism"] == "none" else str(recurrence["mechanism"])])


@dataclass
class Memories:
    """Runs and rows of mechanisms by name."""

    plan: Plan
    known: dict[str, Settings]
    """Mechanisms by name, plain windows included."""
    prefix: str = "beyond"
    """Of the names of runs."""
    base: Any = None
    """None: that of the plan."""
    tuned_on: str = "wiki"
    """The text on which learning rates are chosen."""
    tuning: Settings = field(default_factory=dict)
    """Training settings of the runs that choose learning rates."""
    changes: Mapping[str, Settings] = field(default_factory=dict)
    """By corpus: training settings that differ from those of the paper's tables."""

    @property
    def size(self) -> Size:
        return self.plan.size

    def training(self, corpus: str) -> dict[str, Any]:
        """The settings of training on a corpus."""
        return {**self.size.training, **self.changes.get(corpus, {})}

    def train(
        self,
        corpus: str,
        name: str,
        seed: int,
        *,
        label: str | None = None,
        rate: float | dict[str, Any] | None = None,
        times: float = 1.0,
        changed: Settings | None = None,
        **settings: Any,
    ) -> str:
        """A fine-tuning of a mechanism, by default at the learning rate that is best for its family."""
        recurrence = {**self.known[name], **(changed or {})}
        if rate is None:
            rate = self.plan.best_rate(self.tries(name), times)
        return self.plan.train(
            corpus,
            "plain" if name == "plain" else "best",
            seed=seed,
            label=f"{self.prefix}-{label or name}",
            recurrence=recurrence,
            rate=rate,
            **{"base": self.base, **self.changes.get(corpus, {}), **settings},
        )

    def first_of(self, name: str) -> str:
        """The mechanism whose learning rate is chosen for the family of this one."""
        return next(one for one in self.known if family(self.known[one]) == family(self.known[name]))

    def tries(self, name: str) -> dict[float, str]:
        """The runs that choose the learning rate of a mechanism's family."""
        first = self.first_of(name)
        return {
            rate: self.train(self.tuned_on, first, self.size.seeds[0], rate=rate, **self.tuning)
            for rate in self.size.rates
        }

    def trained(self, corpus: str, name: str, seeds: Sequence[int], **settings: Any) -> dict[int, Sequence[str]]:
        """By seed: the runs of a row. Those that chose the learning rate count if they trained in the same way."""
        found: dict[int, Sequence[str]] = {}
        for seed in seeds:
            chose = corpus == self.tuned_on and name == self.first_of(name) and seed == self.size.seeds[0]
            whole = chose and not settings and not self.tuning
            found[seed] = tuple(self.tries(name).values()) if whole else (self.train(corpus, name, seed, **settings),)
        return found

    def untrained(self, corpus: str, name: str) -> dict[int, Sequence[str]]:
        """The base as it is, read with a mechanism."""
        rate, seed = self.size.rates[0], self.size.seeds[0]
        return {seed: (self.train(corpus, name, seed, label=f"{name}-untrained", rate=rate, function=UNTRAINED),)}

    def entry(self, corpus: str, name: str, trained: Mapping[int, Sequence[str]], **more: Any) -> Entry:
        """A row of a mechanism."""
        values = {"label": name, "window": self.size.window, "splits": SPLITS, **more}
        return Entry(model=family(self.known[name]), dataset=corpus, trained=trained, **values)

    def entries(self, corpus: str, name: str, trained: Mapping[int, Sequence[str]], **more: Any) -> list[Entry]:
        """Plain windows at every overlap, or the row of a memory."""
        if name != "plain":
            return [self.entry(corpus, name, trained, **more)]
        overlaps = sorted({0, *self.size.overlaps, *self.size.plain_overlaps})
        return [self.entry(corpus, name, trained, overlap=one, **more) for one in overlaps if one < self.size.window]


def all_memories(plan: Plan) -> Memories:
    """The mechanisms that the size compares."""
    own = plan.size.own
    books = dict(own.get("beyond", {}))
    changes = {"books": books, "wiki": books | dict(own.get("beyond-wiki", {}))}
    return Memories(plan, {"plain": PLAIN, **settings_of(plan.size)["mechanisms"]}, changes=changes)


def memory_rows(entry: Entry, results: Results) -> list[Row]:
    """What a memory takes: state, parameters, and FLOPs compared with plain windows."""
    run = next((results[name] for names in entry.trained.values() for name in names if name in results), None)
    if run is None or entry.rival or run.get("memory") is None:
        return []
    memory = run["memory"]
    facts = {
        "state floats": memory["state_floats"],
        "added parameters": memory["added_parameters"],
        "added kilobytes": memory["added_parameters"] * BYTES / 1000,
        "extra FLOPs": memory["extra_share"],
    }
    common: dict[str, Any] = {
        "label": entry.label,
        "model": entry.model,
        "dataset": entry.dataset,
        "window": entry.window,
    }
    return [Row(metric=metric, value=value, **common) for metric, value in facts.items()]
