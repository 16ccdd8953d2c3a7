"""Question answering as whole jobs: from names to a trained model, its answers and their scores."""

import hashlib
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import set_seed

from recurrify.console import is_first
from recurrify.data.question_windows import WindowedQuestion, window_questions
from recurrify.data.questions import EMPTY_CONTEXT, Question, QuestionSet, load_questions
from recurrify.data.texts import Say
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
from recurrify.results import provenance, save_result, write_whole
from recurrify.train.answer_legs import LEGS_FILE, keep_legs, seconds_of, with_this_leg
from recurrify.train.answering import AnswerSettings, train_answerer
from recurrify.train.finetuning import count_parameters, explain_full_disk
from recurrify.train.resuming import RESULT_FILE, earlier_result, last_step
from recurrify.train.running import uses_bf16

PREDICTIONS_FILE = "predictions.json"


def answer_train(
    settings: AnswerSettings, say: Say, show_progress: bool = True, progress_label: str = ""
) -> dict[str, Any]:
    """Train as the settings say, then answer `settings.test`; model, answers and result land in `settings.out`."""
    out = Path(settings.out)
    started = time.time()
    set_seed(settings.seed)
    wanted = settings.recurrence or PAPERS_ANSWERING
    model, tokenizer = load_task_model(settings.model, RecurrentForQuestionAnswering, wanted)
    asked = read_questions(settings.data, say)
    settings = replace(settings, recurrence=model.recurrence.to_dict(), data_checksum=checksum(asked.questions))
    earlier = earlier_result(settings, say)
    if earlier is not None:
        return earlier
    test = read_questions(settings.test, say) if settings.test is not None else None
    counts = Counter(asked.counts)
    learnable = _learnable(asked.questions, settings, model, tokenizer, counts, say)
    settings.write()
    first_step = last_step(out) or 0
    parameters = count_parameters(model)
    say(
        f"{settings.model}: {parameters['base']:,} parameters, {parameters['added']:,} added by "
        f"{model.recurrence.mechanism!r}; {len(learnable):,} questions in windows of {model.recurrence.window}"
    )
    try:
        outcome = train_answerer(model, learnable, settings, tokenizer, show_progress, progress_label)
    except (OSError, RuntimeError) as error:
        raise explain_full_disk(error, settings.out) from error
    result: dict[str, Any] = {
        "kind": "answer-train",
        "finished": outcome.finished,
        "interrupted": outcome.interrupted,
        "steps": outcome.steps,
        "tokens": outcome.tokens,
        "parameters": parameters,
        "memory": memory_cost(model)._asdict(),
        "questions": {"asked": len(asked.questions), "trained_on": len(learnable), "handled": dict(counts)},
        "history": outcome.history,
    }
    if outcome.finished and test is not None:
        answers, result["test"] = answer_questions(
            model, tokenizer, test, say, settings.longest_answer, bf16=uses_bf16(settings.precision)
        )
    result["provenance"] = provenance(
        settings.to_dict(), seed=settings.seed, data_checksum=settings.data_checksum, started=started
    )
    result["legs"] = with_this_leg(out, first_step, outcome.steps, result["provenance"])
    if not outcome.finished:
        if is_first():
            keep_legs(out, result["legs"])
        say(f"stopped and saved after {outcome.steps:,} steps: run the same command again to go on")
        return result
    result["seconds"] = seconds_of(result)
    if is_first():
        model.save_pretrained(out / "model")
        tokenizer.save_pretrained(out / "model")
        if test is not None:
            write_predictions(answers, test.style, out / PREDICTIONS_FILE)
        save_result(out / RESULT_FILE, result)
        (out / LEGS_FILE).unlink(missing_ok=True)
    return result


def answer_evaluate(
    name: str, data: str, say: Say, device: torch.device, batch: int = 8, longest: int = LONGEST_ANSWER
) -> tuple[dict[str, Answer], dict[str, Any], str]:
    """A trained model's answers to the questions of a file, a result with their scores, and whose format is due."""
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
    """A trained model's answers to questions whose answers need not be told, and whose format is due."""
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
    # Nothing can be said about an empty context, and the official programs count what was not said as wrong.
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
    """The questions' windows, as long as the model's; what needed handling is said and added to `counts`."""
    before = counts.copy()
    windowed = window_questions(questions, tokenizer, model.recurrence.window, counts)
    known = int(model.get_input_embeddings().num_embeddings)  # type: ignore[arg-type]
    largest = max(max(tokens) for question in windowed for tokens in question.windows)
    if largest >= known:
        raise UserError(
            f"The tokenizer gives token {largest}, but the model knows only 0 to {known - 1}: "
            "they do not belong together."
        )
    for what, count in (counts - before).items():
        say(f"{what}: {count:,}")
    return windowed


def read_questions(path: str, say: Say, answers_needed: bool = True) -> QuestionSet:
    found = load_questions(path, answers_needed)
    say(f"{path}: {found.told()}")
    for entry in found.skipped[:10]:
        say(f"skipped {entry.name}: {entry.reason}")
    if len(found.skipped) > 10:
        say(f"… and skipped {len(found.skipped) - 10} more")
    return found


def write_predictions(answers: dict[str, Answer], style: str, path: Path) -> None:
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
        say(f"{len(windowed) - len(learnable):,} questions cannot be learnt from: their answer is not in their context")
    if not learnable:
        raise UserError(f"No question of {settings.data!r} has its answer in its context: there is nothing to learn.")
    return learnable


def _percent(interval: tuple[float, float] | None) -> list[float] | None:
    return None if interval is None else [100 * side for side in interval]
