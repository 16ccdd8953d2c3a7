"""Plots of forecasts: over the truth, error by horizon, and the weights that the recurrence gives to the past."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from recurrify.pages.plots import Palette, dress, legend, points

LINES = ("-", "--", "-.", ":")
COLOURS = ("recurrent", "plain", "best", "xlnet")
WIDTHS = (1.8, 1.2, 0.8)
"""Of the first, second, … head of a kind."""
FAINT = 0.45
"""What was before training."""
KIND_COLOURS = {"regular": "plain", "cosine": "recurrent", "sine": "best"}


def draw_window(axes: Axes, window: Mapping[str, Any], palette: Palette) -> bool:
    """The past, then the truth and the forecast with its interval."""
    past, truth, forecast = (points(window.get(name)) for name in ("past", "truth", "forecast"))
    if not truth or not forecast:
        return False
    begin = 1 - len(past)
    before = [value for _, value in past]
    # The truth starts at the last known value, so that the lines meet.
    after = before[-1:] + [value for _, value in truth]
    axes.plot(range(begin, 1), before, color=palette.ink, linewidth=1.0, label="past")
    axes.plot(
        range(1 - len(before[-1:]), len(truth) + 1), after, color=palette.models["plain"], linewidth=1.6, label="truth"
    )
    steps = [index + 1 for index, _ in forecast]
    blue = palette.models["recurrent"]
    axes.plot(steps, [value for _, value in forecast], "--", color=blue, linewidth=1.6, label="forecast")
    low, high = points(window.get("low")), points(window.get("high"))
    if len(low) == len(high) == len(forecast):
        label = f"{window.get('level', 0):.0%} interval"
        axes.fill_between(
            steps, [v for _, v in low], [v for _, v in high], color=blue, alpha=0.15, linewidth=0, label=label
        )
    dress(axes, palette, f"From {window.get('first_date')}", "steps from the last known row", str(window.get("column")))
    return legend(axes, palette)


def draw_error_by_horizon(axes: Axes, scores: Sequence[Mapping[str, Any]], palette: Palette) -> bool:
    """MSE at each step ahead, one line for each model."""
    drawn = False
    for index, score in enumerate(scores):
        known = points(score.get("mse_by_horizon"))
        if not known:
            continue
        axes.plot(
            [step + 1 for step, _ in known],
            [value for _, value in known],
            LINES[index // len(COLOURS) % len(LINES)],
            color=palette.models[COLOURS[index % len(COLOURS)]],
            linewidth=1.5,
            marker="o" if len(known) == 1 else None,
            label=str(score.get("label") or score.get("model")),
        )
        drawn = True
    dress(axes, palette, "Error by horizon", "steps ahead", "MSE (scaled)")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return drawn and legend(axes, palette)


def draw_weights(axes: Axes, layer: Mapping[str, Any], palette: Palette) -> bool:
    """The weight of each head's recurrence by distance, before the gate; `start` is the layer before training."""
    start = layer.get("start")
    if start:
        _draw_heads(axes, start, palette, before=True)
    drawn = _draw_heads(axes, layer, palette)
    dress(axes, palette, str(layer.get("layer")), "distance (rows back)", "weight")
    if drawn:
        axes.legend(frameon=False, labelcolor=palette.ink, fontsize=7, handlelength=2.4, ncols=2)
    return drawn


def _draw_heads(axes: Axes, layer: Mapping[str, Any], palette: Palette, before: bool = False) -> bool:
    drawn = False
    used: dict[str, int] = {}
    for head in layer.get("heads") or []:
        known = points(head.get("weights"))[1:]
        if not known:
            continue
        kind = str(head.get("kind"))
        width = WIDTHS[used.get(kind, 0) % len(WIDTHS)]
        used[kind] = used.get(kind, 0) + 1
        # A dilated head weighs only every d-th row: the zeros between would hide its shape.
        dilation = int(head.get("dilation") or 1)
        shown = [(distance, value) for distance, value in known if distance % dilation == 0]
        label = kind if dilation == 1 else f"{kind}, dilation {dilation}"
        axes.plot(
            [distance for distance, _ in shown],
            [value for _, value in shown],
            "--" if before else "-",
            color=palette.models[KIND_COLOURS.get(kind, "xlnet")],
            alpha=FAINT if before else 1.0,
            linewidth=width,
            marker="." if dilation > 1 and not before else None,
            markersize=4,
            label="_nolegend_" if before else label,
        )
        drawn = True
    return drawn


def draw_gates(axes: Axes, layers: Sequence[Mapping[str, Any]], palette: Palette) -> bool:
    """The share of the recurrence in each layer, after training and, where it is known, before."""
    known = [layer for layer in layers if isinstance(layer.get("gate"), float)]
    if not known:
        return False
    gates = [(layer.get("start") or {}).get("gate") for layer in known]
    starts = [gate for gate in gates if isinstance(gate, float)]
    paired = len(starts) == len(known)
    width, places = (0.35 if paired else 0.5), range(len(known))
    blue = palette.models["recurrent"]
    if paired:
        left = [place - width / 2 for place in places]
        axes.bar(left, starts, color=blue, alpha=FAINT, width=width, label="at the start")
    right = [place + width / 2 if paired else place for place in places]
    axes.bar(right, [layer["gate"] for layer in known], color=blue, width=width, label="after training")
    axes.set_xticks(list(places), [str(layer.get("layer")) for layer in known])
    dress(axes, palette, "Gate of each layer", "", "share of the recurrence")
    axes.set_ylim(0, 1)
    return legend(axes, palette) if paired else True
