"""Question files with one paragraph each, made into training, validation and test files with long contexts."""

import hashlib
import random
from pathlib import Path
from typing import Any

from recurrify import UserError
from recurrify.data import Question, load_questions, save_questions
from recurrify.results import provenance
from recurrify_papers.runner import Say
from recurrify_papers.yoshida2020.distractors import mix_paragraphs, plain_title

SHARES = {"train": 0.72, "valid": 0.08, "test": 0.2}
"""Of all articles."""


def mixture_run(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """SQuAD files for training, validation and test, no article in two of them.

    Each question's paragraph is placed among `distractors` of other questions. `questions` takes so many of each file,
    drawn at random. Questions are renamed to the name of their file and their own.
    """
    seed, distractors, most = settings["seed"], settings["distractors"], settings["questions"]
    files = settings["data"]
    questions = [question for path in files for question in _read_source(path, most, seed)]
    parts: dict[str, dict[str, Any]] = {}
    for name, part in mix_paragraphs(questions, SHARES, distractors, seed).items():
        path = folder / f"{name}.json"
        save_questions(part, path)
        articles = len({plain_title(question.article) for question in part.questions})
        counts = {"questions": len(part.questions), "articles": articles, "left_out": dict(part.counts)}
        parts[name] = {"path": str(path), "sha256": _sha256(path), **counts}
        say(f"{path}: {len(part.questions):,} questions of {articles:,} articles")
    sums = {Path(path).name: _sha256(Path(path)) for path in files}
    checksum = parts["train"]["sha256"]
    origin = provenance({**settings, "files": sums}, seed=seed, data_checksum=checksum)
    return {"kind": "question-mixture", "parts": parts, "provenance": origin}


def _read_source(path: str, most: int | None, seed: int) -> list[Question]:
    source = load_questions(path)
    if source.style != "squad":
        raise UserError(
            f"{path} is a HotpotQA file, whose questions have all their paragraphs: use it as an extra test."
        )
    chosen = source.questions
    if most is not None and most < len(chosen):
        places = random.Random(seed).sample(range(len(chosen)), most)
        chosen = [chosen[place] for place in sorted(places)]
    return [one._replace(id=f"{Path(path).stem}-{one.id}") for one in chosen]


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
