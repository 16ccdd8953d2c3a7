"""The unit of work: one fine-tuning and every score of the model it leaves. Finished parts are skipped.

Called with a file's name, `main` does the unit that the file describes, so that several can share one GPU, each in a
process of its own.
"""

import json
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from recurrify.data.texts import Say, pick_device, read_text
from recurrify.errors import UserError
from recurrify.evaluate.evaluation import Evaluation
from recurrify.evaluate.flops import full_flops_per_token, paper_flops_per_token
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.mechanisms.base import recurrence_config
from recurrify.modeling.loading import load_model
from recurrify.records import CONFIG_FILE, MODEL_FOLDER
from recurrify.results import load_result, provenance, save_result, write_whole
from recurrify.side_by_side import INTERRUPTED, held_alone
from recurrify.train.finetuning import train_run
from recurrify.train.resuming import RESULT_FILE
from recurrify.train.running import uses_bf16
from recurrify.train.settings import TrainSettings
from recurrify_papers.thesis.xlnet_evaluation import score_xlnet
from recurrify_papers.thesis.xlnet_run import XLNetMemory, load_xlnet, xlnet_run

ROWS = 24
"""Documents scored side by side: few enough for a dozen processes on one GPU."""


class Wanted(NamedTuple):
    """One score: which part of the data, at which overlap, how much of each document."""

    split: str
    overlap: int
    tokens: int | None
    exchanged: bool = False
    """Whether windows read the memories of other documents: a control."""

    @property
    def told(self) -> str:
        """In the name of its file."""
        return f"{self.split}-o{self.overlap}{'-exchanged' * self.exchanged}"


@dataclass(frozen=True)
class Unit:
    """`folder` belongs to the size: runs/, scores/ and logs/ lie below it."""

    name: str
    folder: Path
    settings: TrainSettings
    wanted: tuple[Wanted, ...] = ()
    needed: bool = False
    """Whether another run has yet to go on with its model."""

    @property
    def run_folder(self) -> Path:
        return self.folder / "runs" / self.name

    @property
    def run_file(self) -> Path:
        return self.folder / "runs" / f"{self.name}.json"

    def score_file(self, wanted: Wanted) -> Path:
        return self.folder / "scores" / f"{self.name}-{wanted.told}.json"

    @property
    def length(self) -> str:
        """How long it trains, for people."""
        one = self.settings
        return f"{one.epochs:g} epochs" if one.max_tokens is None else f"{one.max_tokens:,} tokens"

    @property
    def is_xlnet(self) -> bool:
        return bool(self.settings.recurrence["mechanism"] == "xlnet")

    def is_trained(self) -> bool:
        """Whether this very run is there; one with other settings under its name is refused, never taken for it."""
        if not self.run_file.is_file():
            return False
        there = TrainSettings.from_dict(load_result(self.run_file)["provenance"]["config"])
        mine = replace(self.settings, recurrence=self._memory_as(there.recurrence), data_checksum=there.data_checksum)
        mine.check_same_run(there)
        return True

    def _memory_as(self, trained: dict[str, Any]) -> dict[str, Any]:
        """This run's memory with all its settings, those from `trained` that were left to its base."""
        if self.is_xlnet:
            return XLNetMemory.of(self.settings).to_dict()
        config = recurrence_config(self.settings.recurrence)
        left = [name for name in config.left_to_base if getattr(config, name) is None]
        return config.to_dict() | {name: trained.get(name) for name in left}

    def must_be_trained(self) -> bool:
        """Whether it has not been, or its weights are gone, as where only results were kept, and are needed still."""
        if not self.is_trained():
            return True
        needed = self.needed or not all(self.is_scored(wanted) for wanted in self.wanted)
        return needed and not (self.run_folder / MODEL_FOLDER / CONFIG_FILE).is_file()

    def is_scored(self, wanted: Wanted) -> bool:
        path = self.score_file(wanted)
        return self.is_newer(path) and bool(load_result(path)["tokens"] == wanted.tokens)

    def is_newer(self, path: Path) -> bool:
        """Whether a file was made after the run that it is about: by the dates inside, for a copied file's own time is
        that of its copying."""
        if not path.is_file():
            return False
        theirs, ours = _date(path), _date(self.run_file)
        if theirs is None or ours is None:
            return path.stat().st_mtime_ns >= self.run_file.stat().st_mtime_ns
        return theirs >= ours

    def is_finished(self) -> bool:
        return not self.must_be_trained() and all(self.is_scored(wanted) for wanted in self.wanted)

    def evaluation(self, split: str, overlap: int, exchanged: bool = False) -> Evaluation | None:
        """What was found, or None where it has not been run."""
        path = self.score_file(Wanted(split, overlap, None, exchanged))
        if not (self._is_there() and self.is_newer(path)):
            return None
        return Evaluation.from_dict(load_result(path)["evaluation"])

    def _is_there(self) -> bool:
        try:
            return self.is_trained()
        except UserError:  # a run with other settings, whose scores are not this one's
            return False

    def with_scores(self, more: Iterable[Wanted]) -> "Unit":
        return replace(self, wanted=tuple(dict.fromkeys((*self.wanted, *more))))

    def write(self) -> Path:
        path = self.folder / "logs" / f"{self.name}.unit.json"
        values = {
            "name": self.name,
            "folder": str(self.folder),
            "settings": self.settings.to_dict(),
            "wanted": [list(wanted) for wanted in self.wanted],
            "needed": self.needed,
        }
        write_whole(path, json.dumps(values, indent=1).encode())
        return path

    @classmethod
    def read(cls, path: Path) -> "Unit":
        values = load_result(path)
        return cls(
            name=values["name"],
            folder=Path(values["folder"]),
            settings=TrainSettings.from_dict(values["settings"]),
            wanted=tuple(Wanted(*wanted) for wanted in values["wanted"]),
            needed=values["needed"],
        )


