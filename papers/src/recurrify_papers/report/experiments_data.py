"""The results of `recurrify experiment run` as the report reads them. Any key may be missing or null."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from recurrify.errors import UserError
from recurrify.pages import numbers
from recurrify.pages.numbers import facts
from recurrify.results import load_result

SIZES = ("paper", "small", "tiny")
SPLITS = {"test": "test", "valid": "validation"}
KINDS = {
    "plain": "plain",
    "carry": "recurrent",
    "best": "best found",
    "xlnet": "XLNet",
}
# In the order of the page: the comparisons first, what they were tuned with last.
LAYOUTS = (
    "perplexity",
    "windows",
    "frontier",
    "topics",
    "continuations",
    "prediction",
    "cost",
    "lengths",
    "complexity",
    "scratch",
    "mechanisms",
    "tokens",
    "starts",
    "frozen",
    "variants",
    "learning_rates",
)
SCORED = ("perplexity", "windows", "frontier", "variants")
BEYOND = ("mechanisms", "tokens", "starts", "frozen")
"""Layouts of rows that also tell what a memory takes."""
BOOKS = "table2"


@dataclass(frozen=True)
class Score:
    """One model on one split, the mean over its seeds."""

    perplexity: float | None
    """Per word."""
    spread: float | None
    interval: tuple[float, float] | None
    per_token: float | None
    bits_per_character: float | None
    bits_per_byte: float | None
    loss_by_position: Sequence[Any]
    loss_by_window: Sequence[Any]
    files: list[str]


@dataclass(frozen=True)
class Gain:
    """By how much one row lowers perplexity per word against the plain row of the same window and overlap."""

    relative: float
    interval: tuple[float, float] | None
    within_noise: bool
    seeds: int | None


@dataclass(frozen=True)
class Row:
    kind: str
    label: str
    window: int | None
    overlap: int | None
    seeds: int
    scores: Mapping[str, Score]
    gains: Mapping[str, Gain]
    published: Mapping[str, float]
    published_gains: Mapping[str, float]
    flops: float | None
    full_flops: float | None
    runs: list[str]

    def perplexity(self, split: str) -> float | None:
        score = self.scores.get(split)
        return None if score is None else score.perplexity


@dataclass(frozen=True)
class Experiment:
    file: Path
    content: Mapping[str, Any]

    @property
    def name(self) -> str:
        return words(self.content.get("name")) or self.file.stem

    @property
    def title(self) -> str:
        return words(self.content.get("title")) or self.name

    @property
    def layout(self) -> str:
        return words(self.content.get("layout"))

    @property
    def anchor(self) -> str:
        return re.sub(r"[^a-z0-9]+", "-", f"{self.file.parent.name}-{self.file.stem}".lower())

    @property
    def raw_rows(self) -> list[Mapping[str, Any]]:
        return [row for row in entries(self.content.get("rows")) if isinstance(row, Mapping)]

    @property
    def missing(self) -> list[str]:
        return [words(name) for name in entries(self.content.get("missing"))]

    @cached_property
    def rows(self) -> list[Row]:
        """The rows of a layout that scores models by perplexity; none in the others."""
        return [_row(row) for row in self.raw_rows] if self.layout in (*SCORED, *BEYOND) else []

    @cached_property
    def split(self) -> str:
        """The split that plots and statements are about: the one with the most scores.

        Between equals the test split, save for the figures, which were published for the validation books.
        """
        order = ["valid", "test"] if self.layout in ("windows", "frontier") else ["test", "valid"]
        scored = {split: sum(row.perplexity(split) is not None for row in self.rows) for split in order}
        return max(order, key=lambda split: scored[split])

    def disjoint(self) -> list[Row]:
        """The rows without overlap, one a kind, in the order of the kinds."""
        found: dict[str, Row] = {}
        for row in self.rows:
            if row.overlap == 0:
                found.setdefault(row.kind, row)
        return [found[kind] for kind in ordered_kinds(found)]


@dataclass(frozen=True)
class SizeResults:
    """All experiments of one size."""

    size: str
    folder: Path
    experiments: list[Experiment]

    def books(self) -> Experiment | None:
        return next((found for found in self.experiments if found.name == BOOKS), None)

    def run(self, name: str) -> Mapping[str, Any]:
        """A training run's result; empty where its file is not there."""
        path = self.file(f"runs/{name}.json")
        return {} if path is None else load_result(path)

    def file(self, name: str) -> Path | None:
        """A file of this size by its name in a result, if it is there and nowhere outside the folder."""
        path = self.folder / name
        if ".." in path.parts or "\0" in name or Path(name).is_absolute():
            return None
        return path if path.is_file() else None


