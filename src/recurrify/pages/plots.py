"""What all plots share, and those of a demo: drawn once, as SVG in the colours of the page or as a PNG on white."""

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from recurrify.errors import UserError
from recurrify.pages import numbers
from recurrify.pages.tables import WEIGHTS, WEIGHTS_NAMES, scores, unit
from recurrify.results import write_whole

WIDTH = 5.2
"""Of a plot, in inches."""
PAIR = ("plain", "recurrent")
LINES = {"plain": "--", "recurrent": "-"}
MARKERS = {"plain": "s", "recurrent": "o"}
FAINT = 0.5


@dataclass(frozen=True)
class Palette:
    ink: str
    grid: str
    models: Mapping[str, str]


# Told apart by people with any of the three colour blindnesses, here and in the page's dark theme.
ON_WHITE = Palette(
    ink="#1c2024",
    grid="#d9dce0",
    models={"plain": "#b34700", "recurrent": "#0067a8", "best": "#6d28d9", "xlnet": "#574034"},
)
# Colours no theme uses: each stands for a CSS variable until the SVG is on the page.
PLACEHOLDERS = {
    "#010203": "ink",
    "#010204": "grid",
    "#010205": "plain",
    "#010206": "recurrent",
    "#010207": "best",
    "#010208": "xlnet",
}
ON_PAGE = Palette(
    ink="#010203",
    grid="#010204",
    models={"plain": "#010205", "recurrent": "#010206", "best": "#010207", "xlnet": "#010208"},
)

Draw = Callable[[Axes, Any, Palette], bool]
"""Draws a result, or a part of one, onto axes; False where it has nothing to draw."""


def draw_loss_by_position(axes: Axes, result: Mapping[str, Any], palette: Palette) -> bool:
    """Where in the window the loss falls: the shipped pair, and the live one fainter behind it."""
    found = result.get("loss_by_position") or {}
    shown = [weights for weights in WEIGHTS if found.get(weights)]
    drawn = False
    for weights in shown:
        front = weights == shown[0]
        for model in PAIR:
            known = points(found[weights].get(model))
            if not known:
                continue
            axes.plot(
                [position + 1 for position, _ in known],
                [loss for _, loss in known],
                LINES[model],
                color=palette.models[model],
                alpha=1.0 if front else FAINT,
                linewidth=1.8 if front else 1.2,
                zorder=3 if front else 2,
                label=f"{model}, {weights}",
            )
            drawn = True
    dress(
        axes,
        palette,
        "Loss by position in the window",
        "position in the window (log scale)",
        "loss (nats per token)",
    )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    return drawn and legend(axes, palette)


def points(values: Any) -> list[tuple[int, float]]:
    """The numbers of a list that can be drawn, each with its index."""
    pairs = ((index, numbers.finite(value)) for index, value in enumerate(values or []))
    return [(index, value) for index, value in pairs if value is not None]


def draw_perplexity_by_flops(axes: Axes, result: Mapping[str, Any], palette: Palette) -> bool:
    """What each point of perplexity costs; the live pair stands in only where no shipped one was scored."""
    weights = next((name for name in WEIGHTS if _priced(result, name)), None)
    if weights is None:
        return False
    for model in PAIR:
        priced = [point for point in _priced(result, weights) if point[0] == model]
        axes.plot(
            [flops for _, _, flops, _ in priced],
            [perplexity for _, _, _, perplexity in priced],
            LINES[model],
            marker=MARKERS[model],
            color=palette.models[model],
            linewidth=1.4,
            markersize=5,
            label=f"{model}, {weights}",
        )
        above = model == "plain"  # the two models' labels go to opposite sides, clear of both lines
        for _, overlap, flops, perplexity in priced:
            axes.annotate(
                f"o={overlap}",
                (flops, perplexity),
                xytext=(5, 4) if above else (-5, -4),
                textcoords="offset points",
                ha="left" if above else "right",
                va="bottom" if above else "top",
                color=palette.models[model],
                fontsize=8,
            )
    dress(axes, palette, "Perplexity against cost", "FLOPs per token", f"perplexity per {unit(result)}")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.tick(value)))
    axes.margins(x=0.1, y=0.18)
    return legend(axes, palette)


def _priced(result: Mapping[str, Any], weights: str) -> list[tuple[str, int, float, float]]:
    return [
        (score.model, score.overlap, score.flops, score.perplexity)
        for score in scores(result, weights)
        if score.model in PAIR and score.flops is not None and score.perplexity is not None
    ]


def draw_curves(axes: Axes, result: Mapping[str, Any], palette: Palette) -> bool:
    """Training loss of the live pair, one line a seed."""
    curves = result.get("curves") or {}
    drawn = False
    for model in PAIR:
        label: str | None = model
        for curve in curves.get(model) or []:
            tokens, losses = _paired(curve.get("tokens"), curve.get("loss"))
            if not tokens:
                continue
            axes.plot(tokens, losses, LINES[model], color=palette.models[model], linewidth=1.3, label=label)
            # One entry in the legend for all seeds of a model.
            label = None
            drawn = True
    dress(axes, palette, "Live training, one line per seed", "training tokens", "loss (nats per token)")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.tick(value)))
    return drawn and legend(axes, palette)


def _paired(tokens: Any, losses: Any) -> tuple[list[float], list[float]]:
    pairs = [
        (numbers.finite(token), numbers.finite(loss)) for token, loss in zip(tokens or [], losses or [], strict=False)
    ]
    whole = [(token, loss) for token, loss in pairs if token is not None and loss is not None]
    return [token for token, _ in whole], [loss for _, loss in whole]


