"""The thesis's questions: recurrent GPT-2 on enwik8 by its metrics, compared with XLNet, and what recurrence costs."""

from recurrify_papers.declare import number_experiment, perplexity_experiment
from recurrify_papers.experiment import Chart, Headline, gain_headline
from recurrify_papers.plan import KINDS, LABELS, Entry, Plan
from recurrify_papers.yoshida2020.tables import overlap_entries

SOURCE = "Investigating the Impact of Recurrent Connections on Pre-Trained Transformer-based Models"
COMPARED = ("plain", "carry")
XLNET = {"mechanism": "xlnet", "memory": 300}
PREDICTED_TOKENS = 2_000
CLASSES = 50
"""The most frequent tokens, over which AUC-ROC is averaged."""
METRICS, COST, CONVERGENCE = "thesis-metrics", "thesis-cost", "thesis-convergence"
COST_CHANGES = {"batches": (16,), "documents": 16, "document_tokens": 4_800, "prompts": (300,)}
"""How the measured shape differs from that of `recurrify bench`."""


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


def metric_entries(plan: Plan) -> list[Entry]:
    """Predictions of each model on the test part."""
    size = plan.size
    tokens = size.own.get(METRICS, {}).get("tokens", PREDICTED_TOKENS)
    found = []
    for kind in KINDS:
        name = plan.train(size.thesis, kind, seed=size.seeds[0])
        settings = {"run": {"run": name}, "data": size.source(size.thesis), "tokens": tokens, "classes": CLASSES}
        run = plan.run("thesis.prediction:prediction_run", f"{name}-metrics", **settings)
        trained = {size.seeds[0]: (run,)}
        found.append(Entry(label=LABELS[kind], model=kind, dataset=size.thesis, trained=trained))
    return found


def cost_entries(plan: Plan) -> list[Entry]:
    """Both models in one run; the benchmark's shapes are called as the sizes, and cost does not depend on weights."""
    shape = {"paper": "gpt2"}.get(plan.size.name, plan.size.name)
    changes = {**COST_CHANGES, **plan.size.own.get(COST, {})}
    run = plan.run("thesis.cost:cost_run", COST, shape=shape, changes=changes)
    return [Entry(label="both models", model="carry", trained={0: (run,)})]


def curve_entries(plan: Plan) -> list[Entry]:
    """Runs validated often enough to see when they reach a loss; the usual ones, if the size has no others."""
    size = plan.size
    own = size.own.get(CONVERGENCE)
    runs = {}
    for kind in COMPARED:
        more = {} if own is None else {"label": f"curve-{kind}", **own}
        runs[kind] = {"run": plan.train(size.thesis, kind, seed=size.seeds[0], **more)}
    run = plan.run("thesis.convergence:convergence_run", CONVERGENCE, runs=runs)
    return [Entry(label="both models", model="carry", dataset=size.thesis, trained={size.seeds[0]: (run,)})]


EXPERIMENTS = (
    perplexity_experiment(
        enwik8_entries,
        name="thesis-enwik8",
        title="Recurrent GPT-2 and XLNet on enwik8",
        source=f"{SOURCE} (announced, no numbers printed)",
        headlines=(
            gain_headline(LABELS["carry"], "Recurrence lowers test perplexity on enwik8 by {value}; {published}."),
        ),
        chart=Chart(x="overlap", metric="perplexity_per_word", split="test"),
    ),
    number_experiment(
        metric_entries,
        name=METRICS,
        title="Predicting the next token: accuracy, precision, recall, F1 and AUC-ROC",
        source=f"{SOURCE}, section 10.1.5 (announced, no numbers printed)",
        headlines=(
            Headline(
                label=LABELS["carry"],
                metric="accuracy",
                sentence="The recurrent model predicts {value} of the next tokens; {published}.",
            ),
        ),
        chart=Chart(x="metric", metric="", title="Metrics of the next token"),
    ),
    number_experiment(
        cost_entries,
        name=COST,
        title="What recurrence costs: time, memory, speed",
        source=f"{SOURCE}, section 10.1.6 (guesses)",
        headlines=(
            Headline(
                label="",
                metric="training tokens per second, ratio",
                sentence="Recurrent training runs at {value} of the speed of plain windows; {published}.",
            ),
        ),
    ),
    number_experiment(
        curve_entries,
        name=CONVERGENCE,
        title="Convergence: training tokens until a validation loss is reached",
        source=f"{SOURCE}, section 10.1.6 (announced, no numbers printed)",
        text="Training tokens that plain windows and the recurrent model need to reach the same validation losses.",
    ),
)
