"""Scores of many question answerers, made into a table: means, intervals, the difference, and how it is told."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from recurrify.errors import UserError
from recurrify.evaluate.answers import mean_interval

DISJOINT, RECURRENT = "disjoint", "recurrent"
METRICS = ("exact_match", "f1")
"""In the order in which an evaluation keeps them for each question."""
TITLES = {"f1": "F1", "exact_match": "exact match"}
MADE_WITH = {"commit": "commits", "device": "devices", "torch": "torch", "transformers": "transformers"}
"""What runs may have been made with, and the names under which the result lists it."""
TOGETHER = "extra-tests-together"
"""The name under which several extra tests are counted as one."""


@dataclass(frozen=True)
class Found:
    """What the runs left behind, by kind."""

    scores: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]]
    """By test and kind: an evaluation for each seed."""
    trials: Sequence[Mapping[str, Any]]
    """Validation scores of the first seed by learning rate."""
    chosen: Mapping[str, float]
    trained: Mapping[str, Mapping[str, Any]]
    """The first seed's training."""
    seconds: Mapping[str, Sequence[float | None]]
    """Of each seed's training, with its validation; None where not all of it was timed."""
    made_with: Sequence[Sequence[Mapping[str, str]]]
    """Of each run, also those that only tried a learning rate: by what its legs and its scores were made."""


def table3_result(
    found: Found,
    config: Mapping[str, Any],
    mixture: Mapping[str, Any],
    published: Mapping[str, Mapping[str, float]],
) -> dict[str, Any]:
    """Everything but the provenance. The first test is the one that the statement is about."""
    values = {
        test: {kind: _by_question(evaluations, f"{test}, {kind}") for kind, evaluations in kinds.items()}
        for test, kinds in found.scores.items()
    }
    extra = list(values)[1:]
    if len(extra) > 1:
        values[TOGETHER] = {
            kind: {f"{test}-{name}": row for test in extra for name, row in values[test][kind].items()}
            for kind in (DISJOINT, RECURRENT)
        }
    tests = [rows_of(name, kinds[DISJOINT], kinds[RECURRENT]) for name, kinds in values.items()]
    rates = sorted({trial["learning_rate"] for trial in found.trials})
    gains = {metric: published[RECURRENT][metric] - published[DISJOINT][metric] for metric in METRICS}
    result: dict[str, Any] = {
        "kind": "answer-table3",
        "tests": tests,
        "published": {**published, "difference": gains},
        "differences_from_the_paper": differences(config, mixture, found),
        "learning_rates": {
            "trials": found.trials,
            "chosen": found.chosen,
            "at_the_edge": [
                kind for kind, rate in found.chosen.items() if len(rates) > 1 and rate in rates[:: len(rates) - 1]
            ],
        },
        "training": {
            kind: {
                "parameters": one["parameters"],
                "questions": one["questions"],
                "steps": one["steps"],
                "tokens": one["tokens"],
                "seconds": found.seconds[kind],
            }
            for kind, one in found.trained.items()
        },
        "windows_per_question": {
            test: kinds[DISJOINT][0]["windows_per_question"] for test, kinds in found.scores.items()
        },
        "data": {name: value for name, value in mixture.items() if name != "kind"},
        "made_at": made_at(found.made_with),
    }
    result["statement"] = statement(result)
    return result


def made_at(runs: Sequence[Sequence[Mapping[str, str]]]) -> dict[str, Any]:
    """By what the runs were made, and how many by each: the provenance of a table is only that of its last lines."""
    listed: dict[str, Any] = {"runs": len(runs)}
    for name, plural in MADE_WITH.items():
        counts = Counter(value for run in runs for value in {made[name]: None for made in run})
        listed[plural] = dict(counts.most_common())
    return listed


