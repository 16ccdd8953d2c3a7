"""The page of forecasts: scores, forecasts over the truth, error by horizon, and what the recurrence learned."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recurrify.pages import html_parts as parts
from recurrify.pages import numbers, plots
from recurrify.pages.tables import Table
from recurrify.results import write_whole
from recurrify_papers.report import forecast_plots

TITLE = "recurrify forecast"
MOST_NAMED = 8
"""Columns that a row names; of more, the first ones and how many there are."""
TERMS = [
    ("MSE, MAE", "mean squared and mean absolute error over all test windows, steps and columns, on scaled values: "
     "each column less its mean, over its spread, both of the training part."),
    ("original", "the same in the units of the file; over columns of different units it says little."),
    ("last-value, seasonal", "repeat the last row, or the last season; what any forecaster should beat."),
    ("interval", "as wide as held that share of the errors on the validation part, by step and column (conformal); how "
     "much of the test part it holds is measured."),
    ("gate", "the share of the recurrence in the output of a layer's heads; the rest is attention."),
    ("a → b", "of gates, λ, γ and θ: at the start of the training and at its end; dashed and pale in the plots."),
    ("λ, γ, θ", "what a head's weights decay by at each step, and the angle by which a cosine or sine turns."),
]  # fmt: skip


def write_forecast_page(results: Sequence[Mapping[str, Any]], path: str | Path) -> None:
    """One page for one evaluated run or several; a part whose data is missing is left out."""
    body = [parts.terms(TERMS), _scores(results), _horizons(results)]
    for number, result in enumerate(results):
        body.append(_run(result, f"run{number}", alone=len(results) == 1))
    write_whole(path, parts.document(TITLE, body, wide=True).encode("utf-8", errors="replace"))


def _name(result: Mapping[str, Any]) -> str:
    return str(result.get("name") or result.get("model"))


def _scores(results: Sequence[Mapping[str, Any]]) -> str:
    header = ["run", "model", "data", "columns", "horizon"]
    header += ["MSE", "MAE", "MSE, original", "MAE, original", "windows"]
    rows = []
    for result in results:
        for score in result.get("scores") or []:
            errors = [numbers.fixed(numbers.finite(score.get(name))) for name in ("mse", "mae")]
            original = [_significant(score.get(name)) for name in ("mse_original", "mae_original")]
            first = [_name(result), str(score.get("model")), _data(result), _columns(result)]
            rows.append(
                [*first, numbers.count(result.get("horizon")), *errors, *original, numbers.count(score.get("windows"))]
            )
    content = [parts.table(Table("Errors on the test part", header, rows, text_columns=4))] if rows else []
    return parts.section("Scores", [*content, _coverage(results)])


def _data(result: Mapping[str, Any]) -> str:
    """The file, and what sets its numbers apart from those of the whole test part of the training's own file."""
    scores = result.get("scores") or [{}]
    marks = [
        mark
        for mark, holds in (
            ("not the training's file", result.get("own_data") is False),
            ("another series", result.get("other_series")),
            ("as published", scores[0].get("as_published")),
        )
        if holds
    ]
    return f"{result.get('data')} ({', '.join(marks)})" if marks else str(result.get("data"))


def _columns(result: Mapping[str, Any]) -> str:
    scores = result.get("scores") or [{}]
    names = [str(name) for name in result.get("columns") or scores[0].get("columns") or []]
    return ", ".join(names) if len(names) <= MOST_NAMED else f"{', '.join(names[: MOST_NAMED - 1])}, … ({len(names)})"


def _significant(value: Any) -> str:
    known = numbers.finite(value)
    return numbers.MISSING if known is None else f"{known:,.4g}"


