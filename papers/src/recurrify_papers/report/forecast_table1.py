"""Table 1 of the RSA paper: authors, students and ours, as lines for the terminal and as a page."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recurrify.pages import html_parts as parts
from recurrify.pages import numbers
from recurrify.pages.tables import Table
from recurrify.results import write_whole

TITLE = "recurrify: Table 1, Informer and RSA-Informer"
PAIR = ("informer", "rsa-informer")
NAMES = {"informer": "Informer", "rsa-informer": "RSA-Informer"}
MARK = "*"


def table1_table(result: Mapping[str, Any], metric: str) -> Table:
    """One row for each setting; a star where ours of the pair is lower by more than one standard error of both."""
    rows = result.get("table1") or []
    others = [
        name for name in dict.fromkeys(name for row in rows for name in row.get("ours") or {}) if name not in PAIR
    ]
    header = ["setting"]
    for who in ("authors", "students", "ours"):
        header += [f"{NAMES[model]}, {who}" for model in PAIR]
    header += [f"{name}, ours" for name in others]
    lines = []
    for row in rows:
        line = [str(row.get("setting"))]
        for who in ("authors", "students"):
            line += [_published((row.get(who) or {}).get(model), metric) for model in PAIR]
        ours = row.get("ours") or {}
        line += [_ours(ours, model, metric) for model in PAIR]
        line += [_mean(ours.get(name), metric) for name in others]
        lines.append(line)
    return Table(f"{metric.upper()} on scaled values", header, lines, text_columns=1)


def _published(errors: Mapping[str, Any] | None, metric: str) -> str:
    return numbers.MISSING if errors is None else numbers.fixed(numbers.finite(errors.get(metric)))


def _mean(found: Mapping[str, Any] | None, metric: str) -> str:
    if found is None:
        return numbers.MISSING
    mean, error = (numbers.finite(found[metric].get(name)) for name in ("mean", "standard_error"))
    return numbers.fixed(mean) if error is None else f"{numbers.fixed(mean)} ± {numbers.fixed(error)}"


def _ours(ours: Mapping[str, Any], model: str, metric: str) -> str:
    text = _mean(ours.get(model), metric)
    other = next(name for name in PAIR if name != model)
    if model in ours and other in ours:
        mine, theirs = ours[model][metric], ours[other][metric]
        errors = [numbers.finite(one.get("standard_error")) for one in (mine, theirs)]
        known = [error for error in errors if error is not None]
        if len(known) == len(errors) and theirs["mean"] - mine["mean"] > math.hypot(*known):
            text += f" {MARK}"
    return text


def table1_statement(result: Mapping[str, Any]) -> str:
    means = result.get("mean_mse")
    missing = result.get("missing")
    told = f"Not finished: {missing} runs are missing. " if missing else ""
    told += unequal_tuning(result)
    if not means:
        return told.strip()
    better = (
        f"{told}Over {result['settings']} settings the mean MSE is {means['informer']:.3f} for Informer and "
        f"{means['rsa-informer']:.3f} for RSA-Informer, which is better in {result['rsa_better']} settings"
    )
    judged = result.get("settings_with_error", result["settings"])
    if not judged:
        return f"{better}; a standard error takes more than one seed."
    among = "" if judged == result["settings"] else f" of the {judged} with more than one seed"
    return (
        f"{better}, beyond one standard error in {result['rsa_better_beyond_error']}{among}, and worse beyond it in "
        f"{result['rsa_worse_beyond_error']}."
    )


def unequal_tuning(result: Mapping[str, Any]) -> str:
    """A sentence, where one of the pair had other learning rates to choose from than the other."""
    pairs = {
        row["setting"]: [row["ours"][model].get("rates_tried") for model in PAIR]
        for row in result.get("table1") or []
        if all(model in (row.get("ours") or {}) for model in PAIR)
    }
    unequal = [setting for setting, (one, other) in pairs.items() if one != other]
    if not unequal:
        return ""
    first, second = ([f"{rate:g}" for rate in tried or ()] for tried in pairs[unequal[0]])
    return (
        f"Not tuned equally: in {unequal[0]}{' and others' if len(unequal) > 1 else ''} the learning rate was chosen "
        f"from {', '.join(first)} for {NAMES[PAIR[0]]} and from {', '.join(second)} for {NAMES[PAIR[1]]}. "
    )


def _chosen_rates(result: Mapping[str, Any]) -> dict[str, str]:
    """By model, in how many settings each learning rate was chosen, where there was a choice."""
    counts: dict[str, dict[float, int]] = {}
    for row in result.get("table1") or []:
        for model, ours in (row.get("ours") or {}).items():
            if len(ours.get("rates_tried") or ()) > 1:
                of_model = counts.setdefault(model, {})
                of_model[ours["learning_rate"]] = of_model.get(ours["learning_rate"], 0) + 1
    return {model: ", ".join(f"{rate:g} in {found[rate]}" for rate in sorted(found)) for model, found in counts.items()}


def table1_training(result: Mapping[str, Any]) -> list[str]:
    """How the runs learned, in a sentence for each thing that is known."""
    epochs = {name: ", ".join(map(str, counts)) for name, counts in (result.get("best_epochs") or {}).items()}
    seconds = {name: f"{one:,.0f}" for name, one in (result.get("training_seconds") or {}).items()}
    gates = {name: _gates(parts) for name, parts in (result.get("gates_moved") or {}).items()}
    facts = {
        "Learning rates chosen on validation, and in how many settings": _chosen_rates(result),
        "Runs that were best on validation after epoch 1, 2, …": epochs,
        "Seconds of all epochs, each run's added up": seconds,
        "Gates, means at start and end": gates,
    }
    return [
        f"{title}: {'; '.join(f'{NAMES.get(name, name)} {text}' for name, text in found.items())}."
        for title, found in facts.items()
        if found
    ]


def _gates(parts: Mapping[str, Mapping[str, float]]) -> str:
    return ", ".join(
        f"{part} {one['start']:.3f} to {one['end']:.3f} (moved by {one['moved']:.3f}; {one['above_0.9']} of "
        f"{one['gates']} end above 0.9)"
        for part, one in parts.items()
    )


def table1_lines(result: Mapping[str, Any]) -> list[str]:
    """Both metrics as Markdown, with the statement under them and how the runs learned."""
    lines: list[str] = []
    for metric in ("mse", "mae"):
        lines += [*_markdown(table1_table(result, metric)), ""]
    return [*lines, table1_statement(result), *table1_training(result)]


def _markdown(table: Table) -> Sequence[str]:
    rule = ["---"] * table.text_columns + ["---:"] * (len(table.header) - table.text_columns)
    cells = [table.header, rule, *table.rows]
    return [f"**{table.caption}**", "", *(f"| {' | '.join(row)} |" for row in cells)]


def write_table1_page(result: Mapping[str, Any], path: str | Path) -> None:
    note = (
        f"± is one standard error over seeds. {MARK}: lower than the other of ours by more than that of the difference."
    )
    tables = [parts.table(table1_table(result, metric)) for metric in ("mse", "mae")]
    notes = [parts.paragraph(text, "note") for text in (note, *table1_training(result))]
    body = [parts.paragraph(table1_statement(result), "headline"), *tables, *notes]
    write_whole(path, parts.document(TITLE, body, wide=True).encode("utf-8"))
