"""The picture of `real_models`: perplexity against FLOPs for ways to read with one pretrained model."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from recurrify.pages import Chart, chart, write_picture
from recurrify.results import load_result
from recurrify_papers.beyond.real_rows import METRIC

TITLES = {"novels": "Novels", "enwik8": "enwik8", "code": "Python code"}
SERIES = {
    "plain": "plain windows",
    "overlap": "overlapping windows",
    "kv": "kv with 4 sinks",
    "sliding": "sliding window with 4 sinks",
}


def draw(results: Path, out: Path) -> None:
    """Draw perplexity per token against FLOPs per token, a panel for each corpus."""
    corpora = load_result(results / "untrained.json")["corpora"]
    write_picture([panel(title, corpora[name]["rows"]) for name, title in TITLES.items() if name in corpora], out)


def panel(title: str, rows: Sequence[Mapping[str, Any]]) -> Chart:
    """One corpus: the best rows of each series up to the cost of the full context, which is a horizontal rule."""
    full = max((row for row in rows if series_of(row) == "plain"), key=lambda row: row["recurrence"]["window"])
    affordable = [row for row in rows if row["flops_per_token"] <= full["flops_per_token"]]
    points = [
        {"series": label, "flops": row["flops_per_token"], "perplexity": row[METRIC]}
        for series, label in SERIES.items()
        for row in frontier(row for row in affordable if series_of(row) == series)
    ]
    legend = alt.Legend(orient="top-right", title=None, labelLimit=300, labelFontSize=13)
    lines = alt.Chart(alt.Data(values=points)).encode(
        # nice=False: the axis is not extended to powers of ten.
        alt.X("flops:Q", title="FLOPs per token (log scale)", axis=alt.Axis(format="~s")).scale(type="log", nice=False),
        alt.Y("perplexity:Q", title="perplexity per token").scale(zero=False),
        alt.Color("series:N", legend=legend).scale(domain=list(SERIES.values())),
    )
    level = {"level": full[METRIC], "text": f"full context, {full['recurrence']['window']:,} tokens"}
    rule = alt.Chart(alt.Data(values=[level])).encode(alt.Y("level:Q"))
    text = rule.mark_text(align="left", dx=4, dy=-7, fontSize=12).encode(text="text:N", x=alt.value(0))
    layers = (lines.mark_line(), lines.mark_point(filled=True, opacity=1), rule.mark_rule(strokeDash=[4, 3]), text)
    return chart(alt.layer(*layers), title=title, height=340)


def series_of(row: Mapping[str, Any]) -> str | None:
    """The series that a row belongs to; None for memories with another number of sinks."""
    settings = row["recurrence"]
    if settings["mechanism"] == "none":
        return "overlap" if settings["overlap"] else "plain"
    if settings["mechanism"] != "kv" or settings["sinks"] != 4:
        return None
    return "sliding" if settings["sliding"] else "kv"


def frontier(rows: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The rows by cost, without those that cost more and are no better than a cheaper one."""
    kept: list[Mapping[str, Any]] = []
    for row in sorted(rows, key=lambda one: one["flops_per_token"]):
        if not kept or row[METRIC] < kept[-1][METRIC]:
            kept.append(row)
    return kept
