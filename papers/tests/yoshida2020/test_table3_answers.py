"""Table 3: how questions are mixed, and the rows from scores."""

from pathlib import Path

import pytest

from recurrify import UserError
from recurrify.data import Question, QuestionSet, load_questions, save_questions
from recurrify_papers.yoshida2020.answer_runs import numbers_of
from recurrify_papers.yoshida2020.question_mixture import mixture_run


def questions(articles: int, topic: str) -> list[Question]:
    """Two questions for each article, whose answers occur in no other."""
    made = []
    for number in range(articles):
        names = [f"{topic}{who}{number:02}" for who in ("mayor", "dog")]
        context = f"In {topic}{number} lived {names[0]} with {names[1]}."
        for place, answer in enumerate(names):
            span = (context.index(answer), context.index(answer) + len(answer))
            identity = f"{number}-{place}"
            made.append(Question(identity, f"who is {answer}?", context, (answer,), "span", span, f"{topic}{number}"))
    return made


def mixed(tmp_path: Path, **more: object) -> dict[str, list[Question]]:
    files = [tmp_path / "towns.json", tmp_path / "lakes.json"]
    for path in files:
        save_questions(QuestionSet(questions(30, path.stem), "squad"), path)
    folder = tmp_path / "data"
    folder.mkdir()
    settings = {"data": [str(path) for path in files], "distractors": 3, "questions": None, "seed": 0, **more}
    mixture_run(settings, folder, lambda text: None)
    return {name: load_questions(folder / f"{name}.json").questions for name in ("train", "valid", "test")}


def test_parts_share_no_paragraph(tmp_path: Path) -> None:
    parts = mixed(tmp_path)
    held = {name: {text for one in part for text in one.context.split("\n\n")} for name, part in parts.items()}
    assert not held["train"] & held["valid"]
    assert not held["train"] & held["test"]
    assert not held["valid"] & held["test"]
    asked = [question for part in parts.values() for question in part]
    assert len({question.id for question in asked}) == 120  # both files have the same ids
    for question in asked:
        assert question.span is not None
        assert (question.context[slice(*question.span)],) == question.answers
        assert len(question.context.split("\n\n")) == 4


def test_too_few_articles_raise(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="give more articles, or fewer distractors than 100"):
        mixed(tmp_path, distractors=100)


def test_difference_is_paired_by_question_and_seed() -> None:
    disjoint = [{"a": [0.0, 0.5], "b": [1.0, 1.0]}, {"a": [0.0, 0.1], "b": [1.0, 1.0]}]
    recurrent = [{"a": [1.0, 1.0], "b": [1.0, 1.0]}, {"a": [0.0, 0.3], "b": [1.0, 1.0]}]
    found = {
        (number["label"], number["metric"]): number
        for number in numbers_of("test", {"disjoint": disjoint, "recurrent": recurrent})
    }
    assert found["difference", "f1"]["value"] == pytest.approx(100 * (0.25 + 0.1) / 2)
    assert found["recurrent", "exact_match"]["value"] == pytest.approx(75.0)
    assert {number["seeds"] for number in found.values()} == {2}
