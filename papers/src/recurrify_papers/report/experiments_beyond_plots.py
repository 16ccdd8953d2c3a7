"""The plots of what goes beyond the papers: memories by cost, gains by tokens, and the first tokens of training."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

from recurrify.pages import numbers
from recurrify.pages.plots import Palette, dress
from recurrify_papers.report.experiments_beyond_rows import PLAIN, MemoryRow, front
from recurrify_papers.report.experiments_data import SPLITS, kind_name, ordered_kinds
from recurrify_papers.report.experiments_plots import LINES, MARKERS, colour, shown

STYLES = {  # colour of the palette, line, marker
    PLAIN: ("plain", "--", "s"),
    "carry": ("recurrent", "-", "o"),
    "tail": ("best", "-", "^"),
    "gated tail": ("best", ":", "v"),
    "lookback": ("best", "--", "*"),
    "memory_tokens": ("xlnet", "-.", "D"),
    "gated memory_tokens": ("xlnet", "--", "p"),
    "summary": ("xlnet", ":", "P"),
    "compress": ("ink", "-", "X"),
    "kv": ("ink", "--", "h"),
    "sliding kv": ("ink", ":", "d"),
}
UNKNOWN = ("ink", ":", ".")
LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 2)))
START_MARKERS = ("o", "s", "^", "v", "D", "P", "X")
TICKS = 6
CORNERS = (("right", "top"), ("left", "bottom"), ("left", "top"), ("right", "bottom"))
"""Where a label may stand, by which of its own sides are next to its point: below memories first, which lie below
plain windows."""
ROOM_FOR_NAMES = 0.1
"""Of the width, left of the cheapest point."""
MARKER_RADIUS = 3.0
"""In points."""


def _below(axes: Axes, palette: Palette, columns: int) -> bool:
    """Legend below everything; the layout makes room for it."""
    axes.figure.legend(
        loc="outside lower center",
        ncols=columns,
        columnspacing=1.2,
        frameon=False,
        labelcolor=palette.ink,
        fontsize=9,
        handlelength=2.6,
    )
    return True


# ---- perplexity against cost -----------------------------------------------------------------------------


def _families(rows: Sequence[MemoryRow]) -> dict[str, list[MemoryRow]]:
    found: dict[str, list[MemoryRow]] = {}
    for row in rows:
        if row.point is not None:
            found.setdefault(_line(row), []).append(row)
    order = list(STYLES)
    kinds = sorted(found, key=lambda kind: (order.index(kind) if kind in order else len(order), kind))
    return {kind: sorted(found[kind], key=lambda row: row.point or ()) for kind in kinds}


def _line(row: MemoryRow) -> str:
    """Points of one mechanism in windows of one length."""
    return f"{row.row.kind}, windows of {row.row.window}" if row.is_longer else row.row.kind


def _size(row: MemoryRow) -> str:
    """What tells a point from others of its line: the overlap, or the size at the end of its name. Overlaps that match
    a memory's cost are too many to be named."""
    if row.matches:
        return ""
    size = row.usual_label.rpartition("-")[2]
    return str(row.row.overlap) if row.row.kind == PLAIN else size if size.isdigit() else row.usual_label


def _colour(row: MemoryRow, palette: Palette) -> str:
    return palette.models.get(STYLES.get(row.row.kind, UNKNOWN)[0], palette.ink)


def _places(rows: Sequence[MemoryRow]) -> tuple[list[float], list[float]]:
    points = [row.point for row in rows if row.point is not None]
    return [flops for flops, _ in points], [perplexity for _, perplexity in points]


def draw_front(axes: Axes, data: tuple[str, Sequence[MemoryRow]], palette: Palette) -> bool:
    """Perplexity against all FLOPs: a line for each mechanism through its sizes, and the Pareto front behind them."""
    corpus, rows = data
    families = _families(rows)
    if not families:
        return False
    best = front(rows)
    axes.step(
        *_places(best),
        where="post",
        color=palette.ink,
        alpha=0.22,
        linewidth=6,
        label="Pareto front",
        zorder=1,
    )
    for kind, own in families.items():
        _, line, marker = STYLES.get(own[0].row.kind, UNKNOWN)
        own_colour = _colour(own[0], palette)
        axes.plot(
            *_places(own),
            line,
            marker=marker,
            color=own_colour,
            markerfacecolor="none" if kind.startswith("gated") or own[0].is_longer else own_colour,
            linewidth=1.2,
            markersize=5,
            label=shown(kind.replace("_", " ")),
        )
    split = SPLITS.get(rows[0].split, rows[0].split)
    dress(
        axes,
        palette,
        f"Perplexity against cost: {shown(corpus)}",
        "FLOPs per token, all counted",
        f"perplexity per word, {split}",
    )
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis, write in ((axes.xaxis, numbers.tick), (axes.yaxis, lambda value: numbers.perplexity(value))):
        axis.set_minor_locator(NullLocator())
        axis.set_major_locator(MaxNLocator(TICKS))
        axis.set_major_formatter(FuncFormatter(lambda value, _, write=write: write(value)))
    axes.margins(x=0.06, y=0.1)
    left, right = axes.get_xlim()
    axes.set_xlim(left * (left / right) ** ROOM_FOR_NAMES, right)
    _below(axes, palette, 4)
    _label_points(axes, families, best, palette)
    return True


