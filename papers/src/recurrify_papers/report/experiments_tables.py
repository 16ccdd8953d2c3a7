"""The tables of the experiments, ours beside the published numbers, each row with links to its files."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from recurrify.pages import numbers
from recurrify.pages.html_parts import Link
from recurrify.pages.tables import Table
from recurrify_papers.report.experiments_data import (
    KINDS,
    SPLITS,
    Experiment,
    Gain,
    Row,
    Score,
    SizeResults,
    facts,
    kind_name,
    names,
    ordered_kinds,
    words,
)

METRICS = {
    "accuracy": "accuracy",
    "top5_accuracy": "top-5 accuracy",
    "precision_macro": "precision, macro",
    "recall_macro": "recall, macro",
    "f1_macro": "F1, macro",
    "precision_weighted": "precision, weighted",
    "recall_weighted": "recall, weighted",
    "f1_weighted": "F1, weighted",
    "auc_roc": "AUC ROC",
}


@dataclass(frozen=True)
class LinkedTable:
    table: Table
    files: list[list[Link]]
    """For each row; empty where no row names a file."""


class Linker:
    """Links from the page's folder to the files of one size."""

    def __init__(self, results: SizeResults, out: Path) -> None:
        self.results = results
        self.out = out

    def to(self, path: Path) -> str:
        return quote(Path(os.path.relpath(path, self.out)).as_posix())

    def files(self, runs: Sequence[str], scores: Sequence[str] = ()) -> list[Link]:
        named = [("run", f"runs/{name}.json") for name in runs] + [("score", name) for name in scores]
        links, counts = [], {"run": 0, "score": 0}
        for what, name in named:
            counts[what] += 1
            # The word once and then only numbers, or three seeds would fill a narrow screen.
            text = f"{what} 1" if counts[what] == 1 else str(counts[what])
            path = self.results.file(name)
            links.append(Link(text, name, None if path is None else self.to(path)))
        return links


def linked(table: Table, files: list[list[Link]]) -> LinkedTable | None:
    if not table.rows:
        return None
    return LinkedTable(table, files if any(files) else [])


def filled_table(caption: str, columns: Sequence[tuple[str, Sequence[str]]], text_columns: int) -> Table:
    """A table of its columns' names and cells, without the columns that no row fills."""
    # A column of dashes says nothing that its absence does not.
    is_filled = [set(cells) != {numbers.MISSING} for _, cells in columns]
    kept = [column for column, filled in zip(columns, is_filled, strict=True) if filled]
    rows = [list(line) for line in zip(*(cells for _, cells in kept), strict=True)]
    return Table(caption, [name for name, _ in kept], rows, text_columns=sum(is_filled[:text_columns]))


def sorted_rows(experiment: Experiment) -> list[Row]:
    """By kind, window and overlap as the paper's tables; tries of ours in the order of their file."""
    if experiment.layout == "variants":
        return experiment.rows
    order = ordered_kinds({row.kind for row in experiment.rows})
    return sorted(experiment.rows, key=lambda row: (order.index(row.kind), row.window or 0, row.overlap or 0))


def model_terms(experiment: Experiment) -> list[tuple[str, str]]:
    """Short names and what they stand for, where each kind has one label."""
    if not _short_names(experiment):
        return []
    labels = {row.kind: row.label for row in experiment.rows}
    return [(kind_name(kind), labels[kind]) for kind in ordered_kinds(labels) if labels[kind] != kind_name(kind)]


def _short_names(experiment: Experiment) -> bool:
    return len({(row.kind, row.label) for row in experiment.rows}) == len({row.kind for row in experiment.rows})


