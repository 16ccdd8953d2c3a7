"""Question-answering sets with long contexts, made from questions that have one paragraph each."""

import random
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence

from recurrify import UserError
from recurrify.data import Question, QuestionSet


def mix_paragraphs(
    questions: Sequence[Question], shares: Mapping[str, float], distractors: int = 9, seed: int = 0
) -> dict[str, QuestionSet]:
    """Sets in which each question's paragraph is at a random place among those of others.

    As in HotpotQA's distractor setting, ten paragraphs by default, each under its title. The articles are divided by
    the `shares` of the sets, so that no paragraph of an article, gold or distractor, is in two of them. A distractor
    contains none of the question's answers. Questions whose answer does not occur in their paragraph, or occurs in
    nearly all, are left out and counted.
    """
    chance = random.Random(seed)
    articles = sorted({plain_title(question.article) for question in questions})
    chance.shuffle(articles)
    made, begin, total = {}, 0, 0.0
    for name, share in shares.items():
        total += share
        end = round(total * len(articles))
        own = set(articles[begin:end])
        dealt = [question for question in questions if plain_title(question.article) in own]
        made[name], begin = _mixed(dealt, distractors, chance), end
    return made


def _mixed(questions: Sequence[Question], distractors: int, chance: random.Random) -> QuestionSet:
    paragraphs = list(dict.fromkeys((plain_title(question.article), question.context) for question in questions))
    words = [words_of(f"{title} {text}") for title, text in paragraphs]
    made = QuestionSet([], "squad", Counter())
    for question in questions:
        if question.kind != "span" or question.span is None:
            made.counts["answers that do not occur"] += 1
            continue
        gold = (plain_title(question.article), question.context)
        answers = [words_of(answer) for answer in question.answers]
        others: list[tuple[str, str]] = []
        for index in chance.sample(range(len(paragraphs)), len(paragraphs)):
            if paragraphs[index] != gold and not any(answer in words[index] for answer in answers):
                others.append(paragraphs[index])
                if len(others) == distractors:
                    break
        if len(others) < distractors:
            made.counts["answers that occur everywhere"] += 1
            continue
        position = chance.randrange(distractors + 1)
        before = "".join(f"{titled(*other)}\n\n" for other in others[:position])
        after = "".join(f"\n\n{titled(*other)}" for other in others[position:])
        context = before + titled(*gold) + after
        start = len(before) + len(titled(gold[0], ""))
        span = (start + question.span[0], start + question.span[1])
        made.questions.append(question._replace(context=context, span=span))
    if not made.questions:
        raise UserError(
            f"None of {len(questions)} questions can be put among {distractors} paragraphs of others: give more "
            f"articles, or fewer distractors than {distractors}."
        )
    return made


def titled(title: str, text: str) -> str:
    """A paragraph under its title."""
    return f"{title}\n{text}" if title else text


def plain_title(title: str) -> str:
    """An article's title with blanks: SQuAD writes underscores, as in its address."""
    return " ".join(title.replace("_", " ").split())


def words_of(text: str) -> str:
    """A text's words without case and accents, each between blanks: " the pig is 5 "."""
    letters = [one for one in unicodedata.normalize("NFKD", text).casefold() if not unicodedata.combining(one)]
    return f" {' '.join(''.join(one if one.isalnum() else ' ' for one in letters).split())} "
