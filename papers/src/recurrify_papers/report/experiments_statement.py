"""What the experiments say, in sentences that are computed from the numbers and claim no more than they allow."""

from collections.abc import Iterable, Sequence

from recurrify.pages import numbers
from recurrify_papers.report.experiments_data import BOOKS, SPLITS, Experiment, Gain, Row, SizeResults
from recurrify_papers.report.experiments_front import Point, pareto_front, priced

SIZE_SENTENCES = {
    "paper": "The published experiments at their published scale.",
    "small": "The published experiments with a smaller model and less training.",
}
TINY_WARNING = (
    "This size only checks that the machinery works. Models this small, trained this briefly, say nothing about what "
    "recurrence gains: do not quote these numbers."
)
NO_INTERVAL = " (means over seeds; the difference has no interval)"
PUBLISHED_OVERLAP, PUBLISHED_WINDOW = 30, 300
FEWEST_WINDOWS = 2
"""Sizes of windows before a front says anything."""


def headline(results: SizeResults) -> str:
    """What recurrence as published gained on books without overlap."""
    books = results.books()
    if books is None:
        return f"The comparison on books ({BOOKS}) has not been run at this size."
    # What stands in for books at the tiny size is no book.
    where = "In the table for books" if results.size == "tiny" else "On books"
    return f"{where} without overlap, {_compared(books, 'carry', 'recurrence as published')}"


def further_statements(results: SizeResults) -> list[str]:
    """The best variant on books, the published finding about overlap, and the other texts."""
    told = []
    books = results.books()
    if books is not None:
        if _disjoint_row(books, "best") is not None:
            told.append(f"There, {_compared(books, 'best', 'the best variant found here (ours, not published)')}")
        told.append(overlap_finding(books, "carry"))
        if _disjoint_row(books, "best") is not None:
            told.append(overlap_finding(books, "best"))
    for experiment in results.experiments:
        if experiment.layout == "perplexity" and experiment is not books:
            told.append(f"{experiment.title}: without overlap, {_compared(experiment, 'carry', 'recurrence')}")
    waiting = sum(len(experiment.missing) for experiment in results.experiments)
    if waiting:
        rows = "one row" if waiting == 1 else f"{numbers.count(waiting)} rows"
        told.append(f"Not run yet: {rows}, named in the sections below.")
    return told


def _disjoint_row(experiment: Experiment, kind: str) -> Row | None:
    return next((row for row in experiment.disjoint() if row.kind == kind), None)


def _compared(experiment: Experiment, kind: str, subject: str) -> str:
    split = experiment.split
    row = _disjoint_row(experiment, kind)
    gain = None if row is None else row.gains.get(split)
    if row is None or gain is None:
        return f"{subject} has not been compared with plain windows yet."
    from_to = "" if gain.within_noise else _from_to(experiment, row)
    seeds = "" if gain.seeds is None else ", one seed" if gain.seeds == 1 else f", {gain.seeds} seeds"
    sentence = f"{subject} {effect(gain, SPLITS.get(split, split))}{from_to}{seeds}."
    published = row.published_gains.get(split)
    return sentence if published is None else f"{sentence} Published: {_published_effect(published)}."


def _published_effect(gain: float) -> str:
    return f"{numbers.percent(abs(gain))} {'lower' if gain >= 0 else 'higher'}"


def effect(gain: Gain, split: str) -> str:
    """That perplexity was lowered or raised, or has changed within noise."""
    what = f"{split} perplexity per word"
    fell = gain.relative >= 0
    ends = gain.interval if fell or gain.interval is None else (-gain.interval[1], -gain.interval[0])
    told = f"{'lowered' if fell else 'raised'} {what} by {numbers.percent(abs(gain.relative))}"
    if ends is None:
        return f"{told}; without an interval that counts as within noise" if gain.within_noise else told
    noise = ", which is within noise" if gain.within_noise else ""
    return f"{told} (95 % interval {numbers.percent_range(ends, signed=gain.within_noise)}){noise}"


def _from_to(experiment: Experiment, row: Row) -> str:
    plain = _disjoint_row(experiment, "plain")
    before = None if plain is None else plain.perplexity(experiment.split)
    after = row.perplexity(experiment.split)
    if before is None or after is None:
        return ""
    return f", from {numbers.perplexity(before)} to {numbers.perplexity(after)}"


