"""The thesis's questions: recurrent GPT-2 on enwik8 by its metrics, XLNet beside it, and what recurrence costs."""

from dataclasses import replace
from io import BytesIO
from typing import Any

import numpy as np

from recurrify.data.texts import pick_device, read_text
from recurrify.evaluate.prediction import Predictions, collect_predictions, prediction_metrics
from recurrify.modeling.loading import load_model
from recurrify.results import load_result, write_whole
from recurrify.speed.backends import leave_out_cudnn
from recurrify.speed.compiled import compile_windows
from recurrify.train.running import uses_bf16, uses_compile
from recurrify_papers.cost import convergence, measure_cost
from recurrify_papers.experiments import published
from recurrify_papers.experiments.catalogue import KINDS, Experiment, Rows, overlap_table, overlap_units, register
from recurrify_papers.experiments.lab import Lab
from recurrify_papers.experiments.published import THESIS
from recurrify_papers.experiments.rows import SPLITS, best_on_validation, perplexity_row
from recurrify_papers.experiments.sizes import LABELS
from recurrify_papers.experiments.unit import Unit

COMPARED = ("plain", "carry")
"""Whose cost is compared."""
CLASSES = 50
"""The most frequent tokens, over which AUC-ROC is averaged."""


def thesis_unit(lab: Lab, kind: str) -> Unit:
    return lab.unit(lab.size.thesis, kind, seed=lab.size.seeds[0])


def thesis_units(lab: Lab) -> list[Unit]:
    return [thesis_unit(lab, kind) for kind in KINDS]


def predictions(lab: Lab, kind: str) -> Predictions | None:
    """Of the test part, made once and kept; None where there is no model yet."""
    unit = thesis_unit(lab, kind)
    path = lab.folder / "predictions" / f"{unit.name}.npz"
    if not unit.run_file.is_file():
        return None
    if not unit.is_newer(path):
        model, tokenizer = load_model(str(unit.run_folder / "model"))
        model = model.to(pick_device())
        tokens, _ = read_text(lab.source(lab.size.thesis), "test", tokenizer, lab.say)
        half = model.device.type == "cuda" and uses_bf16("auto")
        lab.say(f"{kind}: predicting the first {lab.size.predicted_tokens} tokens of {len(tokens)} documents")
        found = collect_predictions(
            model, tokens, tokens_per_document=lab.size.predicted_tokens, classes=CLASSES, rows=64, bf16=half
        )
        content = BytesIO()
        # Half precision keeps three digits, which the order of scores, all that AUC looks at, survives.
        np.savez_compressed(content, **{**found._asdict(), "probabilities": found.probabilities.astype(np.float16)})
        write_whole(path, content.getvalue())
    with np.load(path, allow_pickle=False) as kept:
        return Predictions(**{name: kept[name] for name in Predictions._fields})


def prediction_rows(lab: Lab) -> tuple[Rows, list[str]]:
    """Accuracy and its relatives for the next token, on the test part."""
    found = {kind: predictions(lab, kind) for kind in KINDS}
    rows = [
        {
            "kind": kind,
            "label": LABELS[kind],
            "tokens": len(one.targets),
            "classes": len(one.classes),
            "metrics": prediction_metrics(one),
            "runs": [thesis_unit(lab, kind).name],
        }
        for kind, one in found.items()
        if one is not None
    ]
    return rows, [kind for kind, one in found.items() if one is None]


def cost_units(lab: Lab) -> list[Unit]:
    return [thesis_unit(lab, kind) for kind in COMPARED]


def curve_units(lab: Lab) -> list[Unit]:
    """Runs validated often enough to tell when they reached a loss: the usual ones, where the size names no others."""
    if not lab.size.curve:
        return cost_units(lab)
    return [
        lab.unit(lab.size.thesis, kind, seed=lab.size.seeds[0], label=f"curve-{kind}", **lab.size.curve)
        for kind in COMPARED
    ]


def trained(units: list[Unit]) -> tuple[dict[str, Unit], list[str]]:
    """The compared kinds' units, and the kinds that have not been trained yet."""
    by_kind = dict(zip(COMPARED, units, strict=True))
    return by_kind, [kind for kind, unit in by_kind.items() if not unit.run_file.is_file()]


