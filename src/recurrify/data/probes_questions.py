"""The probe whose facts are texts of a data set, and whose questions are about them."""

import re
from collections.abc import Iterable

import numpy as np

from recurrify.data.probes_text import Story, TextProbe
from recurrify.data.questions import Question
from recurrify.errors import UserError

WORDS_PER_TOKEN = 0.4
"""Words that a context may have for each token up to the question: about half of the room."""
LONGEST_ANSWER = 40
"""Characters."""


class Answering(TextProbe):
    """A context that begins in the first window, and some windows later a question about it. The other candidates are
    answers to other questions, and do not occur in the context. The question alone makes some candidates unlikely: a
    model without memory is above chance."""

    name = "questions"
    asks = "What is the answer to a question about a text?"
    secrets = re.compile(r"(?!)")

    def __init__(self, questions: Iterable[Question], room: int) -> None:
        """`room`: tokens from the beginning of the text to the window of the question, at the shortest distance."""
        most = int(WORDS_PER_TOKEN * room)
        self.questions = [one for one in questions if _usable(one, most)]
        self.answers = list(dict.fromkeys(one.answers[0] for one in self.questions))
        if len(self.answers) < 2 * self.candidates:
            raise UserError(
                f"The probe of questions needs {2 * self.candidates} different answers of at most {LONGEST_ANSWER} "
                f"characters in contexts of at most {most} words: got {len(self.answers)}; choose larger distances or "
                "windows, or give another file."
            )

    def draw(self, chance: np.random.Generator) -> Story:
        asked = self.questions[int(chance.integers(len(self.questions)))]
        context, right = asked.context.casefold(), asked.answers[0]
        accepted = {answer.casefold() for answer in asked.answers}
        others: list[str] = []
        for index in chance.permutation(len(self.answers)):
            other = self.answers[int(index)]
            if other.casefold() not in context and other.casefold() not in accepted:
                others.append(other)
            if len(others) == self.candidates - 1:
                break
        answer = int(chance.integers(len(others) + 1))
        others.insert(answer, right)
        candidates = tuple(f" {one}\n" for one in others)
        return Story((f"\n{asked.context}\n",), f"\nQuestion: {asked.question}\nAnswer:", candidates, answer)


def _usable(question: Question, most_words: int) -> bool:
    """Whether it has a context that is not too long, and a short answer that is written there."""
    short = (
        len(question.context.split()) <= most_words
        and bool(question.answers)
        and len(question.answers[0]) <= LONGEST_ANSWER
    )
    return short and question.kind == "span" and question.answers[0].casefold() in question.context.casefold()
