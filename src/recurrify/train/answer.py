"""Question answering: training, answers and their scores."""

import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from recurrify.console import is_first
from recurrify.data.question_windows import WindowedQuestion, collate_questions, window_questions
from recurrify.data.questions import EMPTY_CONTEXT, Question, QuestionSet, load_questions
from recurrify.data.texts import Say, report_skipped
from recurrify.errors import UserError
from recurrify.evaluate.answers import (
    LONGEST_ANSWER,
    Answer,
    mean_interval,
    official_predictions,
    predict_answers,
    score_answers,
)
from recurrify.evaluate.flops import memory_cost
from recurrify.modeling.task_heads import RecurrentForQuestionAnswering
from recurrify.modeling.task_loading import PAPERS_ANSWERING, load_task_model
from recurrify.results import provenance, write_whole
from recurrify.train.loop import TrainOutcome, train_examples, uses_bf16
from recurrify.train.run_folder import (
    begin_run,
    check_vocabulary,
    complete_run,
    count_parameters,
    earlier_result,
    recorded,
)
from recurrify.train.settings import AnswerSettings

PREDICTIONS_FILE = "predictions.json"


def answer_train(settings: AnswerSettings, say: Say, progress_label: str = "") -> dict[str, Any]:
    """Train as the settings say, then answer `settings.test`; model, answers and result are left in `settings.out`."""
    started = time.time()
    set_seed(settings.seed)
    wanted = settings.recurrence or PAPERS_ANSWERING
    model, tokenizer = load_task_model(settings.model, RecurrentForQuestionAnswering, wanted)
    asked = read_questions(settings.data, say)
    test = read_questions(settings.test, say) if settings.test is not None else None
    held_out = None if test is None else checksum(test.questions)
    settings = recorded(settings, model, checksum(asked.questions), held_out)
    earlier = earlier_result(settings, say)
    if earlier is not None:
        return earlier
    counts = Counter(asked.counts)
    learnable = _learnable(asked.questions, settings, model, tokenizer, counts, say)
    begin_run(settings)
    parameters = count_parameters(model)
    say(
        f"{settings.model}: {parameters['base']:,} parameters, {parameters['added']:,} added by "
        f"{model.recurrence.mechanism!r}; {len(learnable):,} questions in windows of {model.recurrence.window}"
    )
    if settings.freeze_base:
        model.base.base_model.requires_grad_(False)
    pad = getattr(tokenizer, "pad_token_id", None) or 0
    collate = partial(collate_questions, pad_token_id=pad, window=model.recurrence.window)
    tokens = sum(len(window) for question in learnable for window in question.windows)

    def fit() -> TrainOutcome:
        return train_examples(model, learnable, collate, settings, tokens, tokenizer, progress_label)

    def scores() -> dict[str, Any]:
        if test is None:
            return {}
        bf16 = uses_bf16(settings.precision)
        answers, found = answer_questions(model, tokenizer, test, say, settings.longest_answer, bf16=bf16)
        if is_first():
            write_predictions(answers, test.style, Path(settings.out) / PREDICTIONS_FILE)
        return {"test": found}

    handled = {"asked": len(asked.questions), "trained_on": len(learnable), "handled": dict(counts)}
    return complete_run("answer-train", settings, model, tokenizer, say, started, fit, scores, questions=handled)


def answer_evaluate(
    name: str, data: str, say: Say, device: torch.device, batch: int = 8, longest: int = LONGEST_ANSWER
) -> tuple[dict[str, Answer], dict[str, Any], str]:
    """A trained model's answers to the questions of a file, their scores as a result, and the format of the file."""
    started = time.time()
    model, tokenizer = load_task_model(name, RecurrentForQuestionAnswering, trained_head=True)
    asked = read_questions(data, say)
    answers, scores = answer_questions(model.to(device), tokenizer, asked, say, longest, batch)
    config = {"model": name, "data": data, "recurrence": model.recurrence.to_dict(), "longest_answer": longest}
    origin = provenance(config, data_checksum=checksum(asked.questions), started=started)
    memory = memory_cost(model)._asdict()
    return answers, {"kind": "answer-evaluation", **scores, "memory": memory, "provenance": origin}, asked.style


