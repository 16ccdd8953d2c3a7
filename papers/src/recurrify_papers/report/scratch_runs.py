"""Runs of `recurrify train --arch` as a report reads them, sorted into those that compare. Any key may be missing."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from recurrify.pages import numbers
from recurrify.pages.html_parts import Link
from recurrify_papers.data.wikipedia import verified_corpus
from recurrify_papers.report.experiments_data import entries, facts, words
from recurrify_papers.report.scratch_published import UNITS, Published, has_published_settings, published_for

MODELS = {
    "xl": "Transformer-XL",
    "rsa-xl": "RSA-XL",
    "brt": "Block-Recurrent",
    "rsa-brt": "RSA-BRT",
    "transformer": "Transformer",
    "rsa": "RSA",
    "lstm": "LSTM",
    "gru": "GRU",
}
PARTNERS = {"rsa-xl": "xl", "rsa-brt": "brt", "rsa": "transformer"}
"""Who is whom without recurrence."""
OTHERWISE_ALIKE = (
    "learning_rate",
    "recurrence_learning_rate",
    "schedule",
    "warmup_steps",
    "weight_decay",
    "clip",
    "eval_settings",
    "eval_batch",
    "eval_length",
    "precision",
)
"""What makes another row of a table, beside the architecture and its settings."""
OF_RECURRENCE = "recurrence_learning_rate"
SIZES = ("layers", "width", "inner", "head_width", "heads", "memory_length", "length")
"""What a label tells of the size: of several that change together, only the first."""


class Point(NamedTuple):
    step: float
    minutes: float | None
    """Of training, without validating and saving; None where nobody wrote them down."""
    bits: float


@dataclass(frozen=True)
class TrainingRun:
    name: str
    content: Mapping[str, Any]
    link: Link | None = None
    """To the result's own file."""

    @cached_property
    def config(self) -> Mapping[str, Any]:
        return facts(facts(self.content.get("provenance")).get("config"))

    @property
    def arch(self) -> str:
        return words(self.content.get("arch")) or words(self.config.get("arch"))

    @property
    def unit(self) -> str:
        return words(self.content.get("unit")) or "symbol"

    @property
    def shape(self) -> Mapping[str, Any]:
        return facts(self.content.get("model"))

    @property
    def corpus(self) -> str:
        """enwik8 or text8 only where reading it verified the checksum, else all of what was named."""
        data = words(self.config.get("data"))
        return verified_corpus(data) or data or "unnamed"

    @property
    def seed(self) -> str:
        return words(self.config.get("seed"))

    @property
    def published(self) -> Published | None:
        """What stands beside it: nothing beside settings that nobody published."""
        if not has_published_settings(self.config, self.corpus):
            return None
        return published_for(self.arch, self.shape, self.corpus)

    def score(self, part: str, per: str = "symbol") -> float | None:
        return numbers.finite(facts(self.content.get(part)).get(f"bits_per_{per}"))

    def number(self, key: str) -> float | None:
        return numbers.finite(self.content.get(key))

    @property
    def seconds_per_symbol(self) -> float | None:
        pace = self.number("tokens_per_second")
        return 1 / pace if pace else None

    @property
    def symbols_per_step(self) -> float | None:
        sizes = [numbers.finite(self.config.get(name)) for name in ("batch", "length")]
        return None if None in sizes else math.prod(size for size in sizes if size is not None)

    @property
    def gpu_bytes(self) -> float | None:
        return self.number("peak_gpu_bytes") or self._peak("gpu")

    @property
    def process_bytes(self) -> float | None:
        return self._peak("cpu")

    def _peak(self, where: str) -> float | None:
        return numbers.finite(facts(facts(self.content.get("provenance")).get("peak_memory_bytes")).get(where))

    def curve(self, which: str) -> list[Point]:
        """`which` is training or validation; in bits per symbol, by step."""
        found = []
        for point in entries(facts(self.content.get("history")).get(which)):
            step, loss = (numbers.finite(facts(point).get(key)) for key in ("step", "loss"))
            seconds = numbers.finite(facts(point).get("training_seconds"))
            if step is not None and step > 0 and loss is not None:
                found.append(Point(step, None if seconds is None else seconds / 60, loss / math.log(2)))
        return sorted(found, key=lambda point: point.step)


