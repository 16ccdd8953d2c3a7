"""Questions with their contexts: files and data sets in the formats of SQuAD, HotpotQA, and NQ with gold paragraphs.

Nothing is dropped silently: unusable items are counted, or raise an error with the item's id.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from recurrify.data.answer_spans import find_span
from recurrify.data.records import Skipped
from recurrify.data.tables import open_table
from recurrify.errors import UserError
from recurrify.results import write_whole

KINDS = ("span", "yes", "no")
"""The kinds of answers, in the order of the model's scores for them."""
EMPTY_CONTEXT, NO_ANSWER = "has an empty context", "has no answer"
"""Why a question is skipped."""


class Question(NamedTuple):
    """A question, the text that answers it, and the accepted answers."""

    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    """Every accepted answer; empty where the file gives none."""
    kind: str = "span"
    """span, yes or no."""
    span: tuple[int, int] | None = None
    """First and past-the-last character of the answer in the context, the training target. None where the answer does
    not occur; such a question is evaluated but not trained on."""
    article: str = ""
    """The title of the context's source."""


@dataclass
class QuestionSet:
    """The questions of one source, and counts of what needed handling."""

    questions: list[Question]
    style: str
    """squad or hotpotqa: selects the scoring rules and the format of predictions."""
    counts: Counter[str] = field(default_factory=Counter)
    """How often something needed handling, by kind."""
    skipped: list[Skipped] = field(default_factory=list)
    """Items that make no question."""

    def summary(self) -> str:
        """The counts in one line."""
        parts = [f"{len(self.questions):,} questions"]
        parts += [f"{what} {count:,}" for what, count in sorted(self.counts.items())]
        if self.skipped:
            parts.append(f"skipped {len(self.skipped):,}")
        return ", ".join(parts)


class _Item(NamedTuple):
    """One question as its file gives it."""

    id: str
    question: str
    context: str
    answers: Sequence[tuple[str, int]]
    """Texts and their first characters in the context, -1 where the file does not give it."""
    article: str = ""
    regions: Sequence[tuple[int, int]] = ()
    """Parts of the context in which the answer is looked for first."""


def load_questions(source: str | Path, answers_needed: bool = True, split: str | None = None) -> QuestionSet:
    """The questions of a file (.json, .jsonl, .parquet, also compressed) or of a Hugging Face data set.

    The format is recognised by its fields: SQuAD's articles or flat rows, HotpotQA's items, or rows with `ctxs`.

    Args:
        source: A file, a folder written by `save_to_disk`, or `hf:owner/name`.
        answers_needed: False also takes questions without answers, to predict them.
        split: Of a data set with several parts, train or test.
    """
    source = str(source)
    rows = [fields for _, fields in open_table(source, split).rows]
    read, style = _format_of(rows[0] if rows else {})
    found = QuestionSet([], style)
    seen: set[str] = set()
    for number, row in enumerate(rows, start=1):
        name = next((row[key] for key in ("_id", "id", "title") if row.get(key) not in (None, "")), number)
        where = f"{source}, item {name!r}"
        with _reading(where):
            items = [_checked(item) for item in read(row, where, answers_needed, found.counts)]
        for item in items:
            identity = item.id or f"line-{number}"
            if identity in seen:
                raise UserError(f"{source} has two items {identity!r}, but predictions are written by id: rename one.")
            seen.add(identity)
            _add(found, item._replace(id=identity), answers_needed)
    found.counts = +found.counts  # drops zeros
    if not found.questions:
        reasons = Counter(entry.reason for entry in found.skipped)
        why = "; ".join(f"{count:,} skipped: {reason}" for reason, count in reasons.items()) or "it has no items"
        raise UserError(f"{source} holds no usable question ({why}): give another file.")
    return found


def _format_of(first: Mapping[str, Any]) -> "tuple[Callable[..., Iterable[_Item]], str]":
    """The function that reads rows like the first one, and the style of their scores."""
    if "paragraphs" in first:
        return _squad_article, "squad"
    if isinstance(first.get("context"), str) and isinstance(first.get("answers", {}), dict | list):
        return _squad_row, "squad"
    return (_gold_paragraph_row, "squad") if "ctxs" in first else (_hotpotqa_row, "hotpotqa")