def _label_points(
    axes: Axes, families: Mapping[str, Sequence[MemoryRow]], best: Sequence[MemoryRow], palette: Palette
) -> None:
    """The best memory and those on the front by name, and of the others the sizes for which there is room."""
    rows = [row for own in families.values() for row in own]
    named = [row for row in rows if row.row.kind != PLAIN and (row.chosen or row in best)]
    others = [row for row in rows if row not in named and _size(row)]
    others.sort(key=lambda row: row.row.kind == PLAIN)
    figure = axes.figure
    assert isinstance(figure, Figure)
    # Only the layout tells where on the picture points lie.
    figure.draw_without_rendering()
    taken = [_around(axes, place) for place in zip(*_places(rows), strict=True)]
    for row, place in zip([*named, *others], zip(*_places([*named, *others]), strict=True), strict=True):
        label = axes.annotate(
            shown(row.row.label if row in named else _size(row)),
            place,
            xytext=(0, 0),
            textcoords="offset points",
            color=_colour(row, palette),
            fontsize=8.5,
        )
        corners = CORNERS if row.row.kind != PLAIN else (CORNERS[1], CORNERS[0], *CORNERS[2:])
        covered = [_covered(label, corner, axes.bbox, taken) for corner in corners]
        if min(covered) and row not in named:
            label.remove()
        else:
            _stand(label, corners[covered.index(min(covered))])
            taken.append(label.get_window_extent())


def _around(axes: Axes, place: tuple[float, float]) -> Bbox:
    """The box of a point's marker, in pixels."""
    x, y = axes.transData.transform(place)
    radius = MARKER_RADIUS * axes.figure.dpi / 72
    return Bbox.from_extents(x - radius, y - radius, x + radius, y + radius)


def _stand(label: Annotation, corner: tuple[str, str]) -> None:
    across, along = corner
    label.set(ha=across, va=along)
    label.set_position((4 if across == "left" else -4, 3 if along == "bottom" else -3))


def _covered(label: Annotation, corner: tuple[str, str], picture: Bbox, taken: Sequence[Bbox]) -> int:
    """How many things a label would lie on at a corner of its point, the picture's edge among them."""
    _stand(label, corner)
    box = label.get_window_extent()
    is_inside = picture.x0 <= box.x0 and box.x1 <= picture.x1 and picture.y0 <= box.y0 and box.y1 <= picture.y1
    return box.count_overlaps(taken) + (not is_inside)


def describe_front(rows: Sequence[MemoryRow]) -> str:
    told = [
        f"{row.name}: {numbers.perplexity(row.perplexity)} at {numbers.large(row.flops)} FLOPs per token"
        for own in _families(rows).values()
        for row in own
    ]
    names = ", ".join(row.name for row in front(rows))
    return f"Plot of perplexity per word against FLOPs per token. {'; '.join(told)}. On the front: {names}."


# ---- by tokens -------------------------------------------------------------------------------------------


Points = Mapping[str, Sequence[tuple[float, float]]]


def draw_by_tokens(axes: Axes, data: tuple[str, Points], palette: Palette) -> bool:
    """Perplexities, or gains, at the end of runs of different lengths."""
    what, points = data
    known = {kind: points[kind] for kind in ordered_kinds(dict(points)) if points[kind]}
    if not known:
        return False
    for kind, own in known.items():
        axes.plot(
            [tokens for tokens, _ in own],
            [value for _, value in own],
            LINES.get(kind, "-"),
            marker=MARKERS.get(kind, "."),
            color=colour(palette, kind),
            linewidth=1.5,
            markersize=5,
            label=shown(kind_name(kind)),
        )
    ticks = sorted({tokens for own in known.values() for tokens, _ in own})
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(ticks, [numbers.tick(tokens) for tokens in ticks])
    gains = what == "gain"
    title = "Gain over plain by fine-tuning tokens" if gains else "Perplexity by fine-tuning tokens"
    dress(axes, palette, title, "fine-tuning tokens", "gain" if gains else "perplexity per word")
    if gains:
        axes.axhline(0, color=palette.ink, linewidth=0.9)
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{100 * value:g} %"))
    else:
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.perplexity(value)))
    return _below(axes, palette, 3)


def describe_by_tokens(what: str, points: Points) -> str:
    write = numbers.percent if what == "gain" else numbers.perplexity
    told = [
        f"{kind_name(kind)}: {', '.join(f'{write(value)} at {numbers.tick(tokens)}' for tokens, value in own)}"
        for kind, own in points.items()
        if own
    ]
    return f"Line plot of the {what} against fine-tuning tokens. {'; '.join(told)}."


def draw_starts(axes: Axes, data: tuple[str, Points], palette: Palette) -> bool:
    """How far each start is ahead of plain windows at the same number of tokens."""
    title, curves = data
    if not curves:
        return False
    colours = (colour(palette, "carry"), colour(palette, "best"), colour(palette, "xlnet"), palette.ink)
    for number, (name, curve) in enumerate(curves.items()):
        axes.plot(
            [tokens for tokens, _ in curve],
            [lead for _, lead in curve],
            linestyle=LINE_STYLES[number % len(LINE_STYLES)],
            marker=START_MARKERS[number % len(START_MARKERS)],
            color=colours[number % len(colours)],
            linewidth=1.3,
            markersize=4,
            label=shown(name),
        )
    axes.axhline(0, color=palette.ink, linewidth=0.9)
    dress(axes, palette, title, "fine-tuning tokens", "loss below plain's (nats per token)")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: numbers.tick(value)))
    return _below(axes, palette, 2)


def describe_starts(title: str, curves: Mapping[str, Sequence[tuple[float, float]]]) -> str:
    told = [
        f"{name}: {numbers.fixed(curve[0][1], 4)} at first, {numbers.fixed(curve[-1][1], 4)} at the end"
        for name, curve in curves.items()
    ]
    return f"Line plot, {title}: how far the validation loss lies below that of plain windows. {'; '.join(told)}."


def numbered(values: Sequence[Any]) -> list[tuple[float, float]]:
    """Pairs of a list that can be drawn."""
    pairs = [numbers.finite_pair(value) for value in values]
    return [pair for pair in pairs if pair is not None]
