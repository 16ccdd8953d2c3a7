"""Every published result by name: what has to be run for it, and how its rows come about.

An `Experiment` is two small functions: `units` names the fine-tunings and scores it needs (shared with others, run
once), `rows` makes its table out of what is there. `recurrify experiment list` prints this file's register.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from recurrify.errors import UserError
from recurrify_papers.experiments import published
from recurrify_papers.experiments.lab import CHOICE, Lab
from recurrify_papers.experiments.published import PAPER
from recurrify_papers.experiments.rows import Table, perplexity_row
from recurrify_papers.experiments.unit import Unit

KINDS = ("plain", "carry", "best")
SLIDES = "Lecture slides, RNNs (using LSTMs and GRUs) vs. transformers"
Rows = list[dict[str, Any]]


class Stage(IntEnum):
    """What experiments build on; each stage needs those before it."""

    NOTHING = 0
    BASE = 1
    """The size's pretrained model."""
    RATES = 2
    """The chosen learning rates."""
    BEST = 3
    """The best mechanism, where the size lets it be chosen."""


@dataclass(frozen=True)
class Experiment:
    name: str
    title: str
    source: str
    """What was published where."""
    layout: str
    """How a report shows the rows."""
    units: Callable[[Lab], list[Unit]]
    rows: Callable[[Lab], tuple[Rows, list[str]]]
    """The rows, and the names of those that are missing."""
    after: Stage = Stage.BEST
    """What has to be there before it can run."""
    differences: Callable[[Lab], Sequence[str]] = lambda lab: lab.size.differences
    """How it differs from what was published."""
    one_recipe: bool = True
    """Whether its runs share settings that can be told beside the published ones."""
    alone: bool = False
    """Whether making the rows takes a device to itself, and time."""
    keeps_runs: bool = False
    """Whether rows that are made so keep runs of their own, and look for those that are missing."""
    later: str | None = None
    """Why it is not run from here."""


EXPERIMENTS: dict[str, Experiment] = {}


def register(experiment: Experiment) -> Experiment:
    EXPERIMENTS[experiment.name] = experiment
    return experiment


def experiment_named(name: str) -> Experiment:
    if name not in EXPERIMENTS:
        raise UserError(f"There is no experiment {name!r}: known are {', '.join(EXPERIMENTS)}.")
    found = EXPERIMENTS[name]
    if found.later is not None:
        raise UserError(f"{name} is not run from here: {found.later}.")
    return found


# ---- learning rates --------------------------------------------------------------------------------------


def tuning_unit(lab: Lab, kind: str, rate: float) -> Unit:
    """As in the paper, rates are chosen on wiki text and used for books too."""
    shorter: dict[str, Any] = {} if lab.size.tuning_tokens is None else {"max_tokens": lab.size.tuning_tokens}
    unit = lab.unit("wiki", kind, learning_rate=rate, recurrence=lab.size.recurrence(kind), **shorter)
    return unit.with_scores([lab.wanted("valid", 0)])


def tuning_units(lab: Lab) -> list[Unit]:
    return [tuning_unit(lab, kind, rate) for rate in lab.size.candidates for kind in KINDS]


def tuning_rows(lab: Lab) -> tuple[Rows, list[str]]:
    rows: Rows = []
    missing = []
    for kind in KINDS:
        tried: Rows = []
        for rate in lab.size.candidates:
            unit = tuning_unit(lab, kind, rate)
            found = unit.evaluation("valid", 0)
            if found is None:
                missing.append(unit.name)
                continue
            tried.append(
                {
                    "kind": kind,
                    "learning_rate": rate,
                    "valid_loss": found.total_nll / int(found.tokens.sum()),
                    "valid_perplexity_per_word": found.perplexity_per_word,
                    "chosen": False,
                    "runs": [unit.name],
                }
            )
        if tried and len(tried) == len(lab.size.candidates):
            min(tried, key=lambda row: row["valid_loss"])["chosen"] = True
        rows += tried
    return rows, missing


register(
    Experiment(
        name=CHOICE,
        title="Learning rates, chosen for each model from the same candidates",
        source=f"{PAPER}, section 5",
        layout="learning_rates",
        units=tuning_units,
        rows=tuning_rows,
        after=Stage.BASE,
    )
)


# ---- tables 1 and 2: perplexity against overlap ----------------------------------------------------------


def seeds_of(lab: Lab, overlap: int) -> tuple[int, ...]:
    """Spread over seeds is measured without overlap; the other rows take the first seed."""
    return lab.size.seeds if overlap == 0 else lab.size.seeds[:1]


def plain_seeds(lab: Lab, corpus: str, window: int | None = None) -> list[Unit]:
    return [lab.unit(corpus, "plain", window=window, seed=seed) for seed in lab.size.seeds]


def row_units(lab: Lab, corpus: str, kind: str, overlap: int) -> list[Unit]:
    return [lab.unit(corpus, kind, overlap=overlap, seed=seed) for seed in seeds_of(lab, overlap)]


