"""Rows that tell what a memory takes, as the report reads them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from recurrify.pages import numbers
from recurrify.pages.tables import Table
from recurrify_papers.report.experiments_data import Experiment, Gain, Row, entries, facts, gain_of, names, words
from recurrify_papers.report.experiments_front import Point, pareto_front

PLAIN = "plain"


@dataclass(frozen=True)
class Rival:
    """What costs no more and needs no memory that is learned."""

    name: str
    flops: float | None
    gain: Gain


@dataclass(frozen=True, eq=False)
class MemoryRow:
    row: Row
    split: str
    content: Mapping[str, Any]

    @property
    def corpus(self) -> str:
        return words(self.content.get("corpus")) or "text"

    @property
    def name(self) -> str:
        return told_name(self.row.kind, self.row.label, self.row.overlap)

    @property
    def usual_label(self) -> str:
        """Without the length of windows that are not the usual ones."""
        return self.row.label.removesuffix(f"-w{self.row.window}")

    @property
    def is_longer(self) -> bool:
        """Whether its windows are longer than the usual ones."""
        return self.usual_label != self.row.label

    @property
    def chosen(self) -> bool:
        """Whether it is the memory that validates best."""
        return self.content.get("chosen") is True

    @property
    def by_memory(self) -> str:
        """The gain with its own memories over those of other documents, as a cell."""
        found = gain_of(facts(self.content.get("memory_gain")))
        return numbers.MISSING if found is None else told_gain(found)

    @property
    def beyond_papers(self) -> Gain | None:
        """What it gains more than twice what the paper's mechanism does."""
        return gain_of(facts(self.content.get("beyond_papers")))

    @property
    def beaten_by(self) -> list["Rival"] | None:
        """Rivals that cost as much or more, and are better; None where nobody looked."""
        found = self.content.get("beaten_by")
        if not isinstance(found, list):
            return None
        return [rival for one in found if (rival := rival_of(facts(one))) is not None]

    @property
    def matches(self) -> list[str]:
        """Of plain windows: the memories whose cost their overlap comes closest to from below."""
        return names(self.content.get("matches"))

    @property
    def shared_seeds(self) -> int | None:
        """How many seeds all rows of its text have, on which they are ranked; None where a result does not tell."""
        seeds = facts(self.content.get("shared")).get("seeds")
        return len(seeds) if isinstance(seeds, list) else None

    @property
    def perplexity(self) -> float | None:
        """On the seeds that all rows of its text have, where the result tells which these are."""
        if self.shared_seeds is None:
            return self.row.perplexity(self.split)
        return numbers.finite(facts(facts(self.content["shared"]).get("perplexity_per_word")).get(self.split))

    @property
    def compared(self) -> Gain | None:
        """The gain over plain windows without overlap, on the same seeds as the perplexity."""
        if self.shared_seeds is None:
            return self.row.gains.get(self.split)
        return gain_of(facts(facts(self.content["shared"]).get("gain")).get(self.split))

    @property
    def spread(self) -> float | None:
        score = self.row.scores.get(self.split)
        return None if score is None else score.spread

    @property
    def files(self) -> list[str]:
        score = self.row.scores.get(self.split)
        return [] if score is None else score.files

    @property
    def flops(self) -> float | None:
        """All counted."""
        return self.row.full_flops

    @property
    def point(self) -> tuple[float, float] | None:
        """FLOPs and perplexity, where it has both."""
        return None if self.flops is None or self.perplexity is None else (self.flops, self.perplexity)

    @property
    def extra_share(self) -> float | None:
        return numbers.finite(self.content.get("extra_share"))

    @property
    def gain(self) -> str:
        """The gain and its interval as a cell, on all seeds that it has."""
        found = self.row.gains.get(self.split)
        return numbers.MISSING if found is None else told_gain(found)

    @property
    def short_gain(self) -> str:
        """Without the interval, on the seeds that all rows of its text have."""
        found = self.compared
        if found is None:
            return numbers.MISSING
        told = numbers.percent(found.relative, signed=True)
        return f"{told}, within noise" if found.within_noise else told

    @property
    def rival(self) -> Rival | None:
        return rival_of(facts(self.content.get("rival")))

    @property
    def rates(self) -> list[tuple[float, float]]:
        """Learning rates that were tried, with their validation losses."""
        pairs = [
            (numbers.finite(facts(one).get("learning_rate")), numbers.finite(facts(one).get("valid_loss")))
            for one in entries(self.content.get("rates"))
        ]
        return sorted((rate, loss) for rate, loss in pairs if rate is not None and loss is not None)


def told_name(kind: str, label: str, overlap: object) -> str:
    """Plain windows of another length have it in their label."""
    return f"{label} at overlap {overlap}" if kind == PLAIN else label


def rival_of(found: Mapping[str, Any]) -> Rival | None:
    gain = gain_of(found)
    if gain is None:
        return None
    name = told_name(words(found.get("kind")) or "", words(found.get("label")) or PLAIN, found.get("overlap"))
    return Rival(name, numbers.finite(found.get("full_flops_per_token")), gain)


def told_gain(gain: Gain) -> str:
    told = numbers.percent(gain.relative, signed=True)
    if gain.interval is not None:
        told += f" ({numbers.percent_range(gain.interval, signed=True)})"
    return f"{told}, within noise" if gain.within_noise else told


def memory_rows(experiment: Experiment) -> list[MemoryRow]:
    pairs = zip(experiment.rows, experiment.raw_rows, strict=True)
    return [MemoryRow(row, experiment.split, content) for row, content in pairs]


def corpora(rows: Sequence[MemoryRow]) -> dict[str, list[MemoryRow]]:
    found: dict[str, list[MemoryRow]] = {}
    for row in rows:
        found.setdefault(row.corpus, []).append(row)
    return found


def front(rows: Sequence[MemoryRow]) -> list[MemoryRow]:
    """The rows that no other dominates, from the cheapest to the best."""
    points = {
        Point(row.row.label, row.row.window, row.row.overlap, *row.point): row for row in rows if row.point is not None
    }
    return [points[point] for point in pareto_front(list(points))]


def _chosen(rate: float, losses: Mapping[float, float]) -> str:
    if losses[rate] > min(losses.values()):
        return ""
    return "✓ chosen, at the edge of what was tried" if numbers.is_at_the_edge(rate, losses) else "✓ chosen"


def rate_table(rows: Sequence[MemoryRow], of: str) -> Table | None:
    """What was tried for each kind of memory, the chosen one marked."""
    tried = {row.row.kind: row.rates for row in rows if row.rates}
    cells = [
        [
            kind.replace("_", " "),
            _chosen(rate, dict(rates)),
            numbers.rate(rate),
            numbers.fixed(loss, 4),
        ]
        for kind, rates in tried.items()
        for rate, loss in rates
    ]
    header = ["model", "chosen", "learning rate", "validation loss"]
    return Table(f"Learning rates of {of}, the same candidates for each", header, cells, 2) if cells else None
