"""What goes beyond the papers about training: how many tokens, what starts fast, and a frozen base."""

import math
import statistics
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from recurrify.pages import numbers
from recurrify.pages.plots import Draw, svg
from recurrify.pages.tables import Table
from recurrify_papers.report.experiments_beyond_plots import (
    describe_by_tokens,
    describe_starts,
    draw_by_tokens,
    draw_starts,
    numbered,
)
from recurrify_papers.report.experiments_beyond_rows import PLAIN, MemoryRow, memory_rows, rate_table, told_gain
from recurrify_papers.report.experiments_blocks import Block, Bullets, Fold, Paragraph, Plot, Plots, TableBlock
from recurrify_papers.report.experiments_data import SPLITS, Experiment, Gain, entries, kind_name, ordered_kinds, words
from recurrify_papers.report.experiments_statement import listed
from recurrify_papers.report.experiments_tables import Linker

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


def _rate(row: MemoryRow) -> str:
    """The base's learning rate and, where it was chosen for this length, from which."""
    rate = numbers.finite(row.content.get("learning_rate"))
    if rate is None:
        return numbers.MISSING
    tried = [f"{one:g}" for one, _ in row.rates]
    return f"{rate:g} (of {', '.join(tried)})" if len(tried) > 1 else f"{rate:g}"


def _model(row: MemoryRow) -> str:
    """Its kind, and which mechanism was the best found."""
    kind, name = row.row.kind, row.row.label
    return f"{kind_name(kind)} ({name})" if kind == "best" and name not in ("", kind) else kind_name(kind)


