"""The page of `recurrify evaluate` and `advise`: what reads the text best, by how much, at what cost."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recurrify.pages import numbers
from recurrify.pages.findings import Gain, conclusion, extra_cost
from recurrify.pages.page import Chart, Column, Fold, Listing, Page, Section, Table, Terms, Text, Verdict, write_page

TITLES = {"evaluation": "recurrify evaluate", "advice": "recurrify advise: the best buy for this text"}
TERMS = [
    ("perplexity per token", "exp of the mean loss per token: comparable between models with the same tokenizer."),
    ("perplexity per word", "exp of the loss per whitespace word: comparable between tokenizers."),
    ("bits per character", "the loss in bits, divided by the number of characters."),
    ("FLOPs per token", "all matrix products: body, attention, output head and memory, at this window and overlap."),
    ("overlap", "tokens of the previous window that are read again, as context, at the start of each window."),
    ("gain", "relative drop of perplexity; intervals resample documents, or windows of a single text (paired, 95 %)."),
]
NAMED = (("", "model"), ("against_", "against"))
"""The labels of a gain's two sides, and their names where there are none."""
SCORES = {
    "perplexity_per_token": Column("perplexity per token", numbers.perplexity),
    "perplexity_per_word": Column("perplexity per word", numbers.perplexity),
    "bits_per_character": Column("bits per character", numbers.bits),
    "full_flops_per_token": Column("FLOPs per token", numbers.large),
}


def write_evaluation_page(result: Mapping[str, Any], path: str | Path) -> None:
    """Write the page of an evaluation.

    Args:
        result: `rows` as `evaluate.rows.evaluation_rows` makes them, each with its `model` and optionally a `label`;
            `gains` with `model`, `against`, `relative_gain`, `interval`, `unit` and optionally `against_label`; and
            optionally `documents`, `speed`, `notes`, `provenance`, and of advice `advice` and `command`. The first gain
            is the headline.
        path: The HTML file.
    """
    rows = result.get("rows") or []
    tables = [score_table("Scores", rows)]
    if result.get("gains"):
        tables.append(gain_table(result["gains"]))
    blocks = [
        *([Listing(str(result["command"]), "the command to run next")] if result.get("command") else []),
        *(Text(f"{str(note)[:1].upper()}{str(note)[1:]}", "warning") for note in result.get("notes") or []),
        Section("Scores and cost", tables),
        *(Section("Where in the window", [chart]) for chart in [_by_position(result)] if chart is not None),
        *_speed(result),
        Fold("What the numbers mean", [Terms(TERMS)]),
    ]
    # Readings of one base by their labels; readings of different windows of one kind are one line.
    series = {} if result.get("advice") else {row["role"]: row["label"] for row in rows if row.get("role")}
    chart = cost_chart([{"series": series.get(row.get("role")), **row} for row in rows])
    title = TITLES.get(str(result.get("kind")), TITLES["evaluation"])
    write_page(path, Page(title, evaluation_verdict(result), blocks, chart, result.get("provenance") or {}))


def row_label(row: Mapping[str, Any]) -> str:
    """What a row's model is called, with its windows."""
    if row.get("label"):
        return str(row["label"])
    return _with_overlap(f"{row.get('series') or row.get('model')}, windows of {row.get('window')}", row)


def _with_overlap(name: str, row: Mapping[str, Any]) -> str:
    return f"{name}, overlap {row['overlap']}" if row.get("overlap") else name


def score_table(caption: str, rows: Sequence[Mapping[str, Any]], unit: str = "token") -> Table:
    """Perplexities, bits and FLOPs of each row, with the interval of the perplexity per `unit`."""
    columns: list[str | Column] = ["model", *SCORES.values()]
    columns.append(Column(f"95 % interval, per {unit}", numbers.perplexity_range))
    key = f"perplexity_per_{unit}_interval"
    found = [
        [row_label(row), *(numbers.finite(row.get(name)) for name in SCORES), numbers.finite_pair(row.get(key))]
        for row in rows
    ]
    return Table(caption, columns, found)


def gain_table(gains: Sequence[Mapping[str, Any]]) -> Table:
    """Who is compared with whom, with intervals."""
    found = [(entry, gain) for entry in gains if (gain := Gain.of(entry)) is not None]
    columns: list[str | Column] = ["model", "compared with"]
    columns += [Column("gain", lambda value: numbers.percent(value, signed=True))]
    columns += [Column("95 % interval", lambda ends: numbers.percent_range(ends, signed=True)), "unit", "verdict"]
    rows = [
        [
            str(entry.get("label") or _with_overlap(str(entry["model"]), entry)),
            str(entry.get("against_label") or entry["against"]),
            gain.relative,
            gain.interval,
            f"per {gain.unit}",
            gain.verdict,
        ]
        for entry, gain in found
    ]
    return Table("Gains: relative drop of perplexity", columns, rows)