def score_table(experiment: Experiment, split: str, linker: Linker) -> LinkedTable | None:
    """Perplexity per word, ours and published; None where neither has a number on this split."""
    rows = sorted_rows(experiment)
    if not any(row.perplexity(split) is not None or split in row.published for row in rows):
        return None
    short = _short_names(experiment)
    scores = [row.scores.get(split) for row in rows]
    gains = [row.gains.get(split) for row in rows]
    columns = [
        ("model", [kind_name(row.kind) if short else row.label for row in rows]),
        *([("window", [_number(row.window) for row in rows])] if len({row.window for row in rows}) > 1 else []),
        ("overlap", [_number(row.overlap) for row in rows]),
        ("perplexity per word", [numbers.perplexity(row.perplexity(split)) for row in rows]),
        ("published", [numbers.perplexity(row.published.get(split)) for row in rows]),
        ("gain", [_gain(gain) for gain in gains]),
        ("published gain", [numbers.percent(row.published_gains.get(split), signed=True) for row in rows]),
        (
            "gain, 95 % interval",
            [numbers.percent_range(None if gain is None else gain.interval, signed=True) for gain in gains],
        ),
        (
            "perplexity, 95 % interval",
            [numbers.perplexity_range(None if score is None else score.interval) for score in scores],
        ),
        ("± over seeds", [numbers.perplexity(None if score is None else score.spread) for score in scores]),
        *([] if any(row.published for row in rows) else [("bits per character", [_bits(score) for score in scores])]),
        ("FLOPs per token", [numbers.large(row.flops) for row in rows]),
        ("all counted", [numbers.large(row.full_flops) for row in rows]),
    ]
    files = [
        linker.files(row.runs, [] if score is None else score.files) for row, score in zip(rows, scores, strict=True)
    ]
    caption = f"Perplexity per word, {SPLITS.get(split, split)} split{_seeds(rows)}{_window(rows)}"
    return linked(filled_table(caption, columns, text_columns=1), files)


def _bits(score: Score | None) -> str:
    return numbers.bits(None if score is None else score.bits_per_character)


def _number(value: int | None) -> str:
    return numbers.MISSING if value is None else str(value)


def _gain(gain: Gain | None) -> str:
    if gain is None:
        return numbers.MISSING
    told = numbers.percent(gain.relative, signed=True)
    return f"{told}, within noise" if gain.within_noise else told


def _seeds(rows: Sequence[Row]) -> str:
    counts = sorted({row.seeds for row in rows if row.seeds})
    if not counts:
        return ""
    if counts == [1]:
        return ", one seed"
    return f", mean over {counts[0]} seeds" if len(counts) == 1 else f", mean over {counts[0]} to {counts[-1]} seeds"


def _window(rows: Sequence[Row]) -> str:
    windows = {row.window for row in rows}
    only = windows.pop() if len(windows) == 1 else None
    return "" if only is None else f", windows of {only}"


def unit_table(experiment: Experiment) -> Table | None:
    """The same scores in other units, and the cost with everything counted."""
    rows = sorted_rows(experiment)
    short, split = _short_names(experiment), experiment.split
    scored = [(row, row.scores[split]) for row in rows if split in row.scores]
    if not any(_other_units(score) for _, score in scored) and not any(row.full_flops for row in rows):
        return None
    header = ["model", "window", "overlap", "perplexity per token", "bits per character", "bits per byte"]
    header += ["FLOPs per token, all counted"]
    cells = [
        [
            kind_name(row.kind) if short else row.label,
            _number(row.window),
            _number(row.overlap),
            numbers.perplexity(score.per_token),
            numbers.bits(score.bits_per_character),
            numbers.bits(score.bits_per_byte),
            numbers.large(row.full_flops),
        ]
        for row, score in scored
    ]
    return Table(f"In other units, {SPLITS.get(split, split)} split", header, cells, text_columns=1) if cells else None


def _other_units(score: Score) -> bool:
    return any(value is not None for value in (score.per_token, score.bits_per_character, score.bits_per_byte))


def hyperparameter_table(experiment: Experiment) -> Table | None:
    rows = [facts(entry) for entry in experiment.content.get("hyperparameters") or []]
    cells = [[_cell(row.get(key)) for key in ("name", "published", "ours")] for row in rows if row]
    cells = [[*cell, _sameness(cell[1], cell[2])] for cell in cells]
    header = ["hyperparameter", "published", "ours", "compared"]
    return Table("Hyperparameters", header, cells, text_columns=4) if cells else None


def _sameness(published: str, ours: str) -> str:
    if numbers.MISSING in (published, ours):
        return numbers.MISSING
    if published.startswith("not "):  # stated, printed, published: nothing to hold ours against
        return numbers.MISSING
    return "same" if ours in (published, "the same") else "differs"


def _cell(value: Any) -> str:
    return words(value) or numbers.MISSING