def _date(path: Path) -> str | None:
    """When a result was made, by its own account."""
    return _date_inside(path, path.stat().st_mtime_ns) if path.suffix == ".json" else None


@cache
def _date_inside(path: Path, written: int) -> str | None:
    """Kept, for hundreds of files are asked for it again and again; `written` tells a file from its successor."""
    date: str | None = load_result(path).get("provenance", {}).get("date_utc")
    return date


def do_unit(unit: Unit, say: Say, show_progress: bool = True) -> bool:
    """Train, then score; False when its time was up before the end. Ctrl-C, too, leaves it ready to go on."""
    with held_alone(unit.run_folder):
        return _train_and_score(unit, say, show_progress)


def _train_and_score(unit: Unit, say: Say, show_progress: bool) -> bool:
    if unit.must_be_trained():
        if unit.is_trained():
            say(f"{unit.name}: its weights are gone and needed once more, so it is trained anew, and scored")
            # By it a folder counts as finished; the run's record beside the folder has all of it.
            (unit.run_folder / RESULT_FILE).unlink(missing_ok=True)
        run = xlnet_run if unit.is_xlnet else train_run
        result = run(unit.settings, say, show_progress, unit.name)
        if not result["finished"]:
            if result["interrupted"]:
                raise KeyboardInterrupt  # so that nothing else is begun either
            return False
        for checkpoint in unit.run_folder.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
        save_result(unit.run_file, {"name": unit.name, **result})
    waiting = [wanted for wanted in unit.wanted if not unit.is_scored(wanted)]
    if waiting:
        _score(unit, waiting, say)
    return True


def _score(unit: Unit, waiting: list[Wanted], say: Say) -> None:
    model, tokenizer = _load(unit)
    model = model.to(pick_device())
    half = model.device.type == "cuda" and uses_bf16(unit.settings.precision)
    for wanted in waiting:
        tokens, checksum = read_text(
            unit.settings.data, wanted.split, tokenizer, say, unit.settings.text_field, wanted.tokens
        )
        if unit.is_xlnet:
            found = score_xlnet(model, tokens, window=model.window, memory=model.memory, rows=ROWS, bf16=half)
            costs = dict.fromkeys(("flops_per_token", "full_flops_per_token"))
        else:
            found = evaluate_documents(
                model, tokens, overlap=wanted.overlap, rows=ROWS, bf16=half, exchange_memories=wanted.exchanged
            )
            costs = {
                "flops_per_token": paper_flops_per_token(model, overlap=wanted.overlap),
                "full_flops_per_token": full_flops_per_token(model, overlap=wanted.overlap),
            }
        config = {"run": unit.name, **wanted._asdict()}
        result: dict[str, Any] = {
            "kind": "score",
            **config,
            **costs,
            "evaluation": found.to_dict(),
            "provenance": provenance(config, seed=unit.settings.seed, data_checksum=checksum),
        }
        save_result(unit.score_file(wanted), result)
        told = f"perplexity {found.perplexity_per_word:,.2f} per word"
        say(f"{unit.name}, {wanted.told}: {told}")


def _load(unit: Unit) -> tuple[Any, Any]:
    folder = str(unit.run_folder / MODEL_FOLDER)
    if unit.is_xlnet:
        return load_xlnet(folder, XLNetMemory.of(unit.settings))
    return load_model(folder)


def main() -> None:
    from transformers import logging

    from recurrify.console import say

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        finished = do_unit(Unit.read(Path(sys.argv[1])), say, show_progress=False)
    except UserError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(0 if finished else INTERRUPTED)
