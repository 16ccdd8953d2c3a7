"""Questions whose paragraph is mixed with paragraphs of other articles."""

import itertools

import pytest

from recurrify.data import Question, QuestionSet
from recurrify.errors import UserError
from recurrify_papers.yoshida2020.distractors import mix_paragraphs, plain_title, words_of

SHARES = {"train": 0.6, "test": 0.4}


class TestMixedParagraphs:
    def made(self) -> list[Question]:
        questions = []
        for article, part, number in itertools.product(range(30), range(2), range(2)):
            front, word = f"Article {article} has in part {part} the word ", f"w{article}x{part}"
            span = (len(front), len(front) + len(word))
            name = f"{article}-{part}-{number}"
            questions.append(Question(name, "?", f"{front}{word}.", (word,), "span", span, f"Title_{article}"))
        return [*questions, questions[0]._replace(id="lost", span=None)]

    def test_answers_keep_their_places_and_occur_once(self) -> None:
        train, test = mix_paragraphs(self.made(), SHARES).values()
        assert len(train.questions) + len(test.questions) == 120
        assert train.counts + test.counts == {"answers that do not occur": 1}
        positions = set()
        for question in (*train.questions, *test.questions):
            assert question.span is not None
            assert question.context[slice(*question.span)] == question.answers[0]
            assert question.context.count(question.answers[0]) == 1
            paragraphs = question.context.split("\n\n")
            assert len(paragraphs) == len(set(paragraphs)) == 10
            positions.add(next(i for i, part in enumerate(paragraphs) if question.answers[0] in part))
        assert positions == set(range(10))

    def test_no_article_is_in_both_parts(self) -> None:
        def articles(questions: QuestionSet) -> set[str]:
            return {part.split("\n")[0] for question in questions.questions for part in question.context.split("\n\n")}

        train, test = mix_paragraphs(self.made(), SHARES).values()
        assert len(articles(train)) == 18
        assert len(articles(test)) == 12
        assert not articles(train) & articles(test)
        assert mix_paragraphs(self.made(), SHARES)["test"].questions == test.questions
        assert mix_paragraphs(self.made(), SHARES, seed=1)["test"].questions != test.questions

    def test_answers_in_every_paragraph_are_counted(self) -> None:
        first, *others = self.made()
        train, test = mix_paragraphs([first._replace(answers=("article",)), *others], SHARES).values()
        assert (train.counts + test.counts)["answers that occur everywhere"] == 1

    def test_too_few_articles_raises(self) -> None:
        with pytest.raises(UserError, match="give more articles"):
            mix_paragraphs(self.made()[:8], SHARES)


def test_words_and_titles() -> None:
    assert words_of("The Pig's é—5!") == " the pig s e 5 "
    assert plain_title("Super_Bowl_50") == plain_title("Super Bowl 50")
