"""The runs of table 3: train a question answerer, score it; for checks, make up questions and a tiny encoder."""

import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from recurrify.data import Question, QuestionSet, pick_device, save_questions
from recurrify.modeling import PAPERS_ANSWERING
from recurrify.results import load_result, provenance
from recurrify.train import AnswerSettings, answer_evaluate, answer_train
from recurrify_papers.finetune import OUT, finished, referred
from recurrify_papers.runner import RESULT_FILE, Say, minutes_left

MECHANISMS = {"disjoint": {"mechanism": "none"}, "recurrent": PAPERS_ANSWERING}
SCORE_BATCH = 32


def train(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any] | None:
    """Train one kind at one learning rate; the result has its scores on the validation questions."""
    own = dict(settings)
    kind, window, rate = (own.pop(name) for name in ("kind", "window", "rate"))
    parts = folder.parent / own.pop("data")
    if isinstance(rate, dict):
        rate = rate["best_of"][best_run(list(rate["best_of"]), folder.parent)]
    result = answer_train(
        AnswerSettings(
            out=str(folder / OUT),
            model=referred(own.pop("model"), folder),
            data=str(parts / "train.json"),
            test=str(parts / "valid.json"),
            recurrence=MECHANISMS[kind] | {"window": window},
            learning_rate=rate,
            max_minutes=minutes_left(),
            **own,
        ),
        say,
        progress_label=folder.name,
    )
    if finished(result) is None:
        return None
    say(f"{folder.name}: F1 {result['test']['f1']:.2f} on validation")
    for checkpoint in (folder / OUT).glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    return result


def best_run(names: list[str], runs: Path) -> str:
    """The run with the highest F1 on validation."""
    scores = {name: load_result(runs / name / RESULT_FILE)["test"]["f1"] for name in names}
    return max(names, key=lambda name: scores[name])


def score(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """Score the best of some runs on a test."""
    run = folder.parent / best_run(settings["runs"], folder.parent)
    path = settings["test"]
    if path == "test":
        path = str(folder.parent / settings["data"] / "test.json")
    _, found, _ = answer_evaluate(str(run / OUT / "model"), path, say, pick_device(), SCORE_BATCH)
    return {"run": run.name, **found}


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
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder / OUT / "model")
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(words), max_position_embeddings=128, **shape)
    BertModel(config).save_pretrained(folder / OUT / "model")
    return {"kind": "made-up", "provenance": provenance(settings)}
