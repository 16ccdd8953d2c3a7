"""For tests of whole jobs: a tiny model in a folder, text to train on, and settings that take seconds."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from recurrify.data.questions import Question, QuestionSet, save_questions
from recurrify.mechanisms import recurrence_config
from recurrify.train.settings import TrainSettings
from support.models import FIRST_WORD, VOCABULARY, tiny
from support.tokenizers import like_bert
from support.words import word_tokenizer

WINDOW = 8


def model_folder(folder: Path, family: str = "gpt2", **more: Any) -> Path:
    """A tiny base model with a tokenizer of whole words."""
    tiny(family, **more).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def text_folder(folder: Path, documents: int = 12, most_words: int = 70, seed: int = 0) -> Path:
    """Documents of different lengths, each with words of its own, so that there is something to learn and remember."""
    folder.mkdir(parents=True)
    chance = random.Random(seed)
    for number in range(documents):
        topic = [chance.randrange(FIRST_WORD, VOCABULARY) for _ in range(6)]
        words = [f"w{chance.choice(topic)}" for _ in range(most_words - 5 * (number % 4))]
        (folder / f"{number}.txt").write_text(" ".join(words), encoding="utf-8")
    return folder


def run_settings(model: Path, data: Path, out: Path, **more: Any) -> TrainSettings:
    """Six to eight steps of four sequences of up to three windows, saved and validated after every other."""
    chosen = {"mechanism": "carry", "window": WINDOW, **more.pop("recurrence", {})}
    settings = {
        "recurrence": recurrence_config(chosen).to_dict(),
        "windows": 3,
        "batch": 4,
        "learning_rate": 1e-2,
        "warmup_steps": 2,
        "max_tokens": 6 * 4 * 22,
        "valid_every": 2 * 4 * 22,
        "patience": 0,
        **more,
    }
    return TrainSettings(model=str(model), data=str(data), out=str(out), **settings)


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    """The weights of a finished run's model."""
    return load_file(run / "model" / "model.safetensors")


def assert_same_weights(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], tolerance: float = 0.0) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in ours.items():
        torch.testing.assert_close(theirs[name], value, rtol=tolerance, atol=tolerance, msg=name)


def validations(result: dict[str, Any]) -> list[tuple[int, float]]:
    """Steps and losses of a run's validations."""
    return [(entry["step"], entry["eval_loss"]) for entry in result["history"] if "eval_loss" in entry]


def assert_same_end(ours: Path, theirs: Path) -> None:
    """Two finished runs have the same result and weights."""
    one, other = (json.loads((folder / "result.json").read_text()) for folder in (ours, theirs))
    assert one["finished"]
    assert (one["steps"], one["tokens"]) == (other["steps"], other["tokens"])
    assert one.get("train_loss") == pytest.approx(other.get("train_loss"))
    assert validations(one) == validations(other)
    assert_same_weights(weights_of(ours), weights_of(theirs))


def labelled_file(path: Path, texts: int = 12) -> Path:
    """Texts of one to three windows, in two classes with words of their own."""
    chance = random.Random(0)
    rows = [
        " ".join(f"w{chance.randrange(10, 14) + 10 * (number % 2)}" for _ in range(5 + number)) + f",{'ab'[number % 2]}"
        for number in range(texts)
    ]
    path.write_text("\n".join(["text,label", *rows]) + "\n")
    return path


def town_questions() -> list[Question]:
    """Three questions about one context of several windows."""
    people, places = ("ann", "bob", "eve"), ("rome", "paris", "oslo")
    context = " ".join(f"{who} lives in {where}." for who, where in zip(people, places, strict=True))
    spans = [(context.index(place), context.index(place) + len(place)) for place in places]
    return [
        Question(f"q{number}", f"where is {person}?", context, (place,), "span", span, "towns")
        for number, (person, place, span) in enumerate(zip(people, places, spans, strict=True))
    ]


def question_file(path: Path) -> Path:
    save_questions(QuestionSet(town_questions(), "squad"), path)
    return path


def encoder_folder(folder: Path) -> Path:
    """A tiny encoder with a tokenizer for the questions."""
    texts = [text for question in town_questions() for text in (question.context, question.question)]
    tokenizer = like_bert(texts)
    tiny("bert", "masked", vocab_size=len(tokenizer), pad_token_id=0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