@dataclass(frozen=True)
class Variant:
    """Runs that differ in their seed alone."""

    label: str
    runs: Sequence[TrainingRun]

    @property
    def first(self) -> TrainingRun:
        return self.runs[0]

    def scores(self, part: str, per: str = "symbol") -> dict[str, float]:
        """By seed."""
        return {run.seed: score for run in self.runs if (score := run.score(part, per)) is not None}

    def mean(self, part: str, per: str = "symbol") -> float | None:
        scores = list(self.scores(part, per).values())
        return statistics.mean(scores) if scores else None

    def spread(self, part: str, per: str = "symbol") -> float | None:
        scores = list(self.scores(part, per).values())
        return statistics.stdev(scores) if len(scores) > 1 else None

    def average(self, values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.mean(known) if known else None


@dataclass(frozen=True)
class Conditions:
    """What runs must have in common, or their numbers say nothing about each other."""

    data: str
    checksum: str
    symbols: str
    vocabulary: str
    steps: str
    batch: str
    length: str
    tested: str
    """Symbols of the test part that were scored, or all."""

    @classmethod
    def of(cls, run: TrainingRun) -> "Conditions":
        return cls(
            data=run.corpus,
            checksum=words(run.config.get("data_checksum"))[:8],
            symbols=Path(words(run.config.get("symbols"))).name or f"{run.unit}s",
            vocabulary=numbers.count(run.content.get("vocabulary")),
            steps=numbers.count(run.content.get("steps")),
            batch=numbers.count(run.config.get("batch")),
            length=numbers.count(run.config.get("length")),
            tested="all" if run.config.get("test_tokens") is None else numbers.count(run.config.get("test_tokens")),
        )

    @property
    def told(self) -> str:
        return (
            f"{self.data} as {self.symbols.replace('-', ' ')} ({self.vocabulary} symbols), "
            f"{self.steps} steps of {self.batch} × {self.length}"
            + ("" if self.tested == "all" else f", tested on the first {self.tested} symbols")
        )


@dataclass(frozen=True)
class Group:
    """Runs that compare."""

    conditions: Conditions
    variants: Sequence[Variant]
    page: Sequence[TrainingRun] = ()
    """All runs of the page, those of other groups too."""

    @property
    def first(self) -> TrainingRun:
        return self.variants[0].first

    @property
    def unit(self) -> str:
        return self.first.unit

    @property
    def published_unit(self) -> str:
        """What published scores on this text are of: `symbol` where these runs' own are just that, `byte` or
        `character` where those of other symbols have to be spelt, and nothing where nothing was published."""
        unit = UNITS.get(self.conditions.data, "")
        # Every character of text8 is one byte.
        return "symbol" if unit and self.unit in (unit, "byte") else unit

    @property
    def runs(self) -> list[TrainingRun]:
        return [run for variant in self.variants for run in variant.runs]


def grouped(runs: Sequence[TrainingRun]) -> list[Group]:
    """Those with the same conditions together, in the order in which they were named."""
    by_conditions: dict[Conditions, list[TrainingRun]] = {}
    for run in runs:
        by_conditions.setdefault(Conditions.of(run), []).append(run)
    return [Group(conditions, _variants(own, runs), runs) for conditions, own in by_conditions.items()]


def differing(groups: Sequence[Group]) -> list[str]:
    """In what the groups differ, each with its values, as words."""
    told = []
    names = {"data": "data", "symbols": "symbols", "vocabulary": "vocabulary", "steps": "steps"}
    names |= {"batch": "lanes", "length": "length of a segment", "tested": "tested symbols"}
    for key, name in names.items():
        values = list(dict.fromkeys(getattr(group.conditions, key) for group in groups))
        if len(values) > 1:
            told.append(f"{name} ({', '.join(values)})")
    # A checksum is that of the symbols: others of the same text have another.
    texts: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        texts.setdefault((group.conditions.data, group.conditions.symbols), []).append(group.conditions.checksum)
    for checksums in map(dict.fromkeys, texts.values()):
        if len(checksums) > 1:
            told.append(f"the text itself, under one name (checksums {', '.join(checksums)})")
    return told


def _variants(runs: Sequence[TrainingRun], page: Sequence[TrainingRun]) -> list[Variant]:
    """A seed that comes twice begins another row, told apart by the folders."""
    found: dict[str, list[list[TrainingRun]]] = {}
    for run in runs:
        rows = found.setdefault(_identity(run), [])
        row = next((row for row in rows if run.seed not in [other.seed for other in row]), None)
        if row is None:
            rows.append([run])
        else:
            row.append(run)
    order = list(MODELS)
    kept = sorted(
        found.values(), key=lambda rows: order.index(arch) if (arch := rows[0][0].arch) in order else len(order)
    )
    return [
        Variant(_label(row[0], page) + (f" ({', '.join(run.name for run in row)})" if len(rows) > 1 else ""), row)
        for rows in kept
        for row in rows
    ]


def twins(group: Group) -> list[str]:
    """That runs are there twice, which a reader may not have meant."""
    alike: dict[tuple[str, str], list[str]] = {}
    for run in group.runs:
        alike.setdefault((_identity(run), run.seed), []).append(run.name)
    return [
        f"{' and '.join(names)} have the same settings and the same seed, {seed}: each has a row with its own name."
        for (_, seed), names in alike.items()
        if len(names) > 1
    ]


def traits(run: TrainingRun, without_recurrence: bool = False) -> dict[str, Any]:
    """All of a run's settings that its scores may depend on but for its seed and its group's conditions."""
    settings = facts(run.config.get("settings"))
    if "head_width" in run.shape:
        # Older runs wrote it among their settings only where it was set.
        settings = {**settings, "head_width": run.shape["head_width"]}
    own = {**settings, **{name: run.config.get(name) for name in OTHERWISE_ALIKE}}
    if without_recurrence:
        return {name: value for name, value in own.items() if not (name.startswith("rsa.") or name == OF_RECURRENCE)}
    return {"arch": run.arch} | own


def _identity(run: TrainingRun) -> str:
    return repr(sorted(traits(run).items()))


def _label(run: TrainingRun, page: Sequence[TrainingRun]) -> str:
    """The model's name, and what sets it apart from all others of that name on the page."""
    name = MODELS.get(run.arch, run.arch or "unnamed")
    alike = [{**traits(other), "length": other.config.get("length")} for other in page if other.arch == run.arch]
    mine = {**traits(run), "length": run.config.get("length")}
    # Not what was left to its default: that nobody set it sets nobody apart from a rival whose own label says so.
    apart = [key for key in mine if mine[key] is not None and any(other.get(key) != mine[key] for other in alike)]
    told_already = set()
    for key in SIZES:
        values = [other.get(key) for other in alike]
        division = tuple(values.index(value) for value in values)
        if key in apart and division in told_already:
            apart.remove(key)
        elif key in apart:
            told_already.add(division)
    return ", ".join([name, *(f"{key.removeprefix('rsa.').replace('_', ' ')} {_value(mine[key])}" for key in apart)])


def _value(value: Any) -> str:
    if isinstance(value, list):
        return "(" + ", ".join(_value(one) for one in value) + ")"
    told = f"{value:g}" if isinstance(value, float) else words(value) or "none"
    return told.replace("-", "−", 1) if numbers.finite(value) is not None and value < 0 else told
