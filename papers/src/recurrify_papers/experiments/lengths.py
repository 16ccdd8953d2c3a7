"""The slides' claim on out-of-distribution length: trained on sequences up to 40, who is still right at 400?

Every model has about 150,000 parameters, sees the same sequences for as many steps, and takes its learning rate from
the same candidates by its loss on validation sequences of training length. What was trained and scored once is kept,
one file for each task, model, rate and seed.
"""

import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from recurrify.data.texts import Say, pick_device
from recurrify.errors import UserError
from recurrify.processes import one_thread
from recurrify.results import load_result, provenance, save_result, write_whole
from recurrify.side_by_side import INTERRUPTED, Task, run_side_by_side
from recurrify_papers.experiments.catalogue import SLIDES, Experiment, Rows, Stage, register
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.models.language import count_parameters
from recurrify_papers.slides.rule_tasks import rule_task
from recurrify_papers.slides.rule_training import RuleTraining, score_rule, train_on_rule, validate_rule

FOLDER = "lengths"
"""Below the size's own folder."""


class Contestant(NamedTuple):
    model: dict[str, Any]
    """Settings of the architecture."""
    segment: int | None
    """Positions read at a time, in training as in tests."""
    reads: str
    """The same for people."""


_LAYERS: dict[str, Any] = {"layers": 3, "width": 64, "heads": 8, "head_width": 8, "inner": 256, "dropout": 0.0}

CONTESTANTS = {
    "transformer": Contestant(_LAYERS, None, "whole sequences; no position beyond the training length was trained"),
    "rsa": Contestant(
        # Half of the heads with a recurrence, as published; regular ones, and a pair that turns.
        {**_LAYERS, "rsa.counts": (2, 1, 1, 0, 0, 0), "rsa.dilations": ()},
        None,
        "whole sequences, the recurrence over all of them; positions as the transformer's",
    ),
    "xl": Contestant(
        # Segments of half the training length: else training would never see a memory.
        {**_LAYERS, "inner": 232, "target_length": 20, "memory_length": 20},
        20,
        "segments of 20 with the 20 positions before as memory, without gradient",
    ),
    "brt": Contestant(
        {**_LAYERS, "inner": 160, "target_length": 40, "window": 20, "block": 10, "states": 16},
        40,
        "segments of 40 in a sliding window of 20; its 16 states, written every 10 positions, are carried on",
    ),
    "lstm": Contestant({"layers": 2, "width": 96, "dropout": 0.0}, None, "whole sequences, position by position"),
    "gru": Contestant({"layers": 2, "width": 112, "dropout": 0.0}, None, "whole sequences, position by position"),
}


@dataclass(frozen=True, kw_only=True)
class LengthStudy:
    """What every model gets alike. The defaults are the size small, and paper too, since no numbers are published."""

    tasks: tuple[str, ...] = ("parity", "counting", "dyck", "copying")
    """Names of rules."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """The first of them chooses the learning rate."""
    rates: tuple[float, ...] = (3e-4, 1e-3, 3e-3)
    """Candidates for the learning rate."""
    steps: int = 2000
    """Updates of the weights."""
    batch: int = 128
    """Sequences in a step."""
    training_length: int = 40
    """The longest sequences of training and validation."""
    lengths: tuple[int, ...] = (20, 40, 60, 80, 120, 160, 200, 300, 400)
    """Of the test sequences."""
    valid_sequences: int = 1024
    """For the choice of the learning rate."""
    test_sequences: int = 1024
    """Of each length."""

    def __post_init__(self) -> None:
        for name in ("tasks", "seeds", "rates", "lengths"):
            # Read back from JSON they are lists.
            object.__setattr__(self, name, tuple(getattr(self, name)))


@cache
def short_memory_level(task: str, length: int, memory: int) -> float:
    """As the task has it; every model's rows want the same, and for some tasks it takes a second."""
    return rule_task(task).short_memory_level(length, memory)


