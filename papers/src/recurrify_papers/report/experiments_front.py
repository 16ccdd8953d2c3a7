"""The Pareto front: the points of which none other is both as cheap and as good, and better in one."""

from collections.abc import Sequence
from dataclasses import dataclass

from recurrify_papers.report.experiments_data import Experiment, kind_name


@dataclass(frozen=True)
class Point:
    kind: str
    window: int | None
    overlap: int | None
    flops: float
    perplexity: float

    @property
    def curve(self) -> str:
        """The name it shares with the same model at other windows."""
        return kind_name(self.kind) if self.overlap is None else f"{kind_name(self.kind)}, overlap {self.overlap}"

    @property
    def name(self) -> str:
        return self.curve if self.window is None else f"{self.curve}, window {self.window}"


def priced(experiment: Experiment, *, full: bool = False) -> list[Point]:
    """All rows with a perplexity and a cost; `full` counts the output head and the recurrence module too."""
    found = []
    for row in experiment.rows:
        cost, perplexity = row.full_flops if full else row.flops, row.perplexity(experiment.split)
        if cost is not None and perplexity is not None:
            found.append(Point(row.kind, row.window, row.overlap, cost, perplexity))
    return found


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """The points that no other dominates, from the cheapest to the best."""
    front = [point for point in points if not any(_dominates(other, point) for other in points)]
    return sorted(front, key=lambda point: (point.flops, point.perplexity, point.name))


def _dominates(one: Point, other: Point) -> bool:
    no_worse = one.flops <= other.flops and one.perplexity <= other.perplexity
    return no_worse and (one.flops < other.flops or one.perplexity < other.perplexity)
