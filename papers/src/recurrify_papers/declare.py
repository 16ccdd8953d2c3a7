"""Experiments from their entries: which runs each row needs, and how results become rows."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from recurrify_papers.experiment import Experiment, Row, Table, mean_of
from recurrify_papers.plan import Entry, Plan
from recurrify_papers.runner import Results, Run, best_run
from recurrify_papers.sizes import Size

Entries = Callable[[Plan], Iterable[Entry]]
Published = Callable[[Row], float | None]
NEEDS = "this size has no such runs"


def perplexity_experiment(
    entries: Entries,
    curves: bool = False,
    more: Callable[[Plan, Sequence[Entry], Results, Table], None] | None = None,
    needs: str = NEEDS,
    **about: Any,
) -> Experiment:
    """An experiment that trains and scores each entry; `more` adds to its table.

    `needs` says what is missing at a size that has no entries.
    """

    def runs(size: Size) -> list[Run]:
        plan = Plan(size)
        plan.scored(entries(plan))
        return list(plan.runs.values())

    def table(size: Size, results: Results) -> Table:
        from recurrify_papers.rows import perplexity_table

        plan = Plan(size)
        found = list(entries(plan))
        made = perplexity_table(found, results, curves) if found else Table(missing=[needs])
        if more is not None:
            more(plan, found, results, made)
        return made

    return Experiment(runs=runs, table=table, **about)


def number_experiment(
    entries: Entries, published: Published | None = None, needs: str = NEEDS, **about: Any
) -> Experiment:
    """An experiment whose runs leave `numbers`, each with a metric, a value and other columns of the table.

    Values are means over the seeds of an entry, unless a run compares seeds itself and leaves `seeds`. Runs may also
    leave `curves`, `texts`, and sentences on what is
    `missing`, which are those of the first seed.
    """

    def runs(size: Size) -> list[Run]:
        plan = Plan(size)
        list(entries(plan))
        return list(plan.runs.values())

    def table(size: Size, results: Results) -> Table:
        found = list(entries(Plan(size)))
        made = Table(missing=[] if found else [needs])
        for entry in found:
            add_numbers(made, entry, results)
        if published is not None:
            made.rows = [replace(row, published=published(row)) for row in made.rows]
        return made

    return Experiment(runs=runs, table=table, **about)


def add_numbers(table: Table, entry: Entry, results: Results) -> None:
    """Add the numbers of one entry; a run that chose a setting counts if its loss is the lowest."""
    chosen = {seed: names[0] if len(names) == 1 else best_run(names, results) for seed, names in entry.trained.items()}
    found = {seed: results[name] for seed, name in chosen.items() if name in results}
    place = f"{entry.dataset}, {entry.label}" if entry.dataset else entry.label
    table.missing += [f"{place}, seed {seed}" for seed in entry.trained if seed not in found]
    if not found:
        return
    first = next(iter(found.values()))
    common = {"label": entry.label, "model": entry.model, "dataset": entry.dataset}
    for same in zip(*(one["numbers"] for one in found.values()), strict=True):
        value, spread = mean_of([number["value"] for number in same])
        seeds = {"spread": spread, "seeds": len(found)} if "seeds" not in same[0] else {}
        columns: Mapping[str, Any] = {**common, **same[0], "value": value, **seeds}
        notes = "; ".join(note for note in (entry.note, same[0].get("note")) if note)
        table.rows.append(Row(**{**columns, "note": notes or None}))
    table.curves += [{"name": entry.label, **curve} for curve in first.get("curves", ())]
    table.texts += first.get("texts", ())
    table.missing += first.get("missing", ())
