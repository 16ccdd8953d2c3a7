"""Table 3 of the paper, run by us: question answering, disjoint against recurrent, equal budgets, several seeds.

Called with a file's name, `main` does the unit that the file describes, so that several can share one GPU, each in a
process of its own.
"""

import json
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from recurrify.data.texts import Say, pick_device
from recurrify.errors import UserError
from recurrify.mechanisms.base import recurrence_config
from recurrify.modeling.task_loading import PAPERS_ANSWERING
from recurrify.results import load_result, provenance, save_result, write_whole
from recurrify.side_by_side import INTERRUPTED, Task, run_side_by_side
from recurrify.train.answer_legs import made_with, seconds_of
from recurrify.train.answering import AnswerSettings
from recurrify.train.answering_run import answer_evaluate, answer_train
from recurrify.train.resuming import RESULT_FILE
from recurrify_papers.table3.mixture import PARTS, RECORD_FILE, QuestionFile, make_mixture, named_files
from recurrify_papers.table3.table3_result import DISJOINT, MADE_WITH, RECURRENT, TOGETHER, Found, table3_result

KINDS: dict[str, dict[str, Any]] = {DISJOINT: {"mechanism": "none"}, RECURRENT: PAPERS_ANSWERING}
TABLE_FILE = "table3.json"
SCORE_BATCH = 32


@dataclass(frozen=True, kw_only=True)
class Table3Plan:
    """Everything a run of the table is made of. What trains a model is the same for both kinds."""

    model: str
    """The encoder: a Hugging Face name or a folder."""
    data: tuple[str, ...]
    """Question files with one paragraph for each question."""
    extra_tests: tuple[str, ...] = ()
    """Question files that are scored as they are."""
    root: str = "runs/table3"
    seeds: int = 3
    rates: tuple[float, ...] = (5e-5, 1e-4, 2e-4)
    """With more than one, the first seed tries all, and each kind goes on with its best on validation."""
    window: int = 512
    epochs: float = 4.0
    batch: int = 8
    warmup_steps: int = 100
    distractors: int = 9
    questions: int | None = None
    """So many of each file of `data`; None: all."""
    precision: str = "auto"

    def __post_init__(self) -> None:
        if not self.data:
            raise UserError("There are no questions to train on: give at least one --data.")
        if not self.rates or len(set(self.rates)) < len(self.rates):
            raise UserError(f"`rates` must be different learning rates: got {self.rates}.")
        named_files(self.data, "--data")
        named_files(self.extra_tests, "--extra-test", (*PARTS, TOGETHER))
        # Refuses settings that cannot be before anything is read.
        self.trials(dict.fromkeys(PARTS, QuestionFile("", "", "")))

    def unit(self, parts: Mapping[str, QuestionFile], kind: str, rate: float, seed: int) -> "Unit":
        name = f"{kind}-{rate:g}-s{seed}"
        settings = AnswerSettings(
            out=str(Path(self.root) / "runs" / name),
            model=self.model,
            data=parts["train"].path,
            data_checksum=parts["train"].checksum,
            test=parts["valid"].path,
            recurrence=KINDS[kind] | {"window": self.window},
            epochs=self.epochs,
            batch=self.batch,
            learning_rate=rate,
            warmup_steps=self.warmup_steps,
            precision=self.precision,
            seed=seed,
        )
        return Unit(name, settings)

    def trials(self, parts: Mapping[str, QuestionFile]) -> list["Unit"]:
        """The first seed of both kinds at every learning rate."""
        return [self.unit(parts, kind, rate, 0) for rate in self.rates for kind in KINDS]

    def finals(self, parts: Mapping[str, QuestionFile], tests: Sequence[QuestionFile]) -> dict[str, list["Unit"]]:
        """All seeds of each kind at the learning rate that was best on validation, to be scored on all tests."""
        chosen = {}
        for kind in KINDS:
            best = self.rates[0]
            if len(self.rates) > 1:
                best = max(self.rates, key=lambda rate: self.unit(parts, kind, rate, 0).validation()["f1"])
            units = [self.unit(parts, kind, best, seed) for seed in range(self.seeds)]
            chosen[kind] = [replace(unit, tests=tuple(tests)) for unit in units]
        return chosen


