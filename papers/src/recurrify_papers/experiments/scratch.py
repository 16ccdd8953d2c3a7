"""The language models of the reproduction that failed, by its own protocol: one text, order, budget and seed for all.

Each run is one of `recurrify train --arch`, in a folder of its own below the size's: a stopped one goes on, a finished
one is never done again.
"""

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from recurrify.data.texts import Say
from recurrify.errors import UserError
from recurrify.results import load_result, write_whole
from recurrify.side_by_side import INTERRUPTED, Outcome, Task, held_alone, run_side_by_side
from recurrify.train.resuming import RESULT_FILE
from recurrify_papers.experiments.catalogue import Experiment, Rows, Stage, register
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.report.scratch_published import REPRODUCTION
from recurrify_papers.scratch.run import train_scratch
from recurrify_papers.scratch.settings import ScratchSettings

FOLDER = "scratch"
"""Below the size's own folder."""
ALMOST_CLOSED = -3.0
"""Before the sigmoid: a twentieth of a head's output is the recurrence's."""
LEAST_MINUTES = 2.0
"""With less time left no run of the protocol is begun: reading, compiling and scoring would take all of it."""


@dataclass(frozen=True, kw_only=True)
class ScratchStudy:
    """What every model gets alike. The defaults are the reproduction's protocol, at the sizes paper and small."""

    seeds: tuple[int, ...] = (0,)
    """Each model is trained once with each."""
    symbols: str = "bytes-without-newlines"
    """As Transformer-XL's code reads enwik8."""
    steps: int = 20_000
    """Updates of the weights."""
    batch: int = 22
    """Lanes."""
    length: int = 512
    """Symbols of a segment, and positions of memory."""
    learning_rate: float = 2.5e-4
    """At its start; it falls to 0 along a cosine."""
    eval_batch: int | None = None
    """Lanes in validation and test; None: more than in training, as far as these stay long."""
    valid_every: int = 22_528_000
    """Symbols between two validations: 2,000 steps."""
    valid_tokens: int = 500_000
    """The first so many symbols of the validation part."""
    test_tokens: int | None = None
    """At the end, the first so many symbols of the validation and of the test part; None: all of both."""
    layers: int = 14
    """Half as many in the small models."""
    width: int = 512
    """Of the hidden states."""
    small_widths: tuple[int, ...] = (256, 8)
    """Of the small models: that of the script which the report names, and the text's."""
    smallest: Mapping[str, int] | None = field(
        default_factory=lambda: {"width": 8, "head_width": 8, "inner": 32, "length": 32}
    )
    """Where the reproduction's scripts have a width of 8, these are small, too; `length` is also that of the memory."""
    own_rate: float | None = 1e-2
    """Of the recurrence in one more RSA-XL and in one more of the widest small models, if at all: all steps at the
    common rate add up to 2.5, which is the most that a gate can move."""
    heads: int = 8
    """Attention heads."""
    head_width: int = 64
    """Width of a head."""
    inner: int = 2048
    """Width inside the feed-forward parts."""
    block: int = 128
    """Positions after which the Block-Recurrent Transformer writes its states."""
    states: int = 512
    """Its state vectors."""

    def __post_init__(self) -> None:
        for name in ("seeds", "small_widths"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def shape(self, arch: str, **own: Any) -> dict[str, Any]:
        """The settings of an architecture, `own` in place of the common ones."""
        common = {name: getattr(self, name) for name in ("layers", "width", "heads", "head_width", "inner")}
        if arch in ("brt", "rsa-brt"):
            common |= {"window": self.length, "block": self.block, "states": self.states}
        else:
            common["memory_length"] = self.length
        return common | own


class Entrant(NamedTuple):
    name: str
    arch: str
    shape: Mapping[str, Any]
    settings: Mapping[str, Any] = MappingProxyType({})
    """Of its training, in place of the common ones."""


def protocol(study: ScratchStudy) -> list[Entrant]:
    found = [Entrant(arch, arch, study.shape(arch)) for arch in ("xl", "rsa-xl", "brt")]
    if study.own_rate is None:
        return found
    closed = study.shape("rsa-xl", **{"rsa.gate_start": ALMOST_CLOSED})
    return [*found, Entrant("rsa-xl-closed", "rsa-xl", closed, {"recurrence_learning_rate": study.own_rate})]


def small(study: ScratchStudy) -> list[Entrant]:
    found = [
        Entrant(f"{arch}-small-{width}", arch, study.shape(arch, layers=max(1, study.layers // 2), width=width))
        for width in study.small_widths
        for arch in ("xl", "rsa-xl")
    ]
    if study.own_rate is not None:
        widest = next(one for one in found if one.arch == "rsa-xl")
        own = {"recurrence_learning_rate": study.own_rate}
        found.append(widest._replace(name=f"{widest.name}-own-rate", settings=own))
    return [*found, *smallest(study)]


def smallest(study: ScratchStudy) -> list[Entrant]:
    """Small in everything, and validated after as many steps as the others."""
    if study.smallest is None:
        return []
    own = dict(study.smallest)
    length = own.pop("length")
    own |= {"layers": max(1, study.layers // 2), "memory_length": length}
    settings = {"length": length, "valid_every": study.valid_every * length // study.length}
    return [Entrant(f"{arch}-smallest", arch, study.shape(arch, **own), settings) for arch in ("xl", "rsa-xl")]


@dataclass(frozen=True)
class ScratchRun:
    """One model and seed. `folder` is the size's."""

    folder: Path
    entrant: Entrant
    settings: ScratchSettings

    @property
    def name(self) -> str:
        return f"{self.entrant.name}-s{self.settings.seed}"

    @property
    def file(self) -> str:
        """Below the size's folder."""
        return f"{FOLDER}/{self.name}/{RESULT_FILE}"

    @property
    def least_minutes(self) -> float:
        """Runs of fewer steps than the protocol's are smaller in everything, and begun later."""
        return LEAST_MINUTES * min(1.0, self.settings.steps / ScratchStudy.steps)

    def result(self) -> dict[str, Any] | None:
        """What this very run left; one with other settings in its place is refused, never taken for it."""
        there = ScratchSettings.read(self.settings.out)
        if there is None:
            return None
        replace(self.settings, data_checksum=there.data_checksum).check_same_run(there)
        path = self.folder / self.file
        return load_result(path) if path.is_file() else None

    def row(self, result: dict[str, Any]) -> dict[str, Any]:
        return {"name": self.name, "label": self.entrant.name, "files": [self.file], **result}

    def task(self) -> Task:
        """The same in a process of its own."""
        path = self.folder / "logs" / f"{FOLDER}-{self.name}.json"
        write_whole(path, json.dumps(self.settings.to_dict(), indent=1).encode())
        arguments = ("-c", "from recurrify_papers.experiments.scratch import main; main()", str(path))
        return Task(self.name, arguments, self.folder / "logs" / f"{FOLDER}-{self.name}.log", self.least_minutes)


def runs_of(lab: Lab, entrants: list[Entrant], study: ScratchStudy) -> list[ScratchRun]:
    """All models with the first seed, then all with the second: whenever it stops, there is something to compare."""
    known = {entry.name for entry in fields(ScratchSettings)}
    shared = {name: value for name, value in asdict(study).items() if name in known}
    return [
        ScratchRun(
            lab.folder,
            entrant,
            ScratchSettings(
                out=str(lab.folder / FOLDER / f"{entrant.name}-s{seed}"),
                arch=entrant.arch,
                data=lab.source(lab.size.thesis),
                settings=dict(entrant.shape),
                seed=seed,
                **{**shared, **entrant.settings},
            ),
        )
        for seed in study.seeds
        for entrant in entrants
    ]


def rows_of(runs: list[ScratchRun], lab: Lab) -> tuple[Rows, list[str]]:
    """Run what is missing; one row for each run, with its curves."""
    waiting = [run for run in runs if run.result() is None]
    if lab.jobs > 1:
        outcome = run_side_by_side([run.task() for run in waiting], lab.jobs, lab.say, lab.deadline)
    else:
        outcome = _one_after_another(waiting, lab)
    for failure in outcome.failures:
        lab.say(failure)
    lab.heed(outcome, [run.name for run in runs])
    found = [(run, run.result()) for run in runs]
    rows = [run.row(result) for run, result in found if result is not None]
    return rows, [*(run.name for run, result in found if result is None), *outcome.failures]


def _one_after_another(waiting: list[ScratchRun], lab: Lab) -> Outcome:
    """Until time is up; a run that fails does not stop the others."""
    failures: list[str] = []
    for run in waiting:
        left = None if lab.deadline is None else (lab.deadline - time.monotonic()) / 60
        if left is not None and left <= run.least_minutes:
            return Outcome(False, failures)
        try:
            if not _train(replace(run.settings, max_minutes=left), run.name, lab.say):
                return Outcome(False, failures)
        except (UserError, torch.OutOfMemoryError) as error:
            failures.append(f"{run.name} ended with {str(error).splitlines()[0]!r}")
    return Outcome(True, failures)


def _train(settings: ScratchSettings, name: str, say: Say, show_progress: bool = True) -> bool:
    """Whether it reached its end before its time was up."""
    with held_alone(Path(settings.out)):
        result = train_scratch(settings, lambda text: say(f"{name}: {text}"), show_progress)
    if result["finished"]:
        say(f"{name}: {result['test']['bits_per_symbol']:.4f} bits per {result['unit']} on the test part")
    if result["interrupted"]:
        raise KeyboardInterrupt  # so that nothing else is begun either
    return bool(result["finished"])


def main() -> None:
    """Do the run that a file describes, in a process of its own."""
    from recurrify.console import say

    path = Path(sys.argv[1])
    try:
        settings = ScratchSettings.from_dict(load_result(path))
        finished = _train(settings, Path(settings.out).name, say, show_progress=False)
    except UserError as error:
        sys.exit(f"Error: {error}")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    sys.exit(0 if finished else INTERRUPTED)


def protocol_rows(lab: Lab) -> tuple[Rows, list[str]]:
    study = ScratchStudy(**lab.size.scratch)
    return rows_of(runs_of(lab, protocol(study), study), lab)


def small_rows(lab: Lab) -> tuple[Rows, list[str]]:
    study = ScratchStudy(**lab.size.scratch)
    return rows_of(runs_of(lab, small(study), study), lab)


SCORING = (
    "The test part (at size tiny its beginning) is scored in segments and with memory as in training; the "
    "reproduction's script ends with segments of 80 and a memory of 2,100, and which of its scores it prints is not "
    "said."
)
SCHEDULE = (
    "The learning rate falls to 0 over the 20,000 steps that the report tells of; its scripts let it fall over 40,000, "
    "and start every gate's logit at 1, where here it is drawn between −3 and 3 as its authors write."
)
register(
    Experiment(
        name="rsa-enwik8",
        title="Transformer-XL, RSA-XL and the Block-Recurrent Transformer by the protocol of their reproduction",
        source=f"{REPRODUCTION}; target and memory of 512, batch 22, Adam 2.5e-4 without warm-up",
        layout="scratch",
        units=lambda lab: [],
        rows=protocol_rows,
        after=Stage.NOTHING,
        differences=lambda _: (
            "All models see the same text in the same order for as many steps; the reproduction gave RSA-XL half of "
            "its baseline's steps, and the Block-Recurrent Transformer a tenth of 400,000.",
            "How many states the Block-Recurrent Transformer had, how wide its inner layers were and when it wrote its "
            "states was not published: that is ours.",
            SCHEDULE,
            "Ours, too, is one more RSA-XL, whose gates start almost closed and learn at a rate of their own, as its "
            "decays and angles do: between −3 and 3, half of the gates of a model that has learned nothing are open.",
            SCORING,
        ),
        alone=True,
        keeps_runs=True,
    )
)
register(
    Experiment(
        name="rsa-small",
        title="RSA-XL-Small, and beside it the Transformer-XL of its size that the reproduction left out",
        source=f"{REPRODUCTION}, and section 3.2",
        layout="scratch",
        units=lambda lab: [],
        rows=small_rows,
        after=Stage.NOTHING,
        differences=lambda _: (
            "The report says that the width was lowered to 8. The script that it names for enwik8 has 256; the one for "
            "text8, and another for enwik8, have 8, and heads of 8, inner layers of 32, segments and memories of 32: "
            "the smallest here. A width of 8 with all else as at 256 is ours. Which of them its 3.93 belongs to is not "
            "said; the smallest comes to the same.",
            SCHEDULE,
            "The baseline of the same size is ours: none was published. So is one more model, of which gates, decays "
            "and angles learn at a rate of their own.",
            SCORING,
        ),
        alone=True,
        keeps_runs=True,
    )
)
