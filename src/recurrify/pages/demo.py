"""The page `recurrify demo` ends with, its tables as Markdown, and its picture."""

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from recurrify.errors import UserError
from recurrify.pages import numbers
from recurrify.pages.charts import line_chart, write_picture
from recurrify.pages.evaluation import TERMS, cost_chart, gain_table, position_chart, score_table
from recurrify.pages.findings import Gain, extra_cost
from recurrify.pages.inspect import Reader
from recurrify.pages.page import (
    Block,
    Chart,
    Code,
    Columns,
    Fold,
    Listing,
    Page,
    Section,
    Table,
    Terms,
    Text,
    Verdict,
    write_page,
)

TITLE = "recurrify demo: a pretrained transformer with a memory"
NAMES = {"base": "base, not fine-tuned", "plain": "plain windows", "recurrent": "carry"}
Result = Mapping[str, Any]


def write_demo_page(result: Result, path: str | Path) -> None:
    """Write the page; a part whose numbers are missing is left out."""
    real = result.get("real") or {}
    blocks = [*_novel(real), *_tiny(result), Fold("What the numbers mean", [Terms(TERMS)])]
    provenance = {"settings": result.get("settings") or {}, **(result.get("provenance") or {})}
    chart = cost_chart(_by_label(real)) or _tiny_cost(result)
    write_page(path, Page(TITLE, demo_verdict(result), blocks, chart, provenance))


def demo_verdict(result: Result) -> Verdict:
    """The memory compared with plain windows of the same length, and what a sceptic asks next."""
    real = result.get("real") or {}
    gains = [(entry, gain) for entry in real.get("gains") or [] if (gain := Gain.of(entry)) is not None]
    if not gains:
        return _tiny_verdict(result)
    rows = {row["role"]: row for row in real["rows"]}
    (entry, gain), memory = gains[0], rows["memory"]
    sentence = gain.sentence("The memory", str(entry["against_label"])).rstrip(".") + f". {_price(rows)}"
    facts = [("model", str(real.get("model"))), ("trained", "nothing")]
    facts.append(("cost", extra_cost(memory["full_flops_per_token"], rows["windows"]["full_flops_per_token"])))
    facts += [
        (str(row["label"]), numbers.perplexity(numbers.finite(row["perplexity_per_token"]))) for row in rows.values()
    ]
    return Verdict(sentence, gain.number, gain.interval_text, facts, gain.tone)


def _price(rows: Mapping[str, Result]) -> str:
    """Whether another reading of the base is better, and at what cost."""
    memory = rows["memory"]
    price, level = memory["full_flops_per_token"], memory["perplexity_per_token"]
    better = [row for role, row in rows.items() if role != "memory" and row["perplexity_per_token"] < level]
    cheap = [row for row in better if row["full_flops_per_token"] <= 1.05 * price]
    if cheap:
        return f"But {cheap[0]['label']} is better at the same price."
    if not better:
        return "No other reading of the base compared here is better."
    best = min(better, key=lambda row: row["perplexity_per_token"])
    times = best["full_flops_per_token"] / price
    return (
        f"It is the best at its price, not the best of all: {best['label']} is better, for {times:.1f} times the FLOPs."
    )


def _by_label(real: Result) -> list[dict[str, Any]]:
    return [{**row, "series": row["label"]} for row in real.get("rows") or []]


def _novel(real: Result) -> list[Block]:
    rows = real.get("rows") or []
    if not rows:
        return []
    warning = [Text(str(real["note"]), "warning")] if real.get("note") else []
    memory = real.get("memory") or {}
    count, state = numbers.count(len(real["tokens"]["text"])), numbers.finite(memory.get("state_floats"))
    about = (
        f"{real.get('model')} reads {count} tokens of a novel ({real.get('source')}) with the memory "
        f"{real.get('mechanism')!r}: {numbers.large(state)} numbers pass from window to window, and "
        f"{numbers.count(memory.get('added_parameters'))} parameters are added. Nothing is trained. Intervals resample "
        "parts of the text of one window each."
    )
    tables = [score_table("Five ways to read the same tokens", rows), gain_table(real.get("gains") or [])]
    positions = [
        {"position": place, "loss": loss, "model": row["label"]}
        for row in rows
        for place, loss in enumerate(row.get("loss_by_position") or [], start=1)
    ]
    found: list[Block] = [*warning, Text(about), Section("A real model, nothing trained", [t for t in tables if t])]
    if positions:
        found.append(Section("Where memory helps", [position_chart(positions)]))
    found.append(Section("Token by token", [_reader(real)]))
    if (sample := real.get("continuation")) is not None:
        sides = [("the novel", "truth"), ("plain windows", "plain"), ("with memory", "recurrent")]
        shown = [Listing(str(sample.get(key)), title) for title, key in sides if sample.get(key) is not None]
        prompt = Listing(str(sample.get("prompt_end")), "end of the prompt")
        found.append(Section("Continuing right after a window border", [prompt, Columns(shown)]))
    return found


