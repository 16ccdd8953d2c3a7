"""Table 3: how questions are dealt and mixed, which runs are made, and what becomes of their scores."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from recurrify.data.questions import Question, QuestionSet, load_questions, save_questions
from recurrify.errors import UserError
from recurrify.results import save_result
from recurrify.train.answer_legs import keep_legs, made_with, seconds_of, with_this_leg
from recurrify_papers.table3.mixture import QuestionFile, make_mixture
from recurrify_papers.table3.table3 import Table3Plan, Unit
from recurrify_papers.table3.table3_result import (
    DISJOINT,
    RECURRENT,
    TOGETHER,
    made_at,
    made_line,
    rows_of,
    statement,
    table3_lines,
)

MADE = {"commit": "a" * 40, "device": "a GPU", "torch": "2.11.0", "transformers": "5.17.0"}
BLANK = dict.fromkeys(("train", "valid", "test"), QuestionFile("", "", ""))


def quiet(text: str) -> None:
    pass


def questions(articles: int, topic: str) -> list[Question]:
    """Two questions for each article, whose answers occur in no other; ids say nothing of the topic."""
    made = []
    for number in range(articles):
        names = [f"{topic}{who}{number:02}" for who in ("mayor", "dog")]
        context = f"In {topic}{number} lived {names[0]} with {names[1]}."
        for place, answer in enumerate(names):
            span = (context.index(answer), context.index(answer) + len(answer))
            identity = f"{number}-{place}"
            made.append(Question(identity, f"who is {answer}?", context, (answer,), "span", span, f"{topic}{number}"))
    return made


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    paths = [tmp_path / "towns.json", tmp_path / "lakes.json"]
    for path in paths:
        save_questions(QuestionSet(questions(30, path.stem), "squad"), path)
    return [str(path) for path in paths]


def paragraphs(path: str) -> set[str]:
    return {text for question in load_questions(path).questions for text in question.context.split("\n\n")}


def test_no_paragraph_stands_in_two_parts_and_every_answer_where_it_is_said(files: list[str], tmp_path: Path) -> None:
    made = make_mixture(files, tmp_path / "data", quiet, distractors=3)
    held = {name: paragraphs(part.path) for name, part in made.items()}
    assert not held["train"] & held["valid"]
    assert not held["train"] & held["test"]
    assert not held["valid"] & held["test"]
    assert sum(len(texts) for texts in held.values()) == 60
    asked = [question for part in made.values() for question in load_questions(part.path).questions]
    assert len({question.id for question in asked}) == 120  # both files have the same ids
    for question in asked:
        assert question.span is not None
        assert (question.context[slice(*question.span)],) == question.answers
        assert len(question.context.split("\n\n")) == 4
        assert question.context.count(question.answers[0]) == 1


def test_the_same_files_give_the_same_parts_and_others_are_refused(files: list[str], tmp_path: Path) -> None:
    first = make_mixture(files, tmp_path / "first", quiet, distractors=1, questions=40)
    second = make_mixture(files, tmp_path / "second", quiet, distractors=1, questions=40)
    assert [part.checksum for part in first.values()] == [part.checksum for part in second.values()]
    assert sum(len(load_questions(part.path).questions) for part in first.values()) == 80
    assert make_mixture(files, tmp_path / "first", quiet, distractors=1, questions=40) == first
    with pytest.raises(UserError, match="with other settings"):
        make_mixture(files, tmp_path / "first", quiet, distractors=2, questions=40)
    with pytest.raises(UserError, match="made from other files"):
        make_mixture(files[:1], tmp_path / "first", quiet, distractors=1, questions=40)
    Path(first["valid"].path).write_text(Path(second["test"].path).read_text())
    with pytest.raises(UserError, match=r"valid\.json is not the file"):
        make_mixture(files, tmp_path / "first", quiet, distractors=1, questions=40)


def test_too_few_questions_may_be_meant_by_questions(files: list[str], tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match="give more articles, a larger --questions than 4, or fewer --distractors than 3"
    ):
        make_mixture(files, tmp_path / "data", quiet, distractors=3, questions=4)
    with pytest.raises(UserError, match=r"give more articles\.$"):
        make_mixture(files, tmp_path / "data", quiet, distractors=100)


def test_questions_with_many_paragraphs_are_for_extra_tests(tmp_path: Path) -> None:
    item = {"_id": "h", "question": "where?", "answer": "here", "context": [["towns", ["It is here."]]]}
    (tmp_path / "hotpot.json").write_text(json.dumps([item]))
    with pytest.raises(UserError, match="give it to --extra-test"):
        make_mixture([str(tmp_path / "hotpot.json")], tmp_path / "data", quiet)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": ()}, "at least one --data"),
        ({"data": ("a/x.json", "b/x.json")}, "call 'x'"),
        ({"extra_tests": ("test.json",)}, "call 'test'"),
        ({"rates": (1e-4, 1e-4)}, "different learning rates"),
        ({"rates": (-1.0,)}, "`learning_rate` must be a positive number"),
        ({"epochs": 0.0}, "`epochs`"),
    ],
    ids=["no data", "same names", "taken name", "same rates", "negative rate", "no epochs"],
)
def test_plans_that_cannot_be(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        Table3Plan(**{"model": "m", "data": ("x.json",)} | changes)


def test_each_kind_goes_on_with_its_own_best_rate(tmp_path: Path) -> None:
    plan = Table3Plan(model="m", data=("x.json",), root=str(tmp_path), rates=(1e-4, 3e-4), seeds=2)
    for kind, scores in ((DISJOINT, (40.0, 41.0)), (RECURRENT, (43.0, 42.0))):
        for rate, f1 in zip(plan.rates, scores, strict=True):
            save_result(plan.unit(BLANK, kind, rate, 0).folder / "result.json", {"test": {"f1": f1}})
    finals = plan.finals(BLANK, [])
    assert [unit.name for unit in finals[DISJOINT]] == ["disjoint-0.0003-s0", "disjoint-0.0003-s1"]
    assert [unit.name for unit in finals[RECURRENT]] == ["recurrent-0.0001-s0", "recurrent-0.0001-s1"]


def test_both_kinds_are_trained_alike(tmp_path: Path) -> None:
    plan = Table3Plan(model="m", data=("x.json",), root=str(tmp_path))
    disjoint, recurrent = (plan.unit(BLANK, kind, 1e-4, 1).settings.to_dict() for kind in (DISJOINT, RECURRENT))
    assert {name for name in disjoint if disjoint[name] != recurrent[name]} == {"out", "recurrence"}
    paper = {"pooled_layers": "last", "hidden_layers": 2, "hidden_size": 768, "insert_layer": 2, "window": 512}
    assert recurrent["recurrence"] == {"mechanism": "carry"} | paper


def test_a_score_of_other_questions_is_made_anew(tmp_path: Path) -> None:
    test = QuestionFile("hotpot", "hotpot.json", "new")
    plan = Table3Plan(model="m", data=("x.json",), root=str(tmp_path))
    unit = Unit("u", plan.unit(BLANK, DISJOINT, 1e-4, 0).settings, (test,))
    assert unit.unscored() == [test]
    for checksum, waiting in (("old", [test]), ("new", [])):
        save_result(unit.score_file(test), {"provenance": {"data_checksum": checksum}})
        assert unit.unscored() == waiting
    assert Unit.read(Path(unit.task().arguments[-1])) == unit


# ---- scores ----------------------------------------------------------------------------------------------


def scored(seed: int, questions: int = 200, seeds: int = 3) -> dict[str, np.ndarray]:
    """By question (seeds, metrics): exact match and F1."""
    chance = np.random.default_rng(seed)
    f1 = chance.random((questions, seeds))
    return {f"q{number}": np.stack([row > 0.5, row], axis=1) for number, row in enumerate(f1)}


def test_means_are_of_all_questions_and_spread_is_of_the_seeds() -> None:
    plain, memory = scored(1), scored(2)
    rows = rows_of("test", plain, memory)
    for row, values in zip(rows["rows"], (plain, memory), strict=True):
        all_values = np.array(list(values.values()))  # (questions, seeds, metrics)
        for column, metric in enumerate(("exact_match", "f1")):
            by_seed = 100 * all_values[:, :, column].mean(0)
            assert row[metric]["by_seed"] == pytest.approx(by_seed.tolist())
            assert row[metric]["mean"] == pytest.approx(by_seed.mean())
            assert row[metric]["standard_deviation"] == pytest.approx(by_seed.std(ddof=1))
            low, high = row[metric]["interval"]
            assert low < row[metric]["mean"] < high
    told = rows["difference"]["f1"]
    assert told["mean"] == pytest.approx(rows["rows"][1]["f1"]["mean"] - rows["rows"][0]["f1"]["mean"])
    assert told["within_noise"]


def test_the_difference_is_taken_question_by_question_and_seed_by_seed() -> None:
    plain = scored(1)
    shift = np.array([0.0, 0.01])
    memory = {name: row + shift for name, row in plain.items()}
    told = rows_of("test", plain, memory)["difference"]
    assert told["f1"]["interval"] == pytest.approx([1.0, 1.0])  # as wide as the scores' own if they were not paired
    assert not told["f1"]["within_noise"]
    assert told["exact_match"]["interval"] == [0, 0]
    assert told["exact_match"]["within_noise"]


def test_scores_of_different_questions_are_refused() -> None:
    with pytest.raises(UserError, match="same questions of test"):
        rows_of("test", scored(1, questions=3), scored(1, questions=4))


@pytest.mark.parametrize(("shift", "verdict"), [(0.02, "is a gain"), (-0.02, "is a loss"), (0.0, "from noise")])
def test_the_sentence_says_what_came_out(shift: float, verdict: str) -> None:
    plain = scored(1)
    rows = rows_of("test", plain, {name: row + np.array([0.0, shift]) for name, row in plain.items()})
    published = {kind: {"f1": f1, "exact_match": 40.0} for kind, f1 in ((DISJOINT, 48.17), (RECURRENT, 49.12))}
    published["difference"] = {"f1": 0.95, "exact_match": 1.0}
    result: dict[str, Any] = {"tests": [rows], "published": published}
    said = statement(result)
    assert verdict in said
    assert f"difference of {100 * shift:+.2f} points" in said
    assert "the paper reports +0.95" in said
    result |= {
        "statement": said,
        "made_at": made_at([[MADE]]),
        "training": {kind: {"seconds": [1.0]} for kind in (DISJOINT, RECURRENT)},
        "learning_rates": {"trials": [], "chosen": {}, "at_the_edge": [RECURRENT]},
        "differences_from_the_paper": ["It differs."],
    }
    lines = table3_lines(result)
    mean = rows["rows"][0]["f1"]["mean"]
    assert any(line.startswith(f"| test (200) | disjoint | {mean:.2f} (") for line in lines)
    assert "| the paper: HotpotQA, development set | difference | +0.95 | +1.00 |" in lines
    assert "- It differs." in lines
    assert lines[-1] == said


def test_extra_tests_may_not_be_called_like_their_sum() -> None:
    with pytest.raises(UserError, match=TOGETHER):
        Table3Plan(model="m", data=("x.json",), extra_tests=(f"{TOGETHER}.json",))


# ---- by what runs were made, and how long they took -------------------------------------------------------


def origin(commit: str = "a" * 40, seconds: float = 1.0, dirty: bool | None = None) -> dict[str, Any]:
    return {
        "git": {"commit": commit, "dirty": dirty},
        "machine": {"gpu": "a GPU", "cpu": "a CPU"},
        "libraries": {"torch": "2.11.0", "transformers": "5.17.0"},
        "wall_seconds": seconds,
    }


def told_of(runs: list[list[dict[str, str]]], seconds: list[float | None]) -> str:
    return made_line({"made_at": made_at(runs), "training": {DISJOINT: {"seconds": seconds}}})


def test_runs_made_at_several_commits_are_called_a_mix() -> None:
    other = MADE | {"commit": "b" * 40}
    runs = [[MADE, MADE], [MADE], [MADE, other]]  # the last was scored, or went on, at another commit
    found = made_at(runs)
    assert found == {
        "runs": 3,
        "commits": {"a" * 40: 3, "b" * 40: 1},
        "devices": {"a GPU": 3},
        "torch": {"2.11.0": 3},
        "transformers": {"5.17.0": 3},
    }
    assert told_of(runs, [1.0]) == (
        "Made by 3 runs; a mix of commits: aaaaaaa (3 of 3 runs) and bbbbbbb (1 of 3 runs); device a GPU; "
        "torch 2.11.0; transformers 5.17.0."
    )
    assert "commit aaaaaaa; device a GPU; " in told_of([[MADE]], [1.0])
    assert "a mix of torch versions: " in told_of([[MADE], [MADE | {"torch": "2.13.0"}]], [1.0])


def test_runs_without_all_of_their_time_are_named() -> None:
    assert "left out for 1 of 3 runs" in told_of([[MADE]], [1.0, None, 2.0])


def test_changed_files_are_no_commit() -> None:
    assert made_with(origin()) == MADE
    assert made_with(origin(dirty=True))["commit"] == "a" * 40 + ", changed"
    assert "aaaaaaa, changed" in told_of([[made_with(origin(dirty=True))]], [1.0])


def test_legs_add_up_where_all_of_them_left_word(tmp_path: Path) -> None:
    first = with_this_leg(tmp_path, 0, 10, origin(seconds=3))
    keep_legs(tmp_path, first)
    second = with_this_leg(tmp_path, 10, 15, origin(commit="b" * 40, seconds=4))
    assert [leg["commit"][0] for leg in second] == ["a", "b"]
    assert seconds_of({"legs": first}) == 3
    assert seconds_of({"legs": second}) == 7
    lost = with_this_leg(tmp_path, 12, 15, origin(seconds=4))  # a leg from 10 to 12 was cut off
    assert seconds_of({"legs": lost}) is None
    anew = with_this_leg(tmp_path, 0, 15, origin(seconds=5))  # nothing of the first leg was left
    assert seconds_of({"legs": anew}) == 5


@pytest.mark.parametrize(("closing", "seconds"), [(3.5, 9.0), (0.5, None)], ids=["one go", "resumed"])
def test_results_without_legs_tell_by_their_losses(closing: float, seconds: float | None) -> None:
    losses = [{"step": 1, "loss": 8.0}, {"step": 3, "loss": 4.0}, {"step": 6, "loss": 5 / 3}]
    history = [*losses, {"step": 6, "train_loss": closing}]
    assert seconds_of({"history": history, "provenance": origin(seconds=9.0)}) == seconds
