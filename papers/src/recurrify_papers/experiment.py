"""What an experiment is: its runs, how their results become a tidy table, and where the table was published.

Declarations live in the folders of their source documents and import neither torch nor transformers, so that
`recurrify experiment list` is fast; runs name the functions that do the work.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from recurrify import UserError
from recurrify.results import provenance, save_result
from recurrify_papers.clusters import Resources
from recurrify_papers.runner import Results, Run, Say
from recurrify_papers.sizes import Size
from recurrify_papers.sweep import run_all

DECLARATIONS = (
    "yoshida2020.tables",
    "yoshida2020.texts",
    "yoshida2020.answers",
    "thesis.enwik8",
    "rsa.enwik8",
    "slides.lengths",
    "slides.complexity",
    "beyond.mechanisms",
    "beyond.training",
    "beyond.rotary",
    "beyond.two_part",
    "beyond.settle",
)
"""Modules with a tuple EXPERIMENTS, in the order in which they are listed."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One number of the tidy table. Fields that do not apply are None and are not written."""

    label: str
    """The row of the published table, or what was run."""
    metric: str
    value: float | None
    model: str | None = None
    """plain, carry, ...: what charts and pages group by."""
    dataset: str | None = None
    split: str | None = None
    window: int | None = None
    overlap: int | None = None
    at: float | None = None
    """Another quantity that the number depends on, such as a sequence length or a number of training tokens."""
    low: float | None = None
    """95 % interval."""
    high: float | None = None
    spread: float | None = None
    """Standard deviation over seeds."""
    seeds: int | None = None
    flops: float | None = None
    """FLOPs per token, counted as in the paper: the layers alone."""
    full_flops: float | None = None
    """All FLOPs per token: memory and output layer included."""
    published: float | None = None
    note: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """The fields that apply."""
        return {name: value for name, value in asdict(self).items() if value is not None or name == "value"}


@dataclass
class Table:
    """The results of an experiment."""

    rows: list[Row] = field(default_factory=list)
    curves: list[dict[str, Any]] = field(default_factory=list)
    """Series that are drawn: name, x label, y label, and equally long lists x and y."""
    texts: list[dict[str, Any]] = field(default_factory=list)
    """Examples of text, by column."""
    missing: list[str] = field(default_factory=list)
    """Labels of rows whose runs are not finished."""


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Which rows are drawn, and against what."""

    x: str
    """A column of the table."""
    metric: str
    split: str | None = None
    title: str = ""
    log: bool = False
    """Logarithmic x axis."""
    facet: str | None = None
    """A column with one panel for each of its values."""


@dataclass(frozen=True, kw_only=True)
class Headline:
    """The row that answers the experiment's question."""

    sentence: str
    """With the places {value} and {published}."""
    label: str
    metric: str
    split: str | None = None
    dataset: str | None = None
    at: float | None = None


def gain_headline(label: str, sentence: str, split: str = "test", dataset: str | None = None) -> Headline:
    """How much lower the perplexity of a row is than that of the row it is compared with."""
    return Headline(label=label, metric="gain", split=split, dataset=dataset, sentence=sentence)


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """A published table or figure, or one of ours."""

    name: str
    title: str
    source: str
    """The document, and its table, figure or section."""
    runs: Callable[[Size], Sequence[Run]]
    table: Callable[[Size, Results], Table]
    text: str = ""
    """What it measures, and how."""
    differences: tuple[str, ...] | None = None
    """How it differs from what was published; None: as the size does."""
    headlines: tuple[Headline, ...] = ()
    chart: Chart | None = None
    settings: Callable[[Size], list[dict[str, str]]] | None = None
    """Hyperparameters by name: published and ours."""
    ours: bool = False
    """Whether it goes beyond the papers."""


def experiments() -> dict[str, Experiment]:
    """Every experiment by name."""
    package = __name__.rpartition(".")[0]
    modules = [import_module(f"{package}.{name}") for name in DECLARATIONS]
    return {one.name: one for module in modules for one in module.EXPERIMENTS}


def chosen_experiments(names: Sequence[str]) -> list[Experiment]:
    """The experiments of these names; `all` stands for everything published, `beyond` for ours."""
    known = experiments()
    groups = {
        "all": [name for name, one in known.items() if not one.ours],
        "beyond": [name for name, one in known.items() if one.ours],
    }
    wanted = list(dict.fromkeys(one for name in names for one in groups.get(name, [name])))
    unknown = next((name for name in wanted if name not in known), None)
    if unknown is not None:
        raise UserError(f"There is no experiment {unknown!r}: choose from {', '.join((*groups, *known))}.")
    return [known[name] for name in wanted]


def run_experiments(
    chosen: Sequence[Experiment], size: Size, root: Path, say: Say, resources: Resources | None = None
) -> list[Path]:
    """Run what is missing and write one result file for each experiment; returns their paths.

    Runs that several experiments share are executed once. Raises `UserError` at the end if runs failed.
    """
    folder = root / size.name
    runs = {run.name: run for one in chosen for run in one.runs(size)}
    failures: list[str] = []
    try:
        results = run_all(list(runs.values()), folder / "runs", say, resources, failures)
    except KeyboardInterrupt:
        say("Stopped. Run the same command to resume.")
        raise
    if resources and resources.detach and len(results) < len(runs):
        say(f"{len(runs) - len(results)} of {len(runs)} runs are submitted: `recurrify experiment status` shows them")
        return []
    written = []
    for one in chosen:
        path = folder / f"{one.name}.json"
        table = one.table(size, results)
        if not table.rows and not table.texts:
            say(f"{one.name}: no row is finished yet ({table.missing[0]})")
            continue
        own = [results[run.name] for run in one.runs(size) if run.name in results]
        save_result(path, to_result(one, size, table) | {"origins": origins(own)})
        say(f"saved {path}" + (f" (rows missing: {len(table.missing)})" if table.missing else ""))
        written.append(path)
    if failures:
        raise UserError(f"{len(failures)} of {len(runs)} runs failed: {' '.join(failures)} Run the same command again.")
    if len(results) < len(runs):
        say(f"{len(runs) - len(results)} of {len(runs)} runs are not finished: run the same command to resume")
    return written


def to_result(experiment: Experiment, size: Size, table: Table) -> dict[str, Any]:
    """The result file: the tidy table, what it is compared with, and its provenance."""
    config = {"experiment": experiment.name, "size": size.name, "books": size.books, "wiki": size.wiki}
    return {
        "kind": "experiment",
        "name": experiment.name,
        "size": size.name,
        "title": experiment.title,
        "source": experiment.source,
        "differences": list(size.differences if experiment.differences is None else experiment.differences),
        "settings": [] if experiment.settings is None else experiment.settings(size),
        "rows": [row.to_dict() for row in table.rows],
        "curves": table.curves,
        "texts": table.texts,
        "missing": table.missing,
        "provenance": provenance(config),
    }


def origins(results: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The code and device of the runs, and how many runs each combination made."""
    found: dict[tuple[Any, ...], int] = {}
    for made in (result["provenance"] for result in results if "provenance" in result):
        device = made["machine"]["gpu"] or made["machine"]["cpu"]
        origin = made["git"]["commit"], device, made["libraries"]["torch"]
        found[origin] = found.get(origin, 0) + 1
    names = ("commit", "device", "torch")
    return [dict(zip(names, origin, strict=True)) | {"runs": count} for origin, count in found.items()]


def mean_of(values: Sequence[float | None]) -> tuple[float | None, float | None]:
    """Mean and standard deviation over seeds; None if a value is missing, and with one seed no deviation."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None, None
    return statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else None