def _reader(real: Result) -> Reader:
    tokens, window = real["tokens"], int(real["recurrence"]["window"])
    # Plain windows first: the page compares the second reading with the first.
    order = ["windows", "memory", *(key for key in tokens if key not in ("text", "windows", "memory"))]
    count = len(tokens["text"])
    windows = [{"first": first, "stop": min(first + window, count)} for first in range(1, count, window)]
    names = {row["role"]: row["label"] for row in real["rows"]}
    ordered = {"text": tokens["text"], **{key: tokens[key] for key in order if key in tokens}}
    return Reader.of({"tokens": ordered, "windows": windows, "slot_attention": None, "names": names})


# ---- the tiny models -----------------------------------------------------------------------------------------------


def _tiny(result: Result) -> list[Block]:
    found: list[Block] = [Text(sentence) for sentence in tiny_sentences(result)]
    tables = demo_tables(result)
    charts = [chart for chart in (_tiny_positions(result), _tiny_cost(result), _curves(result)) if chart]
    if not tables and not charts:
        return []
    if result.get("made_by"):
        found.append(Text(["The shipped pair was trained by ", Code(str(result["made_by"])), "."], "note"))
    return [Section("A tiny model, fine-tuned", [*found, Columns(charts), *tables])]


def tiny_sentences(result: Result) -> list[str]:
    """What the shipped pair and the pair trained live show."""
    settings = result.get("settings") or {}
    live = f"trained just now on {numbers.count(settings.get('live_tokens'))} tokens"
    found = []
    for weights, name in (("shipped", "trained longer, shipped"), ("live", live)):
        gain = _tiny_gain(result, weights)
        if gain is not None:
            sentence = gain.sentence("the paper's carry", "plain windows").rstrip(".")
            found.append(f"Tiny model, {name}: {sentence} ({gain.number}; {gain.interval_text}).")
    return found


def _tiny_gain(result: Result, weights: str) -> Gain | None:
    entries = [one for one in result.get("gains") or [] if one.get("weights") == weights and not one.get("overlap")]
    return Gain.of(entries[0]) if entries else None


def _tiny_verdict(result: Result) -> Verdict:
    gain = _tiny_gain(result, "shipped")
    if gain is None:
        return Verdict("This result holds no comparison.")
    sentence = gain.sentence("The carry of the shipped tiny model", "plain windows")
    return Verdict(sentence, gain.number, gain.interval_text, (), gain.tone)


def demo_tables(result: Result) -> list[Table]:
    """Scores of the tiny models and their gains."""
    unit, found = str(result.get("unit") or "token"), []
    for weights, caption in (("shipped", "Shipped tiny models"), ("live", "Tiny models trained just now")):
        rows = _mean_over_seeds([row for row in result.get("rows") or [] if row.get("weights") == weights])
        if rows:
            found.append(score_table(caption, rows, unit))
    names = {"shipped": "carry, shipped", "live": "carry, trained just now"}
    entries = [
        {**one, "unit": unit, "model": names.get(str(one.get("weights"))), "against": "plain windows, same weights"}
        for one in result.get("gains") or []
    ]
    gains = gain_table(entries)
    return [*found, *([gains] if gains else [])]


def _mean_over_seeds(rows: Sequence[Result]) -> list[dict[str, Any]]:
    """One row for each model and overlap: the mean of its seeds, without an interval where there are several."""
    groups: dict[tuple[str, Any], list[Result]] = {}
    for row in rows:
        groups.setdefault((str(row.get("model")), row.get("overlap")), []).append(row)
    found = []
    for (model, _), seeds in groups.items():
        merged = {**seeds[0], "label": NAMES.get(model, model)}
        for key in ("perplexity_per_word", "perplexity_per_token", "bits_per_character"):
            values = [value for row in seeds if (value := numbers.finite(row.get(key))) is not None]
            merged[key] = fmean(values) if values else None
            if len(seeds) > 1:
                merged.pop(f"{key}_interval", None)
        found.append(merged)
    return found


