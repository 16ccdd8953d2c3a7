"""One page per experiment from its tidy table alone: the answer, a chart, and the tables."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from recurrify import UserError
from recurrify.pages import (
    Block,
    Chart,
    Column,
    Columns,
    Fold,
    Link,
    Page,
    Table,
    Text,
    Verdict,
    bar_chart,
    line_chart,
    numbers,
    write_page,
    write_picture,
)
from recurrify.results import load_result
from recurrify_papers.experiment import Experiment, Headline, experiments

Record = dict[str, Any]
SHARES = ("gain", "share", "accuracy", "ratio", "extra FLOPs", "twice")
"""Metrics with one of these in their name are shown in percent."""
PLACE = ("label", "dataset", "split", "window", "overlap", "at")
"""The columns that tell rows apart."""
TITLES = {
    "at": "at",
    "full_flops": "all FLOPs per token",
    "flops": "FLOPs per token",
    "perplexity_per_word": "perplexity per word",
}
TINY = "This size only checks that everything works: do not quote these numbers."


def write_report(root: Path, out: Path, name: str | None = None, picture: Path | None = None) -> list[Path]:
    """Write a page for each result below `root`, and an index; returns their paths.

    Raises:
        UserError: There is no result, or none of this name.
    """
    known = experiments()
    found = [load_result(path) for path in sorted(root.glob("*.json")) + sorted(root.glob("*/*.json"))]
    results = [one for one in found if one.get("kind") == "experiment" and name in (None, one["name"])]
    if not results:
        raise UserError(f"There is no result{f' of {name!r}' if name else ''} in {str(root)!r}: run experiments first.")
    order = list(known)
    results.sort(key=lambda one: (one["size"], order.index(one["name"]) if one["name"] in order else len(order)))
    written = []
    lines = []
    for result in results:
        page = experiment_page(result, known.get(result["name"]))
        file = f"{result.get('file') or result['name']}-{result['size']}.html"
        write_page(out / file, page)
        assert isinstance(page.verdict, Verdict)
        lines.append([Link(result["title"], file), page.verdict.sentence, result["source"], result["size"]])
        written.append(out / file)
    table = Table("Experiments", ["experiment", "result", "published in", "size"], lines)
    index = Page("Experiments", Verdict(f"{len(results)} published tables and experiments of ours, run here."), [table])
    write_page(out / "index.html", index)
    if picture is not None:
        charts = [chart for one in results for chart in charts_of(one, known.get(one["name"]))]
        write_picture(charts[:1], picture)
        written.append(picture)
    return [*written, out / "index.html"]


def experiment_page(result: Mapping[str, Any], experiment: Experiment | None) -> Page:
    """The page of one result."""
    rows: list[Record] = list(result["rows"])
    charts = charts_of(result, experiment)
    blocks: list[Block] = []
    if result["size"] == "tiny":
        blocks.append(Text(TINY, kind="warning"))
    if experiment is not None and experiment.text:
        blocks.append(Text(experiment.text))
    if len(charts) > 1:
        blocks.append(Columns(charts[1:]))
    metric = experiment.chart.metric if experiment is not None and experiment.chart is not None else ""
    main = [row for row in rows if row["metric"] == metric] or rows
    if main:
        blocks.append(tidy_table("Results", with_gains(main, rows)))
    if len(main) < len(rows):
        blocks.append(Fold("All numbers", [tidy_table("All numbers", rows)]))
    if result["texts"]:
        columns = list(result["texts"][0])
        blocks.append(Table("Texts", columns, [[one.get(name) for name in columns] for one in result["texts"]]))
    blocks += curve_blocks(result["curves"])
    if result.get("settings"):
        lines = [[one["name"], one["published"], one["ours"]] for one in result["settings"]]
        blocks.append(Fold("Settings", [Table("Settings", ["setting", "published", "ours"], lines)]))
    if result["differences"]:
        listed = [Text(sentence) for sentence in result["differences"]]
        blocks.append(Fold("How this differs from what was published", listed))
    if result["missing"]:
        blocks.append(Text(f"Not finished: {'; '.join(result['missing'][:20])}.", kind="note"))
    blocks.append(Text(f"Published in: {result['source']}.", kind="note"))
    return Page(
        result["title"], verdict_of(rows, experiment), blocks, charts[0] if charts else None, result["provenance"]
    )


# ---- the answer ------------------------------------------------------------------------------------------


def verdict_of(rows: Sequence[Record], experiment: Experiment | None) -> Verdict:
    """Sentences about the rows that the experiment names; the first has the large number."""
    found = [(one, _row(rows, one)) for one in (experiment.headlines if experiment is not None else ())]
    known = [(headline, row) for headline, row in found if row is not None]
    if not known:
        text = experiment.text if experiment is not None else ""
        return Verdict(text or f"{len(rows)} numbers, compared with published values where there are any.")
    sentences = [_sentence(headline, row) for headline, row in known]
    headline, row = known[0]
    show = _shown_in_words(headline)
    interval = "" if row.get("low") is None else f"95 % interval: {show(row['low'])} to {show(row['high'])}"
    facts = [("published", show(row["published"]))] if row.get("published") is not None else []
    if row.get("seeds"):
        facts.append(("seeds", str(row["seeds"])))
    number, measure = show(row["value"]), headline.metric.replace("_", " ")
    if headline.metric == "gain":
        number, measure = f"{show(abs(row['value']))} {'lower' if row['value'] >= 0 else 'higher'}", "perplexity"
    return Verdict(" ".join(sentences), number, f"{measure}: {headline.label}".removesuffix(": "), interval, facts)


def _row(rows: Sequence[Record], headline: Headline) -> Record | None:
    def fits(row: Record) -> bool:
        wanted = {name: getattr(headline, name) for name in ("metric", "split", "dataset", "at")}
        same = all(value is None or row.get(key) == value for key, value in wanted.items())
        return same and headline.label in ("", row["label"]) and not row.get("overlap") and row["value"] is not None

    return next((row for row in rows if fits(row)), None)


def _sentence(headline: Headline, row: Record) -> str:
    show = _shown_in_words(headline)
    value = show(row["value"])
    if row.get("low") is not None:
        noise = ", within noise" if "gain" in row["metric"] and row["low"] <= 0 <= row["high"] else ""
        value += f" (95 % interval {show(row['low'])} to {show(row['high'])}{noise})"
    published = "no number was published" if row.get("published") is None else f"published: {show(row['published'])}"
    return headline.sentence.format(value=value, published=published)


def _shown_in_words(headline: Headline) -> Callable[[float | None], str]:
    return numbers.percent if is_share(headline.metric) else lambda value: numbers.fixed(value, 2)


# ---- tables and charts -----------------------------------------------------------------------------------


def with_gains(main: Iterable[Record], rows: Iterable[Record]) -> list[Record]:
    """Rows of one metric with the gain of the same place as one more column."""
    gains = {tuple(row.get(name) for name in PLACE): row for row in rows if row["metric"] == "gain"}
    found = []
    for row in main:
        gain = gains.get(tuple(row.get(name) for name in PLACE), {})
        found.append({**row, "gain": gain.get("value"), "published gain": gain.get("published")})
    return found


def tidy_table(caption: str, rows: Sequence[Record]) -> Table:
    """The columns that have a value, sortable."""
    shown: dict[str, Column | str] = {
        "label": "row",
        "dataset": "data",
        "split": "split",
        "window": Column("window", numbers.count),
        "overlap": Column("overlap", numbers.count),
        "at": Column("at", numbers.tick),
        "metric": "metric",
        "value": "ours",
        "interval": "95 % interval",
        "gain": Column("gain", numbers.percent),
        "published": "published",
        "published gain": Column("published gain", numbers.percent),
        "spread": Column("± over seeds", lambda value: numbers.fixed(value, 3)),
        "seeds": Column("seeds", numbers.count),
        "flops": Column("FLOPs per token", numbers.large),
        "full_flops": Column("all FLOPs per token", numbers.large),
        "note": "note",
    }
    records = []
    for row in rows:
        show = shown_as(row["metric"])
        interval = None if row.get("low") is None else f"95 % interval: {show(row['low'])} to {show(row['high'])}"
        published = None if row.get("published") is None else show(row["published"])
        value = None if row["value"] is None else show(row["value"])
        metric = str(row["metric"]).replace("_", " ")
        records.append({**row, "value": value, "interval": interval, "published": published, "metric": metric})
    used = {key: column for key, column in shown.items() if any(record.get(key) is not None for record in records)}
    return Table(caption, list(used.values()), [[record.get(key) for key in used] for record in records])


def is_share(metric: str) -> bool:
    """Whether numbers of a metric are shown in percent."""
    return any(word in metric for word in SHARES) and "(" not in metric


def shown_as(metric: str) -> Callable[[float], str]:
    """How numbers of a metric are written."""
    if is_share(metric):
        return numbers.percent
    if metric.startswith("perplexity"):
        return numbers.perplexity
    return lambda value: numbers.fixed(value, 3) if abs(value) < 1000 else numbers.large(value)


def charts_of(result: Mapping[str, Any], experiment: Experiment | None) -> list[Chart]:
    """The chart that the experiment declares, one for each value of its facet."""
    if experiment is None or experiment.chart is None:
        return []
    spec = experiment.chart
    rows = [row for row in result["rows"] if row["value"] is not None and spec.metric in ("", row["metric"])]
    rows = [row for row in rows if spec.split in (None, row.get("split"))]
    facets = dict.fromkeys(row.get(spec.facet) for row in rows) if spec.facet else {None: None}
    title = spec.title or f"{TITLES.get(spec.metric, spec.metric)} against {TITLES.get(spec.x, spec.x)}"
    charts = []
    for facet in facets:
        own = [row for row in rows if spec.facet is None or row.get(spec.facet) == facet]
        own = with_series([row for row in own if row.get(spec.x) is not None], spec.x)
        named = f"{title}: {facet}" if facet else title
        if not own:
            continue
        if isinstance(own[0][spec.x], str):
            interval = ("low", "high") if all(row.get("low") is not None for row in own) else None
            names = [
                {**row, "name": row["label"] if spec.metric else f"{row['metric']}, {row['label']}"} for row in own
            ]
            charts.append(bar_chart(names, x="value", y="name", title=named, interval=interval, x_title=spec.metric))
        else:
            own.sort(key=lambda row: (str(row["series"]), row[spec.x]))
            charts.append(
                line_chart(
                    own,
                    x=spec.x,
                    y="value",
                    series="series",
                    title=named,
                    tip="label",
                    points=True,
                    x_title=TITLES.get(spec.x, spec.x),
                    y_title=TITLES.get(spec.metric, spec.metric),
                    x_scale="log" if spec.log else "linear",
                    x_format="~s" if spec.x != "at" or own[-1]["at"] >= 1 else "~g",
                )
            )
    return charts


def with_series(rows: Sequence[Record], x: str) -> list[Record]:
    """Rows with the line they belong to: a model; windows that overlap have a line for each length."""
    overlapping = {row.get("model") for row in rows if row.get("overlap")}
    lengths = {row.get("window") for row in rows}
    found = []
    for row in rows:
        name = str(row.get("model") or row["label"])
        if name in overlapping and len(lengths) > 1 and x != "window":
            name += f", window {row['window']}"
        if row["label"].endswith("-untrained"):
            name += ", untrained"
        found.append({**row, "series": name})
    return found


def curve_blocks(curves: Sequence[Record]) -> list[Block]:
    """The curves, folded: one chart for each pair of axes."""
    found: list[Block] = []
    for axes in dict.fromkeys((curve["x_label"], curve["y_label"]) for curve in curves):
        own = [curve for curve in curves if (curve["x_label"], curve["y_label"]) == axes]
        points = [
            {"x": x, "y": y, "series": curve["name"]}
            for curve in own
            for x, y in zip(curve["x"], curve["y"], strict=True)
            if y is not None
        ]
        scale = "log" if own[0].get("log") else "linear"
        title = f"{axes[1]} against {axes[0]}"
        chart = line_chart(
            points,
            x="x",
            y="y",
            series="series",
            title=title,
            x_title=axes[0],
            y_title=axes[1],
            x_scale=scale,
            y_scale=scale,
        )
        found.append(Fold(title.capitalize(), [chart]))
    return found
