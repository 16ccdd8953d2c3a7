"""Answers from a model's scores, evaluated by the official rules of SQuAD and HotpotQA."""

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from recurrify.data.question_windows import WindowedQuestion, collate_questions
from recurrify.data.questions import KINDS, Question
from recurrify.errors import UserError
from recurrify.modeling.task_heads import RecurrentForQuestionAnswering

LONGEST_ANSWER = 30
"""Tokens of the longest span that is considered."""
SAMPLES, SAMPLES_AT_ONCE = 20_000, 500
"""Bootstrap samples, and how many are drawn at once, which bounds memory use."""


class Answer(NamedTuple):
    """A predicted answer."""

    text: str
    kind: str
    """span, yes or no."""
    start: int
    stop: int
    """First and past-the-last character of the best span, even if the answer is yes or no."""
    score: float
    """The sum of the best span's start and end scores."""


class Span(NamedTuple):
    first: int
    last: int
    score: float


# ---- the official rules ----------------------------------------------------------------------------------


def normalize_answer(text: str) -> str:
    """Lower case, no punctuation, no articles, single blanks, as both official evaluations compare."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def exact_match(prediction: str, answer: str) -> float:
    return float(normalize_answer(prediction) == normalize_answer(answer))


def squad_f1(prediction: str, answer: str) -> float:
    """The harmonic mean of the words' precision and recall."""
    said, wanted = normalize_answer(prediction).split(), normalize_answer(answer).split()
    common = sum((Counter(said) & Counter(wanted)).values())
    if not common:
        return 0.0
    precision, recall = common / len(said), common / len(wanted)
    return 2 * precision * recall / (precision + recall)


def hotpotqa_f1(prediction: str, answer: str) -> float:
    """SQuAD's F1, but yes, no and noanswer must match exactly."""
    said, wanted = normalize_answer(prediction), normalize_answer(answer)
    if said != wanted and {said, wanted} & {"yes", "no", "noanswer"}:
        return 0.0
    return squad_f1(prediction, answer)


_F1: dict[str, Callable[[str, str], float]] = {"squad": squad_f1, "hotpotqa": hotpotqa_f1}


@dataclass(frozen=True)
class AnswerScores:
    """The scores of each question, in order; the best over all accepted answers."""

    ids: list[str]
    exact: np.ndarray
    f1: np.ndarray

    @property
    def means(self) -> dict[str, float]:
        """Means in percent, as published."""
        return {"exact_match": 100 * float(self.exact.mean()), "f1": 100 * float(self.f1.mean())}

    def with_wrong(self, ids: Sequence[str]) -> "AnswerScores":
        """With questions added that have no prediction, which count as wrong."""
        nothing = np.zeros(len(ids))
        return AnswerScores([*self.ids, *ids], np.append(self.exact, nothing), np.append(self.f1, nothing))


def score_answers(predictions: Mapping[str, str], questions: Sequence[Question], style: str = "squad") -> AnswerScores:
    """Exact match and F1; a question without a prediction counts as wrong, as in the official programs."""
    if style not in _F1:
        raise UserError(f"`style` must be one of {', '.join(_F1)}: got {style!r}.")
    without = next((question.id for question in questions if not question.answers), None)
    if without is not None:
        raise UserError(f"Question {without!r} has no answers to score by: use `recurrify qa predict`.")
    f1 = _F1[style]
    exact_all, f1_all = np.zeros(len(questions)), np.zeros(len(questions))
    for row, question in enumerate(questions):
        said = predictions.get(question.id)
        if said is not None:
            exact_all[row] = max(exact_match(said, answer) for answer in question.answers)
            f1_all[row] = max(f1(said, answer) for answer in question.answers)
    return AnswerScores([question.id for question in questions], exact_all, f1_all)


def official_predictions(answers: Mapping[str, Answer], style: str = "squad") -> dict[str, Any]:
    """The format of the official evaluation programs; HotpotQA's supporting facts are not predicted."""
    texts = {identity: answer.text for identity, answer in answers.items()}
    if style == "hotpotqa":
        return {"answer": texts, "sp": {identity: [] for identity in texts}}
    return texts


