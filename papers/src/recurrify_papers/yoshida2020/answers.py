"""Table 3: question answering across windows, disjoint against recurrent, equal budgets, several seeds."""

from pathlib import Path
from typing import Any

from recurrify_papers.experiment import Chart, Experiment, Headline, Row, Table
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


def answer_runs(size: Size) -> list[Run]:
    """The data, trainings of both kinds, and their scores on every test; none if there are no questions."""
    own = SETTINGS | dict(size.own.get(NAME, {}))
    if not own["data"] and not own["made_up"]:
        return []
    functions = "recurrify_papers.yoshida2020.answer_runs"
    runs: list[Run] = []
    model: Any = own["model"]
    data: Any = list(own["data"])
    if own["made_up"]:
        made = Run(name="answers-made-up", function=f"{functions}:make_up", settings={"questions": own["made_up"]})
        runs.append(made)
        model, data = {"run": made.name}, {"run": made.name}
    mixing = {"data": data, "distractors": own["distractors"], "questions": own["questions"], "seed": 0}
    mixture = Run(
        name="answers-data",
        function="recurrify_papers.yoshida2020.question_mixture:mixture_run",
        settings=mixing,
        needs=tuple(run.name for run in runs),
    )
    runs.append(mixture)
    training = {name: own[name] for name in ("window", "epochs", "batch", "warmup_steps")}
    for kind in KINDS:
        common: dict[str, Any] = {"kind": kind, "model": model, "data": mixture.name, **training}
        tried = {_name(kind, 0, rate): rate for rate in own["rates"]}
        for name, rate in tried.items():
            settings = {**common, "rate": rate, "seed": 0}
            runs.append(Run(name=name, function=f"{functions}:train", settings=settings, needs=(mixture.name,)))
        for seed in range(own["seeds"]):
            if seed:
                settings = {**common, "rate": {"best_of": tried}, "seed": seed}
                needs = (mixture.name, *tried)
                runs.append(Run(name=_name(kind, seed), function=f"{functions}:train", settings=settings, needs=needs))
            of = list(tried) if seed == 0 else [_name(kind, seed)]
            for test in ("test", *own["extra_tests"]):
                settings = {"runs": of, "data": mixture.name, "test": test}
                name = _score(kind, seed, test)
                runs.append(Run(name=name, function=f"{functions}:score", settings=settings, needs=tuple(of)))
    return runs


def _name(kind: str, seed: int, rate: float | None = None) -> str:
    return f"answers-{kind}-s{seed}" + ("" if rate is None else f"-lr{rate:g}")


def _score(kind: str, seed: int, test: str) -> str:
    return f"answers-{kind}-s{seed}-on-{Path(test).stem}"


def answer_table(size: Size, results: Results) -> Table:
    """Both kinds on every test, their difference, and how the learning rates were chosen."""
    own = SETTINGS | dict(size.own.get(NAME, {}))
    if not own["data"] and not own["made_up"]:
        return Table(missing=["no questions: pass --set table3.data='[\"FILE\"]' and --set table3.model=NAME"])
    table = Table()
    found: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for test in ("test", *own["extra_tests"]):
        names = {kind: [_score(kind, seed, test) for seed in range(own["seeds"])] for kind in KINDS}
        missing = [name for kinds in names.values() for name in kinds if name not in results]
        table.missing += missing
        if not missing:
            label = Path(test).stem
            found[label] = {kind: [results[name]["by_question"] for name in names[kind]] for kind in KINDS}
    extra = list(found)[1:]
    if len(extra) > 1:
        found[TOGETHER] = {kind: _joined([found[name][kind] for name in extra]) for kind in KINDS}
    for label, kinds in found.items():
        table.rows += answer_rows(label, kinds, printed=label == "test")
    for kind in KINDS:
        for rate in own["rates"]:
            one = results.get(_name(kind, 0, rate))
            if one is not None:
                common: dict[str, Any] = {
                    "label": f"{kind}, learning rate",
                    "model": kind,
                    "split": "valid",
                    "at": rate,
                }
                table.rows.append(Row(metric="f1", value=one["test"]["f1"], **common))
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
