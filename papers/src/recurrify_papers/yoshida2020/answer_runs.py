"""The runs of table 3: train question answerers, score and compare them. For checks, questions are made up."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from recurrify.data import Question, QuestionSet, pick_device, save_questions
from recurrify.evaluate import mean_interval
from recurrify.modeling import PAPERS_ANSWERING
from recurrify.results import load_result, provenance
from recurrify.train import AnswerSettings, answer_evaluate, answer_train
from recurrify_papers.experiment import mean_of
from recurrify_papers.finetune import OUT, trained
from recurrify_papers.plan import MODEL
from recurrify_papers.runner import RESULT_FILE, Say, minutes_left

MECHANISMS = {"disjoint": {"mechanism": "none"}, "recurrent": PAPERS_ANSWERING}
METRICS = ("exact_match", "f1")
"""In the order in which an evaluation has them for each question."""
TOGETHER = "extra tests together"
SCORE_BATCH = 32


def train(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any] | None:
    """Train at one learning rate. F1 on the validation questions, negative, is the loss by which rates are chosen."""
    own = dict(settings)
    recurrence = MECHANISMS[own.pop("kind")] | {"window": own.pop("window")}
    training = AnswerSettings(out=str(folder / OUT), recurrence=recurrence, max_minutes=minutes_left(), **own)
    result = trained(folder, answer_train(training, say, progress_label=folder.name))
    if result is None:
        return None
    f1 = result["test"]["f1"]
    say(f"{folder.name}: F1 {f1:.2f} on validation")
    numbers = [{"metric": "f1", "value": f1, "split": "valid", "at": training.learning_rate}]
    return result | {"loss": -f1, "numbers": numbers}


def score(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """Score a trained model on a test."""
    run = Path(settings["run"])
    _, found, _ = answer_evaluate(str(run / MODEL), settings["test"], say, pick_device(), SCORE_BATCH)
    return {"run": run.name, **found}


def compare(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """Both kinds in percent, and their difference question by question and seed by seed."""
    found = {
        test: {kind: [_by_question(run) for run in runs] for kind, runs in kinds.items()}
        for test, kinds in settings["scores"].items()
    }
    extra = [one for test, one in found.items() if test != "test"]
    if len(extra) > 1:
        found[TOGETHER] = {kind: _joined([one[kind] for one in extra]) for kind in MECHANISMS}
    numbers = [number for test, kinds in found.items() for number in numbers_of(test, kinds)]
    return {"kind": "answers", "numbers": numbers, "provenance": provenance(settings)}


def _by_question(run: str) -> dict[str, Any]:
    found: dict[str, Any] = load_result(Path(run) / RESULT_FILE)["by_question"]
    return found


def _joined(tests: list[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The questions of several tests as one, seed by seed."""
    return [
        {f"{number}-{name}": value for number, test in enumerate(seeds) for name, value in test.items()}
        for seeds in zip(*tests, strict=True)
    ]


def numbers_of(test: str, kinds: dict[str, list[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    """Rows of one test; `kinds` have the values of each question, by seed."""
    # (seeds, questions, metrics)
    values = {kind: 100 * np.array([list(one.values()) for one in seeds]) for kind, seeds in kinds.items()}
    values["difference"] = values["recurrent"] - values["disjoint"]
    for kind, scores in values.items():
        common = {"label": kind, "model": kind, "dataset": test, "split": "test", "seeds": len(scores)}
        common["note"] = f"{scores.shape[1]:,} questions"
        for column, metric in enumerate(METRICS):
            value, spread = mean_of(scores[..., column].mean(1).tolist())
            low, high = mean_interval(scores[..., column]) or (None, None)
            yield {**common, "metric": metric, "value": value, "spread": spread, "low": low, "high": high}


def make_up(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """Questions about who lives where, and a tiny encoder with random weights that knows their words."""
    questions = []
    for number in range(settings["questions"]):
        context = f"this is the article on {number} : person{number} lives in town{number} ."
        answer = f"town{number}"
        span = (context.index(answer), context.index(answer) + len(answer))
        asked = f"where does person{number} live ?"
        questions.append(Question(f"q{number}", asked, context, (answer,), "span", span, f"article {number}"))
    save_questions(QuestionSet(questions, "squad"), folder / "questions.json")
    texts = [text for question in questions for text in (question.question, question.context, question.article)]
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *sorted({word for text in texts for word in text.split()})]
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder / MODEL)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(words), max_position_embeddings=128, **shape)
    BertModel(config).save_pretrained(folder / MODEL)
    return {"kind": "made-up", "provenance": provenance(settings)}
