"""Where experiments of one size are run: the base model, the fine-tunings that rows share, and their scores."""

import gc
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from recurrify.data.texts import Say
from recurrify.errors import UserError
from recurrify.records import MODEL_FOLDER
from recurrify.results import load_result
from recurrify.train.settings import TrainSettings
from recurrify_papers.data.wikipedia import verified_corpus
from recurrify_papers.experiments.pool import Outcome, do_units
from recurrify_papers.experiments.sizes import Size
from recurrify_papers.experiments.unit import Unit, Wanted
from recurrify_papers.pretrain.run import pretrain
from recurrify_papers.pretrain.training import PretrainSettings

CHOICE = "learning-rates"
"""The experiment that chooses learning rates, and its result file."""

VARIANTS = "variants"
"""The experiment that chooses the best mechanism, where a size names several, and its result file."""


@dataclass
class Lab:
    size: Size
    root: Path
    say: Say
    books: str | None = None
    """Another source of long documents than the size's own; the same for wiki text."""
    wiki: str | None = None
    jobs: int = 1
    """How many fine-tunings run side by side."""
    deadline: float | None = None
    """A `time.monotonic()` at which to stop, saved and ready to go on."""
    rates: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    """A sentence for each run that failed and has not been done since."""
    stopped: bool = False
    """Whether time ran out before the last runs that were asked for were done."""

    @property
    def folder(self) -> Path:
        return self.root / self.size.name

    def source(self, corpus: str) -> str:
        """`corpus` is books, wiki or enwik8, which wiki text can be too: `enwik8:PATH` stands for both."""
        enwik8 = self.wiki if verified_corpus(self.wiki or "") == "enwik8" else None
        given = {"books": self.books, "wiki": self.wiki, "enwik8": enwik8}[corpus]
        return given or {"books": self.size.books, "wiki": self.size.wiki, "enwik8": "enwik8"}[corpus]

    def base(self) -> str:
        return self.size.base or str(self.folder / "base" / "model")

    def make_base(
        self, folder: str = "base", corpora: Sequence[str] = ("books", "wiki"), tokenizer: str | None = None
    ) -> bool:
        """Pretrain a base where the size names none; False when time ran out before it was done."""
        if self.size.base is not None:
            return True
        model = self.folder / folder / MODEL_FOLDER
        if not model.is_dir() and (run := self._run_from(str(model))) is not None:
            raise UserError(
                f"{str(model)!r} is not there, but {str(run)!r} and others began with it, and a base pretrained anew "
                "would be another one: bring it back, or choose another folder with --root."
            )
        left = None if self.deadline is None else max((self.deadline - time.monotonic()) / 60, 0.01)
        settings = PretrainSettings(
            data=[self.source(corpus) for corpus in corpora],
            out=str(self.folder / folder),
            tokenizer=tokenizer,
            max_minutes=left,
            **self.size.pretraining,
        )
        result = pretrain(settings, self.say)
        _let_go_of_device()
        if result["interrupted"]:
            raise KeyboardInterrupt  # so that nothing else is begun either
        return bool(result["finished"])

    def _run_from(self, model: str) -> Path | None:
        """The record of a fine-tuning that began with this model."""
        records = sorted((self.folder / "runs").glob("*.json"))
        return next((one for one in records if load_result(one)["provenance"]["config"]["model"] == model), None)

    # ---- fine-tunings -------------------------------------------------------------------------------------

    def unit(
        self,
        corpus: str,
        kind: str,
        window: int | None = None,
        overlap: int = 0,
        seed: int = 0,
        learning_rate: float | None = None,
        recurrence: dict[str, Any] | None = None,
        label: str | None = None,
        **settings: Any,
    ) -> Unit:
        """A fine-tuning by what sets it apart. Plain models train without overlap: to them windows are unrelated.

        `label` and `recurrence` make a variant of a kind; `learning_rate` and the mechanism are the kind's chosen ones
        unless given.
        """
        window = window or self.size.window
        overlap = 0 if kind == "plain" else overlap
        training = {**self.size.training, **({} if corpus == "books" else self.size.wiki_training), **settings}
        if training.get("compile") == "graphs" and not torch.cuda.is_available():
            training["compile"] = "auto"  # slower, and the same run
        make_up = {**(recurrence or self.recurrence(kind)), "window": window}
        if kind != "xlnet":
            make_up["overlap"] = overlap
        # XLNet keeps its attention weights, which fused attention never has: without checkpointing it fills a GPU.
        make_up["checkpoint"] = training.pop("checkpoint", False) or kind == "xlnet"
        rate = learning_rate or self.learning_rate(kind)
        if kind in ("carry", "best") and self.size.added_rate != 1.0:
            training.setdefault("added_learning_rate", self.size.added_rate * rate)
        name = f"{corpus}-{label or kind}-w{window}-o{overlap}-s{seed}"
        if learning_rate is not None:
            name += f"-lr{learning_rate:g}"
        run = TrainSettings(
            model=self.base(),
            data=self.source(corpus),
            out=str(self.folder / "runs" / name),
            recurrence=make_up,
            learning_rate=rate,
            seed=seed,
            **{"valid_tokens": self.size.valid_tokens, **training},
        )
        return Unit(name, self.folder, run)

    def windows_of(self, training: Mapping[str, Any], window: int) -> int:
        """In a training sequence: it stays as long in tokens whatever the window, so that every model sees as much
        before each token."""
        return max(1, round(training["windows"] * self.size.window / window))

    def recurrence(self, kind: str) -> dict[str, Any]:
        if kind != "best" or not self.size.best_from:
            return self.size.recurrence(kind)
        path = self.folder / f"{VARIANTS}.json"
        rows = load_result(path)["rows"] if path.is_file() else []
        chosen = next((row for row in rows if row["chosen"]), None)
        if chosen is None:
            raise UserError(
                f"The best mechanism has not been chosen yet for size {self.size.name!r}: "
                f"run `recurrify experiment run {VARIANTS} --size {self.size.name}` first."
            )
        return dict(chosen["recurrence"])

    def learning_rate(self, kind: str) -> float:
        if not self.rates:
            path = self.folder / f"{CHOICE}.json"
            if not path.is_file():
                raise UserError(
                    f"Learning rates have not been chosen yet for size {self.size.name!r}: "
                    f"run `recurrify experiment run {CHOICE} --size {self.size.name}` first."
                )
            self.rates = chosen_rates(load_result(path)["rows"])
        if kind not in self.rates:
            raise UserError(
                f"{CHOICE}.json chooses no learning rate for {kind!r}: run `experiment run {CHOICE}` again."
            )
        return self.rates[kind]

    def wanted(self, split: str, overlap: int) -> Wanted:
        return Wanted(split, overlap, self.size.valid_tokens if split == "valid" else self.size.test_tokens)

    def finish(self, units: Iterable[Unit]) -> Outcome:
        """Do the units, each once with all scores that anybody wants of it; what the papers have comes first."""
        merged: dict[str, Unit] = {}
        for unit in units:
            known = merged.get(unit.name)
            merged[unit.name] = unit if known is None else known.with_scores(unit.wanted)
        outcome = do_units(sorted(merged.values(), key=_turn), self.jobs, self.say, self.deadline)
        self.heed(outcome, merged)
        return outcome

    def heed(self, outcome: Outcome, names: Iterable[str]) -> None:
        """Note how these runs ended. Failures of theirs from another time count no more: what was missing has been
        tried again."""
        known = set(names)
        others = [failure for failure in self.failures if failure.split(" ended with ")[0] not in known]
        self.failures = others + outcome.failures
        self.stopped = not outcome.finished


def _let_go_of_device() -> None:
    """What pretraining leaves in this process, captured steps above all, is room that runs beside it need."""
    torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def chosen_rates(rows: Iterable[dict[str, Any]]) -> dict[str, float]:
    return {row["kind"]: row["learning_rate"] for row in rows if row["chosen"]}


def _turn(unit: Unit) -> int:
    """The slowest first, then what the papers have, then what is ours: if time runs out, that can wait."""
    if unit.is_xlnet:
        return 0
    return 2 if "-best-" in unit.name and "-o0-" not in unit.name else 1
