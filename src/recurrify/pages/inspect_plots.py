"""The plots of an inspected text: attention on what was carried, gradients to earlier windows, the memory's size."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.ticker import FuncFormatter, MaxNLocator

from recurrify.pages import numbers
from recurrify.pages.plots import Palette, dress, legend

COLUMNS = 64
"""A map has at most so many columns: more cannot be told apart, and make the page heavy."""


def draw_attention(axes: Axes, attention: Mapping[str, Any], palette: Palette) -> bool:
    """The mean over layers by position, beside what evenly spread attention would give."""
    measured = mean_by_position(attention["mass"])
    if not measured:
        return False
    places = [position + 1 for position, _ in measured]
    axes.plot(
        places, [mass for _, mass in measured], color=palette.models["recurrent"], linewidth=1.8, label="measured"
    )
    even = [even_share(attention["slots"], place) for place in places]
    axes.plot(places, even, "--", color=palette.ink, linewidth=1.2, label="if attention were even")
    dress(axes, palette, "Attention on the slots", "position in the window", "share of attention")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return legend(axes, palette)


def draw_attention_map(axes: Axes, attention: Mapping[str, Any], palette: Palette) -> bool:
    """By layer and position: the darker (on a dark page, the brighter), the more."""
    layers = attention["layers"]
    places, values = columns_of(attention["mass"])
    if len(layers) < 2 or not places:
        return False
    colour = to_rgb(palette.models["recurrent"])
    shades = LinearSegmentedColormap.from_list("slots", [(*colour, 0.0), (*colour, 1.0)], N=24)
    top = max(max(row) for row in values) or 1.0
    edges = [row + 0.5 for row in range(len(layers) + 1)]
    mesh = axes.pcolormesh(places, edges, values, cmap=shades, vmin=0, vmax=top, linewidth=0, antialiased=False)
    dress(axes, palette, "Attention on the slots, layer by layer", "position in the window", "layer")
    axes.grid(visible=False)
    shown = range(0, len(layers), max(1, len(layers) // 8))
    axes.set_yticks([row + 1 for row in shown], [str(layers[row]) for row in shown])
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    bar = axes.figure.colorbar(mesh, ax=axes, format=FuncFormatter(lambda value, _: f"{100 * value:.3g} %"))
    bar.ax.tick_params(colors=palette.ink, length=3)
    bar.outline.set_edgecolor(palette.grid)
    return True


def draw_gradients(axes: Axes, gradients: Mapping[str, Any], palette: Palette) -> bool:
    """Each window's profile faint, their mean in front; what is exactly 0 has no place on a log scale."""
    rows = gradients["norms"]
    colour = palette.models["recurrent"]
    for row in rows:
        _line(axes, row, color=colour, alpha=0.25, linewidth=0.8)
    if not _line(axes, gradients["mean"], marker="o", color=colour, linewidth=1.8, markersize=5):
        return False
    dress(
        axes, palette, "What a window's loss depends on", "windows back (0: the window itself)", "norm of the gradient"
    )
    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(9, integer=True))
    axes.set_xlim(-0.3, max(len(gradients["mean"]) - 1, 1) + 0.3)
    return True


def _line(axes: Axes, values: Sequence[float], **style: Any) -> bool:
    drawn = [(back, value) for back, value in enumerate(values) if value]
    if drawn:
        axes.plot([back for back, _ in drawn], [value for _, value in drawn], **style)
    return bool(drawn)


def draw_states(axes: Axes, states: Mapping[str, Any], palette: Palette) -> bool:
    norms, changes = states["norm"], states["change"]
    if not norms:
        return False
    windows = range(1, len(norms) + 1)
    axes.plot(windows, norms, color=palette.models["recurrent"], linewidth=1.8, label="memory")
    known = [(window, change) for window, change in zip(windows, changes, strict=True) if change is not None]
    if known:
        places, values = zip(*known, strict=True)
        axes.plot(places, values, "--", color=palette.models["plain"], linewidth=1.4, label="change since the last")
    dress(axes, palette, "The memory, window by window", "after window", "norm")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return legend(axes, palette)


def mean_by_position(mass: Sequence[Sequence[Any]]) -> list[tuple[int, float]]:
    """The mean over layers of each position that has numbers."""
    return [
        (position, fmean(column))
        for position, column in enumerate(zip(*mass, strict=True))
        if all(numbers.finite(value) is not None for value in column)
    ]


def even_share(slots: Sequence[int], seen: int) -> float:
    """What a token that sees `seen` of its window, itself included, would give the slots: the mean over layers."""
    return fmean(count / (count + seen) for count in slots)


def columns_of(mass: Sequence[Sequence[Any]]) -> tuple[list[float], list[list[float]]]:
    """The map's columns: their edges, and each layer's mean over the positions of each."""
    known = [position for position, _ in mean_by_position(mass)]
    size = max(1, -(-len(known) // COLUMNS))
    groups = [known[first : first + size] for first in range(0, len(known), size)]
    edges = [group[0] + 0.5 for group in groups] + [group[-1] + 1.5 for group in groups[-1:]]
    return edges, [[fmean(row[position] for position in group) for group in groups] for row in mass]