@dataclass(frozen=True)
class Contest:
    """One model on one task: its learning rate, then its seeds. `folder` is the size's."""

    folder: Path
    study: LengthStudy
    task: str
    arch: str

    @property
    def name(self) -> str:
        return f"{self.task}-{self.arch}"

    def training(self, rate: float, seed: int) -> RuleTraining:
        contestant = CONTESTANTS[self.arch]
        return RuleTraining(
            task=self.task,
            arch=self.arch,
            model=contestant.model,
            segment=contestant.segment,
            length=self.study.training_length,
            steps=self.study.steps,
            batch=self.study.batch,
            learning_rate=rate,
            seed=seed,
        )

    def file(self, rate: float, seed: int) -> str:
        """Below the size's folder."""
        return f"{FOLDER}/{self.name}-lr{rate:g}-s{seed}.json"

    def result(self, rate: float, seed: int) -> dict[str, Any] | None:
        """What was kept of this very run; one with other settings under its name is made anew."""
        path = self.folder / self.file(rate, seed)
        if not path.is_file():
            return None
        kept = load_result(path)
        return kept if kept["provenance"]["config"] == self._config(rate, seed) else None

    def _config(self, rate: float, seed: int) -> dict[str, Any]:
        scored = {name: getattr(self.study, name) for name in ("lengths", "valid_sequences", "test_sequences")}
        found: dict[str, Any] = json.loads(json.dumps({**asdict(self.training(rate, seed)), **scored}))
        return found

    def chosen_rate(self) -> float | None:
        """The candidate with the lowest validation loss; None until all have been tried."""
        tried = {rate: self.result(rate, self.study.seeds[0]) for rate in self.study.rates}
        losses = {rate: found["valid"]["loss"] for rate, found in tried.items() if found is not None}
        # A loss that is not finite was saved as null.
        known = {rate: loss for rate, loss in losses.items() if loss is not None}
        return min(known, key=lambda rate: known[rate]) if len(losses) == len(tried) and known else None

    def waiting(self) -> tuple[float, int] | None:
        """The next rate and seed to run: first the candidates, then with the chosen one the other seeds."""
        for rate in self.study.rates:
            if self.result(rate, self.study.seeds[0]) is None:
                return rate, self.study.seeds[0]
        chosen = self.chosen_rate()
        if chosen is None:
            return None  # not finite at any rate: there is nothing to go on with
        seeds = (seed for seed in self.study.seeds if self.result(chosen, seed) is None)
        seed = next(seeds, None)
        return None if seed is None else (chosen, seed)

    def do(self, say: Say, deadline: float | None = None) -> bool:
        """Whatever is missing; False when time ran out before that."""
        while (next_run := self.waiting()) is not None:
            if deadline is not None and time.monotonic() > deadline:
                return False
            self._run(*next_run, say)
        return True

    def _run(self, rate: float, seed: int, say: Say) -> None:
        started, training, study = time.time(), self.training(rate, seed), self.study
        with one_thread():
            model = train_on_rule(training, pick_device())
            valid = validate_rule(model, training, study.valid_sequences)
            scores = {length: score_rule(model, training, length, study.test_sequences) for length in study.lengths}
        result = {
            "kind": "rule",
            "parameters": count_parameters(model),
            "valid": valid._asdict(),
            "test": {str(length): score._asdict() for length, score in scores.items()},
            "provenance": provenance(self._config(rate, seed), seed=seed, started=started),
        }
        save_result(self.folder / self.file(rate, seed), result)
        longest = max(scores)
        say(
            f"{self.name}, rate {rate:g}, seed {seed}: accuracy {valid.accuracy:.3f} up to {training.length}, "
            f"{scores[longest].accuracy:.3f} at {longest}"
        )

    def rows(self) -> tuple[Rows, list[str]]:
        """One row for each length, over the seeds that are there, and the names of those that are not."""
        rate, seeds = self.chosen_rate(), self.study.seeds
        if rate is None:
            return [], [self.name]
        found = {seed: one for seed in seeds if (one := self.result(rate, seed)) is not None}
        first = found[seeds[0]]
        shared = {
            "task": self.task,
            "arch": self.arch,
            "training_length": self.study.training_length,
            "seeds": list(found),
            "learning_rate": rate,
            "rates": list(self.study.rates),
            "parameters": first["parameters"],
            "reads": CONTESTANTS[self.arch].reads,
            "valid_accuracy": statistics.mean(one["valid"]["accuracy"] for one in found.values()),
            "files": [self.file(rate, seed) for seed in found],
        }
        rows = []
        for length in self.study.lengths:
            right = [one["test"][str(length)]["accuracy"] for one in found.values()]
            rows.append(
                {
                    **shared,
                    "length": length,
                    "accuracy": statistics.mean(right),
                    "spread": statistics.stdev(right) if len(right) > 1 else None,
                    "per_seed": right,
                    "answers": first["test"][str(length)]["answers"],
                    "chance": rule_task(self.task).chance_level(length),
                    "short_memory": short_memory_level(self.task, length, self.study.training_length),
                }
            )
        return rows, [f"{self.name}, seed {seed}" for seed in seeds if seed not in found]

    def write(self) -> Path:
        path = self.folder / "logs" / f"{FOLDER}-{self.name}.json"
        values = {"folder": str(self.folder), "study": asdict(self.study), "task": self.task, "arch": self.arch}
        write_whole(path, json.dumps(values, indent=1).encode())
        return path

    @classmethod
    def read(cls, path: Path) -> "Contest":
        values = load_result(path)
        return cls(Path(values["folder"]), LengthStudy(**values["study"]), values["task"], values["arch"])