def cost_rows(lab: Lab) -> tuple[Rows, list[str]]:
    """Plain against the paper's mechanism, measured in turns on a device that does nothing else."""
    units, missing = trained(cost_units(lab))
    if missing:
        return [], missing
    models = {kind: load_model(str(unit.run_folder / "model"))[0].to(pick_device()) for kind, unit in units.items()}
    half = pick_device().type == "cuda" and uses_bf16("auto")
    leave_out_cudnn()  # as in training
    if uses_compile("auto"):
        for model in models.values():
            compile_windows(model)
    return measure_cost(models["plain"], models["carry"], bf16=half, say=lab.say, **lab.size.cost), []


def convergence_rows(lab: Lab) -> tuple[Rows, list[str]]:
    """How many training tokens plain and the paper's mechanism take to the same validation losses."""
    units, missing = trained(curve_units(lab))
    if missing:
        return [], missing
    runs = {kind: load_result(unit.run_file) for kind, unit in units.items()}
    rows = convergence(
        runs["plain"]["history"],
        runs["carry"]["history"],
        tokens_per_step_plain=runs["plain"]["tokens"] / runs["plain"]["steps"],
        tokens_per_step_recurrent=runs["carry"]["tokens"] / runs["carry"]["steps"],
    )
    curves = {kind: unit.name for kind, unit in units.items()}
    return [{**row, "curves": curves} for row in rows], []


def xlnet_units(lab: Lab) -> list[Unit]:
    """From the size's pretrained XLNet, or from scratch in the shape of the base; one run for each candidate rate."""
    own = dict(lab.size.xlnet)
    rates = own.pop("learning_rates")
    units = [lab.unit(lab.size.thesis, "xlnet", learning_rate=rate, seed=lab.size.seeds[0]) for rate in rates]
    wanted = [lab.wanted(split, 0) for split in SPLITS]
    return [replace(unit, settings=replace(unit.settings, **own)).with_scores(wanted) for unit in units]


def xlnet_row(lab: Lab) -> dict[str, Any] | None:
    """Of the rate with the lowest loss on validation; None until every candidate has been run.

    It has no gain: it is no fine-tuning of the model the others start from.
    """
    units = xlnet_units(lab)
    best = best_on_validation(units)
    if best is None:
        return None
    start = "pretrained" if "model" in lab.size.xlnet else "from scratch, one-way"
    rate, steps = best.settings.learning_rate, best.settings.warmup_steps
    tried = ", ".join(f"{unit.settings.learning_rate:g}" for unit in units)
    chosen = f"the best on validation of {tried}" if len(units) > 1 else "chosen by hand"
    told = f"{start}, {best.length}; warm-up over {steps} steps, learning rate {rate:g}, {chosen}"
    row = perplexity_row("xlnet", [best], [], 0)
    return None if row is None else {**row, "label": f"{LABELS['xlnet']}, {told}"}


def enwik8_units(lab: Lab) -> list[Unit]:
    return [*xlnet_units(lab), *overlap_units(lab, lab.size.thesis, ())]


def enwik8_rows(lab: Lab) -> tuple[Rows, list[str]]:
    """The rows of table 1 without the paper's numbers, and XLNet's."""
    rows, missing = overlap_table(lab, lab.size.thesis, None, ())
    xlnet = xlnet_row(lab)
    return (rows, [*missing, "xlnet"]) if xlnet is None else ([*rows, xlnet], missing)


register(
    Experiment(
        name="thesis-enwik8",
        title="Recurrent GPT-2 and XLNet on enwik8",
        source=f"{THESIS} (announced, no numbers printed)",
        layout="perplexity",
        units=enwik8_units,
        rows=enwik8_rows,
    )
)
register(
    Experiment(
        name="thesis-metrics",
        title="Predicting the next token: accuracy, precision, recall, F1 and AUC-ROC",
        source=f"{THESIS}, section 10.1.5 (announced, no numbers printed)",
        layout="prediction",
        units=thesis_units,
        rows=prediction_rows,
        alone=True,
    )
)
register(
    Experiment(
        name="thesis-cost",
        title="What recurrence costs: time, memory, speed",
        source=f"{THESIS}, section 10.1.6 (guesses)",
        layout="cost",
        units=cost_units,
        rows=cost_rows,
        alone=True,
    )
)
register(
    Experiment(
        name="thesis-convergence",
        title="Convergence: training tokens until a validation loss is reached",
        source=f"{THESIS}, section 10.1.6 (announced, no numbers printed)",
        layout="cost",
        units=curve_units,
        rows=convergence_rows,
    )
)
register(
    Experiment(
        name="table3",
        title="Question answering across windows (HotpotQA)",
        source=f"{published.PAPER}, Table 3",
        layout="answers",
        units=lambda lab: [],
        rows=lambda lab: ([], []),
        later="question answering has a command of its own, `recurrify qa table3`",
    )
)