def mean_interval(values: np.ndarray) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of a mean of (seeds, questions) values, both drawn with replacement; None for one.

    For differences between two models on the same questions it is the paired interval of their mean difference. With
    2,000 samples the ends depend on the seed: those of 819 questions moved by up to 0.4 points of 100. Not
    `scipy.stats.bootstrap`, which draws from one level only.
    """
    values = np.atleast_2d(values)
    if values.shape[1] < 2:
        return None
    chance = np.random.default_rng(0)
    means = np.empty(SAMPLES)
    for start in range(0, SAMPLES, SAMPLES_AT_ONCE):
        part = means[start : start + SAMPLES_AT_ONCE]
        questions = chance.integers(values.shape[1], size=(len(part), values.shape[1]))
        by_seed = values[:, questions].mean(2)
        seeds = chance.integers(len(values), size=(len(values), len(part)))
        part[:] = np.take_along_axis(by_seed, seeds, axis=0).mean(0)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


# ---- from scores to answers ------------------------------------------------------------------------------


def best_span(starts: np.ndarray, ends: np.ndarray, longest: int = LONGEST_ANSWER) -> Span:
    """The span of at most `longest` tokens with the highest sum of start and end scores."""
    best = Span(0, 0, -np.inf)
    for extra in range(min(longest, len(starts))):
        scores = starts[: len(starts) - extra] + ends[extra:]
        first = int(scores.argmax())
        if scores[first] > best.score:
            best = Span(first, first + extra, float(scores[first]))
    return best


def read_answer(
    question: Question,
    windowed: WindowedQuestion,
    starts: np.ndarray,
    ends: np.ndarray,
    kinds: np.ndarray,
    longest: int,
) -> Answer:
    """The answer by the scores of all tokens of all windows, and of the kinds span, yes and no."""
    span = best_span(starts[windowed.columns], ends[windowed.columns], longest)
    start, stop = windowed.characters(span.first, span.last)
    text = question.context[start:stop]
    # Some tokenizers make the blank before a word part of its token.
    start, stop = start + len(text) - len(text.lstrip()), stop - len(text) + len(text.rstrip())
    kind = KINDS[int(kinds.argmax())]
    return Answer(question.context[start:stop] if kind == "span" else kind, kind, start, stop, span.score)


@torch.no_grad()
def predict_answers(
    model: RecurrentForQuestionAnswering,
    questions: Sequence[Question],
    windowed: Sequence[WindowedQuestion],
    batch: int = 8,
    longest: int = LONGEST_ANSWER,
    bf16: bool = False,
) -> dict[str, Answer]:
    """The model's answer to each question, by id; questions with equally many windows share batches."""
    was_training = model.training
    model.eval()
    order = sorted(range(len(questions)), key=lambda index: len(windowed[index].windows))
    pad = model.config.pad_token_id or 0
    found: dict[str, Answer] = {}
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        inputs = collate_questions([windowed[row] for row in rows], pad, model.recurrence.window)
        inputs = {name: value.to(model.device) for name, value in inputs.items() if name not in _TARGETS}
        with torch.autocast(model.device.type, torch.bfloat16, enabled=bf16):
            output = model(**inputs)
        assert output.start_logits is not None
        assert output.end_logits is not None
        assert output.kind_logits is not None
        scores = [part.float().flatten(1).cpu().numpy() for part in (output.start_logits, output.end_logits)]
        kinds = output.kind_logits.float().cpu().numpy()
        for place, row in enumerate(rows):
            starts, ends = scores[0][place], scores[1][place]
            answer = read_answer(questions[row], windowed[row], starts, ends, kinds[place], longest)
            found[questions[row].id] = answer
    model.train(was_training)
    return {question.id: found[question.id] for question in questions}


_TARGETS = ("start_positions", "end_positions", "kinds")
