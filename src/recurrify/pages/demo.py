"""The page that `recurrify demo` writes, and what it prints."""

import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recurrify.pages import numbers
from recurrify.pages.charts import line_chart
from recurrify.pages.evaluation import TERMS, cost_chart, gain_table, position_chart, score_table
from recurrify.pages.findings import Gain, conclusion, extra_cost
from recurrify.pages.inspect import Reader
from recurrify.pages.page import (
    Block,
    Chart,
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
WEIGHTS = {"shipped": "shipped", "live": "trained just now"}
TINY_NOTE = (
    "A tiny model and source code in short windows gain more from the carry than real models do, and a live training "
    "this short can make the base worse, with and without the carry: it shows how training works, no more."
)
Result = Mapping[str, Any]


def write_demo_page(result: Result, path: str | Path) -> None:
    """Write the page of a demo, of which the tiny model's part may be missing."""
    tiny = _tiny(result) if "rows" in result else [Text("The second part, a tiny model, is still running.", "note")]
    blocks = [*_novel(result["real"]), *tiny, Fold("What the numbers mean", [Terms(TERMS)])]
    provenance = {"settings": result.get("settings") or {}, **result["provenance"]}
    chart = cost_chart([{**row, "series": row["label"]} for row in result["real"]["rows"]])
    write_page(path, Page(TITLE, demo_verdict(result), blocks, chart, provenance))


def demo_verdict(result: Result) -> Verdict:
    """The memory compared with plain windows of the same length, and what a sceptic asks next."""
    real = result["real"]
    rows = {row["role"]: row for row in real["rows"]}
    entry, memory = real["gains"][0], rows["memory"]
    gain = Gain.of(entry)
    assert gain is not None
    others = [row for role, row in rows.items() if role != "memory"]
    sentence = conclusion(gain, "The memory", str(entry["against_label"]), memory, others)
    facts = [("model", f"{real['model']}, untrained")]
    plain = rows["windows"]
    extra = extra_cost(memory["full_flops_per_token"], plain["full_flops_per_token"])
    facts.append((f"cost over {plain['label']}", extra))
    # Those of equal cost are in the chart: on a narrow screen it begins below these.
    shown = [row for role, row in rows.items() if role not in ("overlap", "longer window")]
    facts += [(f"perplexity, {row['label']}", numbers.perplexity(row["perplexity_per_token"])) for row in shown]
    interval = f"{gain.interval_text}, in this text"
    return Verdict(sentence, gain.number, gain.what(str(entry["against_label"])), interval, facts, gain.tone)


def _novel(real: Result) -> list[Block]:
    memory = real["memory"]
    about = (
        f"{real['model']} reads {numbers.count(len(real['tokens']['text']))} tokens of a novel ({real['source']}) with "
        f"the memory {real['mechanism']!r}: {numbers.large(memory['state_floats'])} numbers pass from window to "
        f"window, and {numbers.count(memory['added_parameters'])} parameters are added. Nothing is trained. Intervals "
        "resample windows of this one text: on other texts the gain may lie outside them."
    )
    positions = [
        {"position": place, "loss": loss, "model": row["label"]}
        for row in real["rows"]
        for place, loss in enumerate(row.get("loss_by_position") or [], start=1)
    ]
    sample = real["continuation"]
    sides = [("the novel", "truth"), ("plain windows", "plain"), ("with memory", "recurrent")]
    prompt = Listing(sample["prompt_end"], "end of the prompt")
    tables = [score_table("Five ways to read the same tokens", real["rows"]), gain_table(real["gains"])]
    return [
        *([Text(str(real["note"]), "warning")] if real["note"] else []),
        Section("Token by token", [_reader(real)]),
        Section("Where memory helps", [position_chart(positions)]),
        Section(
            "Continuing right after a window border",
            [prompt, Columns([Listing(sample[key], title) for title, key in sides])],
        ),
        Section("All scores", [Text(about), *tables]),
    ]


def _reader(real: Result) -> Reader:
    tokens, window = real["tokens"], int(real["recurrence"]["window"])
    # Plain windows first: the page compares the second reading with the first.
    order = ["windows", "memory", *(key for key in tokens if key not in ("text", "windows", "memory"))]
    count = len(tokens["text"])
    windows = [{"first": first, "stop": min(first + window, count)} for first in range(1, count, window)]
    names = {row["role"]: row["label"] for row in real["rows"]}
    ordered = {key: tokens[key] for key in ("text", *order)}
    return Reader.of({"tokens": ordered, "windows": windows, "slot_attention": None, "names": names})


# ---- the tiny models -----------------------------------------------------------------------------------------------


def _tiny(result: Result) -> list[Block]:
    sentences = [Text(sentence) for sentence in tiny_sentences(result)]
    charts = Columns([_tiny_positions(result), _curves(result)])
    return [Section("A tiny model, fine-tuned", [*sentences, charts, *demo_tables(result)])]


def tiny_sentences(result: Result) -> list[str]:
    """What the shipped pair and the pair trained live show."""
    live = f"trained just now on {numbers.count(result['settings']['live_tokens'])} tokens"
    found = []
    for weights, name in (("shipped", "trained longer, shipped"), ("live", live)):
        entry = next(one for one in result["gains"] if one["weights"] == weights and not one["overlap"])
        if (gain := Gain.of(entry)) is not None:
            sentence = gain.sentence("the paper's carry", "plain windows")
            found.append(f"Tiny model, {name}: {sentence}")
    return [*found, TINY_NOTE]


def demo_tables(result: Result) -> list[Table]:
    """Scores of the tiny models and their gains."""
    unit = result["unit"]
    tables = []
    for weights, name in WEIGHTS.items():
        rows = [{**row, "series": NAMES[row["model"]]} for row in result["rows"] if row["weights"] == weights]
        tables.append(score_table(f"Tiny models, {name}", rows, unit))
    entries = [
        {**one, "unit": unit, "model": f"carry, {WEIGHTS[one['weights']]}", "against": "plain windows, same weights"}
        for one in result["gains"]
    ]
    return [*tables, gain_table(entries)]


def _tiny_positions(result: Result) -> Chart:
    records = [
        {"position": place, "loss": loss, "model": f"{NAMES[kind]}, {WEIGHTS[weights]}"}
        for weights, pair in result["loss_by_position"].items()
        for kind in ("recurrent", "plain")
        for place, loss in enumerate(pair[kind], start=1)
    ]
    return position_chart(records)


def _curves(result: Result) -> Chart:
    records = [
        {"training tokens": tokens, "loss": loss, "model": NAMES[kind]}
        for kind in ("recurrent", "plain")
        for tokens, loss in zip(result["curves"][kind]["tokens"], result["curves"][kind]["loss"], strict=True)
    ]
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


# ---- terminal ------------------------------------------------------------------------------------------------------


def summary(result: Result, width: int = 88) -> list[str]:
    """The findings as plain lines that fit a terminal."""
    verdict, real = demo_verdict(result), result["real"]
    lines = textwrap.wrap(verdict.sentence, width)
    table = [("perplexity", "FLOPs", "")]
    table += [
        (numbers.perplexity(row["perplexity_per_token"]), numbers.large(row["full_flops_per_token"]), row["label"])
        for row in real["rows"]
    ]
    lines += ["", f"{real['model']}, a novel, nothing trained (per token):"]
    lines += [f"{level:>10}  {flops:>7}  {name}".rstrip() for level, flops, name in table]
    for sentence in tiny_sentences(result):
        lines += ["", *textwrap.wrap(sentence, width)]
    return lines