def overlap_finding(experiment: Experiment, kind: str) -> str:
    """Whether recurrence without overlap is as good as plain windows that overlap by 30, as was published."""
    split = experiment.split
    row = _disjoint_row(experiment, kind)
    ours = None if row is None else row.perplexity(split)
    plain = {
        found.overlap: perplexity
        for found in experiment.rows
        if found.kind == "plain" and found.overlap is not None and (perplexity := found.perplexity(split)) is not None
    }
    if kind == "carry":
        opening = f"{_published_finding(experiment, row)} Here"
    else:
        opening = "For the best variant found here"
    if ours is None or PUBLISHED_OVERLAP not in plain:
        return f"{opening} that cannot be said yet: one of the two has not been run."
    if row is not None and row.window not in (None, PUBLISHED_WINDOW):
        return f"{opening} that cannot be said: the windows are of {row.window} tokens.{_furthest(ours, plain)}"
    theirs = plain[PUBLISHED_OVERLAP]
    against = f"{numbers.perplexity(ours)} against {numbers.perplexity(theirs)}"
    if ours <= theirs:
        margin = numbers.percent(1 - ours / theirs)
        return f"{opening} it holds: {against}, {margin} lower{NO_INTERVAL}.{_furthest(ours, plain)}"
    margin = numbers.percent(ours / theirs - 1)
    return f"{opening} it does not hold: {against}, {margin} higher{NO_INTERVAL}.{_furthest(ours, plain)}"


def _published_finding(experiment: Experiment, row: Row | None) -> str:
    split = experiment.split
    with_overlap = next(
        (found for found in experiment.rows if found.kind == "plain" and found.overlap == PUBLISHED_OVERLAP), None
    )
    ours = None if row is None else row.published.get(split)
    theirs = None if with_overlap is None else with_overlap.published.get(split)
    known = (
        "" if ours is None or theirs is None else f" ({numbers.perplexity(ours)} against {numbers.perplexity(theirs)})"
    )
    return (
        f"Published: recurrence without overlap is as good as plain windows of {PUBLISHED_WINDOW} "
        f"with an overlap of {PUBLISHED_OVERLAP}{known}."
    )


def _furthest(ours: float, plain: dict[int, float]) -> str:
    matched = [overlap for overlap, perplexity in plain.items() if overlap > 0 and ours <= perplexity]
    if not matched:
        return " It is not as good as plain windows at any overlap that was run."
    return f" The largest overlap at which plain windows are no better is {max(matched)}."


def window_finding(experiment: Experiment) -> str:
    """Whether the gain grows as windows shrink, as was published."""
    gains = {
        row.window: row.gains[experiment.split].relative
        for row in experiment.rows
        if row.kind == "carry" and row.overlap == 0 and row.window is not None and experiment.split in row.gains
    }
    published = "Published: the gap between plain and recurrent widens as windows shrink."
    if len(gains) < 2:
        return f"{published} Here too few windows have been run to say."
    small, large = min(gains), max(gains)
    verdict = "it does" if gains[small] > gains[large] else "it does not"
    return (
        f"{published} Here {verdict}: recurrence gains {numbers.percent(gains[small], signed=True)} at window {small} "
        f"and {numbers.percent(gains[large], signed=True)} at window {large}."
    )


def front_finding(experiment: Experiment) -> list[str]:
    """Which points lie on the Pareto front, by the paper's count of FLOPs and by the full one."""
    points = priced(experiment)
    if not points:
        return []
    front = pareto_front(points)
    told = [
        f"On the Pareto front lie: {_told_front(front)}. {_recurrent_share(points, front)} "
        "Published: all recurrent points lie on it."
    ]
    full = priced(experiment, full=True)
    if full:
        full_front = pareto_front(full)
        same = {_setting(point) for point in front} == {_setting(point) for point in full_front}
        which = "the same points lie on it" if same else f"these do: {_told_front(full_front)}"
        told.append(
            f"The published count leaves out the output head and the recurrence module. With both counted, {which}. "
            + _recurrent_share(full, full_front)
        )
    return told


def _told_front(front: Sequence[Point]) -> str:
    """The points by curve: a kind and an overlap, then its windows."""
    curves: dict[str, list[str]] = {}
    for point in front:
        curve = point.curve
        curves.setdefault(curve, [])
        if point.window is not None:
            curves[curve].append(str(point.window))
    return "; ".join(
        f"{curve} (windows of {listed(windows)})" if windows else curve for curve, windows in curves.items()
    )


def _setting(point: Point) -> tuple[str, int | None, int | None]:
    return point.kind, point.window, point.overlap


def _recurrent_share(points: Sequence[Point], front: Sequence[Point]) -> str:
    shares = []
    for kind, name in (("carry", "recurrent points as published"), ("best", "points of the best variant")):
        total = sum(point.kind == kind for point in points)
        if total:
            shares.append(f"{sum(point.kind == kind for point in front)} of {total} {name}")
    if not shares:
        return "No recurrent point has been run."
    few = " Too few have been run to say more." if len({point.window for point in points}) < FEWEST_WINDOWS else ""
    return f"That is {' and '.join(shares)}.{few}"


def listed(names: Iterable[str]) -> str:
    """Names as a sentence has them: a, b and c."""
    found = list(names)
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} and {found[-1]}"