@dataclass(frozen=True)
class Unit:
    """One training, as `recurrify qa train` does it, and every score of the model it leaves."""

    name: str
    settings: AnswerSettings
    tests: tuple[QuestionFile, ...] = ()

    @property
    def folder(self) -> Path:
        return Path(self.settings.out)

    @property
    def logs(self) -> Path:
        return self.folder.parent.parent / "logs"

    def result(self) -> dict[str, Any]:
        return load_result(self.folder / RESULT_FILE)

    def validation(self) -> dict[str, Any]:
        found: dict[str, Any] = self.result()["test"]
        return found

    def made_with(self) -> list[dict[str, str]]:
        """By what each leg of the training and each score was made."""
        result = self.result()
        origins = [result, *(load_result(self.score_file(test)) for test in self.tests)]
        legs = [{name: leg[name] for name in MADE_WITH} for leg in result.get("legs", [])]
        return legs + [made_with(one["provenance"]) for one in origins]

    def score_file(self, test: QuestionFile) -> Path:
        return self.folder / f"score-{test.name}.json"

    def is_trained(self) -> bool:
        """Whether this very run is there; one with other settings under its name is refused, never taken for it."""
        if not (self.folder / RESULT_FILE).is_file():
            return False
        there = AnswerSettings.from_dict(self.result()["provenance"]["config"])
        replace(self.settings, recurrence=recurrence_config(self.settings.recurrence).to_dict()).check_same_run(there)
        return True

    def unscored(self) -> list[QuestionFile]:
        """Tests that have no score yet, or one of other questions under their name."""
        return [
            test
            for test in self.tests
            if not self.score_file(test).is_file()
            or load_result(self.score_file(test))["provenance"]["data_checksum"] != test.checksum
        ]

    def is_finished(self) -> bool:
        return self.is_trained() and not self.unscored()

    def task(self) -> Task:
        path = self.logs / f"{self.name}.unit.json"
        values = {"name": self.name, "settings": self.settings.to_dict(), "tests": [list(test) for test in self.tests]}
        write_whole(path, json.dumps(values, indent=1).encode())
        arguments = ("-c", f"from {__name__} import main; main()", str(path))
        return Task(self.name, arguments, self.logs / f"{self.name}.log")

    @classmethod
    def read(cls, path: Path) -> "Unit":
        values = load_result(path)
        tests = tuple(QuestionFile(*test) for test in values["tests"])
        return cls(values["name"], AnswerSettings.from_dict(values["settings"]), tests)


def do_unit(unit: Unit, say: Say, show_progress: bool = True) -> bool:
    """Train, then score; False where the time was up before the end."""
    if not unit.is_trained():
        result = answer_train(unit.settings, say, show_progress, unit.name)
        if not result["finished"]:
            if result["interrupted"]:
                raise KeyboardInterrupt
            return False
        say(f"{unit.name}: F1 {result['test']['f1']:.2f} on validation")
        for checkpoint in unit.folder.glob("checkpoint-*"):
            shutil.rmtree(checkpoint)
    for test in unit.unscored():
        _, found, _ = answer_evaluate(
            str(unit.folder / "model"), test.path, say, pick_device(), SCORE_BATCH, unit.settings.longest_answer
        )
        say(f"{unit.name}: F1 {found['f1']:.2f} on {test.name}")
        save_result(unit.score_file(test), found)
    return True