def topic_table(experiment: Experiment, linker: Linker) -> LinkedTable | None:
    rows = experiment.raw_rows
    published = [facts(row.get("published")) for row in rows]
    shares = [_topic_shares(row) for row in rows]
    columns = [
        ("model", _models(rows)),
        ("divergence in bits", [_fixed(row, "divergence", 4) for row in rows]),
        ("95 % interval", [_fixed_range(row.get("interval"), 4) for row in rows]),
        ("in nats", [_fixed(row, "divergence_nats", 4) for row in rows]),
        ("published divergence", [_fixed(row, "divergence", 4) for row in published]),
        ("closer than plain", [numbers.percent(closer) for closer, _, _ in shares]),
        ("tied", [numbers.percent(tied) for _, tied, _ in shares]),
        ("further", [numbers.percent(further) for _, _, further in shares]),
        ("published closer", [_lower_bound(row.get("closer_share")) for row in published]),
        ("p", [numbers.p_value(numbers.finite(row.get("p_value"))) for row in rows]),
        ("contexts", [numbers.count(row.get("contexts")) for row in rows]),
    ]
    caption = "Mean Jensen–Shannon divergence between the topics of a context and of its continuation"
    files = [linker.files(names(row.get("runs"))) for row in rows]
    return linked(filled_table(caption, columns, text_columns=1), files)


def _topic_shares(row: Mapping[str, Any]) -> tuple[float | None, float | None, float | None]:
    """Of all contexts: closer than plain, as far, and further away."""
    closer, ties, contexts = (numbers.finite(row.get(key)) for key in ("closer_share", "ties", "contexts"))
    if closer is None or ties is None or not contexts:
        return closer, None, None
    return closer, ties / contexts, 1 - closer - ties / contexts


def _lower_bound(value: Any) -> str:
    """The paper prints its share as "at least", without decimals."""
    share = numbers.finite(value)
    return numbers.MISSING if share is None else f"at least {100 * share:g} %"


def prediction_table(experiment: Experiment, linker: Linker) -> LinkedTable | None:
    rows = experiment.raw_rows
    reported = [facts(row.get("metrics")) for row in rows]
    found = {name for metrics in reported for name in metrics}
    ordered = [name for name in METRICS if name in found] + sorted(found - set(METRICS))
    columns = [
        ("model", _models(rows)),
        *(
            (METRICS.get(name, name.replace("_", " ")), [_fixed(metrics, name, 4) for metrics in reported])
            for name in ordered
        ),
        ("tokens", [numbers.count(row.get("tokens")) for row in rows]),
        ("classes", [numbers.count(row.get("classes")) for row in rows]),
    ]
    files = [linker.files(names(row.get("runs"))) for row in rows]
    return linked(filled_table("Prediction of the next token", columns, text_columns=1), files)


def learning_rate_table(experiment: Experiment, linker: Linker) -> LinkedTable | None:
    rows = sorted(experiment.raw_rows, key=_rate_order)
    header = ["model", "chosen", "learning rate", "validation loss", "validation perplexity per word"]
    cells = [
        [
            model,
            "✓ chosen" if row.get("chosen") is True else "",
            numbers.rate(numbers.finite(row.get("learning_rate"))),
            _fixed(row, "valid_loss", 4),
            numbers.perplexity(numbers.finite(row.get("valid_perplexity_per_word"))),
        ]
        for row, model in zip(rows, _models(rows), strict=True)
    ]
    files = [linker.files(names(row.get("runs"))) for row in rows]
    return linked(Table("Learning rates tried, the same for each model", header, cells, text_columns=2), files)


def _rate_order(row: Mapping[str, Any]) -> tuple[int, str, float]:
    kind = words(row.get("kind"))
    place = list(KINDS).index(kind) if kind in KINDS else len(KINDS)
    return place, kind, numbers.finite(row.get("learning_rate")) or 0.0


def _models(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Short names where they tell the rows apart, else labels."""
    kinds = [words(row.get("kind")) for row in rows]
    if len(set(kinds)) == len(kinds):
        return [kind_name(kind) for kind in kinds]
    return [words(row.get("label")) or kind_name(kind) for row, kind in zip(rows, kinds, strict=True)]


def _fixed(row: Mapping[str, Any], key: str, digits: int) -> str:
    return numbers.fixed(numbers.finite(row.get(key)), digits)


def _fixed_range(value: Any, digits: int) -> str:
    ends = numbers.finite_pair(value)
    return numbers.MISSING if ends is None else " to ".join(numbers.fixed(end, digits) for end in ends)


def differing(table: Table) -> int:
    """How many hyperparameters of ours are not the published ones."""
    return sum(row[-1] == "differs" for row in table.rows)
