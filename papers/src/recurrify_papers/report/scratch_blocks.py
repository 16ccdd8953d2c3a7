"""Models from scratch side by side: what was found, the final table beside what was published, and the curves."""

import statistics
from collections.abc import Sequence
from dataclasses import replace

from recurrify.pages import numbers
from recurrify.pages.html_parts import Link
from recurrify.pages.plots import Draw, svg
from recurrify.pages.tables import Table
from recurrify_papers.report import scratch_plots as plots
from recurrify_papers.report.experiments_blocks import Block, Bullets, Paragraph, Plot, Plots, TableBlock, Terms
from recurrify_papers.report.experiments_data import Experiment, names, words
from recurrify_papers.report.experiments_statement import listed
from recurrify_papers.report.experiments_tables import Linker
from recurrify_papers.report.scratch_origins import origin_remarks, times_compare
from recurrify_papers.report.scratch_published import CORPORA, SHORT, SYMBOLS, Published, published_on
from recurrify_papers.report.scratch_runs import (
    PARTNERS,
    Group,
    TrainingRun,
    Variant,
    differing,
    grouped,
    traits,
    twins,
)

DRAWINGS: dict[tuple[str, str], Draw] = {
    ("training", "steps"): plots.draw_training_by_step,
    ("training", "time"): plots.draw_training_by_time,
    ("validation", "steps"): plots.draw_validation_by_step,
    ("validation", "time"): plots.draw_validation_by_time,
}
SPELT_IN: dict[str, tuple[str, ...]] = {"character": ("byte",), "token": ("character", "byte")}
"""What a table gives scores by besides, so that those of other symbols compare."""


def scratch_blocks(experiment: Experiment, linker: Linker) -> list[Block]:
    """An experiment whose rows are runs: one group where all compare, as they should."""
    runs = [
        TrainingRun(words(row.get("name")), row, next(iter(linker.files([], names(row.get("files")))), None))
        for row in experiment.raw_rows
    ]
    if not runs:
        return []
    groups = grouped(runs)
    blocks: list[Block] = apart(groups)
    for number, group in enumerate(groups):
        blocks += group_blocks(group, f"{experiment.anchor}-{number}")
    # What the experiment is about, whatever text stands in for it here.
    elsewhere = "" if groups[0].conditions.data == "enwik8" else ": not the text of these runs"
    return [*blocks, *published_blocks("enwik8", elsewhere)]


def apart(groups: Sequence[Group]) -> list[Block]:
    """That some of the runs do not compare with others, and why."""
    if len(groups) < 2:
        return []
    but = ", but for bits per byte, where all of the same text was tested" if _spell_alike(groups) else ""
    return [
        Paragraph(
            f"These runs are of {len(groups)} kinds, told apart below; numbers of one kind say nothing about those of "
            f"another{but}. They differ in {listed(differing(groups))}.",
            "warning",
        )
    ]


def _spell_alike(groups: Sequence[Group]) -> bool:
    """Whether some read the same text in other symbols, all of which spell it whole."""
    whole = [group for group in groups if group.conditions.symbols != SYMBOLS and group.conditions.tested == "all"]
    return any(
        one.unit != other.unit and one.conditions.data == other.conditions.data for one in whole for other in whole
    )


def group_blocks(group: Group, anchor: str) -> list[Block]:
    """What runs of one kind found."""
    blocks: list[Block] = [Bullets(findings(group)), TableBlock(score_table(group), _files(group))]
    blocks += [Paragraph(sentence, "note") for sentence in remarks(group)]
    drawn = [_plot(group, which, along, anchor) for which, along in DRAWINGS]
    return [*blocks, Plots([plot for plot in drawn if plot is not None])]


def _plot(group: Group, which: str, along: str, anchor: str) -> Plot | None:
    if along == "time" and not plots.has_times(group):
        return None
    drawn = svg(DRAWINGS[which, along], group, f"{anchor}-{which}-{along}", plots.height(group))
    if drawn is None:
        return None
    captions = {
        "training": "Each point is the mean since the one before, with dropout.",
        "validation": "On the first symbols of the validation part, without dropout.",
    }
    drawn_levels = which == "validation" and group.published_unit == "symbol" and _is_published(group)
    levels = " Thin lines: published levels within the plot." if drawn_levels else ""
    time = ""
    if along == "time":
        time = " Time of training alone: compiling counts, validating and saving do not."
        time += "" if times_compare(group) else " Not all lines compare: see the notes below the table."
    seeds = " One line for each seed." if any(len(variant.runs) > 1 for variant in group.variants) else ""
    return Plot(drawn, plots.describe_curves(group, which, along), captions[which] + levels + time + seeds)


# ---- sentences -------------------------------------------------------------------------------------------


