"""The runs of table 3: train a question answerer, score it; for checks, make up questions and a tiny encoder."""

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

from recurrify.data import Question, QuestionSet, pick_device, save_questions
from recurrify.modeling import PAPERS_ANSWERING
from recurrify.results import provenance
from recurrify.train import AnswerSettings, answer_evaluate, answer_train
from recurrify_papers.finetune import OUT, trained
from recurrify_papers.plan import MODEL
from recurrify_papers.runner import Say, minutes_left

MECHANISMS = {"disjoint": {"mechanism": "none"}, "recurrent": PAPERS_ANSWERING}
SCORE_BATCH = 32


def train(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any] | None:
    """Train at one learning rate. F1 on the validation questions, negative, is the loss by which rates are chosen."""
    own = dict(settings)
    recurrence = MECHANISMS[own.pop("kind")] | {"window": own.pop("window")}
    training = AnswerSettings(out=str(folder / OUT), recurrence=recurrence, max_minutes=minutes_left(), **own)
    result = trained(folder, answer_train(training, say, progress_label=folder.name))
    if result is None:
        return None
    say(f"{folder.name}: F1 {result['test']['f1']:.2f} on validation")
    return result | {"loss": -result["test"]["f1"]}


def score(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """Score a trained model on a test."""
    run = Path(settings["run"])
    _, found, _ = answer_evaluate(str(run / MODEL), settings["test"], say, pick_device(), SCORE_BATCH)
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
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder / MODEL)
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(words), max_position_embeddings=128, **shape)
    BertModel(config).save_pretrained(folder / MODEL)
    return {"kind": "made-up", "provenance": provenance(settings)}
