"""Which fine-tunings and scores the rows of a perplexity table need. Runs are shared by name, so each is run once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from recurrify_papers.runner import Run
from recurrify_papers.sizes import CARRY, PLAIN, Settings, Size, tail

TRAIN, UNTRAINED, SCORE, BASE = (
    f"recurrify_papers.finetune:{name}" for name in ("train", "untrained", "score", "pretrain_base")
)
MODEL = "train/model"
"""Below the folder of a run: the model that it saves."""
SPLITS = ("valid", "test")
KINDS = ("plain", "carry", "best")
LABELS = {
    "plain": "plain windows",
    "carry": "recurrent, as in the paper",
    "best": "recurrent, best found here",
    "xlnet": "XLNet with its own memory",
}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {"kind": "plain", "recurrence": PLAIN},
    "carry": {},
    "carry-standardized": {"recurrence": CARRY | {"standardize": True}},
    "carry-random-start": {"recurrence": CARRY | {"neutral_start": False}},
    "carry-rate-x1": {"added_rate": 1.0},
    "carry-rate-x20": {"added_rate": 20.0},
    "carry-4-vectors": {"recurrence": CARRY | {"slots": 4}},
    "carry-every-layer": {"recurrence": CARRY | {"insert_layer": "all"}},
    "carry-layer-4": {"recurrence": CARRY | {"insert_layer": 4}},
    "carry-5-windows": {"windows": 5},
    "tail-16-one-layer": {"kind": "best", "recurrence": {"mechanism": "tail", "tail": 16, "until_layer": 2}},
    "tail-16": {"kind": "best", "recurrence": {"mechanism": "tail", "tail": 16}},
    "tail-16-pooled": {"kind": "best", "recurrence": tail(16)},
    "tail-16-copies": {"kind": "best", "recurrence": tail(16, neutral_start=False)},
    "tail-32-pooled": {"kind": "best", "recurrence": tail(32)},
    "tail-64-pooled": {"kind": "best", "recurrence": tail(64)},
}
"""Short runs on books that differ from the paper's in one setting. `kind`: the model whose learning rate is used."""


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What becomes rows of a table: a model trained with several seeds and, in perplexity tables, scored in one way."""

    label: str
    model: str
    """What charts group by."""
    dataset: str | None = None
    trained: Mapping[int, Sequence[str]]
    """By seed: candidate runs, of which the one that validates best counts."""
    window: int | None = None
    overlap: int = 0
    splits: tuple[str, ...] = SPLITS
    against: "Entry | None" = None
    """The row over which its gain is counted."""
    published: Mapping[str, float] = field(default_factory=dict)
    """Perplexity per word by split."""
    control: bool = False
    """Whether it is also scored with the memories of other documents."""
    at: float | None = None
    note: str | None = None
    rival: bool = False
    """Whether it needs no learned memory: what memories are compared with."""


def against_first(entries: Iterable[Entry]) -> list[Entry]:
    """The entries, each with its gain over the first."""
    first, *others = entries
    return [first, *(replace(one, against=first) for one in others)]


@dataclass
class Plan:
    """Collects runs, each with the runs that it needs."""

    size: Size
    runs: dict[str, Run] = field(default_factory=dict)

    def add(self, run: Run) -> str:
        """Add a run; returns its name."""
        known = self.runs.setdefault(run.name, run)
        assert known == run, f"two runs are called {run.name}"
        return run.name

    def run(self, function: str, name: str, /, **settings: Any) -> str:
        """Add a run of a function of this package; returns its name."""
        return self.add(Run(name=name, function=f"recurrify_papers.{function}", settings=settings))

    # ---- the base and choices ----------------------------------------------------------------------------

    def base(self, name: str = "base", corpora: Sequence[str] = ("books", "wiki")) -> str | dict[str, str]:
        """The size's base model; if it has none, the run that pretrains it."""
        if self.size.base is not None:
            return self.size.base
        settings = {"data": [self.size.source(corpus) for corpus in corpora], **self.size.pretraining}
        if name != "base":
            settings["tokenizer"] = self.base()  # the same, so that perplexities per token compare
        return model_of(self.add(Run(name=name, function=BASE, settings=settings)))

    def recurrence(self, kind: str) -> Settings:
        """The mechanism of a kind; `best` may be chosen by the variants."""
        if kind != "best" or not self.size.best_from:
            return {"plain": PLAIN, "carry": CARRY, "best": self.size.best}[kind]
        scores = {self.score(self.variant(name)): VARIANTS[name]["recurrence"] for name in self.size.best_from}
        return {"best_of": scores}

    def variant(self, name: str) -> str:
        """The short run of a variant."""
        settings = {"kind": "carry", "recurrence": CARRY, **self.shorter(), **VARIANTS[name]}
        kind = settings.pop("kind")
        if "windows" in settings:  # the same number of tokens per step
            training = self.size.training
            settings["batch"] = training["batch"] * training["windows"] // settings["windows"]
        return self.train("books", kind, label=f"try-{name}", **settings)

    def tuning(self, kind: str) -> dict[float, str]:
        """The runs that choose the learning rate of a kind; as in the paper, on wiki text."""
        recurrence = {"plain": PLAIN, "carry": CARRY, "best": self.size.best}[kind]
        return {
            rate: self.train("wiki", kind, rate=rate, recurrence=recurrence, **self.shorter())
            for rate in self.size.rates
        }

    def shorter(self) -> dict[str, Any]:
        """The length of runs that only choose."""
        return {} if self.size.tuning_tokens is None else {"max_tokens": self.size.tuning_tokens}

    def best_rate(self, tried: Mapping[float, str], times: float = 1.0) -> dict[str, Any]:
        """The learning rate of the run that validates best, times a factor."""
        return {"best_of": {self.score(name): times * rate for rate, name in tried.items()}}

    def tuned(
        self, name: str, function: str, settings: Mapping[str, Any], rates: Sequence[float], seeds: Sequence[int]
    ) -> dict[int, tuple[str, ...]]:
        """By seed: the runs of a training. The first seed tries every learning rate, the others take the best."""

        def added(label: str, seed: int, rate: float | dict[str, Any]) -> str:
            own = {**settings, "seed": seed, "learning_rate": rate}
            return self.add(Run(name=f"{name}-s{seed}{label}", function=function, settings=own))

        first, *others = seeds
        tried = {added(f"-lr{rate:g}", first, rate): rate for rate in rates}
        return {first: tuple(tried)} | {seed: (added("", seed, {"best_of": tried}),) for seed in others}

    # ---- fine-tunings and scores -------------------------------------------------------------------------

    def train(
        self,
        corpus: str,
        kind: str,
        *,
        label: str | None = None,
        window: int | None = None,
        overlap: int = 0,
        seed: int = 0,
        rate: float | dict[str, Any] | None = None,
        recurrence: Settings | None = None,
        added_rate: float | None = None,
        base: str | dict[str, str] | None = None,
        function: str = TRAIN,
        **training: Any,
    ) -> str:
        """A fine-tuning; returns its name. Learning rate and mechanism are by default those chosen for its kind.

        Plain windows train without overlap: they are independent of each other.
        """
        size = self.size
        window, overlap = window or size.window, 0 if kind == "plain" else overlap
        settings = {**size.training, **({} if corpus == "books" else size.wiki_training), **training}
        if added_rate is None:
            added_rate = 1.0 if kind in ("plain", "xlnet") else size.added_rate
        name = f"{corpus}-{label or kind}-w{window}-o{overlap}-s{seed}"
        if isinstance(rate, float):
            name += f"-lr{rate:g}"
        settings = {
            "base": self.base() if base is None else base,
            "data": size.source(corpus),
            "recurrence": {**(recurrence or self.recurrence(kind))},
            "window": window,
            "overlap": overlap,
            "rate": self.best_rate(self.tuning(kind)) if rate is None else rate,
            "added_rate": added_rate,
            "seed": seed,
            "training": {"valid_tokens": size.valid_tokens, **settings},
        }
        return self.add(Run(name=name, function=function, settings=settings))

    def score(self, name: str, split: str = "valid", overlap: int = 0, exchanged: bool = False) -> str:
        """A score of a trained model; `exchanged`: windows read the memories of other documents, as a control."""
        tokens = self.size.valid_tokens if split == "valid" else self.size.test_tokens
        settings = {"run": {"run": name}, "split": split, "overlap": overlap, "tokens": tokens, "exchanged": exchanged}
        return self.add(Run(name=score_name(name, split, overlap, exchanged), function=SCORE, settings=settings))

    def scored(self, entries: Iterable[Entry]) -> list[Entry]:
        """Add the scores that the rows need."""
        found = list(entries)
        for entry in found:
            for names in entry.trained.values():
                for name in names:
                    for split in {*entry.splits, *(["valid"] if len(names) > 1 else [])}:
                        self.score(name, split, entry.overlap)
                    if entry.control:
                        self.score(name, entry.splits[-1], entry.overlap, exchanged=True)
        return found


def score_name(name: str, split: str, overlap: int = 0, exchanged: bool = False) -> str:
    """The run that scores another."""
    return f"{name}-{split}-o{overlap}{'-exchanged' * exchanged}"


def model_of(name: str) -> dict[str, str]:
    """The model that a run saves, as a reference in settings."""
    return {"run": name, "file": MODEL}
