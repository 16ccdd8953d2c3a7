"""Table 3: question answering across windows, disjoint against recurrent, equal budgets, several seeds."""

from pathlib import Path
from typing import Any

from recurrify_papers.declare import number_experiment
from recurrify_papers.experiment import Chart, Headline, Row
from recurrify_papers.plan import Entry, Plan, model_of
from recurrify_papers.yoshida2020.published import SOURCE, TABLE_3

NAME = "table3"
KINDS = ("disjoint", "recurrent")
RUNS = "yoshida2020.answer_runs"
SETTINGS: dict[str, Any] = {
    "model": "roberta-base",
    "data": (),
    "extra_tests": (),
    "made_up": 0,
    "seeds": 3,
    "rates": (5e-5, 1e-4, 2e-4),
    "window": 512,
    "epochs": 4.0,
    "batch": 8,
    "warmup_steps": 100,
    "distractors": 9,
    "questions": None,
}
"""`data`: question files with one paragraph per question (SQuAD's format); `extra_tests`: files scored as they are;
`made_up`: make so many questions and a tiny encoder instead; the first seed tries all `rates`."""


def answer_entries(plan: Plan) -> list[Entry]:
    """Both kinds on every test, and their scores at each learning rate; nothing if there are no questions."""
    own = SETTINGS | dict(plan.size.own.get(NAME, {}))
    model, data = own["model"], list(own["data"])
    if own["made_up"]:
        made = plan.run(f"{RUNS}:make_up", "answers-made-up", questions=own["made_up"])
        model, data = model_of(made), [{"run": made, "file": "questions.json"}]
    if not data:
        return []
    mixing = {"data": data, "distractors": own["distractors"], "questions": own["questions"], "seed": 0}
    mixture = plan.run("yoshida2020.question_mixture:mixture_run", "answers-data", **mixing)
    tests: dict[str, Any] = {"test": {"run": mixture, "file": "test.json"}}
    tests |= {Path(path).stem: path for path in own["extra_tests"]}
    scores: dict[str, dict[str, list[Any]]] = {test: {kind: [] for kind in KINDS} for test in tests}
    rates = []
    for kind in KINDS:
        settings = {"kind": kind, "model": model}
        settings |= {"data": {"run": mixture, "file": "train.json"}, "test": {"run": mixture, "file": "valid.json"}}
        settings |= {name: own[name] for name in ("window", "epochs", "batch", "warmup_steps")}
        function = f"recurrify_papers.{RUNS}:train"
        trained = plan.tuned(f"answers-{kind}", function, settings, own["rates"], range(own["seeds"]))
        rates += [Entry(label=f"{kind}, learning rate", model=kind, trained={0: (name,)}) for name in trained[0]]
        for seed, names in trained.items():
            best = {"best_of": {name: {"run": name} for name in names}}
            for test, path in tests.items():
                run = plan.run(f"{RUNS}:score", f"answers-{kind}-s{seed}-on-{test}", run=best, test=path)
                scores[test][kind].append({"run": run})
    compared = plan.run(f"{RUNS}:compare", "answers-compared", scores=scores)
    return [Entry(label="both kinds", model="recurrent", trained={0: (compared,)}), *rates]


def published(row: Row) -> float | None:
    """The paper's scores, and their difference."""
    if row.dataset != "test":
        return None
    disjoint, recurrent = (TABLE_3[kind][row.metric] for kind in KINDS)
    return {"disjoint": disjoint, "recurrent": recurrent, "difference": recurrent - disjoint}[row.label]


EXPERIMENTS = (
    number_experiment(
        answer_entries,
        published,
        needs="no questions: pass --set table3.data='[\"FILE\"]' and --set table3.model=NAME",
        name=NAME,
        title="Question answering across windows (HotpotQA)",
        source=f"{SOURCE}, Table 3",
        text="Each question's paragraph is placed among those of other questions, so that it spans several windows.",
        headlines=(
            Headline(
                label="difference",
                metric="f1",
                split="test",
                dataset="test",
                sentence="Recurrence changes F1 by {value} points; {published} on HotpotQA.",
            ),
        ),
        differences=(
            "The encoder is smaller than RoBERTa-base at size small, and random at size tiny.",
            "Questions are made from files with one paragraph per question: one paragraph has the answer, where "
            "HotpotQA mostly needs two. No training question is answered by yes or no.",
            "The learning rate is chosen for each model by F1 on validation questions with the first seed; the paper "
            "took 2e-05 for both. Batch, warm-up and schedule are ours.",
        ),
        chart=Chart(x="label", metric="f1", split="test", facet="dataset", title="F1 (percent)"),
    ),
)
