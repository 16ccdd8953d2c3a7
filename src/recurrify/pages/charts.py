"""Charts as Vega-Lite specifications, made with Altair. A chart names no colours: the page's theme has them."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recurrify.errors import UserError
from recurrify.pages.numbers import finite
from recurrify.pages.page import Chart, themes
from recurrify.results import write_whole

try:
    import altair as alt
except ModuleNotFoundError as error:
    raise UserError(f'Pages need the package {error.name!r}: run `pip install "recurrify[pages]"`.') from error

PICTURE_WIDTH, AXIS_WIDTH = 460, 60
DASHES = [[1, 0], [6, 3], [2, 2], [8, 3, 2, 3], [10, 3]]
"""One fewer than there are colours, so that thirty lines look different."""


def chart(
    spec: alt.Chart | alt.LayerChart | Mapping[str, Any],
    data: Sequence[Mapping[str, Any]] | None = None,
    *,
    title: str,
    description: str = "",
    caption: str = "",
    height: int = 280,
) -> Chart:
    """Any Altair chart or Vega-Lite specification as a block; `data` replaces the data it names."""
    found = dict(spec) if isinstance(spec, Mapping) else spec.to_dict()
    found.pop("config", None)  # the page's theme
    if data is not None:
        found["data"] = {"values": [dict(record) for record in data]}
    datasets: dict[str, Any] = dict(found.pop("datasets", {}))
    for layer in [found, *found.get("layer", [])]:
        values = (layer.get("data") or {}).get("values")
        if values is not None:  # layers that draw the same records share them
            name = next((name for name, known in datasets.items() if known == values), f"{title} {len(datasets) + 1}")
            datasets[name] = values
            layer["data"] = {"name": name}
    spec = {**found, "datasets": datasets, "width": "container", "height": height}
    return Chart(spec, title, description, caption, height)


def line_chart(
    records: Sequence[Mapping[str, Any]],
    *,
    x: str,
    y: str,
    title: str,
    series: str | None = None,
    band: tuple[str, str] | None = None,
    levels: Mapping[str, float] | None = None,
    marks: Mapping[str, float] | None = None,
    tip: str | None = None,
    points: bool = False,
    x_title: str | None = None,
    y_title: str | None = None,
    x_ticks: Sequence[float] | None = None,
    x_scale: str = "linear",
    y_scale: str = "linear",
    x_format: str = ",~r",
    y_format: str = ",~r",
    y_from_zero: bool = False,
    description: str = "",
    caption: str = "",
    height: int = 280,
) -> Chart:
    """Lines with hover: one for each value of `series`, in the order of the records; a point where it has one record.

    Args:
        records: Data points. Those without a finite `x` or `y` are left out.
        x, y, series: Keys of the records.
        band: Keys of an interval's ends, drawn as a shaded band.
        levels: Named horizontal lines, such as chance.
        marks: Named vertical lines.
        tip: Key of a text that heads the tooltip.
        points: Draw points even without hover.
        x_ticks: Where the x axis has ticks, if not chosen by the chart.
        x_scale, y_scale: "linear", "log" or "symlog".
        x_format, y_format: d3 formats of axes and tooltips, such as ".1%" or "~s".
    """
    kept = [dict(one) for one in records if _number(one.get(x)) and _number(one.get(y))]
    names = list(dict.fromkeys(str(one[series]) for one in kept)) if series else []
    ticks = alt.Axis(format=x_format, values=list(x_ticks)) if x_ticks else alt.Axis(format=x_format)
    x_axis = alt.X(x, type="quantitative", title=x_title or x, scale=_scale(x_scale, points), axis=ticks)
    y_axis = alt.Y(
        y,
        type="quantitative",
        title=y_title or y,
        scale=_scale(y_scale, points, zero=y_from_zero),
        axis=alt.Axis(format=y_format),
    )
    tips = [alt.Tooltip(x, type="quantitative", title=x_title or x, format=x_format)]
    tips.append(alt.Tooltip(y, type="quantitative", title=y_title or y, format=y_format))
    for end, name in zip(band or (), ("95 % from", "to"), strict=False):
        tips.append(alt.Tooltip(end, type="quantitative", title=name, format=y_format))
    base = alt.Chart(alt.Data(values=kept)).encode(x=x_axis, y=y_axis)
    single = bool(names) and len(kept) == len(names)
    legend = _legend_above(names, lines=not single)
    if series:
        tips.insert(0, alt.Tooltip(series, type="nominal"))
        base = base.encode(color=alt.Color(series, type="nominal", scale=alt.Scale(domain=names), legend=legend))
    if tip:
        tips.insert(0, alt.Tooltip(tip, type="nominal", title=""))
    layers: list[Any] = []
    if band:
        low, high = (alt.Y(band[0], type="quantitative", title=y_title or y), alt.Y2(band[1]))
        layers.append(base.mark_area(opacity=0.16).encode(y=low, y2=high))
    lines, dots = base.mark_line(), base.mark_point(filled=True, size=100 if single else 55)
    if single:  # differ by more than their colour, as lines do by their dashes
        dots = dots.encode(shape=alt.Shape(series, type="nominal", scale=alt.Scale(domain=names), legend=legend))
    elif series:
        dashes = alt.Scale(domain=names, range=DASHES)
        lines = lines.encode(strokeDash=alt.StrokeDash(series, type="nominal", scale=dashes, legend=legend))
    layers.append(lines)
    hover = alt.selection_point(on="pointerover", nearest=True, empty=False, clear="pointerout")
    seen = alt.condition(hover, alt.value(1.0), alt.value(1.0 if points or single else 0.0))
    layers.append(dots.encode(opacity=seen, tooltip=tips).add_params(hover))
    layers += _rules(levels or {}, "y") + _rules(marks or {}, "x")
    return chart(alt.layer(*layers), title=title, description=description, caption=caption, height=height)


def _legend_above(names: Sequence[str], lines: bool) -> alt.Legend:
    """As many columns as the width of the page has room for."""
    widest = 7 * max(map(len, names), default=0) + 45
    # Not by the signal `width`, which changes after the legend was laid out; a picture has no container.
    space = f"(isFinite(containerSize()[0]) ? containerSize()[0] : {PICTURE_WIDTH}) - {AXIS_WIDTH}"
    return alt.Legend(
        orient="top",
        direction="vertical",
        columns=alt.ExprRef(f"max(1, floor(({space}) / {widest}))"),
        title=None,
        labelLimit=320,
        symbolOpacity=1,
        **({"symbolType": "stroke", "symbolSize": 350} if lines else {"symbolSize": 100}),
    )


def _scale(kind: str, points: bool, zero: bool = False) -> alt.Scale:
    if kind != "linear":
        return alt.Scale(type=kind)
    # Points on an axis would be cut in half.
    return alt.Scale(zero=zero, nice=True, padding=8 if points and not zero else 0)


def _rules(levels: Mapping[str, float], axis: str) -> list[Any]:
    found: list[Any] = []
    for name, value in levels.items():
        data = alt.Chart(alt.Data(values=[{"level": value, "name": name}]))
        place = alt.Y("level:Q") if axis == "y" else alt.X("level:Q")
        found.append(data.mark_rule(strokeDash=[4, 3]).encode(place, tooltip=["name:N", "level:Q"]))
        style = {"align": "right", "dy": -5} if axis == "y" else {"align": "left", "dx": 4, "dy": -4}
        edge = {"x": alt.value("width")} if axis == "y" else {"y": alt.value("height")}
        found.append(data.mark_text(**style).encode(place, text="name:N", **edge))
    return found


def bar_chart(
    records: Sequence[Mapping[str, Any]],
    *,
    x: str,
    y: str,
    title: str,
    interval: tuple[str, str] | None = None,
    x_title: str | None = None,
    x_format: str = ",~r",
    description: str = "",
    caption: str = "",
) -> Chart:
    """Horizontal bars in the order of the records, one per `y`, with whiskers for `interval`."""
    kept = [dict(one) for one in records if _number(one.get(x))]
    order = [str(one[y]) for one in kept]
    shown = [alt.Tooltip(y, type="nominal", title=""), alt.Tooltip(x, type="quantitative", format=x_format)]
    base = alt.Chart(alt.Data(values=kept)).encode(
        y=alt.Y(y, type="nominal", sort=order, title=None, axis=alt.Axis(labelLimit=170, ticks=False, domain=False)),
        x=alt.X(x, type="quantitative", title=x_title or x, axis=alt.Axis(format=x_format)),
        tooltip=shown,
    )
    layers: list[Any] = [base.mark_bar(height={"band": 0.62})]
    if interval:
        low, high = alt.X(interval[0], type="quantitative", title=x_title or x), alt.X2(interval[1])
        layers.append(base.mark_rule(strokeWidth=2).encode(x=low, x2=high))
    return chart(
        alt.layer(*layers), title=title, description=description, caption=caption, height=44 * max(len(kept), 1) + 10
    )


def _number(value: Any) -> bool:
    return finite(value) is not None


def chart_config(theme: Mapping[str, Any]) -> dict[str, Any]:
    """Vega-Lite's configuration for one of the page's themes."""
    ink, muted, grid, series = theme["ink"], theme["muted"], theme["grid"], theme["series"]
    font = "system-ui, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
    return {
        "background": "transparent",
        "font": font,
        "view": {"stroke": None},
        "autosize": {"type": "fit-x", "contains": "padding"},
        "axis": {
            "labelColor": ink,
            "titleColor": ink,
            "titleFontWeight": "normal",
            "gridColor": grid,
            "domainColor": muted,
            "tickColor": muted,
            "labelFontSize": 12,
            "titleFontSize": 12,
            "labelOverlap": True,
        },
        "axisX": {"grid": False, "tickCount": 6},
        "axisY": {"tickCount": 5},
        "legend": {"labelColor": ink, "titleColor": ink, "labelFontSize": 12, "symbolStrokeWidth": 2.5},
        "title": {"color": ink},
        "line": {"strokeWidth": 2},
        "rule": {"color": muted},
        "text": {"color": muted, "fontSize": 11},
        "mark": {"color": series[0]},
        "bar": {"color": series[0]},
        "range": {"category": series},
    }


def write_picture(charts: Sequence[Chart], path: str | Path) -> None:
    """A PNG on white of charts next to each other, for a README or a slide."""
    if not charts:
        raise UserError(f"There is nothing to draw in {path}: the result holds no numbers for a chart.")
    import vl_convert

    panels = [{**one.spec, "width": PICTURE_WIDTH, "height": one.height, "title": one.title} for one in charts]
    # Vega-Lite keeps data and selections at the top; charts alike share a selection.
    datasets: dict[str, Any] = {}
    selections: dict[str, dict[str, Any]] = {}
    for panel in panels:
        datasets |= panel.pop("datasets", {})
        for one in panel.pop("params", []):
            views = selections.get(one["name"], {}).get("views", [])
            selections[one["name"]] = {**one, "views": [*views, *one.get("views", [])]}
    light = themes()["light"]
    spec = {
        "concat": panels,
        "columns": 3,
        "datasets": datasets,
        "params": list(selections.values()),
        "resolve": {"scale": {"color": "independent", "strokeDash": "independent"}},
        "config": {
            **chart_config(light),
            "background": light["paper"],
            "autosize": "pad",
            "title": {"anchor": "start"},
        },
    }
    write_whole(path, vl_convert.vegalite_to_png(spec, scale=2))