def _tiny_positions(result: Result) -> Chart | None:
    names = {"shipped": "shipped", "live": "trained just now"}
    records = [
        {"position": place, "loss": loss, "model": f"{NAMES[kind]}, {names.get(weights, weights)}"}
        for weights, pair in (result.get("loss_by_position") or {}).items()
        for kind in ("recurrent", "plain")
        for place, loss in enumerate(pair.get(kind) or [], start=1)
    ]
    return position_chart(records) if records else None


def _tiny_cost(result: Result) -> Chart | None:
    rows = [row for row in result.get("rows") or [] if row.get("weights") == "shipped" and row.get("model") != "base"]
    order = sorted(rows, key=lambda row: row.get("model") != "recurrent")
    labelled = [{**row, "series": NAMES.get(str(row.get("model")))} for row in order]
    return cost_chart(labelled, str(result.get("unit") or "token"))


def _curves(result: Result) -> Chart | None:
    records = [
        {"training tokens": tokens, "loss": loss, "model": f"{NAMES[kind]}, seed {curve.get('seed')}"}
        for kind in ("recurrent", "plain")
        for curve in (result.get("curves") or {}).get(kind) or []
        for tokens, loss in zip(curve.get("tokens") or [], curve.get("loss") or [], strict=False)
    ]
    if not records:
        return None
    return line_chart(
        records,
        x="training tokens",
        y="loss",
        series="model",
        title="Training loss of the pair trained just now",
        y_title="loss (nats per token)",
        x_format="~s",
        description="Training loss of the pair trained just now.",
    )


# ---- terminal, Markdown, picture -----------------------------------------------------------------------------------


def summary(result: Result, width: int = 88) -> list[str]:
    """The findings as plain lines that fit a terminal."""
    verdict, real = demo_verdict(result), result.get("real") or {}
    lines = textwrap.wrap(f"{verdict.number} ({verdict.interval}). {verdict.sentence}", width)
    if real.get("rows"):
        table = score_table(f"{real.get('model')}, a novel, nothing trained", real["rows"])
        lines += ["", f"{table.caption}:", *("  ".join(row) for row in _padded(table))]
    for sentence in tiny_sentences(result):
        lines += ["", *textwrap.wrap(sentence, width)]
    return lines


def markdown(result: Result) -> str:
    """The verdict and every table that the result has rows for."""
    real = result.get("real") or {}
    tables = [score_table("Five ways to read a novel", real["rows"])] if real.get("rows") else []
    if (gains := gain_table(real.get("gains") or [])) is not None:
        tables.append(gains)
    parts = [demo_verdict(result).sentence, *tiny_sentences(result)]
    return "\n\n".join([*parts, *(_as_markdown(table) for table in [*tables, *demo_tables(result)])]) + "\n"


def _as_markdown(table: Table) -> str:
    lines = [[cell.replace("|", "\\|") for cell in line] for line in _padded(table)]
    rule = ["-" * len(cell) for cell in lines[0]]
    return f"**{table.caption}**\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in [lines[0], rule, *lines[1:]])


def _padded(table: Table) -> list[list[str]]:
    """Every column as wide as its widest cell: words to the left, numbers to the right."""
    lines, words = [table.header, *table.texts], [column.show is None for column in table.titled]
    widths = [max(len(line[column]) for line in lines) for column in range(len(words))]
    return [
        [
            cell.ljust(width) if word else cell.rjust(width)
            for cell, width, word in zip(line, widths, words, strict=True)
        ]
        for line in lines
    ]


def write_demo_picture(result: Result, path: str | Path) -> None:
    """One PNG for a README: perplexity against cost of the real model, and the tiny models' loss by position."""
    charts = [cost_chart(_by_label(result.get("real") or {})) or _tiny_cost(result), _tiny_positions(result)]
    drawn = [chart for chart in charts if chart is not None]
    if not drawn:
        raise UserError(f"There is nothing to draw in {path}: the result has neither losses nor scores.")
    write_picture(drawn, path)