def read_results(root: Path) -> list[SizeResults]:
    """What has been run below `root`, from the largest size to the smallest."""
    found = [read_size(root, size) for size in SIZES]
    kept = [results for results in found if results.experiments]
    if not kept:
        sizes = ", ".join(str(root / size) for size in SIZES)
        raise UserError(
            f"There are no experiments to report in {root}: looked for *.json in {sizes}. "
            "Run `recurrify experiment run` first, or name the folder it wrote to."
        )
    return kept


def read_size(root: Path, size: str) -> SizeResults:
    folder = root / size
    experiments = [_read_experiment(path) for path in sorted(folder.glob("*.json"))]
    experiments.sort(key=lambda found: (_layout_order(found.layout), found.file.name))
    return SizeResults(size, folder, experiments)


def _read_experiment(path: Path) -> Experiment:
    content = load_result(path)
    if content.get("kind") != "experiment":
        raise UserError(
            f"{path} is not the result of an experiment (its kind is {content.get('kind')!r}): move it elsewhere, "
            "or delete it and run the experiment again."
        )
    for key in ("rows", "missing", "differences", "hyperparameters"):
        if not isinstance(content.get(key) or [], list):
            raise UserError(f"{path} is damaged: “{key}” should be a list. Delete it and run the experiment again.")
    return Experiment(path, content)


def _layout_order(layout: str) -> int:
    return LAYOUTS.index(layout) if layout in LAYOUTS else len(LAYOUTS)


def _row(row: Mapping[str, Any]) -> Row:
    kind = words(row.get("kind"))
    gains = {split: gain_of(value) for split, value in facts(row.get("gain")).items()}
    return Row(
        kind=kind,
        label=words(row.get("label")) or kind_name(kind),
        window=_whole(row.get("window")),
        overlap=_whole(row.get("overlap")),
        seeds=len(entries(row.get("seeds"))),
        scores={split: _score(facts(value)) for split, value in facts(row.get("scores")).items()},
        gains={split: gain for split, gain in gains.items() if gain is not None},
        published=_floats(row.get("published")),
        published_gains=_floats(row.get("published_gain")),
        flops=numbers.finite(row.get("flops_per_token")),
        full_flops=numbers.finite(row.get("full_flops_per_token")),
        runs=names(row.get("runs")),
    )


def _score(score: Mapping[str, Any]) -> Score:
    return Score(
        perplexity=numbers.finite(score.get("perplexity_per_word")),
        spread=numbers.finite(score.get("spread")),
        interval=numbers.finite_pair(score.get("interval")),
        per_token=numbers.finite(score.get("perplexity_per_token")),
        bits_per_character=numbers.finite(score.get("bits_per_character")),
        bits_per_byte=numbers.finite(score.get("bits_per_byte")),
        loss_by_position=entries(score.get("loss_by_position")),
        loss_by_window=entries(score.get("loss_by_window")),
        files=names(score.get("files")),
    )


def gain_of(value: Any) -> Gain | None:
    """A gain as results write it down; None where it has no number."""
    gain = facts(value)
    relative = numbers.finite(gain.get("relative_gain"))
    if relative is None:
        return None
    interval = numbers.finite_pair(gain.get("interval"))
    within_noise = gain.get("within_noise")
    if within_noise is None:
        # A gain without an interval has not been told from noise.
        within_noise = interval is None or interval[0] <= 0 <= interval[1]
    return Gain(relative, interval, bool(within_noise), _whole(gain.get("seeds")))


def _floats(value: Any) -> dict[str, float]:
    known = {name: numbers.finite(number) for name, number in facts(value).items()}
    return {name: number for name, number in known.items() if number is not None}


def _whole(value: Any) -> int | None:
    number = numbers.finite(value)
    return None if number is None else int(number)


def entries(value: Any) -> list[Any]:
    """`value` if it is a JSON list, else an empty one."""
    return value if isinstance(value, list) else []


def names(value: Any) -> list[str]:
    return [name for name in entries(value) if isinstance(name, str)]


def curve_runs(row: Mapping[str, Any]) -> dict[str, list[str]]:
    """By kind, the runs whose curves a row of costs was read off: a name or several."""
    curves = facts(row.get("curves"))
    found = {kind: names(name if isinstance(name, list) else [name]) for kind, name in curves.items()}
    return {kind: found[kind] for kind in ordered_kinds(found) if found[kind]}


def words(value: Any) -> str:
    return "" if value is None else str(value)


def kind_name(kind: str) -> str:
    return KINDS.get(kind, kind or "unnamed")


def ordered_kinds(kinds: Mapping[str, Any] | set[str]) -> list[str]:
    """The known kinds from plain onwards, then any others by name."""
    known = list(KINDS)
    return sorted(kinds, key=lambda kind: (known.index(kind) if kind in known else len(known), kind))