def dress(axes: Axes, palette: Palette, title: str, x_label: str, y_label: str) -> None:
    """The title, axes and grid that all plots share."""
    axes.set_title(title, color=palette.ink, fontsize=11, loc="left", fontweight="bold", pad=10)
    axes.set_xlabel(x_label, color=palette.ink)
    axes.set_ylabel(y_label, color=palette.ink)
    axes.tick_params(which="both", colors=palette.ink, length=3)
    axes.grid(color=palette.grid, linewidth=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(palette.ink)


def legend(axes: Axes, palette: Palette) -> bool:
    axes.legend(frameon=False, labelcolor=palette.ink, fontsize=9, handlelength=2.4)
    return True


def svg(draw: Draw, result: Any, name: str, height: float = 3.7, width: float = WIDTH) -> str | None:
    """One plot as an SVG element for an HTML page, its ids made unique by `name`; None without data."""
    with _settings(), warnings.catch_warnings():
        # The page's reader has fonts of their own.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure = Figure(figsize=(width, height), layout="constrained")
        if not draw(figure.add_subplot(), result, ON_PAGE):
            return None
        text = StringIO()
        # Without metadata the file has no date, so the same result gives the same page.
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(text, format="svg", transparent=True, metadata=nothing)
    return _for_page(text.getvalue(), name)


def _settings() -> AbstractContextManager[None]:
    return matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "recurrify", "font.size": 10})


def _for_page(document: str, name: str) -> str:
    element = document[document.index("<svg") :]
    element = re.sub(r'\s(?:xmlns(?::xlink)?|width|height|version)="[^"]*"', "", element, count=5)
    element = re.sub(r'\bid="', f'id="{name}-', element)
    element = re.sub(r'href="#', f'href="#{name}-', element)
    element = re.sub(r"url\(#", f"url(#{name}-", element)
    for colour, variable in PLACEHOLDERS.items():
        element = element.replace(colour, f"var(--{variable})")
    # The figure around it carries the description; the hundreds of shapes inside are not for reading aloud.
    return element.replace("<svg", '<svg aria-hidden="true" focusable="false"', 1)


def write_picture(result: Mapping[str, Any], path: str | Path) -> None:
    """One PNG for a README: loss by position on the left, perplexity against FLOPs on the right."""
    write_panels([draw_loss_by_position, draw_perplexity_by_flops], _leading_pair(result), path)


def write_panels(
    draws: Sequence[Draw], result: Any, path: str | Path, height: float = 3.9, width: float = WIDTH
) -> None:
    """Plots of one result side by side as a PNG on white."""
    with _settings():
        figure = Figure(figsize=(width * len(draws), height), layout="constrained", facecolor="white")
        drawn = []
        for column, draw in enumerate(draws):
            axes = figure.add_subplot(1, len(draws), column + 1)
            drawn.append(draw(axes, result, ON_WHITE))
            if not drawn[-1]:
                axes.set_visible(False)
        if not any(drawn):
            raise UserError(f"There is nothing to draw in {path}: the result has neither losses nor scores.")
        content = BytesIO()
        figure.savefig(content, format="png", dpi=160, metadata={"Software": None})
    write_whole(path, content.getvalue())


def _leading_pair(result: Mapping[str, Any]) -> dict[str, Any]:
    """`result` with the losses of one pair only: the shipped one, or the live one where there is no other."""
    losses = result.get("loss_by_position") or {}
    lead = next((weights for weights in WEIGHTS if losses.get(weights)), None)
    return {**result, "loss_by_position": {} if lead is None else {lead: losses[lead]}}


def describe_loss_by_position(result: Mapping[str, Any]) -> str:
    """The loss plot in words, for who cannot see it."""
    losses = _leading_pair(result)["loss_by_position"]
    sentences = ["Line plot of the loss by position in the window."]
    for weights, pair in losses.items():
        for model in PAIR:
            values = [loss for _, loss in points(pair.get(model))]
            if values:
                name = WEIGHTS_NAMES[weights]
                sentences.append(f"{model}, {name}: {values[0]:.2f} at the start, {values[-1]:.2f} at the end.")
    return " ".join(sentences)


def describe_perplexity_by_flops(result: Mapping[str, Any]) -> str:
    """The cost plot in words."""
    weights = next((name for name in WEIGHTS if _priced(result, name)), WEIGHTS[0])
    told = [
        f"{model}, overlap {overlap}: {numbers.perplexity(perplexity)} at {numbers.large(flops)}"
        for model, overlap, flops, perplexity in _priced(result, weights)
    ]
    return (
        f"Plot of perplexity per {unit(result)} against FLOPs per token, {WEIGHTS_NAMES[weights]}. {'; '.join(told)}."
    )


def describe_curves(result: Mapping[str, Any]) -> str:
    """The training curves in words."""
    ends: list[str] = []
    for model in PAIR:
        for curve in (result.get("curves") or {}).get(model) or []:
            _, losses = _paired(curve.get("tokens"), curve.get("loss"))
            if losses:
                ends.append(f"{model}, seed {curve.get('seed')}: from {losses[0]:.2f} to {losses[-1]:.2f}")
    return f"Line plot of the training loss. {_joined(ends)}"


def _joined(parts: Sequence[str]) -> str:
    return "; ".join(parts) + "." if parts else ""
