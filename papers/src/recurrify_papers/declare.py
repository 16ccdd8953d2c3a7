"""Experiments from their entries: which runs each row needs, and how results become rows."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from recurrify_papers.experiment import Experiment, Row, Table, mean_of
from recurrify_papers.plan import Entry, Plan
from recurrify_papers.runner import Results, Run, best_run
from recurrify_papers.sizes import Size

Entries = Callable[[Plan], Iterable[Entry]]
Published = Callable[[Row], float | None]


def perplexity_experiment(
    entries: Entries,
    curves: bool = False,
    table: Callable[[Size, Results], Table] | None = None,
    **about: Any,
) -> Experiment:
    """An experiment that trains and scores each entry; `table` replaces the usual perplexity table."""

    def runs(size: Size) -> list[Run]:
        plan = Plan(size)
        plan.scored(entries(plan))
        return list(plan.runs.values())

    def usual_table(size: Size, results: Results) -> Table:
        from recurrify_papers.rows import perplexity_table

        return perplexity_table(entries(Plan(size)), results, curves)

    return Experiment(runs=runs, table=table or usual_table, **about)


def number_experiment(entries: Entries, published: Published | None = None, **about: Any) -> Experiment:
    """An experiment whose runs leave `numbers`, each with a metric, a value and other columns of the table.

    Values are means over the seeds of an entry. Runs may also leave `curves`, `texts`, and sentences on what is
    `missing`, which are those of the first seed.
    """

    def runs(size: Size) -> list[Run]:
        plan = Plan(size)
        list(entries(plan))
        return list(plan.runs.values())

    def table(size: Size, results: Results) -> Table:
        made = Table()
        for entry in entries(Plan(size)):
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
        columns: Mapping[str, Any] = {**common, **same[0], "value": value, "spread": spread, "seeds": len(found)}
        notes = "; ".join(note for note in (entry.note, same[0].get("note")) if note)
        table.rows.append(Row(**{**columns, "note": notes or None}))
    table.curves += [{"name": entry.label, **curve} for curve in first.get("curves", ())]
    table.texts += first.get("texts", ())
    table.missing += first.get("missing", ())