def contests(lab: Lab) -> list[Contest]:
    """The slow ones first, so that none of them runs on alone at the end."""
    study = LengthStudy(**lab.size.lengths)
    slow = ("brt", "xl", "rsa", "transformer", "lstm", "gru")
    return [Contest(lab.folder, study, task, arch) for arch in slow for task in study.tasks]


def length_rows(lab: Lab) -> tuple[Rows, list[str]]:
    all_contests = contests(lab)
    failed = _finish(all_contests, lab)
    in_order = sorted(
        all_contests, key=lambda one: (one.study.tasks.index(one.task), list(CONTESTANTS).index(one.arch))
    )
    rows: Rows = []
    missing: list[str] = []
    for contest in in_order:
        found, lacking = contest.rows()
        rows += found
        missing += lacking
    return rows, [*missing, *failed]


def _finish(all_contests: list[Contest], lab: Lab) -> list[str]:
    """Run what is missing, in this process or several side by side; returns a sentence for each that failed."""
    waiting = [contest for contest in all_contests if contest.waiting() is not None]
    if lab.jobs == 1:
        lab.stopped = not all(contest.do(lab.say, lab.deadline) for contest in waiting)
        return []
    tasks = [
        Task(
            contest.name,
            ("-c", "from recurrify_papers.experiments.lengths import main; main()", str(contest.write())),
            lab.folder / "logs" / f"{FOLDER}-{contest.name}.log",
        )
        for contest in waiting
    ]
    outcome = run_side_by_side(tasks, lab.jobs, lab.say, lab.deadline)
    lab.heed(outcome, [contest.name for contest in all_contests])
    for failure in outcome.failures:
        lab.say(failure)
    return outcome.failures


def main() -> None:
    """Do the contest that a file describes, in a process of its own."""
    from recurrify.console import say

    try:
        Contest.read(Path(sys.argv[1])).do(say)
    except UserError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


register(
    Experiment(
        name="slides-lengths",
        title="Recurrent rules at lengths that were never trained",
        source=f"{SLIDES}, out-of-distribution generalization (a claim, no numbers)",
        layout="lengths",
        units=lambda lab: [],
        rows=length_rows,
        after=Stage.NOTHING,
        differences=lambda _: ("The slides claim and print no numbers: rules, lengths, models and budgets are ours.",),
        alone=True,
        keeps_runs=True,
    )
)
