"""Memories compared with rivals, among them plain windows at the largest overlap that costs no more FLOPs."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from recurrify_papers.beyond.memories import Memories, memory_rows
from recurrify_papers.experiment import Table
from recurrify_papers.plan import Entry, score_name
from recurrify_papers.runner import Results, Run


@dataclass(frozen=True)
class Comparison:
    """Memories and their rivals: plain windows, and memories that are not learned."""

    memories: Memories
    trained: list[list[Entry]]
    """Compared within each list, plain windows also at the overlap that matches the cost of each memory."""
    untrained: list[list[Entry]]
    """Compared within each list as they are."""

    def runs(self) -> list[Run]:
        """Trainings, scores and controls."""
        plan = self.memories.plan
        for entries in [*self.trained, *self.untrained]:
            plan.scored(entries)
        for entries in self.trained:
            matched_runs(self.memories, entries)
        return list(plan.runs.values())

    def table(self, results: Results) -> Table:
        """Perplexities, what each memory costs, and how it compares with its rivals."""
        from recurrify_papers.rows import perplexity_table, rival_rows

        results, table = dict(results), Table()
        groups = []
        for entries in self.trained:
            matched = matched_runs(self.memories, entries)
            groups.append([*entries, *matched_entries(matched, entries, results)])
        for entries in [*groups, *self.untrained]:
            made = perplexity_table(entries, results)
            table.rows += [*made.rows, *(row for entry in entries for row in memory_rows(entry, results))]
            table.rows += rival_rows(entries, results, self.memories.size.window)
            table.missing += made.missing
        return table


def matched_runs(memories: Memories, entries: Iterable[Entry]) -> dict[tuple[str, str], tuple[Entry, Entry]]:
    """Plain windows and memory, by the names of a training and of the run that matches it.

    Windows of the usual length are compared with memories of that length, longer ones with all.
    """
    plan, known = memories.plan, memories.known
    base = plan.base() if memories.base is None else memories.base
    entries = [entry for entry in entries if not entry.overlap]
    splits = {"valid": plan.size.valid_tokens, "test": plan.size.test_tokens}
    found = {}
    for plain in (entry for entry in entries if entry.model == "plain"):
        for memory in (entry for entry in entries if not entry.rival):
            if memory.window != plain.window and plain.window == plan.size.window:
                continue
            recurrence = known.get(memory.label) or known[memory.label.rpartition("-w")[0]]
            for seed in (seed for seed in plain.trained if seed in memory.trained):
                for name in plain.trained[seed]:
                    match = f"{name}-as-{memory.label}"
                    settings: dict[str, Any] = {"run": {"run": name}, "base": base}
                    settings |= {"recurrence": dict(recurrence), "splits": splits}
                    settings |= {"window": plain.window, "memory_window": memory.window}
                    plan.run("finetune:matched_overlap", match, **settings)
                    found[name, match] = plain, memory
    return found


def matched_entries(
    matched: Mapping[tuple[str, str], tuple[Entry, Entry]], entries: list[Entry], results: Results
) -> list[Entry]:
    """Plain windows at matched overlaps as rows; their scores are added to `results`."""
    found: dict[tuple[str, int], Entry] = {}
    known = {(entry.label, entry.overlap) for entry in entries}
    for (name, match), (plain, memory) in matched.items():
        overlap = results.get(match, {}).get("overlap")
        if not overlap:
            continue
        for split, score in results[match]["scores"].items():
            results.setdefault(score_name(name, split, overlap), score)
        if (plain.label, overlap) not in known:
            seeds = {seed: names for seed, names in plain.trained.items() if seed in memory.trained}
            note = f"costs as much as {memory.label}"
            entry = replace(plain, overlap=overlap, note=note, trained=seeds, against=plain)
            found.setdefault((plain.label, overlap), entry)
    return list(found.values())