@contextmanager
def _reading(where: str) -> Iterator[None]:
    """Report what does not fit the format in one sentence."""
    try:
        yield
    except UserError:
        raise
    except KeyError as error:
        raise UserError(f"{where}, has no field {error}: fix the file.") from error
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{where}, is not a question in this format ({error}): fix the file.") from error


def _check_list(name: str, value: Any) -> None:
    """A text would be read as a list of its letters."""
    if isinstance(value, str):
        raise TypeError(f"its {name} are {value!r:.40}, not a list")


def _checked(item: _Item) -> _Item:
    texts = [("question", item.question), ("context", item.context), *(("answer", text) for text, _ in item.answers)]
    for name, text in texts:
        if not isinstance(text, str):
            raise TypeError(f"its {name} is {text!r:.40}, not a text")
    for _, start in item.answers:
        if type(start) is not int:
            raise TypeError(f"its answer_start is {start!r:.40}, not a whole number")
    return item


def _add(found: QuestionSet, item: _Item, answers_needed: bool) -> None:
    if not item.context.strip():
        found.skipped.append(Skipped(item.id, EMPTY_CONTEXT))
        return
    kept = [answer for answer in item.answers if answer[0].strip()]
    found.counts["empty answers"] += len(item.answers) - len(kept)
    if not kept and answers_needed:
        found.skipped.append(Skipped(item.id, NO_ANSWER))
        return
    found.counts["empty questions"] += not item.question.strip()
    texts = tuple(text for text, _ in kept)
    kind, span = "span", None
    if found.style == "hotpotqa" and texts and texts[0].strip().lower() in ("yes", "no"):
        kind = texts[0].strip().lower()
    elif kept:
        text, start = kept[0]
        if start >= 0 and item.context[start : start + len(text)] == text:
            span = (start, start + len(text))
        else:
            found.counts["answers not where the file says"] += start != -1
            span = _locate(texts, item, found.counts)
    found.questions.append(Question(item.id, item.question, item.context, texts, kind, span, item.article))


def _locate(answers: Sequence[str], item: _Item, counts: Counter[str]) -> tuple[int, int] | None:
    """The characters of the first answer that occurs, in the item's regions if possible."""
    for answer in answers:
        for start, stop in (*item.regions, (0, len(item.context))):
            place = find_span(item.context[start:stop], answer)
            if place is not None:
                counts["answers found under normalisation"] += not place.exact
                return start + place.start, start + place.stop
    counts["answers that do not occur"] += 1
    return None


def save_questions(questions: QuestionSet, path: str | Path) -> None:
    """Write the questions as a SQuAD file."""
    for question in questions.questions:
        if question.kind != "span":
            raise UserError(
                f"Question {question.id!r} is answered by {question.kind!r}, which SQuAD's format lacks: leave it out."
            )
    paragraphs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for question in questions.questions:
        answers = [{"text": text, "answer_start": -1} for text in question.answers]
        if question.span is not None:
            # The first answer is the training target, as written in the context.
            text = question.context[slice(*question.span)]
            answers = [
                {"text": text, "answer_start": question.span[0]},
                *(one for one in answers if one["text"] != text),
            ]
        entry = {"id": question.id, "question": question.question, "answers": answers}
        paragraphs.setdefault((question.article, question.context), []).append(entry)
    data = [
        {"title": article, "paragraphs": [{"context": context, "qas": entries}]}
        for (article, context), entries in paragraphs.items()
    ]
    write_whole(Path(path), json.dumps({"version": "1.1", "data": data}, ensure_ascii=False).encode())


# ---- formats ---------------------------------------------------------------------------------------------


def _identity(item: Mapping[str, Any], where: str) -> str:
    named = [item[name] for name in ("_id", "id") if item.get(name) not in (None, "")]
    if not named:
        raise UserError(f"{where}, has neither '_id' nor 'id': give each item one.")
    return str(named[0])


def _rows_of(table: Any, *names: str) -> list[Any]:
    """A table's rows, which data sets on the hub have as columns by name."""
    if not isinstance(table, Mapping):
        return list(table)
    columns = [table[name] for name in names]
    if len({len(column) for column in columns}) > 1:
        raise ValueError(f"{' and '.join(names)} differ in length")
    return list(zip(*columns, strict=True))


