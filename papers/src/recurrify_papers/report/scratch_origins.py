"""By which code, on which machine and beside what else the rows of a table were made: where that differs, times do not
compare."""

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from recurrify.pages import numbers
from recurrify_papers.report.experiments_data import facts, words
from recurrify_papers.report.experiments_statement import listed
from recurrify_papers.report.scratch_runs import Group, TrainingRun

ROUNDING_SECONDS = 2
"""Results tell when they were written in whole seconds: runs that overlap by no more went on one after another."""
UNKNOWN = "unknown"
ALONE = "with no other"


class Span(NamedTuple):
    start: float
    end: float

    def overlaps(self, other: "Span") -> bool:
        return min(self.end, other.end) - max(self.start, other.start) > ROUNDING_SECONDS


def commit(run: TrainingRun) -> str:
    git = facts(facts(run.content.get("provenance")).get("git"))
    changes = " with uncommitted changes" if git.get("dirty") else ""
    return f"{words(git.get('commit'))[:7] or UNKNOWN}{changes}"


def machine(run: TrainingRun) -> str:
    found = facts(facts(run.content.get("provenance")).get("machine"))
    if found.get("gpu"):
        return words(found["gpu"])
    cores = numbers.count(found.get("cores"))
    told = "" if cores == numbers.MISSING else f" ({cores} cores)"
    return f"{words(found.get('cpu')) or UNKNOWN}{told}"


def span(run: TrainingRun) -> Span | None:
    """From when until when its process worked on it; of one that was stopped and went on, the last stretch."""
    provenance = facts(run.content.get("provenance"))
    seconds = numbers.finite(provenance.get("wall_seconds"))
    try:
        end = datetime.fromisoformat(words(provenance.get("date_utc")))
    except ValueError:
        return None
    if seconds is None:
        return None
    stop = (end if end.tzinfo else end.replace(tzinfo=UTC)).timestamp()
    return Span(stop - seconds, stop)


def company(run: TrainingRun, others: Sequence[TrainingRun]) -> str:
    """With how many others of the page it went on, on a machine of that name."""
    own = span(run)
    if own is None:
        return UNKNOWN
    spans = [span(other) for other in others if other is not run and machine(other) == machine(run)]
    beside = sum(one is not None and own.overlaps(one) for one in spans)
    return f"with {beside} other{'' if beside == 1 else 's'}" if beside else ALONE


def origin_remarks(group: Group) -> list[str]:
    """For below the table; the last sentence is there only where it has to be."""
    commits, machines = _rows_by(group, commit), _rows_by(group, machine)
    told = []
    if len(commits) > 1:
        told.append(f"The rows were made at different commits: {_told(commits)}.")
    elif UNKNOWN not in commits:
        told.append(f"All rows were made at commit {next(iter(commits), UNKNOWN)}.")
    if len(machines) > 1:
        told.append(f"The rows were made on different machines: {_told(machines)}.")
    elif UNKNOWN not in machines:
        told.append(f"Speed and memory on {next(iter(machines))}.")
    told += _company_remarks(_rows_by(group, lambda run: company(run, group.page)))
    if not times_compare(group):
        told.append("Times, speeds and the curves against time do not compare between rows that differ in any of this.")
    return told


def _company_remarks(by_company: Mapping[str, Sequence[str]]) -> list[str]:
    if set(by_company) == {ALONE}:
        return ["As far as these results tell, one run went on at a time."]
    if set(by_company) == {UNKNOWN}:
        return ["Whether runs went on side by side is not recorded: those that did shared the machine, and are slower."]
    if len(by_company) == 1:
        return [f"Each run went on side by side {next(iter(by_company))}: all are slower for sharing the machine."]
    return [f"Some runs went on side by side, and are slower for sharing the machine: {_told(by_company)}."]


def times_compare(group: Group) -> bool:
    """Whether nothing is known to speak against it."""
    parts: list[Callable[[TrainingRun], str]] = [commit, machine, lambda run: company(run, group.page)]
    return all(len({part(run) for run in group.runs}) == 1 for part in parts)


def _rows_by(group: Group, of: Callable[[TrainingRun], str]) -> dict[str, list[str]]:
    """The rows, by what `of` says of their runs; with their seeds where it does not say the same of all."""
    found: dict[str, list[str]] = {}
    for variant in group.variants:
        seeds: dict[str, list[str]] = {}
        for run in variant.runs:
            seeds.setdefault(of(run), []).append(run.seed)
        for value, own in seeds.items():
            row = variant.label if len(seeds) == 1 else f"{variant.label} with seed {listed(own)}"
            found.setdefault(value, []).append(row)
    return found


def _told(rows_by: Mapping[str, Sequence[str]]) -> str:
    # Labels have commas of their own.
    return ", ".join(f"{value} ({'; '.join(rows)})" for value, rows in rows_by.items())