def cost_chart(rows: Sequence[Mapping[str, Any]], unit: str = "token") -> Chart | None:
    """Perplexity against FLOPs per token: lower and further left is better."""
    records: list[dict[str, Any]] = [
        {
            "FLOPs per token": row.get("full_flops_per_token"),
            "perplexity": row.get(f"perplexity_per_{unit}"),
            "model": str(row.get("series") or row.get("model")),
            "reading": row_label(row),
        }
        for row in rows
    ]
    known = [one for one in records if numbers.finite(one["FLOPs per token"]) and numbers.finite(one["perplexity"])]
    if not known:
        return None
    known.sort(key=lambda one: one["FLOPs per token"])
    said = "; ".join(
        f"{one['reading']}: {numbers.perplexity(one['perplexity'])} at {numbers.large(one['FLOPs per token'])} FLOPs"
        for one in known
    )
    from recurrify.pages.charts import line_chart  # without altair, scores are printed

    return line_chart(
        known,
        x="FLOPs per token",
        y="perplexity",
        series="model",
        title=f"Perplexity per {unit} against cost",
        y_title=f"perplexity per {unit}",
        x_format="~s",
        points=True,
        tip="reading",
        description=f"Perplexity per {unit} against FLOPs per token. {said}.",
        caption="Lower and further left is better.",
    )


def evaluation_verdict(result: Mapping[str, Any]) -> Verdict:
    """The first gain and its cost; without gains, the lowest perplexity."""
    rows = result.get("rows") or []
    for entry in result.get("gains") or []:
        gain = Gain.of(entry)
        if gain is None:
            continue
        mine, theirs = (_row(rows, entry, key) for key in ("model", "against"))
        name, against = (str(entry.get(f"{key}label") or entry.get(other)) for key, other in NAMED)
        facts = [("cost", extra_cost(mine.get("full_flops_per_token"), theirs.get("full_flops_per_token")))]
        for label, row in ((name, mine), (against, theirs)):
            facts.append((f"{gain.measure}, {label}", numbers.perplexity(row.get(gain.measure.replace(" ", "_")))))
        readings = [row for row in rows if row.get("role") not in (None, "memory")]
        subject = name[:1].upper() + name[1:] if entry.get("label") else name
        sentence = conclusion(gain, subject, against, mine, readings)
        if result.get("advice"):
            sentence = " ".join(result["advice"])
        return Verdict(sentence, gain.number, gain.what(against), gain.interval_text, facts, gain.tone)
    if rows:
        best = min(rows, key=lambda row: numbers.finite(row.get("perplexity_per_token")) or float("inf"))
        sentence = f"Perplexity per token of {row_label(best)}" + (", the lowest of all." if len(rows) > 1 else ".")
        ends = numbers.perplexity_range(numbers.finite_pair(best.get("perplexity_per_token_interval")))
        return Verdict(
            sentence, numbers.perplexity(numbers.finite(best.get("perplexity_per_token"))), "", f"95 % interval: {ends}"
        )
    return Verdict("This result holds no scores.")


def _row(rows: Sequence[Mapping[str, Any]], entry: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    named = [row for row in rows if row.get("model") == entry.get(key)]
    label = entry.get("label" if key == "model" else "against_label")
    exact = [row for row in named if row.get("overlap") == entry.get("overlap")]
    labelled = [row for row in rows if label and row.get("label") == label]
    return next(iter([*labelled, *exact, *named]), {})


def _by_position(result: Mapping[str, Any]) -> Chart | None:
    records = []
    for name, evaluations in (result.get("documents") or {}).items():
        for one in evaluations[:1]:
            records += [
                {"position": place, "loss": loss, "model": name}
                for place, loss in enumerate(one.get("loss_by_position") or [], start=1)
            ]
    return position_chart(records) if records else None


def position_chart(records: Sequence[Mapping[str, Any]]) -> Chart:
    """Loss by position in the window; `records` have `position`, `loss` and `model`."""
    ends: dict[str, list[float]] = {}
    for one in records:
        if (loss := numbers.finite(one["loss"])) is not None:
            ends.setdefault(str(one["model"]), []).append(loss)
    said = "; ".join(f"{name}: {found[0]:.2f} at the start, {found[-1]:.2f} at the end" for name, found in ends.items())
    from recurrify.pages.charts import line_chart

    return line_chart(
        records,
        x="position",
        y="loss",
        series="model",
        title="Loss by position in the window",
        x_title="position in the window (log scale)",
        y_title="loss (nats per token)",
        x_scale="log",
        description=f"Loss by position in the window. {said}.",
        caption="The start of a window has little context of its own: this is where memory helps.",
    )


def _speed(result: Mapping[str, Any]) -> list[Section]:
    rows = [
        [name, numbers.finite(found.get("tokens_per_second")), numbers.finite(found.get("peak_bytes"))]
        for name, found in (result.get("speed") or {}).items()
    ]
    columns: list[str | Column] = [
        "model",
        Column("tokens per second", numbers.count),
        Column("GPU memory, bytes", numbers.large),
    ]
    return [Section("Speed", [Table("Speed of scoring", columns, rows)])] if rows else []
