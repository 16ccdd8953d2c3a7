"""The page of a forecast: the verdict, forecasts with intervals, errors by horizon, and scores."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import altair as alt

from recurrify.pages import Block, Chart, Column, Fold, Page, Table, Terms, Text, Verdict, chart, line_chart, numbers
from recurrify.pages import write_page as write_file

BASELINE = "seasonal"
FEW_WINDOWS = 20
"""Of which one more or less changes an interval much."""
TERMS = (
    ("MSE, MAE", "Mean squared and mean absolute error on values scaled to mean 0 and standard deviation 1."),
    ("MASE", "Mean absolute error divided by that of repeating the last season in the training part; below 1 is good."),
    ("sMAPE", "Absolute error divided by the sum of the absolute values of truth and forecast; 0 to 1."),
    ("CRPS", "Scaled quantile loss of the intervals, divided by the mean absolute value; lower is better."),
    ("coverage", "How much of the truth lay inside the intervals; a 90 % interval should hold 90 %."),
)
MODEL_TERMS = {
    "last-value": "Repeats the last value.",
    "seasonal": "Seasonal naive: repeats the last season. A model that loses to it is of no use.",
    "nlinear": "Linear regression on the differences to the last value.",
    "dlinear": "Linear regression on the trend and the remainder.",
    "median": "Linear regression on the differences over a season, with the least absolute errors.",
    "average": "The mean of nlinear and median.",
    "ets": "Exponential smoothing (AutoETS of statsforecast), fitted to each window.",
    "theta": "The theta method (AutoTheta of statsforecast), fitted to each window.",
    "arima": "ARIMA (AutoARIMA of statsforecast), fitted to each window.",
    "linear": "One linear map of the trend and one of the remainder, trained by gradient descent.",
    "tsmixer": "TSMixer of neuralforecast: a network of dense layers that mix rows and columns.",
    "transformer": "A transformer with encoder and decoder.",
    "informer": "Informer: a transformer that computes its attention for some rows only.",
    "rsa-transformer": "The transformer with recurrence in its self-attention.",
    "rsa-informer": "Informer with recurrence in its self-attention.",
}
UNITS = {"s": "second", "min": "minute", "h": "hour", "D": "day", "B": "business day", "W": "week", "M": "month"}
UNITS |= {"MS": "month", "ME": "month", "QS": "quarter", "QE": "quarter", "YS": "year", "YE": "year"}


def step_words(frequency: str) -> str:
    """A step as pandas writes it (15min, W-SUN) in words."""
    unit = frequency.lstrip("0123456789")
    count = frequency.removesuffix(unit) or "1"
    word = UNITS.get(unit.partition("-")[0])
    return frequency if word is None else f"{count} {word}{'s' * (count != '1')}"


def verdict(result: Mapping[str, Any]) -> str:
    """One sentence: better or worse than seasonal naive in MSE and MAE, and MASE."""
    own, changes = result["scores"][0], [_change(result, name) for name in ("mse", "mae")]
    mase = "" if math.isnan(own["mase"]) else f", MASE {own['mase']:.2f}"
    if any(change is None for change in changes):
        return f"{own['model']}: MSE {own['mse']:.3g}{mase}."
    words = [f"{'better' if change > 0 else 'worse'} by {abs(change):.0%}" for change in changes]
    same = words[0].split()[0] == words[1].split()[0]
    second = words[1].split(" by ")[1] if same else words[1]
    return f"{own['model']} is {words[0]} (MSE) and {second} (MAE) than repeating the last season{mase}."


def coverage(result: Mapping[str, Any]) -> str:
    """How much of the truth each interval holds, and a warning if they rest on few windows."""
    held = ", ".join(f"{one['level']} % interval {one['held']:.1%}" for one in result["scores"][0]["coverage"])
    few = result["calibration_windows"]
    return f"coverage: {held}" + (f"; only {few} validation windows: not reliable" if few < FEW_WINDOWS else "")


def _change(result: Mapping[str, Any], name: str = "mse") -> Any:
    """Relative to seasonal naive, on the windows of both; None if that is the model or makes no error."""
    found = next((row["shared"] for row in result["scores"][1:] if row["model"] == BASELINE), None)
    return None if found is None or not found["other"][name] else 1 - found["chosen"][name] / found["other"][name]


def write_page(result: Mapping[str, Any], path: str | Path) -> None:
    own, change = result["scores"][0], _change(result)
    held = next(one for one in own["coverage"] if one["level"] == 90)
    facts = [("MASE", f"{own['mase']:.2f}"), ("MAE, original units", f"{own['mae_original']:.4g}")]
    facts += [("90 % intervals hold", f"{held['held']:.1%}"), ("windows", f"{own['windows']:,}")]
    answer = Verdict(
        verdict(result),
        number="" if change is None else f"{change:+.0%}".replace("+", "−") if change > 0 else f"+{-change:.0%}",
        what="mean squared error (MSE), compared with repeating the last season",
        facts=facts,
        tone="" if change is None else "better" if change > 0 else "worse",
    )
    blocks: list[Block] = [horizon_chart(result), score_table(result)]
    blocks.append(Terms([(row["model"], MODEL_TERMS[row["model"]]) for row in result["scores"]]))
    if len(result["columns"]) > 1:
        blocks.append(Fold("Scores by column", [column_table(result)]))
    if result["gates"]:
        rows = [[layer, gate] for layer, gate in result["gates"].items()]
        blocks.append(Table("Share of the recurrence (gates)", ["layer", Column("gate", numbers.fixed)], rows))
    blocks += [Text(f"Repaired: {repair}.", "note") for repair in result["repairs"]]
    blocks.append(Text(coverage(result).capitalize() + ".", "note"))
    blocks.append(Fold("What the words mean", [Terms(TERMS)]))
    title = f"Forecast of {result['data']}: {result['horizon']} steps of {step_words(result['frequency'])}"
    write_file(path, Page(title, answer, blocks, forecast_chart(result), result["provenance"]))


def forecast_chart(result: Mapping[str, Any]) -> Chart:
    """Truth, forecast and interval over dates; the series and the forecast are chosen in two menus."""
    records = []
    for window in result["windows"]:
        past = len(window["dates"]) - len(window["forecast"])
        start = window["dates"][past]
        for index, date in enumerate(window["dates"]):
            record = {"series": window["column"], "from": start.removesuffix(" 00:00:00"), "date": date}
            if index < len(window["truth"]):
                record["truth"] = window["truth"][index]
            if index >= past:
                record |= {name: window[name][index - past] for name in ("forecast", "low", "high")}
            records.append(record)
    menus = []
    for name, label in (("series", "Series "), ("from", "Forecast from ")):
        choices = list(dict.fromkeys(record[name] for record in records))
        menu = alt.binding_select(options=choices, name=label)
        first = choices[0] if name == "series" else choices[-1]
        menus.append(alt.selection_point(fields=[name], bind=menu, value=first, name=name))
    base = alt.Chart(alt.Data(values=records)).encode(x=alt.X("date:T", title=None))
    for chosen in menus:
        base = base.transform_filter(chosen)
    scale = alt.Scale(zero=False)
    tips = [alt.Tooltip("date:T", format="%Y-%m-%d %H:%M")]
    tips += [alt.Tooltip(f"{name}:Q", format=",.4~g") for name in ("truth", "forecast", "low", "high")]
    legend = alt.Legend(title=None, orient="top")
    names = alt.Color("what:N", scale=alt.Scale(domain=["forecast", "truth"]), legend=legend)
    hover = alt.selection_point(on="pointerover", nearest=True, empty=False, clear="pointerout", encodings=["x"])
    seen = alt.condition(hover, alt.value(1.0), alt.value(0.0))
    layers = [
        base.mark_area(opacity=0.18).encode(y=alt.Y("low:Q", title=None, scale=scale), y2="high:Q"),
        base.transform_fold(["truth", "forecast"], as_=["what", "value"])
        .mark_line()
        .encode(y=alt.Y("value:Q", title=None, scale=scale), color=names),
        base.mark_point(size=60, filled=True).encode(y="truth:Q", tooltip=tips, opacity=seen).add_params(hover),
    ]
    return chart(
        alt.layer(*layers).add_params(*menus).to_dict(),
        title="Forecasts",
        description="Truth and forecast over dates, with the 90 % interval as a band.",
        caption="The band is the 90 % interval; the last forecast begins where the file ends. Point at a date for its "
        "values.",
        height=300,
    )


def horizon_chart(result: Mapping[str, Any]) -> Chart:
    own, *others = result["scores"]
    most = 2 * max([own["mse"], *(row["mse"] for row in others if row["model"] == BASELINE)])
    records = [
        {"step": step, "MSE": error, "model": row["model"]}
        for row in result["scores"]
        if row["mse"] <= most
        for step, error in enumerate(row["mse_by_horizon"], start=1)
    ]
    return line_chart(
        records,
        x="step",
        y="MSE",
        series="model",
        title="Error by number of steps ahead",
        x_title=f"steps ahead, each {step_words(result['frequency'])}",
        y_title="mean squared error (MSE)",
        y_from_zero=True,
        caption="The mean over the windows of each model; lower is better. Models with more than twice the error of "
        "the chosen one and of repeating the last season are left out.",
    )


SCORES = {
    "mse": "MSE",
    "mae": "MAE",
    "mase": "MASE",
    "smape": "sMAPE",
    "crps": "CRPS",
    "mae_original": "MAE, original units",
}


def score_table(result: Mapping[str, Any]) -> Table:
    rows = [[row["model"], *(row.get(name) for name in SCORES), row["windows"]] for row in result["scores"]]
    title = f"Test part, {result['first_date']} to {result['last_date']}"
    return Table(title, ["model", *_score_columns(), Column("windows", lambda value: f"{value:,}")], rows)


def column_table(result: Mapping[str, Any]) -> Table:
    own = result["scores"][0]
    held = next(one for one in own["coverage"] if one["level"] == 90)["by_column"]
    rows = [[name, *(found.get(score) for score in SCORES), held[name]] for name, found in own["columns"].items()]
    columns: list[str | Column] = ["column", *_score_columns(), Column("90 % hold", lambda value: f"{value:.1%}")]
    return Table(f"{own['model']} by column", columns, rows)


def _score_columns() -> list[Column]:
    return [Column(title, lambda value: f"{value:,.4g}") for title in SCORES.values()]
