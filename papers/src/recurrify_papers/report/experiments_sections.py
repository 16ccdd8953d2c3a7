"""One section an experiment: where it comes from, what differs, its tables and plots, what is still missing."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from recurrify.pages.html_parts import Link
from recurrify.pages.plots import Draw, svg
from recurrify_papers.report import experiments_losses as losses
from recurrify_papers.report import experiments_plots as comparisons
from recurrify_papers.report import experiments_tables as tables
from recurrify_papers.report.experiments_beyond import beyond_makers
from recurrify_papers.report.experiments_blocks import (
    Block,
    Bullets,
    Files,
    Fold,
    Paragraph,
    Plot,
    Plots,
    Section,
    Sides,
    TableBlock,
    Terms,
)
from recurrify_papers.report.experiments_complexity import complexity_blocks
from recurrify_papers.report.experiments_cost import cost_blocks
from recurrify_papers.report.experiments_data import (
    SCORED,
    SPLITS,
    Experiment,
    SizeResults,
    entries,
    facts,
    kind_name,
    names,
    ordered_kinds,
    words,
)
from recurrify_papers.report.experiments_lengths import length_blocks
from recurrify_papers.report.experiments_statement import front_finding, listed, window_finding
from recurrify_papers.report.experiments_tables import LinkedTable, Linker
from recurrify_papers.report.scratch_blocks import scratch_blocks

BARS = (
    "Bars: 95 % intervals of the gain over plain windows of the same size and overlap, paired by document and seed; "
    "levels vary far more from document to document, see the table. Points are nudged sideways."
)
TOPIC_SHARES = (
    "Closer, tied and further are shares of all contexts, each continuation against the plain model's of the same "
    "context. p is that of a two-sided sign test on those not tied. The paper does not print the unit of its "
    "divergence."
)
NOT_FOLDED = 2
"""How many samples of continuations are open from the start."""


def experiment_section(results: SizeResults, experiment: Experiment, linker: Linker) -> Section:
    blocks = [*_origin(experiment, linker), *_content(results, experiment, linker), *_missing(experiment)]
    return Section(experiment.title, experiment.anchor, 3, blocks)


def _origin(experiment: Experiment, linker: Linker) -> list[Block]:
    source = words(experiment.content.get("source"))
    blocks: list[Block] = [Paragraph(f"Source: {source}.", "note")] if source else []
    file = Link(experiment.file.name, experiment.file.name, linker.to(experiment.file))
    blocks.append(Files("Numbers:", [file], _made(experiment)))
    differences = names(experiment.content.get("differences"))
    hyperparameters = tables.hyperparameter_table(experiment)
    told: list[str] = []
    inner: list[Block] = []
    if differences:
        told.append("differences")
        inner += [Paragraph("How this differs from what was published:"), Bullets(differences)]
    if hyperparameters is not None:
        differing = f"{tables.differing(hyperparameters)} of {len(hyperparameters.rows)} differ"
        told.append(f"hyperparameters ({differing})")
        inner.append(TableBlock(hyperparameters))
    terms = tables.model_terms(experiment)
    if terms:
        told.append("models")
        inner.append(Terms(terms))
    return [*blocks, Fold(listed(told).capitalize(), inner)] if inner else blocks


def _made(experiment: Experiment) -> str:
    """By which code, on what and when runs were trained and their numbers put together, as far as the file says."""
    provenance = facts(experiment.content.get("provenance"))
    git, machine = facts(provenance.get("git")), facts(provenance.get("machine"))
    told = [_trained(facts(one)) for one in entries(experiment.content.get("trained"))]
    if git.get("commit"):
        told.append(f"put together at commit {_commit(git)}")
    day = words(provenance.get("date_utc"))[:10]
    told += [words(value) for value in (machine.get("gpu") or machine.get("cpu"), day) if value]
    return f"; {', '.join(told)}" if told else ""


def _trained(origin: Mapping[str, Any]) -> str:
    runs = len(entries(origin.get("runs")))
    return f"{runs} run{'' if runs == 1 else 's'} trained at {_commit(origin)} on {words(origin.get('device'))}"


def _commit(git: Mapping[str, Any]) -> str:
    changes = " with uncommitted changes" if git.get("dirty") else ""
    return f"{words(git.get('commit'))[:10] or 'an unknown commit'}{changes}"


def _missing(experiment: Experiment) -> list[Block]:
    return [Paragraph(f"Not run yet: {'; '.join(experiment.missing)}.", "warning")] if experiment.missing else []


def _content(results: SizeResults, experiment: Experiment, linker: Linker) -> list[Block]:
    if experiment.layout in SCORED:
        return _scored(results, experiment, linker)
    makers: dict[str, Callable[[], list[Block]]] = {
        "topics": lambda: _topics(experiment, linker),
        "continuations": lambda: _continuations(experiment),
        "prediction": lambda: _one_table(tables.prediction_table(experiment, linker)),
        "cost": lambda: cost_blocks(experiment, linker, _training(results, experiment)),
        "lengths": lambda: length_blocks(experiment, linker),
        "complexity": lambda: complexity_blocks(experiment),
        "scratch": lambda: scratch_blocks(experiment, linker),
        "learning_rates": lambda: _one_table(tables.learning_rate_table(experiment, linker)),
        **beyond_makers(experiment, linker),
    }
    if experiment.layout not in makers:
        return [Paragraph(f"This report does not know the layout “{experiment.layout}”: see the file.", "warning")]
    return makers[experiment.layout]() or [Paragraph("No results yet.")]


def _one_table(table: LinkedTable | None) -> list[Block]:
    return [] if table is None else [TableBlock(table.table, table.files)]


def _scored(results: SizeResults, experiment: Experiment, linker: Linker) -> list[Block]:
    main = tables.score_table(experiment, experiment.split, linker)
    if main is None:
        return [Paragraph("No results yet.")]
    blocks: list[Block] = []
    if experiment.layout == "windows":
        blocks.append(Paragraph(window_finding(experiment)))
    if experiment.layout == "frontier":
        blocks += [Paragraph(sentence) for sentence in front_finding(experiment)]
    else:
        blocks += _one_table(main)
    blocks += _counted(experiment)
    plots = _plots(results, experiment)
    if plots:
        blocks.append(Plots(plots))
    if experiment.layout == "frontier":
        blocks.append(Fold(f"All {len(main.table.rows)} points as a table", _one_table(main)))
    for split in SPLITS:
        other = None if split == experiment.split else tables.score_table(experiment, split, linker)
        if other is not None:
            blocks.append(Fold(f"The same on the {SPLITS[split]} split", _one_table(other)))
    units = tables.unit_table(experiment)
    if units is not None:
        blocks.append(Fold("In other units, and the cost with everything counted", [TableBlock(units)]))
    return blocks


def _counted(experiment: Experiment) -> list[Block]:
    """What the intervals rest on."""
    told = []
    for split, name in SPLITS.items():
        scores = [facts(facts(row.get("scores")).get(split)) for row in experiment.raw_rows]
        counts = {(one.get("documents"), one.get("tokens")) for one in scores if one.get("documents")}
        if len(counts) == 1:  # every row scores the same tokens
            ((documents, tokens),) = counts
            told.append(f"{name}: {documents:,} documents, {tokens:,} tokens")
    return [Paragraph(f"Scored, {'; '.join(told)}, the same in every row.", "note")] if told else []


def _plots(results: SizeResults, experiment: Experiment) -> list[Plot]:
    if experiment.layout == "perplexity":
        return _kept([*_by_overlap(experiment), *_loss_plots(results, experiment)])
    if experiment.layout == "windows":
        return _kept(_by_window(experiment))
    if experiment.layout == "frontier":
        caption = (
            "Lower and further left is better. Each curve runs over the windows; the grey step is the Pareto front, "
            "and numbers beside its points are window sizes. FLOPs as the paper counts them."
        )
        description = comparisons.describe_frontier(experiment)
        return _kept([_plot(comparisons.draw_frontier, experiment, "front", experiment, description, caption, 4.6)])
    return []


def _kept(plots: Sequence[Plot | None]) -> list[Plot]:
    return [plot for plot in plots if plot is not None]


def _plot(
    draw: Draw, data: Any, name: str, experiment: Experiment, description: str, caption: str, height: float = 3.7
) -> Plot | None:
    drawn = svg(draw, data, f"{experiment.anchor}-{name}", height)
    return None if drawn is None else Plot(drawn, description, caption)


def _by_overlap(experiment: Experiment) -> list[Plot | None]:
    ours = f"Ours. Lower is better. {BARS}"
    if far := comparisons.far_kinds(experiment, "overlap"):
        ours += f" Not drawn, for it would lie far above: {', '.join(far)}."
    published = "As published, on an axis of its own: levels are not comparable across models and texts, shapes are."
    told = [comparisons.describe_lines(experiment, published=flag, axis="overlap") for flag in (False, True)]
    return [
        _plot(comparisons.draw_by_overlap, experiment, "overlap", experiment, told[0], ours),
        _plot(comparisons.draw_published_by_overlap, experiment, "overlap-published", experiment, told[1], published),
    ]


def _by_window(experiment: Experiment) -> list[Plot | None]:
    ours = f"Ours, without overlap. Lower is better. {BARS}"
    if far := comparisons.far_kinds(experiment, "overlap"):
        ours += f" Not drawn, for it would lie far above: {', '.join(far)}."
    published = "As published, on an axis of its own."
    told = [comparisons.describe_lines(experiment, published=flag, axis="window") for flag in (False, True)]
    return [
        _plot(comparisons.draw_by_window, experiment, "window", experiment, told[0], ours),
        _plot(comparisons.draw_published_by_window, experiment, "window-published", experiment, told[1], published),
    ]


def _loss_plots(results: SizeResults, experiment: Experiment) -> list[Plot | None]:
    by_position = (
        "Without overlap, mean over seeds. At its start a window has little context of its own: there memory can help."
    )
    by_window = (
        "Without overlap, mean over seeds. Nothing precedes the first window. Later windows come from longer documents "
        "only, fewer and fewer of them."
    )
    told = [losses.describe_losses(experiment, along) for along in ("position", "window")]
    return [
        _plot(losses.draw_by_position, experiment, "position", experiment, told[0], by_position),
        _plot(losses.draw_by_window_index, experiment, "index", experiment, told[1], by_window),
        _training(results, experiment),
    ]


def _training(results: SizeResults, experiment: Experiment) -> Plot | None:
    curves = losses.training_curves(results, experiment)
    told, caption = losses.describe_training(curves), "Runs without overlap, one line each."
    return _plot(losses.draw_training, curves, "training", experiment, told, caption)


def _topics(experiment: Experiment, linker: Linker) -> list[Block]:
    blocks = _one_table(tables.topic_table(experiment, linker))
    if blocks and any(row.get("closer_share") is not None for row in experiment.raw_rows):
        blocks.append(Paragraph(TOPIC_SHARES, "note"))
    return blocks


def _continuations(experiment: Experiment) -> list[Block]:
    samples: list[Block] = []
    for number, row in enumerate(experiment.raw_rows, start=1):
        title = f"Sample {number}"
        if row.get("topic"):
            title += f", {words(row['topic'])}"
        continuations = facts(row.get("continuations"))
        texts = [
            (kind_name(kind), words(continuations[kind]))
            for kind in ordered_kinds(continuations)
            if continuations[kind] is not None
        ]
        lead = ("context", words(row["context"])) if row.get("context") else None
        samples.append(Sides(title, lead, texts))
    folded = samples[NOT_FOLDED:]
    more = f"{len(folded)} more {'sample' if len(folded) == 1 else 'samples'}"
    return [*samples[:NOT_FOLDED], Fold(more, folded)] if folded else samples
