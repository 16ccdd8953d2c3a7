"""What goes beyond the papers about training: how many tokens, what starts fast, and a frozen base."""

from collections.abc import Sequence

import numpy as np

from recurrify.report import numbers
from recurrify.report.experiments_beyond_plots import (
    describe_by_tokens,
    describe_starts,
    draw_by_tokens,
    draw_starts,
    numbered,
)
from recurrify.report.experiments_beyond_rows import PLAIN, MemoryRow, memory_rows
from recurrify.report.experiments_blocks import Block, Bullets, Paragraph, Plot, Plots, TableBlock
from recurrify.report.experiments_data import SPLITS, Experiment, entries, kind_name, ordered_kinds, words
from recurrify.report.experiments_tables import Linker
from recurrify.report.plots import Draw, svg
from recurrify.report.tables import Table

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Of the tokens, at which the table of starts tells losses."""


def _plots(experiment: Experiment, drawn: Sequence[tuple[Draw, tuple[str, object], str, str]]) -> list[Block]:
    plots = [
        Plot(found, description, caption)
        for number, (draw, data, description, caption) in enumerate(drawn)
        if (found := svg(draw, data, f"{experiment.anchor}-{number}", 4.6)) is not None
    ]
    return [Plots(plots)] if plots else []


# ---- how many tokens -------------------------------------------------------------------------------------


def _tokens(row: MemoryRow) -> float:
    return numbers.finite(row.content.get("wanted_tokens")) or 0.0


def _kept(row: MemoryRow) -> str:
    """After how many tokens the weights were taken, and which share of the run that is."""
    kept, length = (numbers.finite(row.content.get(name)) for name in ("kept_tokens", "tokens"))
    if kept is None or not length:
        return numbers.MISSING
    return "all" if kept >= length else f"{numbers.tick(kept)} ({numbers.percent(kept / length)})"


def token_blocks(experiment: Experiment, linker: Linker) -> list[Block]:
    rows = [row for row in memory_rows(experiment) if row.perplexity is not None and _tokens(row) > 0]
    if not rows:
        return []
    kinds = ordered_kinds({row.row.kind for row in rows})
    levels = {kind: [(_tokens(row), row.perplexity or 0.0) for row in rows if row.row.kind == kind] for kind in kinds}
    split = rows[0].split
    gains = {
        kind: [(_tokens(row), row.row.gains[split].relative) for row in rows if row.row.kind == kind and row.row.gains]
        for kind in kinds
        if kind != PLAIN
    }
    caption = (
        "Each point is a run of its own, whose learning rate falls to nothing at its end; it stands at the run's "
        "length, also where the weights that validated best, and were kept, are of an earlier step."
    )
    table = Table(
        f"Perplexity per word, {SPLITS.get(split, split)} split, one seed",
        [
            "model",
            "fine-tuning tokens",
            "weights kept after",
            "perplexity per word",
            "gain over plain at the same tokens",
        ],
        [
            [
                kind_name(row.row.kind),
                numbers.tick(_tokens(row)),
                _kept(row),
                numbers.perplexity(row.perplexity),
                row.gain,
            ]
            for kind in kinds
            for row in rows
            if row.row.kind == kind
        ],
        text_columns=1,
    )
    files = [linker.files(row.row.runs, row.files) for kind in kinds for row in rows if row.row.kind == kind]
    return [
        Bullets([told for kind, own in gains.items() if (told := growth(kind, own))]),
        TableBlock(table, files),
        *_plots(
            experiment,
            [
                (draw_by_tokens, ("perplexity", levels), describe_by_tokens("perplexity", levels), caption),
                (draw_by_tokens, ("gain", gains), describe_by_tokens("gain", gains), caption),
            ],
        ),
    ]


def growth(kind: str, gains: Sequence[tuple[float, float]]) -> str:
    """Whether a gain still grows with more tokens."""
    if not gains:
        return ""
    first, last = min(gains), max(gains)
    if first == last:
        return f"{kind_name(kind)}: {numbers.percent(first[1], signed=True)} after {numbers.tick(first[0])} tokens."
    way = "grows" if last[1] > first[1] else "does not grow"
    return (
        f"{kind_name(kind)}: the gain {way} with tokens, from {numbers.percent(first[1], signed=True)} after "
        f"{numbers.tick(first[0])} to {numbers.percent(last[1], signed=True)} after {numbers.tick(last[0])}."
    )


# ---- what starts fast ------------------------------------------------------------------------------------


def curve(row: MemoryRow) -> list[tuple[float, float]]:
    """Tokens and validation losses."""
    return sorted(numbered(entries(row.content.get("curve"))))


def lead(own: Sequence[tuple[float, float]], plain: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """How far a curve lies below plain's, between whose points the loss is taken to go straight."""
    tokens, losses = zip(*plain, strict=True)
    return [(at, float(np.interp(at, tokens, losses)) - loss) for at, loss in own if at >= tokens[0]]