def token_blocks(experiment: Experiment, linker: Linker) -> list[Block]:
    rows = [row for row in memory_rows(experiment) if row.perplexity is not None and _tokens(row) > 0]
    if not rows:
        return []
    kinds = ordered_kinds({row.row.kind for row in rows})
    levels = {kind: [(_tokens(row), row.perplexity or 0.0) for row in rows if row.row.kind == kind] for kind in kinds}
    split = rows[0].split
    gains = {
        kind: [(_tokens(row), row.row.gains[split]) for row in rows if row.row.kind == kind and split in row.row.gains]
        for kind in kinds
        if kind != PLAIN
    }
    drawn = {kind: [(tokens, gain.relative) for tokens, gain in own] for kind, own in gains.items()}
    caption = (
        "Each point is a run of its own, whose learning rate falls to nothing at its end; it stands at the run's "
        "length, also where the weights that validated best, and were kept, are of an earlier step."
    )
    table = Table(
        f"Perplexity per word, {SPLITS.get(split, split)} split",
        [
            "model",
            "fine-tuning tokens",
            "seeds",
            "learning rate",
            "weights kept after",
            "perplexity per word",
            "gain over plain at the same tokens",
        ],
        [
            [
                _model(row),
                numbers.tick(_tokens(row)),
                str(row.row.seeds),
                _rate(row),
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
        *unlike_rates(rows),
        Bullets([told for kind, own in gains.items() if (told := growth(kind, own))]),
        TableBlock(table, files),
        *_plots(
            experiment,
            [
                (draw_by_tokens, ("perplexity", levels), describe_by_tokens("perplexity", levels), caption),
                (draw_by_tokens, ("gain", drawn), describe_by_tokens("gain", drawn), caption),
            ],
        ),
    ]


def growth(kind: str, gains: Sequence[tuple[float, Gain]]) -> str:
    """Whether a gain still grows with more tokens."""
    if not gains:
        return ""
    (few, first), (many, last) = min(gains, key=lambda pair: pair[0]), max(gains, key=lambda pair: pair[0])
    if few == many:
        return f"{kind_name(kind)}: {told_gain(first)} after {numbers.tick(few)} tokens."
    told = f"from {told_gain(first)} after {numbers.tick(few)} to {told_gain(last)} after {numbers.tick(many)}"
    if first.interval is None or last.interval is None or _overlap(first.interval, last.interval):
        return f"{kind_name(kind)}: the gain goes {told} tokens; intervals overlap."
    way = "grows" if last.relative > first.relative else "shrinks"
    return f"{kind_name(kind)}: the gain {way} with tokens, {told}."


def unlike_rates(rows: Sequence[MemoryRow]) -> list[Block]:
    """A word where models that are compared had other learning rates, which nobody chose for that length."""
    lengths = []
    for length in sorted({_tokens(row) for row in rows}):
        beside = [row for row in rows if _tokens(row) == length]
        rates = {numbers.finite(row.content.get("learning_rate")) for row in beside} - {None}
        if len(rates) > 1 and any(len(row.rates) < 2 for row in beside):
            lengths.append(numbers.tick(length))
    if not lengths:
        return []
    told = (
        f"After {listed(lengths)} tokens models had unlike learning rates (in the table), chosen by runs of another "
        "length: a part of what one gains over another may be its rate."
    )
    return [Paragraph(told, "warning")]


def _overlap(one: tuple[float, float], other: tuple[float, float]) -> bool:
    return one[0] <= other[1] and other[0] <= one[1]


# ---- what starts fast ------------------------------------------------------------------------------------


def curves(row: MemoryRow) -> dict[int, list[tuple[float, float]]]:
    """Tokens and validation losses by seed."""
    every = [sorted(numbered(entries(one))) for one in entries(row.content.get("curves"))]
    seeds = entries(row.content.get("seeds"))
    return {seed: one for seed, one in zip(seeds, every, strict=False) if one and isinstance(seed, int)}


def curve(row: MemoryRow) -> list[tuple[float, float]]:
    """The mean over seeds, between whose points a loss is taken to go straight."""
    every = list(curves(row).values())
    return [(at, statistics.mean(_loss_at(at, one) for one in every)) for at, _ in min(every, key=len, default=[])]


def _loss_at(tokens: float, points: Sequence[tuple[float, float]]) -> float:
    known, losses = zip(*points, strict=True)
    return float(np.interp(tokens, known, losses))


def lead(own: Sequence[tuple[float, float]], plain: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """How far a curve lies below plain's, from where both have begun."""
    first = plain[0][0]
    begun = [(first, _loss_at(first, own))] if own[0][0] < first <= own[-1][0] else []
    return [(at, _loss_at(at, plain) - loss) for at, loss in [*begun, *own] if at >= first]


def start_blocks(experiment: Experiment, linker: Linker) -> list[Block]:
    rows = [row for row in memory_rows(experiment) if curve(row)]
    if not rows:
        return []
    plain = next((row for row in rows if row.row.kind == PLAIN), None)
    blocks: list[Block] = [
        Paragraph("Constant learning rates after a short warm-up, so that curves compare at every point.", "note"),
        *([Bullets(fastest(rows, plain))] if plain is not None else []),
        TableBlock(start_table(rows), [linker.files(row.row.runs, row.files) for row in rows]),
    ]
    if plain is None:
        return blocks
    caption = "Above 0: better than plain windows after as many tokens. Means over the seeds that a start has."
    drawn = []
    for kind in ordered_kinds({row.row.kind for row in rows} - {PLAIN}):
        own = [row for row in rows if row.row.kind == kind]
        leads = {row.row.label: found for row in own if (found := lead(curve(row), curve(plain)))}
        title = f"The first tokens: {kind_name(kind)}"
        drawn.append((draw_starts, (title, leads), describe_starts(title, leads), caption))
    return [*blocks, *_plots(experiment, drawn)]


class Lead(NamedTuple):
    """How far a start is ahead of plain windows, seed by seed."""

    name: str
    mean: float
    error: float | None
    """Of the mean; None of one seed."""

    @property
    def told(self) -> str:
        told = numbers.fixed(self.mean, 4, signed=True)
        return told if self.error is None else f"{told} ± {numbers.fixed(self.error, 4)}"

    def is_ahead_of(self, other: "Lead") -> bool:
        """By more than twice the error of the difference, where that is known."""
        if self.error is None or other.error is None:
            return False
        return self.mean - other.mean > 2 * math.hypot(self.error, other.error)


def leads_at(rows: Sequence[MemoryRow], plain: MemoryRow, place: int) -> list[Lead]:
    """At the first validation or at the last, the furthest first; over seeds that all have, for these differ."""
    partners, found = curves(plain), []
    shared = set(partners).intersection(*(curves(row) for row in rows))
    for row in rows:
        both = [lead(own, partners[seed]) for seed, own in curves(row).items() if seed in shared]
        values = [one[place][1] for one in both if one]
        if values:
            error = statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None
            found.append(Lead(row.row.label, statistics.mean(values), error))
    return sorted(found, key=lambda one: -one.mean)


def fastest(rows: Sequence[MemoryRow], plain: MemoryRow) -> list[str]:
    """For each kind, which start is furthest ahead early and at the end, and which cannot be told from it."""
    told = []
    for kind in ordered_kinds({row.row.kind for row in rows} - {PLAIN}):
        own = [row for row in rows if row.row.kind == kind]
        places = {"at the first validation": leads_at(own, plain, 0), "at the end": leads_at(own, plain, -1)}
        for when, (first, *others) in ((when, leads) for when, leads in places.items() if leads):
            alike = [other.name for other in others if not first.is_ahead_of(other)]
            place = "furthest ahead of" if first.mean >= 0 else "least behind"
            furthest = f"{place} plain windows {when} is {first.name} ({first.told} nats per token)"
            told.append(f"{kind_name(kind)}: {furthest}{f', not told apart from {listed(alike)}' if alike else ''}.")
    return told


def start_table(rows: Sequence[MemoryRow]) -> Table:
    end = max(curve(row)[-1][0] for row in rows)
    cells = []
    for row in rows:
        known = [numbers.fixed(_loss_at(share * end, curve(row)), 4) for share in SHARES]
        cells.append([row.row.label, words(row.content.get("about")), str(row.row.seeds), *known, row.gain])
    header = [
        "start",
        "what differs",
        "seeds",
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
    blocks: list[Block] = [
        Bullets([told for row in rows if (told := remains(row))]),
        Paragraph(note, "note"),
        TableBlock(table, [linker.files(row.row.runs, row.files) for row in rows]),
    ]
    rates = rate_table(rows, "added weights on the frozen base")
    return blocks if rates is None else [*blocks, Fold("Learning rates tried", [TableBlock(rates)])]


def remains(row: MemoryRow) -> str:
    """What is left of a gain when the base is not trained."""
    if words(row.content.get("trained")) != "frozen":
        return ""
    size = f"{numbers.count(row.content.get('added_kilobytes'))} kB"
    if row.by_memory == numbers.MISSING:
        return f"{row.row.label}, {size} of added weights: what is gained by memory cannot be told."
    share = numbers.finite(row.content.get("remaining"))
    all_trained = "of what it gains so where all weights are trained"
    left = "which share that is cannot be told" if share is None else f"{numbers.percent(share)} {all_trained}"
    return f"{row.row.label}, {size} of added weights: {row.by_memory} by memory, {left}."