def findings(group: Group) -> list[str]:
    """Who is best, and what recurrence changed; nothing is claimed of differences that a seed might make."""
    scored = [variant for variant in group.variants if variant.mean("test") is not None]
    if not scored:
        return ["No run of this kind has been scored yet."]
    told = [_against_partner(variant, scored, group.unit) for variant in scored if variant.first.arch in PARTNERS]
    if len(scored) > 1:
        told.append(_lowest(scored, group.unit))
    told += [_against_published(variant, group) for variant in scored]
    return [sentence for sentence in told if sentence]


def _bits(variant: Variant) -> str:
    return numbers.fixed(variant.mean("test"), 4)


def _lowest(scored: Sequence[Variant], unit: str) -> str:
    best, following = sorted(scored, key=lambda variant: variant.mean("test") or 0.0)[:2]
    spreads = [variant.spread("test") for variant in (best, following)]
    gap = (following.mean("test") or 0.0) - (best.mean("test") or 0.0)
    if None in spreads:
        few = "one seed each" if spreads == [None, None] else "one seed of one of them"
        sure = f"{few}, which cannot tell them apart"
    elif gap <= sum(spread or 0.0 for spread in spreads):
        sure = "the spreads of their seeds overlap, and cannot tell them apart"
    else:
        sure = "further off than their seeds spread"
    return (
        f"Lowest on the test part: {best.label} with {_score(best, 'test')} bits per {unit}; next is "
        f"{following.label} with {_score(following, 'test')} ({sure})."
    )


def _against_partner(variant: Variant, scored: Sequence[Variant], unit: str) -> str:
    """The same model without recurrence, all else alike."""
    alike = traits(variant.first, without_recurrence=True)
    partner = next(
        (
            one
            for one in scored
            if one.first.arch == PARTNERS[variant.first.arch] and traits(one.first, without_recurrence=True) == alike
        ),
        None,
    )
    if partner is None:
        return ""
    mine, theirs = variant.scores("test"), partner.scores("test")
    both = [seed for seed in mine if seed in theirs]
    if not both:
        return f"{variant.label} and {partner.label} have no seed in common."
    changes = [mine[seed] - theirs[seed] for seed in both]
    change = statistics.mean(changes)
    if len(both) == 1:
        sure = "one seed, which cannot tell this from chance"
    else:
        lower = sum(one < 0 for one in changes)
        sure = (
            f"{len(both)} seeds, lower in {lower} of them, standard deviation "
            f"{numbers.fixed(statistics.stdev(changes), 4)}"
        )
    direction = "lower" if change < 0 else "higher"
    return (
        f"{variant.label} has {_bits(variant)} bits per {unit} on the test part, {numbers.fixed(abs(change), 4)} "
        f"{direction} than {partner.label} with {_bits(partner)} ({sure})."
    )


def _against_published(variant: Variant, group: Group) -> str:
    known, bits = _published(variant, group)
    unit = group.published_unit
    ours = variant.mean("test", unit)
    if known is None or bits is None or ours is None:
        return ""
    direction = "lower" if ours < bits else "higher"
    spelt = "" if unit == "symbol" else f" bits per {unit}"
    return (
        f"{variant.label}: {numbers.fixed(ours, 3)}{spelt}, {direction} than the reproduction's {bits:g} after "
        f"{known.steps} steps."
    )


def _is_published(group: Group) -> bool:
    return any(bits is not None for _, bits in (_published(variant, group) for variant in group.variants))


def _published(variant: Variant, group: Group) -> tuple[Published | None, float | None]:
    """None also where these runs have no score of the kind: a token's bits say nothing about a character's."""
    corpus = group.conditions.data
    if not group.published_unit or variant.mean("test", group.published_unit) is None:
        return None, None
    known = variant.first.published
    return known, None if known is None else known.bits(corpus)


def remarks(group: Group) -> list[str]:
    """What a reader has to know before comparing."""
    told = twins(group)
    corpus, symbols = group.conditions.data, group.conditions.symbols
    if corpus not in CORPORA:
        told.append("Nothing was published for this text: numbers on enwik8 or text8 cannot be held against these.")
    elif corpus == "enwik8" and symbols != SYMBOLS:
        told.append(
            "Published numbers on enwik8 leave newlines out, with 204 symbols; these runs read "
            f"{symbols.replace('-', ' ')}."
        )
    return [*told, " ".join(origin_remarks(group))]


# ---- tables ----------------------------------------------------------------------------------------------