def _coverage(results: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for result in results:
        for score in result.get("scores") or []:
            for one in score.get("coverage") or []:
                level, held = numbers.finite(one.get("level")), numbers.finite(one.get("held"))
                by_column = one.get("by_column") or {}
                told = [f"{name} {numbers.percent(numbers.finite(share))}" for name, share in by_column.items()]
                rows.append([_name(result), numbers.percent(level), numbers.percent(held), ", ".join(told)])
    header = ["run", "interval", "truth held", "by column"]
    return parts.table(Table("What the intervals hold of the test part", header, rows, text_columns=1)) if rows else ""


def _horizons(results: Sequence[Mapping[str, Any]]) -> str:
    """One line for each run, and each naive forecast once for each set of data, columns and horizon."""
    lines: dict[tuple[str, ...], Mapping[str, Any]] = {}
    same_columns = len({_columns(result) for result in results}) == 1
    for number, result in enumerate(results):
        setting = [_data(result), str(result.get("horizon"))]
        if not same_columns:
            setting.append(_columns(result))
        for index, score in enumerate(result.get("scores") or []):
            label = _name(result) if index == 0 else f"{score.get('model')} ({', '.join(setting)})"
            key = (str(number),) if index == 0 else (label, _columns_key(result))
            lines.setdefault(key, {**score, "label": label})
    svg = plots.svg(forecast_plots.draw_error_by_horizon, list(lines.values()), "horizon")
    if svg is None:
        return ""
    told = [f"{one.get('label')}: {numbers.fixed(numbers.finite(one.get('mse')))}" for one in lines.values()]
    description = f"Line plot of the MSE at each step ahead. Over all steps: {'; '.join(told)}."
    return parts.section("Error by horizon", [parts.figure(svg, description, "Lower is better.")])


def _columns_key(result: Mapping[str, Any]) -> str:
    scores = result.get("scores") or [{}]
    return json.dumps(list(result.get("columns") or scores[0].get("columns") or []))


def _run(result: Mapping[str, Any], anchor: str, alone: bool) -> str:
    figures = []
    for index, window in enumerate(result.get("windows") or []):
        svg = plots.svg(forecast_plots.draw_window, window, f"{anchor}-window{index}")
        if svg is not None:
            span = f"{window.get('first_date')} to {window.get('last_date')}"
            figures.append(
                parts.figure(svg, f"Forecast and truth of {window.get('column')}, {span}.", f"Test part, {span}.")
            )
    name = "" if alone else f": {_name(result)}"
    repairs = [parts.text(repair) for repair in result.get("repairs") or []]
    return "\n".join(
        [
            parts.section(f"Forecasts over the truth{name}", [_grid(figures)]),
            parts.section(f"What the recurrence learned{name}", _recurrence(result, anchor)),
            parts.section(f"Repairs of the data{name}", [parts.bullets(repairs)]),
        ]
    )


def _grid(figures: Sequence[str]) -> str:
    return "\n".join(['<div class="plots">', *figures, "</div>"]) if figures else ""


def _recurrence(result: Mapping[str, Any], anchor: str) -> list[str]:
    starts = {one.get("layer"): one for one in result.get("recurrence_start") or []}
    layers = [layer | {"start": starts.get(layer.get("layer"))} for layer in result.get("recurrence") or []]
    figures = []
    gates = plots.svg(forecast_plots.draw_gates, layers, f"{anchor}-gates")
    if gates is not None:
        told = "; ".join(f"{one.get('layer')}: {_moved(one, one.get('start'), 'gate', 2)}" for one in layers)
        figures.append(parts.figure(gates, f"Bars of the gate of each layer. {told}.", "0 is attention alone."))
    for index, layer in enumerate(layers):
        svg = plots.svg(forecast_plots.draw_weights, layer, f"{anchor}-layer{index}")
        if svg is not None:
            description = f"Weights by distance of the heads of {layer.get('layer')}: see the table."
            caption = "The gate is not in these weights."
            if layer["start"]:
                caption += " Dashed: at the start of the training."
            figures.append(parts.figure(svg, description, caption))
    return [_grid(figures), _heads(layers)]


def _moved(now: Mapping[str, Any], start: Mapping[str, Any] | None, name: str, digits: int = 3) -> str:
    """A number at the end, behind what it was at the start where that is known."""
    end = numbers.fixed(numbers.finite(now.get(name)), digits)
    before = numbers.finite((start or {}).get(name))
    return end if before is None else f"{numbers.fixed(before, digits)} → {end}"


def _heads(layers: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for layer in layers:
        before = layer.get("start") or {}
        heads = layer.get("heads") or []
        starts = before.get("heads") or [None] * len(heads)
        for number, (head, start) in enumerate(zip(heads, starts, strict=False), start=1):
            shape = [_moved(head, start, name) for name in ("lambda", "gamma", "theta")]
            period, gate = _moved(head, start, "period", 1), _moved(layer, before, "gate")
            dilation = numbers.count(head.get("dilation"))
            rows.append([str(layer.get("layer")), f"{number} {head.get('kind')}", dilation, *shape, period, gate])
    header = ["layer", "head", "dilation", "λ", "γ", "θ", "period (rows)", "gate"]
    return parts.table(Table("Heads with recurrence", header, rows, text_columns=2)) if rows else ""