def do_units(units: Sequence[Unit], jobs: int, say: Say, deadline: float | None = None) -> bool:
    """Do what is not finished; False where the time, a `time.monotonic()`, was up before the end."""
    waiting = [unit for unit in units if not unit.is_finished()]
    if len(waiting) < len(units):
        say(f"{len(units) - len(waiting)} of {len(units)} runs are finished already")
    if jobs > 1 and waiting:
        say(f"{len(waiting)} runs, {jobs} at a time; each writes a log in {waiting[0].logs}")
        outcome = run_side_by_side([unit.task() for unit in waiting], jobs, say, deadline)
        if outcome.failures:
            raise UserError(
                f"{len(outcome.failures)} of {len(waiting)} runs failed, what the others did is saved; "
                f"the first: {outcome.failures[0]}"
            )
        return outcome.finished
    for unit in waiting:
        minutes = None
        if deadline is not None:
            minutes = (deadline - time.monotonic()) / 60
            if minutes <= 0:
                return False
        if not do_unit(replace(unit, settings=replace(unit.settings, max_minutes=minutes)), say):
            return False
    return True


def run_table3(
    plan: Table3Plan, say: Say, published: Mapping[str, Mapping[str, float]], jobs: int, deadline: float | None = None
) -> dict[str, Any] | None:
    """Run what is missing and write `table3.json`; None where the time was up: the same call goes on.

    `published` holds the paper's scores of both kinds, to stand beside ours.
    """
    started = time.time()
    parts = make_mixture(plan.data, Path(plan.root) / "data", say, plan.distractors, plan.questions)
    extra = named_files(plan.extra_tests, "--extra-test")
    tests = [parts["test"], *(QuestionFile.read(name, path, say) for name, path in extra.items())]
    trials = plan.trials(parts)
    if len(plan.rates) > 1 and not do_units(trials, jobs, say, deadline):
        return None
    finals = plan.finals(parts, tests)
    # The kinds in turn, so that a run that stops early has as many seeds of one as of the other.
    in_turn = [unit for pair in zip(*finals.values(), strict=True) for unit in pair]
    if not do_units(in_turn, jobs, say, deadline):
        return None
    trained = {kind: units[0].result() for kind, units in finals.items()}
    made_by = {unit.name: unit for unit in (*(trials if len(plan.rates) > 1 else ()), *in_turn)}
    found = Found(
        scores={
            test.name: {kind: [load_result(unit.score_file(test)) for unit in units] for kind, units in finals.items()}
            for test in tests
        },
        trials=[
            {"kind": kind, "learning_rate": rate} | _validation(plan.unit(parts, kind, rate, 0))
            for kind in KINDS
            for rate in plan.rates
        ],
        chosen={kind: units[0].settings.learning_rate for kind, units in finals.items()},
        trained=trained,
        seconds={kind: [seconds_of(unit.result()) for unit in finals[kind]] for kind in KINDS},
        made_with=[unit.made_with() for unit in made_by.values()],
    )
    config = asdict(plan) | {
        "model": Path(plan.model).name,
        "data": [Path(path).name for path in plan.data],
        "extra_tests": [Path(path).name for path in plan.extra_tests],
        "recurrence": {kind: results["provenance"]["config"]["recurrence"] for kind, results in trained.items()},
        "schedule": in_turn[0].settings.schedule,
        "jobs": jobs,
    }
    mixture = load_result(Path(plan.root) / "data" / RECORD_FILE)
    result = table3_result(found, config, mixture, published)
    result["provenance"] = provenance(config, data_checksum=parts["train"].checksum, started=started)
    save_result(Path(plan.root) / TABLE_FILE, result)
    return result


def _validation(unit: Unit) -> dict[str, float]:
    scores = unit.validation()
    return {"valid_f1": scores["f1"], "valid_exact_match": scores["exact_match"]}


def main() -> None:
    from transformers import logging

    from recurrify.console import say

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        finished = do_unit(Unit.read(Path(sys.argv[1])), say)
    except UserError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(0 if finished else INTERRUPTED)
