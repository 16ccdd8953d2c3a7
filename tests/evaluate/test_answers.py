"""Answers by the official rules, and the best span."""

import numpy as np
import pytest
import torch

from recurrify import CarryConfig, NoRecurrence, UserError, add_recurrence
from recurrify.data.question_windows import window_questions
from recurrify.data.questions import Question
from recurrify.evaluate.answers import (
    Answer,
    best_span,
    exact_match,
    hotpotqa_f1,
    mean_interval,
    normalize_answer,
    official_predictions,
    predict_answers,
    read_answer,
    score_answers,
    squad_f1,
)
from support.models import tiny
from support.tokenizers import like_bert

TEXT = "Ann met Bob in Rome. Then they went to Paris, where Eve lived with a cat and a dog for many years."
TOKENIZER = like_bert([TEXT], words=5)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("The  Beatles!", "beatles"),
        ("an apple a day", "apple day"),
        ("U.S.", "us"),
        ("anthem", "anthem"),
        ("the a an", ""),
        ("Theo's\tcat\n", "theos cat"),
        ("A-ha", "aha"),
        ("a - ha", "ha"),
        ("“Curly” quotes stay", "“curly” quotes stay"),
    ],
)
def test_normalisation(text: str, plain: str) -> None:
    assert normalize_answer(text) == plain


@pytest.mark.parametrize(
    ("said", "wanted", "exact", "squad", "hotpotqa"),
    [
        ("the cat", "Cat!", 1, 1, 1),
        ("New York City", "New York", 0, 0.8, 0.8),  # precision 2/3, recall 1
        ("in May 1998", "1998 May 3", 0, 2 / 3, 2 / 3),  # two words of three, both ways
        ("red red car", "red car", 0, 0.8, 0.8),  # the second red is too many
        ("dog", "cat", 0, 0, 0),
        ("no", "no", 1, 1, 1),
        ("No.", "no", 1, 1, 1),
        ("no idea", "no", 0, 2 / 3, 0),
        ("yes", "yes it was", 0, 0.5, 0),
        ("", "cat", 0, 0, 0),
    ],
)
def test_scores_by_hand(said: str, wanted: str, exact: float, squad: float, hotpotqa: float) -> None:
    assert exact_match(said, wanted) == exact
    assert squad_f1(said, wanted) == pytest.approx(squad)
    assert hotpotqa_f1(said, wanted) == pytest.approx(hotpotqa)


def test_best_answer_counts_and_missing_prediction_is_wrong() -> None:
    questions = [
        Question("a", "?", TEXT, ("Rome", "in Rome")),
        Question("b", "?", TEXT, ("Paris",)),
        Question("c", "?", TEXT, ("no",), "no"),
    ]
    found = score_answers({"a": "in Rome Then", "c": "no idea"}, questions)
    assert found.ids == ["a", "b", "c"]
    assert found.exact.tolist() == [0, 0, 0]
    assert found.f1.tolist() == pytest.approx([0.8, 0, 2 / 3])
    assert found.means["f1"] == pytest.approx(100 * (0.8 + 2 / 3) / 3)
    assert score_answers({"c": "no idea"}, questions, "hotpotqa").f1.tolist() == [0, 0, 0]


def test_unscorable_questions_raise() -> None:
    with pytest.raises(UserError, match="Question 'a' has no answers"):
        score_answers({}, [Question("a", "?", TEXT, ())])
    with pytest.raises(UserError, match="style"):
        score_answers({}, [], "trivia")


def test_official_formats() -> None:
    answers = {"x": Answer("Rome", "span", 15, 19, 1.0), "y": Answer("yes", "yes", 0, 3, 1.0)}
    assert official_predictions(answers) == {"x": "Rome", "y": "yes"}
    assert official_predictions(answers, "hotpotqa") == {"answer": {"x": "Rome", "y": "yes"}, "sp": {"x": [], "y": []}}


@pytest.mark.parametrize("longest", [1, 3, 30])
def test_best_span_equals_exhaustive_search(longest: int) -> None:
    chance = np.random.default_rng(0)
    for length in (1, 2, 9, 20):
        starts, ends = chance.normal(size=(2, length))
        every = [(starts[i] + ends[j], i, j) for i in range(length) for j in range(i, length) if j - i < longest]
        found = best_span(starts, ends, longest)
        assert (found.score, found.first, found.last) == max(every)


def test_span_across_windows() -> None:
    question = Question("q", "Where?", TEXT, ("?",))
    (windowed,) = window_questions([question], TOKENIZER, 20)
    border = int(np.flatnonzero(windowed.columns >= 20)[0])
    starts, ends = np.zeros((2, 20 * len(windowed.windows)))
    starts[windowed.columns[border - 2]] = ends[windowed.columns[border + 1]] = 5
    # Scores outside the context are ignored.
    starts[0] = ends[0] = 100
    answer = read_answer(question, windowed, starts, ends, np.array([3.0, 1.0, 2.0]), 30)
    expected = TEXT[windowed.offsets[border - 2, 0] : windowed.offsets[border + 1, 1]]
    assert answer == Answer(
        expected, "span", int(windowed.offsets[border - 2, 0]), int(windowed.offsets[border + 1, 1]), 10
    )
    assert read_answer(question, windowed, starts, ends, np.array([1.0, 1.5, 2.0]), 30).text == "no"


def test_blanks_of_tokens_are_stripped() -> None:
    question = Question("q", "?", "a  b ", ("?",))
    (windowed,) = window_questions([question], TOKENIZER, 20)
    wide = type(windowed)(**{**windowed.__dict__, "offsets": np.array([[0, 3], [1, 5]])})
    scores = np.zeros(20)
    scores[wide.columns[1]] = 1
    answer = read_answer(question, wide, scores, scores, np.array([1.0, 0, 0]), 30)
    assert (answer.text, answer.start, answer.stop) == ("b", 3, 4)


@pytest.mark.parametrize(
    "recurrence", [NoRecurrence(window=20), CarryConfig(window=20, hidden_size=12)], ids=["none", "carry"]
)
def test_predictions_do_not_depend_on_the_batch(recurrence: NoRecurrence | CarryConfig) -> None:
    torch.manual_seed(0)
    model = add_recurrence(tiny("bert", "answers", vocab_size=len(TOKENIZER)), recurrence)
    questions = [Question(str(number), "Who?", TEXT[:stop], ("?",)) for number, stop in enumerate((98, 3, 40, 98, 60))]
    windowed = window_questions(questions, TOKENIZER, 20)
    together = predict_answers(model.train(), questions, windowed, batch=4)
    assert model.training
    alone = predict_answers(model, questions, windowed, batch=1)
    assert list(together) == ["0", "1", "2", "3", "4"]
    assert together["0"][:4] == together["3"][:4]
    for name in together:
        assert together[name][:4] == alone[name][:4]
        assert together[name].score == pytest.approx(alone[name].score, abs=1e-4)


def test_mean_interval() -> None:
    values = np.random.default_rng(1).normal(0.5, 1.0, size=(3, 400))
    low, high = mean_interval(values)  # type: ignore[misc]
    assert low < values.mean() < high
    # Seeds that agree about the same questions: a mean of 400 values has a standard error of 0.05.
    same = np.repeat(values[:1], 3, 0)
    low, high = mean_interval(same)  # type: ignore[misc]
    assert high - low == pytest.approx(2 * 1.96 * same[0].std() / 20, rel=0.1)
    assert mean_interval(np.ones((3, 1))) is None