def overlap_rows(lab: Lab, corpus: str, plain_alone: Iterable[int]) -> list[tuple[str, int]]:
    """Kind and overlap of each row."""
    rows = []
    for overlap in lab.size.overlaps:
        rows += [("plain", overlap), ("carry", overlap)]
        best = lab.size.best_overlaps["books" if corpus == "books" else "wiki"]
        rows += [("best", overlap)] if overlap in best else []
    return rows + [("plain", overlap) for overlap in plain_alone]


def overlap_units(lab: Lab, corpus: str, plain_alone: Iterable[int]) -> list[Unit]:
    """Rows without overlap first: if time runs out, they matter most."""
    units = []
    for kind, overlap in sorted(overlap_rows(lab, corpus, plain_alone), key=lambda row: row[1] > 0):
        wanted = [lab.wanted("valid", overlap), lab.wanted("test", overlap)]
        units += [unit.with_scores(wanted) for unit in row_units(lab, corpus, kind, overlap)]
    return units


def overlap_table(lab: Lab, corpus: str, table: Table | None, plain_alone: Iterable[int]) -> tuple[Rows, list[str]]:
    rows, missing = [], []
    plain = plain_seeds(lab, corpus)
    for kind, overlap in overlap_rows(lab, corpus, plain_alone):
        units = row_units(lab, corpus, kind, overlap)
        row = perplexity_row(kind, units, plain, overlap, table)
        if row is None:
            missing.append(f"{kind}/o{overlap}")
            continue
        rows.append(row)
        lacking = [unit.settings.seed for unit in units if unit.settings.seed not in row["seeds"]]
        missing += [f"{kind}/o{overlap}, seed {seed}" for seed in lacking]
    return rows, missing


register(
    Experiment(
        name="table1",
        title="Perplexity on encyclopaedia articles against overlap",
        source=f"{PAPER}, Table 1 (WikiText-103)",
        layout="perplexity",
        units=lambda lab: overlap_units(lab, "wiki", ()),
        rows=lambda lab: overlap_table(lab, "wiki", published.TABLE_1, ()),
    )
)
register(
    Experiment(
        name="table2",
        title="Perplexity on books against overlap",
        source=f"{PAPER}, Table 2 (PG-19)",
        layout="perplexity",
        units=lambda lab: overlap_units(lab, "books", lab.size.plain_overlaps),
        rows=lambda lab: overlap_table(lab, "books", published.TABLE_2, lab.size.plain_overlaps),
    )
)


# ---- figures 4 and 5: window sizes and the frontier ------------------------------------------------------


PAIR = ("plain", "carry")
"""What the paper's figures compare."""


def window_unit(lab: Lab, kind: str, window: int) -> Unit:
    return lab.unit(
        "books", kind, window=window, seed=lab.size.seeds[0], windows=lab.windows_of(lab.size.training, window)
    )


def window_units(lab: Lab) -> list[Unit]:
    return [
        window_unit(lab, kind, window).with_scores([lab.wanted("valid", 0)])
        for window in lab.size.window_sizes
        for kind in PAIR
    ]


def window_rows(lab: Lab) -> tuple[Rows, list[str]]:
    rows, missing = [], []
    for window in lab.size.window_sizes:
        plain = [window_unit(lab, "plain", window)]
        for kind in PAIR:
            row = perplexity_row(kind, [window_unit(lab, kind, window)], plain, 0, splits=("valid",))
            if row is None:
                missing.append(f"{kind}/w{window}")
            else:
                rows.append(row)
    return rows, missing


def frontier_units(lab: Lab) -> list[Unit]:
    """The points of figure 4, and the plain model at more overlaps."""
    more = [
        window_unit(lab, "plain", window).with_scores([lab.wanted("valid", overlap)])
        for window in lab.size.window_sizes
        for overlap in lab.size.frontier_overlaps
        if overlap < window
    ]
    return [*window_units(lab), *more]


def frontier_rows(lab: Lab) -> tuple[Rows, list[str]]:
    rows, missing = window_rows(lab)
    for window in lab.size.window_sizes:
        unit = window_unit(lab, "plain", window)
        for overlap in lab.size.frontier_overlaps:
            if not 0 < overlap < window:
                continue
            row = perplexity_row("plain", [unit], [unit], overlap, splits=("valid",))
            if row is None:
                missing.append(f"plain/w{window}/o{overlap}")
            else:
                rows.append(row)
    return rows, missing


register(
    Experiment(
        name="figure4",
        title="Perplexity on books against the size of the window",
        source=f"{PAPER}, Figure 4 (PG-19 validation set; a picture, no numbers)",
        layout="windows",
        units=window_units,
        rows=window_rows,
    )
)
register(
    Experiment(
        name="figure5",
        title="Perplexity on books against FLOPs per token",
        source=f"{PAPER}, Figure 5 (PG-19 validation set; a picture, no numbers)",
        layout="frontier",
        units=frontier_units,
        rows=frontier_rows,
    )
)
