"""The thesis's questions: recurrent GPT-2 on enwik8 by its metrics, compared with XLNet, and what recurrence costs."""

from typing import Any

from recurrify_papers.experiment import Chart, Experiment, Headline, Row, Table
from recurrify_papers.plan import KINDS, LABELS, Entry, Plan
from recurrify_papers.runner import Results, Run
from recurrify_papers.sizes import Size
from recurrify_papers.thesis.convergence import convergence, validation_curve
from recurrify_papers.yoshida2020.tables import overlap_entries, perplexity_experiment

SOURCE = "Investigating the Impact of Recurrent Connections on Pre-Trained Transformer-based Models"
COMPARED = ("plain", "carry")
XLNET = {"mechanism": "xlnet", "memory": 300}
PREDICTED_TOKENS = 2_000
CLASSES = 50
"""The most frequent tokens, over which AUC-ROC is averaged."""
METRICS, COST = "thesis-metrics", "thesis-cost"


def enwik8_entries(plan: Plan) -> list[Entry]:
    """The rows of table 1 on enwik8, and XLNet: pretrained, or from scratch in the shape of the base."""
    size, corpus = plan.size, plan.size.thesis
    own = dict(size.own.get("thesis-enwik8", {}))
    rates, base = own.pop("rates"), own.pop("model", None)
    function = "recurrify_papers.thesis.xlnet_run:train_xlnet"
    names = [
        plan.train(
            corpus, "xlnet", rate=rate, recurrence=XLNET, base=base, seed=size.seeds[0], function=function, **own
        )
        for rate in rates
    ]
    start = "from scratch, one-way" if base is None else "pretrained"
    tried = ", ".join(f"{rate:g}" for rate in rates)
    xlnet = Entry(
        label=LABELS["xlnet"],
        model="xlnet",
        dataset=corpus,
        trained={size.seeds[0]: tuple(names)},
        window=size.window,
        note=f"{start}; the best on validation of learning rates {tried}",
    )
    return [*overlap_entries(plan, corpus, {}), xlnet]


def metric_runs(size: Size) -> list[Run]:
    """Predictions of each model on the test part."""
    plan = Plan(size)
    tokens = size.own.get(METRICS, {}).get("tokens", PREDICTED_TOKENS)
    for kind in KINDS:
        name = plan.train(size.thesis, kind, seed=size.seeds[0])
        settings = {"run": name, "data": size.source(size.thesis), "tokens": tokens, "classes": CLASSES}
        function = "recurrify_papers.thesis.prediction:prediction_run"
        plan.add(Run(name=f"{name}-metrics", function=function, settings=settings, needs=(name,)))
    return list(plan.runs.values())


def metric_table(size: Size, results: Results) -> Table:
    """Accuracy and its relatives for the next token."""
    table = Table()
    for kind in KINDS:
        found = results.get(f"{Plan(size).train(size.thesis, kind, seed=size.seeds[0])}-metrics")
        if found is None:
            table.missing.append(kind)
            continue
        common: dict[str, Any] = {"label": LABELS[kind], "model": kind, "dataset": size.thesis, "split": "test"}
        for metric, value in found["metrics"].items():
            table.rows.append(Row(metric=metric, value=value, note=f"{found['tokens']:,} tokens", **common))
    return table


def _pair(plan: Plan) -> list[str]:
    return [plan.train(plan.size.thesis, kind, seed=plan.size.seeds[0]) for kind in COMPARED]


def cost_runs(size: Size) -> list[Run]:
    """Both models, then their comparison."""
    plan = Plan(size)
    names = _pair(plan)
    settings = {"runs": names, "workload": size.own.get(COST, {})}
    plan.add(Run(name=COST, function="recurrify_papers.thesis.cost:cost_run", settings=settings, needs=tuple(names)))
    return list(plan.runs.values())


def cost_table(size: Size, results: Results) -> Table:
    """Each measure of both models, and their ratio."""
    if COST not in results:
        return Table(missing=list(COMPARED))
    table = Table()
    for one in results[COST]["rows"]:
        table.rows += cost_rows(one)
    return table


