"""From the scores of runs to the rows of a perplexity table: means over seeds, intervals, gains, rivals."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from recurrify.evaluate import METRICS, Evaluation, Gain, interval, relative_gain
from recurrify_papers.experiment import Row, Table, mean_of
from recurrify_papers.plan import Entry, score_name
from recurrify_papers.runner import Results, best_run

TEST = "test"


def perplexity_table(entries: Iterable[Entry], results: Results, curves: bool = False) -> Table:
    """The rows of finished entries; `curves` adds losses by position and by window of rows without overlap."""
    table = Table()
    for entry in entries:
        found = perplexity_rows(entry, results)
        table.rows += found
        if not found:
            table.missing.append(_name(entry))
            continue
        lacking = [seed for seed in entry.trained if seed not in evaluations(entry, results, entry.splits[-1])]
        table.missing += [f"{_name(entry)}, seed {seed}" for seed in lacking]
        if curves and not entry.overlap:
            table.curves += _curves(entry, results)
    return table


def perplexity_rows(entry: Entry, results: Results) -> list[Row]:
    """Rows of one entry: each metric of each split, and its gain over the entry it is compared with."""
    rows: list[Row] = []
    for split in entry.splits:
        found = evaluations(entry, results, split)
        if not found:
            return []
        one = _score(entry, results, split, next(iter(found)))
        common = {
            "label": entry.label,
            "model": entry.model,
            "dataset": entry.dataset,
            "split": split,
            "window": entry.window,
            "overlap": entry.overlap,
            "at": entry.at,
            "seeds": len(found),
            "flops": one["flops_per_token"],
            "full_flops": one["full_flops_per_token"],
        }
        for metric in METRICS:
            value, spread = mean_of([evaluation.metric(metric) for evaluation in found.values()])
            more: dict[str, Any] = {}
            if metric == "perplexity_per_word":
                low, high = interval(list(found.values())) or (None, None)
                more = {"low": low, "high": high, "spread": spread, "note": entry.note}
                more["published"] = entry.published.get(split)
            rows.append(Row(metric=metric, value=value, **common, **more))
        gain = gain_over(entry.against, entry, results, split) if entry.against is not None else None
        if gain is not None:
            rows.append(gain_row("gain", gain, common, published=_published_gain(entry, split)))
        own = gain_by_memory(entry, results, split) if entry.control and split == entry.splits[-1] else None
        if own is not None:
            rows.append(gain_row("gain by memory", own, common, note="over the same model with exchanged memories"))
    return rows


def gain_row(metric: str, gain: Gain, common: Mapping[str, Any], **more: Any) -> Row:
    """A relative gain as a row."""
    low, high = gain.interval or (None, None)
    return Row(metric=metric, value=gain.relative_gain, low=low, high=high, **{**common, **more})


def _published_gain(entry: Entry, split: str) -> float | None:
    if entry.against is None or split not in entry.published or split not in entry.against.published:
        return None
    return 1 - entry.published[split] / entry.against.published[split]


def _name(entry: Entry) -> str:
    overlap = f", overlap {entry.overlap}" if entry.overlap else ""
    return f"{entry.dataset}, {entry.label}, window {entry.window}{overlap}"


# ---- scores ----------------------------------------------------------------------------------------------


def _score(entry: Entry, results: Results, split: str, seed: int, exchanged: bool = False) -> dict[str, Any]:
    names = {score_name(name, "valid"): name for name in entry.trained[seed]}
    # A single candidate needs no validation.
    best = next(iter(names)) if len(names) == 1 else best_run(list(names), results)
    return {} if best is None else results.get(score_name(names[best], split, entry.overlap, exchanged), {})


def evaluations(entry: Entry, results: Results, split: str, exchanged: bool = False) -> dict[int, Evaluation]:
    """By seed, what was found."""
    scores = {seed: _score(entry, results, split, seed, exchanged) for seed in entry.trained}
    return {seed: Evaluation.from_dict(score["evaluation"]) for seed, score in scores.items() if score}


def gain_over(rival: Entry, entry: Entry, results: Results, split: str = TEST) -> Gain | None:
    """The gain over another entry, seed by seed: a seed gives both the same batches in the same order."""
    theirs, ours = (evaluations(one, results, split) for one in (rival, entry))
    both = [seed for seed in ours if seed in theirs]
    if not both:
        return None
    return relative_gain([theirs[seed] for seed in both], [ours[seed] for seed in both], paired_seeds=True)


def gain_by_memory(entry: Entry, results: Results, split: str = TEST) -> Gain | None:
    """The gain with a document's own memory over the same models with memories of other documents."""
    others, own = (evaluations(entry, results, split, exchanged) for exchanged in (True, False))
    both = [seed for seed in own if seed in others]
    if not both:
        return None
    return relative_gain([others[seed] for seed in both], [own[seed] for seed in both], paired_seeds=True)


