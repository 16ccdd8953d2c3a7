"""Table 3: question answering across windows, disjoint against recurrent, equal budgets, several seeds."""

from pathlib import Path
from typing import Any

from recurrify_papers.experiment import Chart, Experiment, Headline, Row, Table
from recurrify_papers.plan import Plan, model_of
from recurrify_papers.runner import Results, Run
from recurrify_papers.sizes import Size
from recurrify_papers.yoshida2020.published import SOURCE, TABLE_3

NAME = "table3"
KINDS = ("disjoint", "recurrent")
METRICS = ("exact_match", "f1")
"""In the order in which an evaluation has them for each question."""
TOGETHER = "extra tests together"
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


def planned(size: Size) -> tuple[Plan, dict[str, dict[str, list[str]]]]:
    """The runs, and by test and kind the names of the scores, one for each seed; none if there are no questions."""
    own, plan = SETTINGS | dict(size.own.get(NAME, {})), Plan(size)
    if not own["data"] and not own["made_up"]:
        return plan, {}
    functions = "recurrify_papers.yoshida2020.answer_runs"
    model, data = own["model"], list(own["data"])
    if own["made_up"]:
        made = Run(name="answers-made-up", function=f"{functions}:make_up", settings={"questions": own["made_up"]})
        model, data = model_of(plan.add(made)), [{"run": made.name, "file": "questions.json"}]
    mixing = {"data": data, "distractors": own["distractors"], "questions": own["questions"], "seed": 0}
    function = "recurrify_papers.yoshida2020.question_mixture:mixture_run"
    mixture = plan.add(Run(name="answers-data", function=function, settings=mixing))
    tests: dict[str, Any] = {"test": {"run": mixture, "file": "test.json"}}
    tests |= {Path(path).stem: path for path in own["extra_tests"]}
    scores: dict[str, dict[str, list[str]]] = {test: {kind: [] for kind in KINDS} for test in tests}
    for kind in KINDS:
        settings = {"kind": kind, "model": model}
        settings |= {"data": {"run": mixture, "file": "train.json"}, "test": {"run": mixture, "file": "valid.json"}}
        settings |= {name: own[name] for name in ("window", "epochs", "batch", "warmup_steps")}
        trained = plan.tuned(f"answers-{kind}", f"{functions}:train", settings, own["rates"], range(own["seeds"]))
        for seed, names in trained.items():
            best = {"best_of": {name: {"run": name} for name in names}}
            for test, path in tests.items():
                name = f"answers-{kind}-s{seed}-on-{test}"
                run = Run(name=name, function=f"{functions}:score", settings={"run": best, "test": path})
                scores[test][kind].append(plan.add(run))
    return plan, scores


def answer_runs(size: Size) -> list[Run]:
    """The data, trainings of both kinds, and their scores on every test."""
    return list(planned(size)[0].runs.values())


def answer_table(size: Size, results: Results) -> Table:
    """Both kinds on every test, their difference, and how the learning rates were chosen."""
    plan, scores = planned(size)
    if not scores:
        return Table(missing=["no questions: pass --set table3.data='[\"FILE\"]' and --set table3.model=NAME"])
    table = Table(missing=[name for name in plan.runs if name not in results])
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for test, kinds in scores.items():
        if all(name in results for names in kinds.values() for name in names):
            found[test] = {kind: [results[name]["by_question"] for name in names] for kind, names in kinds.items()}
    extra = [test for test in found if test != "test"]
    if len(extra) > 1:
        found[TOGETHER] = {kind: _joined([found[name][kind] for name in extra]) for kind in KINDS}
    for test, both in found.items():
        table.rows += answer_rows(test, both, printed=test == "test")
    for run in plan.runs.values():
        rate = run.settings.get("learning_rate")
        if isinstance(rate, float) and run.name in results:
            kind = run.name.split("-")[1]
            place: dict[str, Any] = {"label": f"{kind}, learning rate", "model": kind, "split": "valid", "at": rate}
            table.rows.append(Row(metric="f1", value=-results[run.name]["loss"], **place))
    return table


def _joined(tests: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The questions of several tests as one, seed by seed."""
    return [
        {f"{number}-{name}": value for number, test in enumerate(seeds) for name, value in test.items()}
        for seeds in zip(*tests, strict=True)
    ]


def answer_rows(label: str, kinds: dict[str, list[dict[str, Any]]], printed: bool) -> list[Row]:
    """Both kinds in percent, and their difference question by question and seed by seed."""
    import numpy as np

    from recurrify.evaluate import mean_interval

    # (seeds, questions, metrics)
    values = {kind: 100 * np.array([list(one.values()) for one in seeds]) for kind, seeds in kinds.items()}
    values["difference"] = values["recurrent"] - values["disjoint"]
    rows = []
    for kind, scores in values.items():
        for column, metric in enumerate(METRICS):
            by_seed = scores[..., column].mean(1)
            low, high = mean_interval(scores[..., column]) or (None, None)
            rows.append(
                Row(
                    label=kind,
                    model=kind,
                    dataset=label,
                    split="test",
                    metric=metric,
                    value=float(by_seed.mean()),
                    low=low,
                    high=high,
                    spread=float(by_seed.std(ddof=1)) if len(by_seed) > 1 else None,
                    seeds=len(by_seed),
                    published=_published(kind, metric) if printed else None,
                    note=f"{scores.shape[1]:,} questions",
                )
            )
    return rows


def _published(kind: str, metric: str) -> float:
    if kind in TABLE_3:
        return TABLE_3[kind][metric]
    return TABLE_3["recurrent"][metric] - TABLE_3["disjoint"][metric]


EXPERIMENTS = (
    Experiment(
        name=NAME,
        title="Question answering across windows (HotpotQA)",
        source=f"{SOURCE}, Table 3",
        runs=answer_runs,
        table=answer_table,
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