def cost_rows(one: dict) -> list[Row]:
    """Plain, recurrent and ratio of one measurement."""
    metric, setting = f"{one['measure']} ({one['unit']})", one["setting"]
    sides = [
        Row(label=setting, metric=metric, model=model, value=one[side])
        for model, side in zip(COMPARED, ("plain", "recurrent"), strict=True)
    ]
    notes = [f"published: {one['published']}"] if one["published"] else []
    if one["spread"]:
        notes.append("single turns {:.3f} to {:.3f}".format(*one["spread"]))
    ratio = Row(label=setting, metric=f"{one['measure']}, ratio", value=one["ratio"], note="; ".join(notes) or None)
    return [*sides, ratio]


def _curves(plan: Plan) -> list[str]:
    """Runs validated often enough to see when they reach a loss; the usual ones, if the size has no others."""
    own = plan.size.own.get("thesis-convergence")
    if own is None:
        return _pair(plan)
    size = plan.size
    return [plan.train(size.thesis, kind, seed=size.seeds[0], label=f"curve-{kind}", **own) for kind in COMPARED]


def curve_runs(size: Size) -> list[Run]:
    """The training runs."""
    plan = Plan(size)
    _curves(plan)
    return list(plan.runs.values())


def curve_table(size: Size, results: Results) -> Table:
    """Training tokens until a validation loss is reached."""
    names = _curves(Plan(size))
    missing = [kind for kind, name in zip(COMPARED, names, strict=True) if name not in results]
    if missing:
        return Table(missing=missing)
    curves = [validation_curve(results[name]) for name in names]
    table = Table()
    for level, *tokens in convergence(*curves):
        for kind, value in zip(COMPARED, tokens, strict=True):
            common: dict[str, Any] = {"label": f"loss {level:.4f}", "model": kind, "dataset": size.thesis, "at": level}
            table.rows.append(Row(metric="training tokens", value=value, **common))
    for kind, curve in zip(COMPARED, curves, strict=True):
        x, y = ([point[axis] for point in curve] for axis in (0, 1))
        axes = {"x_label": "training tokens", "y_label": "validation loss", "x": x, "y": y}
        table.curves.append({"name": LABELS[kind], **axes})
    return table


EXPERIMENTS = (
    perplexity_experiment(
        enwik8_entries,
        name="thesis-enwik8",
        title="Recurrent GPT-2 and XLNet on enwik8",
        source=f"{SOURCE} (announced, no numbers printed)",
        headlines=(
            Headline(
                label=LABELS["carry"],
                metric="gain",
                split="test",
                percent=True,
                sentence="Recurrence lowers test perplexity on enwik8 by {value}; {published}.",
            ),
        ),
        chart=Chart(x="overlap", metric="perplexity_per_word", split="test"),
    ),
    Experiment(
        name=METRICS,
        title="Predicting the next token: accuracy, precision, recall, F1 and AUC-ROC",
        source=f"{SOURCE}, section 10.1.5 (announced, no numbers printed)",
        runs=metric_runs,
        table=metric_table,
        headlines=(
            Headline(
                label=LABELS["carry"],
                metric="accuracy",
                percent=True,
                sentence="The recurrent model predicts {value} of the next tokens; {published}.",
            ),
        ),
        chart=Chart(x="metric", metric="", title="Metrics of the next token"),
    ),
    Experiment(
        name=COST,
        title="What recurrence costs: time, memory, speed",
        source=f"{SOURCE}, section 10.1.6 (guesses)",
        runs=cost_runs,
        table=cost_table,
        headlines=(
            Headline(
                label="",
                metric="training tokens per second, ratio",
                sentence="Recurrent training runs at {value} of the speed of plain windows; {published}.",
                percent=True,
            ),
        ),
    ),
    Experiment(
        name="thesis-convergence",
        title="Convergence: training tokens until a validation loss is reached",
        source=f"{SOURCE}, section 10.1.6 (announced, no numbers printed)",
        runs=curve_runs,
        table=curve_table,
        text="Training tokens that plain windows and the recurrent model need to reach the same validation losses.",
    ),
)