def score_table(group: Group) -> Table:
    """One row for each model, over its seeds."""
    unit, variants = group.unit, group.variants
    known = [_published(variant, group) for variant in variants]
    spelt = _spelt_columns(group)
    on_gpu = any(run.gpu_bytes is not None for run in group.runs)
    columns = [
        ("model", [variant.label for variant in variants]),
        (f"test, bits per {unit}", [_score(variant, "test") for variant in variants]),
        *spelt,
        ("published", [numbers.MISSING if bits is None else f"{bits:g}" for _, bits in known]),
        ("after steps", [numbers.MISSING if entry is None else entry.steps for entry, _ in known]),
        (f"validation, bits per {unit}", [_score(variant, "validation") for variant in variants]),
        ("seeds", [str(len(variant.runs)) for variant in variants]),
        ("parameters", [numbers.count(variant.first.content.get("parameters")) for variant in variants]),
        (f"{unit}s per second", [_pace(variant) for variant in variants]),
        ("ms per step", [_milliseconds(variant) for variant in variants]),
        ("minutes of training", [_minutes(variant) for variant in variants]),
        (f"peak memory, {'GPU' if on_gpu else 'process'}", [_memory(variant, on_gpu) for variant in variants]),
    ]
    # A column of dashes says nothing that its absence does not.
    kept = [(name, cells) for name, cells in columns if set(cells) != {numbers.MISSING}]
    several = any(len(variant.runs) > 1 for variant in variants)
    over = "mean ± standard deviation over seeds" if several else "one seed"
    cells = [list(line) for line in zip(*(cells for _, cells in kept), strict=True)]
    caption = f"At the end, {over}; {group.conditions.told}{_not_known(group)}"
    return Table(caption, [name for name, _ in kept], cells, text_columns=1)


def short_table(group: Group) -> Table:
    """What a terminal has room for."""
    whole = score_table(group)
    kept = [
        index
        for index, name in enumerate(whole.header)
        if name.startswith(("model", "test", "published", "ms per step", "peak memory"))
    ]
    cells = [[row[index] for index in kept] for row in whole.rows]
    return Table(whole.caption, [whole.header[index] for index in kept], cells, text_columns=1)


def _score(variant: Variant, part: str, per: str = "symbol") -> str:
    mean, spread = variant.mean(part, per), variant.spread(part, per)
    told = numbers.fixed(mean, 4)
    return told if spread is None else f"{told} ± {numbers.fixed(spread, 4)}"


def _spelt_columns(group: Group) -> list[tuple[str, list[str]]]:
    """The test score by what other symbols spell; last by what published ones are of, which stand beside it."""
    units = sorted(SPELT_IN.get(group.unit, ()), key=lambda unit: unit == group.published_unit)
    own = [_score(variant, "test") for variant in group.variants]
    columns = [(unit, [_score(variant, "test", unit) for variant in group.variants]) for unit in units]
    return [(f"test, bits per {unit}", cells) for unit, cells in columns if cells != own]


def _not_known(group: Group) -> str:
    """Why such a column is missing."""
    scored = [variant for variant in group.variants if variant.mean("test") is not None]
    units = [unit for unit in SPELT_IN.get(group.unit, ()) if all(one.mean("test", unit) is None for one in scored)]
    if not units or not scored or group.conditions.tested == "all":
        return ""
    return f", whose bits {' and '.join(f'per {unit}' for unit in units)} are not known"


def _seconds_per_symbol(variant: Variant) -> float | None:
    """All that is said of the speed comes from this one mean: that of rates would contradict that of times."""
    return variant.average(run.seconds_per_symbol for run in variant.runs)


def _pace(variant: Variant) -> str:
    seconds = _seconds_per_symbol(variant)
    return numbers.large(None if seconds is None else 1 / seconds)


def _milliseconds(variant: Variant) -> str:
    seconds, symbols = _seconds_per_symbol(variant), variant.first.symbols_per_step
    if seconds is None or symbols is None:
        return numbers.MISSING
    return f"{1000 * seconds * symbols:#.3g}".rstrip(".")


def _minutes(variant: Variant) -> str:
    seconds = variant.average(run.number("training_seconds") for run in variant.runs)
    return numbers.fixed(None if seconds is None else seconds / 60, 2)


def _memory(variant: Variant, on_gpu: bool) -> str:
    peaks = [run.gpu_bytes if on_gpu else run.process_bytes for run in variant.runs]
    known = [peak for peak in peaks if peak is not None]
    return f"{max(known) / 2**30:.2f} GiB" if known else numbers.MISSING


def published_blocks(corpus: str, remark: str = "") -> list[Block]:
    """Every number with its source."""
    known = published_on(corpus)
    rows = [[entry.model, f"{entry.bits(corpus):g}", entry.steps, SHORT[entry.source]] for entry in known]
    table = Table(f"Published on {corpus}{remark}", ["model", "bits per character", "steps", "source"], rows, 4)
    sources = {SHORT[entry.source]: entry.source for entry in known}
    return [TableBlock(table), Terms(list(sources.items()))]


def _files(group: Group) -> list[list[Link]]:
    links = []
    for variant in group.variants:
        known = [(run.seed, run.link) for run in variant.runs if run.link is not None]
        # The word once and then only numbers, or three seeds would fill a narrow screen.
        links.append(
            [replace(link, text=seed if number else f"seed {seed}") for number, (seed, link) in enumerate(known)]
        )
    return links if any(links) else []