def answer_predict(
    name: str, data: str, say: Say, device: torch.device, batch: int = 8, longest: int = LONGEST_ANSWER
) -> tuple[dict[str, Answer], str]:
    """A trained model's answers to questions that need no answers in the file, and the format of the file."""
    model, tokenizer = load_task_model(name, RecurrentForQuestionAnswering, trained_head=True)
    asked = read_questions(data, say, answers_needed=False)
    windowed = windows_for(model.to(device), asked.questions, tokenizer, Counter(), say)
    return predict_answers(model, asked.questions, windowed, batch, longest), asked.style


def answer_questions(
    model: RecurrentForQuestionAnswering,
    tokenizer: Any,
    asked: QuestionSet,
    say: Say,
    longest: int = LONGEST_ANSWER,
    batch: int = 8,
    bf16: bool = False,
) -> tuple[dict[str, Answer], dict[str, Any]]:
    """Answers and their scores, with intervals over questions."""
    counts = Counter(asked.counts)
    windowed = windows_for(model, asked.questions, tokenizer, counts, say)
    answers = predict_answers(model, asked.questions, windowed, batch, longest, bf16)
    scores = score_answers({name: answer.text for name, answer in answers.items()}, asked.questions, asked.style)
    # An empty context has no answer; the official programs count a missing answer as wrong.
    scores = scores.with_wrong([entry.name for entry in asked.skipped if entry.reason == EMPTY_CONTEXT])
    found = {
        **scores.means,
        "exact_match_interval": _percent(mean_interval(scores.exact)),
        "f1_interval": _percent(mean_interval(scores.f1)),
        "questions": len(scores.ids),
        "windows_per_question": sum(len(question.windows) for question in windowed) / len(windowed),
        "skipped": len(asked.skipped),
        "handled": dict(counts),
        "by_question": {
            name: [exact, f1]
            for name, exact, f1 in zip(scores.ids, scores.exact.tolist(), scores.f1.tolist(), strict=True)
        },
    }
    return answers, found


def windows_for(
    model: RecurrentForQuestionAnswering, questions: Sequence[Question], tokenizer: Any, counts: Counter[str], say: Say
) -> list[WindowedQuestion]:
    """The questions in windows as long as the model's; special cases are reported and added to `counts`."""
    before = counts.copy()
    windowed = window_questions(questions, tokenizer, model.recurrence.window, counts)
    check_vocabulary(model, [window for question in windowed for window in question.windows], "the model")
    for what, count in (counts - before).items():
        say(f"{what}: {count:,}")
    return windowed


def read_questions(path: str, say: Say, answers_needed: bool = True) -> QuestionSet:
    """The questions of a file; reports what was skipped."""
    found = load_questions(path, answers_needed)
    say(f"{path}: {found.summary()}")
    report_skipped(found.skipped, say)
    return found


def write_predictions(answers: dict[str, Answer], style: str, path: Path) -> None:
    """Write answers in the official format of a data set."""
    content = json.dumps(official_predictions(answers, style), ensure_ascii=False, indent=1)
    write_whole(path, (content + "\n").encode())


def checksum(questions: Sequence[Question]) -> str:
    """The SHA-256 of the questions, their contexts and answers, in their order."""
    return hashlib.sha256(json.dumps(questions).encode()).hexdigest()


def _learnable(
    questions: Sequence[Question],
    settings: AnswerSettings,
    model: RecurrentForQuestionAnswering,
    tokenizer: Any,
    counts: Counter[str],
    say: Say,
) -> list[WindowedQuestion]:
    chosen = list(questions)
    if settings.questions is not None and settings.questions < len(chosen):
        chosen = random.Random(settings.seed).sample(chosen, int(settings.questions))
    windowed = windows_for(model, chosen, tokenizer, counts, say)
    learnable = [question for question in windowed if question.learnable]
    if len(learnable) < len(windowed):
        say(f"{len(windowed) - len(learnable):,} questions are not trained on: their answer is not in their context")
    if not learnable:
        raise UserError(f"No question of {settings.data!r} has its answer in its context: check the file.")
    return learnable


def _percent(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else [100 * side for side in interval]