def start_blocks(experiment: Experiment, linker: Linker) -> list[Block]:
    rows = [row for row in memory_rows(experiment) if curve(row)]
    if not rows:
        return []
    plain = next((curve(row) for row in rows if row.row.kind == PLAIN), None)
    blocks: list[Block] = [
        Paragraph("Constant learning rates after a short warm-up, so that curves compare at every point.", "note"),
        *([Bullets(fastest(rows, plain))] if plain is not None else []),
        TableBlock(start_table(rows), [linker.files(row.row.runs, row.files) for row in rows]),
    ]
    if plain is None:
        return blocks
    caption = "Above 0: better than plain windows after as many tokens. One seed."
    drawn = []
    for kind in ordered_kinds({row.row.kind for row in rows} - {PLAIN}):
        leads = {row.row.label: found for row in rows if row.row.kind == kind and (found := lead(curve(row), plain))}
        title = f"The first tokens: {kind_name(kind)}"
        drawn.append((draw_starts, (title, leads), describe_starts(title, leads), caption))
    return [*blocks, *_plots(experiment, drawn)]


def fastest(rows: Sequence[MemoryRow], plain: Sequence[tuple[float, float]]) -> list[str]:
    """For each kind, which start is furthest ahead early and at the end."""
    told = []
    for kind in ordered_kinds({row.row.kind for row in rows} - {PLAIN}):
        leads = {row.row.label: found for row in rows if row.row.kind == kind and (found := lead(curve(row), plain))}
        if not leads:
            continue
        early = max(leads, key=lambda name: leads[name][0][1])
        late = max(leads, key=lambda name: leads[name][-1][1])
        told.append(
            f"{kind_name(kind)}: furthest ahead of plain windows at the first validation is {early} "
            f"({leads[early][0][1]:+.4f} nats per token), at the end {late} ({leads[late][-1][1]:+.4f})."
        )
    return told


def start_table(rows: Sequence[MemoryRow]) -> Table:
    end = max(curve(row)[-1][0] for row in rows)
    cells = []
    for row in rows:
        tokens, losses = zip(*curve(row), strict=True)
        known = [numbers.fixed(float(np.interp(share * end, tokens, losses)), 4) for share in SHARES]
        cells.append([row.row.label, words(row.content.get("about")), *known, row.gain])
    header = [
        "start",
        "what differs",
        *(f"{numbers.tick(share * end)} tokens" for share in SHARES),
        "gain of the best weights",
    ]
    return Table("Validation loss in nats per token; the gain is of perplexity per word", header, cells, 2)


# ---- a frozen base ---------------------------------------------------------------------------------------


HOW = {
    "base": "nothing: the base as it is",
    "trained": "base and added weights",
    "frozen": "added weights alone",
}


def frozen_blocks(experiment: Experiment, linker: Linker) -> list[Block]:
    rows = [row for row in memory_rows(experiment) if row.perplexity is not None]
    if not rows:
        return []
    header = [
        *("model", "what was trained", "added weights", "kB", "perplexity per word", "gain"),
        *("own memory over another's", "of that remains"),
    ]
    cells = [
        [
            row.row.label,
            "the base" if (how, row.row.kind) == ("trained", PLAIN) else HOW.get(how, how),
            numbers.count(row.content.get("added_parameters")),
            numbers.count(row.content.get("added_kilobytes")),
            numbers.perplexity(row.perplexity),
            row.gain,
            row.by_memory,
            numbers.percent(numbers.finite(row.content.get("remaining"))),
        ]
        for row in rows
        for how in [words(row.content.get("trained"))]
    ]
    split = SPLITS.get(rows[0].split, rows[0].split)
    table = Table(f"Perplexity per word, {split} split, one seed", header, cells, text_columns=2)
    note = (
        "The gain of a trained base is over the same base trained in plain windows, that of a frozen one over the base "
        "as it is. What is added can also learn the manner of a text, as a trained prompt would, not only to remember. "
        "So the same models are scored with every window reading the memory of another document, too: what they gain "
        "with their own over that is memory, and of that is said what remains on a frozen base."
    )
    return [
        Bullets([told for row in rows if (told := remains(row))]),
        Paragraph(note, "note"),
        TableBlock(table, [linker.files(row.row.runs, row.files) for row in rows]),
    ]


def remains(row: MemoryRow) -> str:
    """What is left of a gain when the base is not trained."""
    if words(row.content.get("trained")) != "frozen":
        return ""
    size = f"{numbers.count(row.content.get('added_kilobytes'))} kB"
    share = numbers.finite(row.content.get("remaining"))
    left = "the share that remains cannot be told" if share is None else f"{numbers.percent(share)} of that remains"
    return f"{row.row.label}, {size} of added weights: {row.by_memory} by memory; {left}."
