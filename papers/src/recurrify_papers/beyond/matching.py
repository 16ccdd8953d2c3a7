"""Plain windows at the largest overlap that costs no more FLOPs than a memory."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from recurrify_papers.plan import Entry, Plan, score_name
from recurrify_papers.runner import Results, Run
from recurrify_papers.sizes import Settings

FUNCTION = "recurrify_papers.finetune:matched_overlap"


def matched_runs(
    plan: Plan, entries: Iterable[Entry], known: Mapping[str, Settings], base: Any = None
) -> dict[tuple[str, str], tuple[Entry, Entry]]:
    """By names of a training and of the run that matches it: plain windows and the memory.

    Windows of the usual length are compared with memories of that length, longer ones with all.
    """
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
                    settings: dict[str, Any] = {"run": {"run": name}, "base": plan.base() if base is None else base}
                    settings |= {"recurrence": dict(recurrence), "splits": splits}
                    settings |= {"window": plain.window, "memory_window": memory.window}
                    plan.add(Run(name=match, function=FUNCTION, settings=settings))
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
