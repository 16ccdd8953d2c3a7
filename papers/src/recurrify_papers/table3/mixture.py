"""Question files with one paragraph each, made into training, validation and test files with long contexts."""

import hashlib
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from recurrify.data.questions import QuestionSet, load_questions, plain_title, save_questions
from recurrify.data.texts import Say
from recurrify.errors import UserError
from recurrify.results import load_result, provenance, save_result
from recurrify.train.answering_run import checksum, read_questions
from recurrify_papers.table3.distractors import mix_paragraphs

RECORD_FILE = "mixture.json"
PARTS = ("train", "valid", "test")
TEST_SHARE = 0.2
"""Of all articles."""
VALID_SHARE = 0.1
"""Of the articles that are left for training."""


class QuestionFile(NamedTuple):
    """A file of questions, and what was in it when it was last read."""

    name: str
    path: str
    checksum: str
    """Of the questions."""

    @classmethod
    def read(cls, name: str, path: str, say: Say) -> "QuestionFile":
        return cls(name, path, checksum(read_questions(path, say).questions))


def make_mixture(
    files: Sequence[str], folder: Path, say: Say, distractors: int = 9, questions: int | None = None, seed: int = 0
) -> dict[str, QuestionFile]:
    """SQuAD files for training, validation and test, no article in two of them; made once, then only verified.

    The articles are dealt to the three. Each question's paragraph stands among `distractors` of other questions.
    `questions` takes so many of each file, drawn at random. A question is renamed to its file's name and its own.
    """
    config = {
        "sources": [_source(path) for path in files],
        "distractors": distractors,
        "questions_of_each": questions,
        "test_share": TEST_SHARE,
        "valid_share": VALID_SHARE,
    }
    if not (folder / RECORD_FILE).is_file():
        _make(files, config, folder, say, distractors, questions, seed)
    record = load_result(folder / RECORD_FILE)
    if record["provenance"]["config"] != config or record["provenance"]["seed"] != seed:
        raise UserError(f"{folder} was made from other files or with other settings: choose another --root.")
    found = {}
    for name, part in record["parts"].items():
        path = folder / part["file"]
        if not path.is_file() or _sha256(path) != part["sha256"]:
            raise UserError(f"{path} is not the file that was made there: delete {folder} to make it again.")
        found[name] = QuestionFile(name, str(path), part["checksum"])
    return found


def _make(
    files: Sequence[str],
    config: dict[str, Any],
    folder: Path,
    say: Say,
    distractors: int,
    questions: int | None,
    seed: int,
) -> None:
    started = time.time()
    sources = [_read_source(path, questions, seed, say) for path in files]
    try:
        train, valid, test = _mixed(sources, distractors, seed)
    except UserError as error:
        if questions is None:
            raise
        raise UserError(
            f"{str(error).removesuffix('.')}, a larger --questions than {questions}, or fewer --distractors than "
            f"{distractors}."
        ) from error
    # Whose articles have no question left that could be asked, in no part.
    lost = sum(len(source.questions) for source in sources) - sum(
        len(part.questions) + sum(part.counts.values()) for part in (train, valid, test)
    )
    parts = {}
    for name, made in zip(PARTS, (train, valid, test), strict=True):
        path = folder / f"{name}.json"
        save_questions(made, path)
        parts[name] = {
            "file": path.name,
            "sha256": _sha256(path),
            "checksum": checksum(load_questions(path).questions),
            "questions": len(made.questions),
            "articles": len({plain_title(question.article) for question in made.questions}),
            "left_out": dict(made.counts),
        }
        say(f"{path}: {made.told()} of {parts[name]['articles']:,} articles")
    record = {"kind": "question-mixture", "parts": parts, "left_out_with_their_article": lost}
    save_result(folder / RECORD_FILE, record | {"provenance": provenance(config, seed=seed, started=started)})


def _mixed(sources: Sequence[QuestionSet], distractors: int, seed: int) -> tuple[QuestionSet, QuestionSet, QuestionSet]:
    """For training, validation and test."""
    rest, test = mix_paragraphs(sources, distractors, TEST_SHARE, seed)
    # Mixed anew: a paragraph of a validation article must not stand among those of a training question either.
    kept = {plain_title(question.article) for question in rest.questions}
    remaining = [
        replace(source, questions=[one for one in source.questions if plain_title(one.article) in kept])
        for source in sources
    ]
    return *mix_paragraphs(remaining, distractors, VALID_SHARE, seed + 1), test


def _read_source(path: str, most: int | None, seed: int, say: Say) -> QuestionSet:
    source = read_questions(path, say)
    if source.style != "squad":
        raise UserError(
            f"{path} is a HotpotQA file, whose questions have all their paragraphs already: give it to --extra-test."
        )
    chosen = source.questions
    if most is not None and most < len(chosen):
        places = random.Random(seed).sample(range(len(chosen)), most)
        chosen = [chosen[place] for place in sorted(places)]
    return QuestionSet([one._replace(id=f"{Path(path).stem}-{one.id}") for one in chosen], "squad", Counter())


def _source(path: str) -> dict[str, str]:
    return {"name": Path(path).name, "sha256": _sha256(Path(path))}


def _sha256(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise UserError(f"Could not read questions from {str(path)!r}: {error.strerror or error}.") from error


def named_files(files: Sequence[str], option: str, taken: Sequence[str] = ()) -> dict[str, str]:
    """Paths by their names without endings, by which results tell them apart."""
    named: dict[str, str] = {}
    for path in files:
        name = Path(path).stem
        if name in named or name in taken:
            raise UserError(f"{option} has two files that results would call {name!r}: rename {path}.")
        named[name] = path
    return named
