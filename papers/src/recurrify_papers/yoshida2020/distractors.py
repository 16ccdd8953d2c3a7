"""A question-answering set with long contexts, made from questions that have one paragraph each."""

import random
from collections import Counter
from collections.abc import Sequence

from recurrify import UserError
from recurrify.data import Question, QuestionSet, gold_paragraphs, join_paragraphs, plain_title, words_of


def mix_paragraphs(
    sources: Sequence[QuestionSet], distractors: int = 9, test_share: float = 0.2, seed: int = 0
) -> tuple[QuestionSet, QuestionSet]:
    """A training and a test set in which each question's paragraph is at a random place among those of others.

    As in HotpotQA's distractor setting, ten paragraphs by default, each under its title. The articles are divided
    between the two sets, so that no paragraph of an article, gold or distractor, is in both. A distractor contains none
    of the question's answers. Questions whose answer does not occur in their paragraph, or occurs in nearly all, are
    left out and counted.
    """
    if not 0 < test_share < 1:
        raise UserError(f"`test_share` must lie between 0 and 1: got {test_share}.")
    if distractors < 1:
        raise UserError(f"`distractors` must be at least 1: got {distractors}.")
    questions = [question for source in sources for question in source.questions]
    chance = random.Random(seed)
    articles = sorted({plain_title(question.article) for question in questions})
    chance.shuffle(articles)
    held_out = set(articles[: round(test_share * len(articles))])
    dealt: tuple[list[Question], list[Question]] = ([], [])
    for question in questions:
        dealt[plain_title(question.article) in held_out].append(question)
    train, test = (_mixed(part, distractors, chance) for part in dealt)
    return train, test


def _mixed(questions: Sequence[Question], distractors: int, chance: random.Random) -> QuestionSet:
    paragraphs = list(gold_paragraphs(questions))
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
        context, starts = join_paragraphs([*others[:position], gold, *others[position:]])
        span = (starts[position] + question.span[0], starts[position] + question.span[1])
        made.questions.append(question._replace(context=context, span=span))
    if not made.questions:
        raise UserError(
            f"None of {len(questions)} questions can be put among {distractors} paragraphs of others: "
            "give more articles."
        )
    return made