def _curves(entry: Entry, results: Results) -> list[dict[str, Any]]:
    found = list(evaluations(entry, results, entry.splits[-1]).values())
    series = {
        "position in the window": [one.loss_by_position for one in found],
        "window of the document": [one.loss_by_window for one in found],
    }
    curves = []
    for label, values in series.items():
        means = np.array(values, dtype=float).mean(0)
        curve = {"name": entry.label, "x_label": label, "y_label": "loss", "x": list(range(1, len(means) + 1))}
        curves.append({**curve, "y": [None if np.isnan(mean) else round(float(mean), 4) for mean in means]})
    return curves


# ---- what memories are compared with ---------------------------------------------------------------------


def rival_rows(entries: Sequence[Entry], results: Results, usual_window: int) -> list[Row]:
    """How each memory compares with the best rival that costs no more FLOPs; for the memory that validates best at the
    usual window, also which rivals that cost more are better.

    Means over different seeds cannot be ranked, so rivals are ranked on the seeds that all rows have.
    """
    done = [entry for entry in entries if all(evaluations(entry, results, split) for split in entry.splits)]
    memories, rivals = ([entry for entry in done if entry.rival == rival] for rival in (False, True))
    if not memories or not rivals:
        return []
    seeds = set.intersection(*(set(evaluations(entry, results, TEST)) for entry in done))
    rows = []
    for entry in memories:
        cheaper = [rival for rival in rivals if _cost(rival, results) <= _cost(entry, results)]
        if cheaper and seeds:
            best = min(cheaper, key=lambda one: _mean_perplexity(one, results, TEST, seeds))
            rows += _against("gain over cheaper rival", best, entry, results)
    most = max(len(entry.trained) for entry in memories)
    usual = [entry for entry in memories if entry.window == usual_window and len(entry.trained) == most]
    for best in sorted(usual, key=lambda one: _mean_perplexity(one, results, "valid", one.trained))[:1]:
        for rival in rivals:
            if _cost(rival, results) >= _cost(best, results):
                found = _against("gain of dearer rival", best, rival, results)
                rows += [row for row in found if (row.value or 0) > 0]
    return rows


def _against(metric: str, rival: Entry, entry: Entry, results: Results) -> list[Row]:
    gain = gain_over(rival, entry, results)
    if gain is None:
        return []
    overlap = f", overlap {rival.overlap}" if rival.overlap else ""
    return [gain_row(metric, gain, _place(entry), note=f"over {rival.label}, window {rival.window}{overlap}")]


def _place(entry: Entry) -> dict[str, Any]:
    return {
        "label": entry.label,
        "model": entry.model,
        "dataset": entry.dataset,
        "split": TEST,
        "window": entry.window,
        "overlap": entry.overlap,
    }


def _cost(entry: Entry, results: Results) -> float:
    seed = next(iter(evaluations(entry, results, TEST)))
    return float(_score(entry, results, TEST, seed)["full_flops_per_token"])


def _mean_perplexity(entry: Entry, results: Results, split: str, seeds: Iterable[int]) -> float:
    found = evaluations(entry, results, split)
    return fmean(found[seed].perplexity_per_word for seed in seeds if seed in found)