def _squad_article(
    article: Mapping[str, Any], where: str, answers_needed: bool, counts: Counter[str]
) -> Iterator[_Item]:
    """The official file: articles with paragraphs, each with a context and its questions."""
    for paragraph in article["paragraphs"]:
        entries, context = paragraph["qas"], paragraph["context"]
        counts["empty paragraphs"] += not context.strip()
        for entry in entries:
            with _reading(f"{where}, question {entry.get('id')!r}"):
                item = _squad_item(entry, where, context, str(article.get("title", "")), answers_needed)
            yield item


def _squad_row(row: Mapping[str, Any], where: str, answers_needed: bool, counts: Counter[str]) -> Iterator[_Item]:
    """One question with its context: SQuAD as the hub has it."""
    yield _squad_item(row, where, row["context"], str(row.get("title") or ""), answers_needed)


def _squad_item(entry: Mapping[str, Any], where: str, context: str, title: str, answers_needed: bool) -> _Item:
    """Answers are [{"text": …, "answer_start": …}, …] or {"text": […], "answer_start": […]}; places are optional."""
    answers = entry["answers"] if answers_needed else entry.get("answers", [])
    if isinstance(answers, Mapping):
        _check_list("answers", answers["text"])
        places = {"answer_start": [-1] * len(answers["text"]), **answers}
        found = _rows_of(places, "text", "answer_start")
    else:
        found = [(answer["text"], answer.get("answer_start", -1)) for answer in answers]
    return _checked(_Item(_identity(entry, where), entry["question"], context, found, title))


def _hotpotqa_row(row: Mapping[str, Any], where: str, answers_needed: bool, counts: Counter[str]) -> Iterator[_Item]:
    """Paragraphs are [[title, sentences], …], and supporting facts [[title, sentence], …] or
    [[title, [sentence, …], …], …]; or columns of the same."""
    identity = _identity(row, where)
    paragraphs = [(title, sentences) for title, sentences in _rows_of(row["context"], "title", "sentences")]
    for title, sentences in paragraphs:
        if isinstance(sentences, str) or not all(isinstance(text, str) for text in (title, *sentences)):
            raise TypeError(f"a paragraph is not [title, sentences] but {[title, sentences]!r:.60}")
    context, places = _join(paragraphs)
    counts["empty paragraphs"] += sum(not "".join(sentences).strip() for _, sentences in paragraphs)
    facts = [
        (title, number)
        for title, numbers, *_ in _rows_of(row.get("supporting_facts", []), "title", "sent_id")
        for number in (numbers if isinstance(numbers, list) else [numbers])
    ]
    answers = [(row["answer"], -1)] if answers_needed or row.get("answer") is not None else []
    regions = [places[fact] for fact in facts if fact in places]
    yield _Item(identity, row["question"], context, answers, regions=regions)


def _gold_paragraph_row(
    row: Mapping[str, Any], where: str, answers_needed: bool, counts: Counter[str]
) -> Iterator[_Item]:
    """NQ with gold paragraphs: `question`, `answers` and `ctxs`, a list of titled paragraphs; ids are optional."""
    paragraphs = [(one["title"], one["text"]) for one in row["ctxs"]]
    counts["empty paragraphs"] += sum(not text.strip() for _, text in paragraphs)
    context = paragraphs[0][1] if len(paragraphs) == 1 else _join([(title, [text]) for title, text in paragraphs])[0]
    if answers_needed:
        _check_list("answers", row["answers"])
    answers = [(answer, -1) for answer in row["answers"]] if answers_needed else []
    identity = "" if row.get("id") is None else str(row["id"])
    yield _Item(identity, row["question"], context, answers, paragraphs[0][0] if paragraphs else "")


def _join(paragraphs: Sequence[tuple[str, Sequence[str]]]) -> tuple[str, dict[tuple[str, int], tuple[int, int]]]:
    """One text of titled paragraphs, without the empty ones, and the characters of each sentence in it."""
    places: dict[tuple[str, int], tuple[int, int]] = {}
    context = ""
    for title, sentences in paragraphs:
        if not "".join(sentences).strip():
            continue
        context += ("\n\n" if context else "") + (f"{title}\n" if title else "")
        for number, sentence in enumerate(sentences):
            if number and not (context[-1:].isspace() or sentence[:1].isspace()):
                context += " "
            places[title, number] = (len(context), len(context) + len(sentence))
            context += sentence
    return context, places
