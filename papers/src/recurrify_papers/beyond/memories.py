"""What the experiments beyond the papers share: mechanisms by name, their learning rates, and rows about memory."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recurrify_papers.experiment import Row
from recurrify_papers.plan import SPLITS, Entry, Plan
from recurrify_papers.runner import Results
from recurrify_papers.sizes import CARRY, PLAIN, Settings, tail

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


def family(recurrence: Settings) -> str:
    """What shares a learning rate: a mechanism at any size."""
    kinds = [word for word in ("gated", "sliding") if recurrence.get(word)]
    return " ".join([*kinds, "plain" if recurrence["mechanism"] == "none" else str(recurrence["mechanism"])])


@dataclass
class Memories:
    """Runs of mechanisms by name."""

    plan: Plan

    def __post_init__(self) -> None:
        self.own: dict[str, Any] = DEFAULTS | dict(self.plan.size.own.get("mechanisms", {}))
        self.known: Mapping[str, Settings] = {"plain": PLAIN} | dict(self.own["mechanisms"])

    def names(self, wanted: Sequence[str] | None = None) -> list[str]:
        """Mechanisms that have rows."""
        only = self.own["only"]
        always = ("plain", PAPERS, self.own["ours"])
        found = self.own["mechanisms"] if wanted is None else wanted
        return [name for name in found if only is None or name in only or name in always]

    def training(self, corpus: str) -> dict[str, Any]:
        """Settings that differ from those of the paper's tables."""
        own = self.plan.size.own
        return dict(own.get("beyond", {})) | ({} if corpus == "books" else dict(own.get("beyond-wiki", {})))

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
            rate = self.plan.best_rate(self.tuning(family(self.known[name])), times)
        kind = "plain" if name == "plain" else "best"
        settings = self.training(corpus) | settings
        return self.plan.train(
            corpus, kind, seed=seed, label=f"beyond-{label or name}", recurrence=recurrence, rate=rate, **settings
        )

    def tuning(self, of: str) -> dict[float, str]:
        """The runs that choose a family's learning rate, on wiki text."""
        name = next(name for name, recurrence in self.known.items() if family(recurrence) == of)
        size = self.plan.size
        return {rate: self.train("wiki", name, size.seeds[0], rate=rate) for rate in size.rates}

    def trained(self, corpus: str, name: str, seeds: Sequence[int], **settings: Any) -> dict[int, Sequence[str]]:
        """By seed: the runs of a row. On wiki text, the first seed has been trained to choose the learning rate."""
        of = family(self.known[name])
        first = next(one for one, recurrence in self.known.items() if family(recurrence) == of)
        found: dict[int, Sequence[str]] = {}
        for seed in seeds:
            chooses = corpus == "wiki" and name == first and seed == self.plan.size.seeds[0] and not settings
            found[seed] = tuple(self.tuning(of).values()) if chooses else (self.train(corpus, name, seed, **settings),)
        return found

    def entry(self, corpus: str, name: str, trained: Mapping[int, Sequence[str]], **more: Any) -> Entry:
        """A row of a mechanism."""
        values = {"label": name, "window": self.plan.size.window, "splits": SPLITS, **more}
        return Entry(model=family(self.known[name]), dataset=corpus, trained=trained, **values)


def untouched(training: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a run that leaves the base as it is: a warm-up begins with a learning rate of 0."""
    return {"max_tokens": 1, "warmup_steps": max(1, training.get("warmup_steps", 1)), "compile": "off"}


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