def _by_question(evaluations: Sequence[Mapping[str, Any]], where: str) -> dict[str, np.ndarray]:
    """(seeds, metrics) for each question."""
    first = evaluations[0]["by_question"]
    for other in evaluations[1:]:
        if list(other["by_question"]) != list(first):
            raise UserError(f"The seeds of {where} were scored on different questions: delete the scores, run again.")
    return {name: np.array([one["by_question"][name] for one in evaluations]) for name in first}


def rows_of(name: str, disjoint: Mapping[str, np.ndarray], recurrent: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Both kinds on one test, in percent, and their difference, question by question and seed by seed."""
    if list(disjoint) != list(recurrent):
        raise UserError(f"Both kinds must be scored on the same questions of {name}: delete the scores and run again.")
    # (seeds, questions, metrics)
    values = {
        kind: 100 * np.stack(list(rows.values()), axis=1)
        for kind, rows in ((DISJOINT, disjoint), (RECURRENT, recurrent))
    }
    difference = _summary(values[RECURRENT] - values[DISJOINT])
    for told in difference.values():
        interval = told["interval"]
        told["within_noise"] = interval is None or interval[0] <= 0 <= interval[1]
    return {
        "name": name,
        "questions": len(disjoint),
        "seeds": len(values[DISJOINT]),
        "rows": [{"kind": kind} | _summary(rows) for kind, rows in values.items()],
        "difference": difference,
    }


def _summary(values: np.ndarray) -> dict[str, dict[str, Any]]:
    """Of (seeds, questions, metrics): each seed's mean, theirs, how far they spread, and an interval."""
    summary = {}
    for column, metric in enumerate(METRICS):
        by_seed = values[..., column].mean(1).tolist()
        interval = mean_interval(values[..., column])
        summary[metric] = {
            "by_seed": by_seed,
            "mean": fmean(by_seed),
            "standard_deviation": stdev(by_seed) if len(by_seed) > 1 else None,
            "interval": None if interval is None else list(interval),
        }
    return summary


# ---- words -----------------------------------------------------------------------------------------------


def differences(config: Mapping[str, Any], mixture: Mapping[str, Any], found: Found) -> list[str]:
    """How this is not the paper's experiment."""
    training = found.trained[DISJOINT]
    sources = " and ".join(Path(name).stem for name in config["data"])
    rates = ", ".join(f"{rate:g}" for rate in config["rates"])
    chosen = " and ".join(f"{rate:g} ({kind})" for kind, rate in found.chosen.items())
    parts, seeds = mixture["parts"], config["seeds"]
    return [
        f"The encoder is {config['model']}, {training['parameters']['base'] / 1e6:.1f} M parameters, instead of "
        "RoBERTa-base's 125 M.",
        f"It is trained on {training['questions']['trained_on']:,} questions made from {sources}, each with its "
        f"paragraph among {config['distractors']} of other questions, instead of on 30,000 of HotpotQA's: one "
        "paragraph holds the answer, where HotpotQA mostly needs two.",
        f"The test has {parts['test']['questions']:,} questions made in the same way from other articles, instead of "
        "HotpotQA's development set; no training question is answered by yes or no, so that neither model learns "
        "to give these answers, which some questions of an extra test may have.",
        f"The learning rate was chosen for each model from {rates} by F1 on {parts['valid']['questions']:,} "
        f"validation questions, with the first seed: {chosen}; the paper took 2e-05 for both.",
        f"Both take {config['epochs']:g} epochs (the paper: 4); batches of {config['batch']}, a warm-up of "
        f"{config['warmup_steps']} steps and a {config['schedule']} schedule are ours, since the paper states none.",
        f"Windows have {config['window']} tokens"
        + (", the paper's." if config["window"] == 512 else " instead of the paper's 512."),
        f"There {'is 1 seed' if seeds == 1 else f'are {seeds} seeds'} of each model; the paper does not say how many "
        "its numbers come from.",
    ]


def statement(result: Mapping[str, Any]) -> str:
    """What came out, in one sentence."""
    test = result["tests"][0]
    told = test["difference"]["f1"]
    means = {row["kind"]: row["f1"]["mean"] for row in test["rows"]}
    interval = told["interval"]
    certain = "no interval" if interval is None else f"95 % interval {interval[0]:+.2f} to {interval[1]:+.2f}"
    verdict = "cannot be told from noise"
    if not told["within_noise"]:
        verdict = "is a gain" if told["mean"] > 0 else "is a loss"
    seeds = "1 seed" if test["seeds"] == 1 else f"{test['seeds']} seeds"
    return (
        f"On {test['questions']:,} test questions, {seeds} each, the recurrent model has an F1 of "
        f"{means[RECURRENT]:.2f} and the disjoint one of {means[DISJOINT]:.2f}: a difference of {told['mean']:+.2f} "
        f"points ({certain}), which {verdict}; the paper reports {result['published']['difference']['f1']:+.2f} on "
        "HotpotQA."
    )


def made_line(result: Mapping[str, Any]) -> str:
    """By what the runs were made, a mix said plainly, and which of them have no time."""
    made = result["made_at"]
    parts = []
    for name, plural in MADE_WITH.items():
        values = {(value[:7] + value[40:] if name == "commit" else value): runs for value, runs in made[plural].items()}
        if len(values) == 1:
            parts.append(f"{name} {next(iter(values))}")
        else:
            told = " and ".join(f"{value} ({runs} of {made['runs']} runs)" for value, runs in values.items())
            parts.append(f"a mix of {plural if plural.endswith('s') else f'{plural} versions'}: {told}")
    line = f"Made by {made['runs']} runs; {'; '.join(parts)}."
    seconds = [one for kind in result["training"].values() for one in kind["seconds"]]
    if None in seconds:
        line += (
            f" Seconds of training are left out for {seconds.count(None)} of {len(seconds)} runs, which were stopped "
            "and went on: not all of their time was kept."
        )
    return line


def table3_lines(result: Mapping[str, Any]) -> list[str]:
    """The table as Markdown, what the paper printed below ours, and how the two differ."""
    lines = ["| questions | model | F1 | exact match |", "|---|---|---:|---:|"]
    for test in result["tests"]:
        name = f"{test['name']} ({test['questions']:,})"
        for row in (*test["rows"], {"kind": "difference"} | test["difference"]):
            sign = "+" if row["kind"] == "difference" else ""
            cells = [_cell(row[metric], sign) for metric in ("f1", "exact_match")]
            lines.append(f"| {name} | {row['kind']} | {' | '.join(cells)} |")
    for kind, scores in result["published"].items():
        sign = "+" if kind == "difference" else ""
        cells = [f"{scores[metric]:{sign}.2f}" for metric in ("f1", "exact_match")]
        lines.append(f"| the paper: HotpotQA, development set | {kind} | {' | '.join(cells)} |")
    lines += [
        "",
        "In brackets: 95 % intervals over questions and seeds; differences seed by seed, question by question.",
        "",
        made_line(result),
    ]
    lines += ["", "| learning rate | model | F1 on validation |", "|---:|---|---:|"]
    for trial in result["learning_rates"]["trials"]:
        chosen = result["learning_rates"]["chosen"][trial["kind"]] == trial["learning_rate"]
        mark = ", chosen" if chosen else ""
        lines.append(f"| {trial['learning_rate']:g} | {trial['kind']}{mark} | {trial['valid_f1']:.2f} |")
    edge = result["learning_rates"]["at_the_edge"]
    if edge:
        lines += ["", f"The best rate is the smallest or the largest that was tried for: {' and '.join(edge)}."]
    lines += ["", *(f"- {sentence}" for sentence in result["differences_from_the_paper"])]
    return [*lines, "", result["statement"]]


def _cell(told: Mapping[str, Any], sign: str) -> str:
    interval = told["interval"]
    if interval is None:
        return f"{told['mean']:{sign}.2f}"
    return f"{told['mean']:{sign}.2f} ({interval[0]:{sign}.2f} to {interval[1]:{sign}.2f})"
