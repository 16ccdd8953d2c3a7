"""Questions with their contexts: files and data sets in the formats of SQuAD, HotpotQA, and NQ with gold paragraphs.

Nothing is dropped silently: unusable items are counted, or raise an error with the item's id.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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

    told = summary


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
    found = QuestionSet([], "squad")
    first: Mapping[str, Any] = rows[0] if rows else {}
    if "paragraphs" in first:
        items = _squad_articles(rows, source, answers_needed, found.counts)
    elif isinstance(first.get("context"), str) and isinstance(first.get("answers", {}), dict | list):
        items = _squad_rows(rows, source, answers_needed)
    elif "ctxs" in first:
        items = _gold_paragraph_items(rows, source, answers_needed, found.counts)
    else:
        found.style = "hotpotqa"
        items = _hotpotqa_items(rows, source, answers_needed, found.counts)
    seen: set[str] = set()
    for item in items:
        if item.id in seen:
            raise UserError(f"{source} has two items {item.id!r}, but predictions are written by id: rename one.")
        seen.add(item.id)
        _add(found, item, answers_needed)
    found.counts = +found.counts  # drops zeros
    if not found.questions:
        reasons = Counter(entry.reason for entry in found.skipped)
        why = "; ".join(f"{count:,} skipped: {reason}" for reason, count in reasons.items()) or "it has no items"
        raise UserError(f"{source} holds no usable question ({why}): give another file.")
    return found


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


# ---- fields ----------------------------------------------------------------------------------------------


def _field(item: Any, name: str, kind: type, where: str) -> Any:
    if not isinstance(item, Mapping):
        raise UserError(f"{where} should have fields, but is {item!r:.40}: fix the file.")
    if name not in item:
        raise UserError(f"{where} has no field {name!r}, only {', '.join(item) or 'none at all'}: fix the file.")
    value = item[name]
    if not isinstance(value, kind):
        raise UserError(f"{where} has no {kind.__name__} in {name!r} but {value!r:.40}: fix the file.")
    return value


def _identity(item: Any, where: str) -> str:
    named = [item[name] for name in ("_id", "id") if item.get(name) not in (None, "")] if isinstance(item, dict) else []
    if not named:
        raise UserError(f"{where} has neither '_id' nor 'id': give each item one.")
    return str(named[0])


def _texts(values: Any, name: str, where: str) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UserError(f"{where} has something other than texts in {name!r}: {values!r:.60}.")
    return values


# ---- SQuAD -----------------------------------------------------------------------------------------------


def _squad_articles(
    articles: Sequence[dict[str, Any]], source: str, answers_needed: bool, counts: Counter[str]
) -> Iterator[_Item]:
    """The official file: articles with paragraphs, each with a context and its questions."""
    for number, article in enumerate(articles, start=1):
        title = str(article.get("title", f"article {number}"))
        for paragraph in _field(article, "paragraphs", list, f"{source}, article {title!r}"):
            where = f"{source}, a paragraph of {title!r}"
            entries, context = _field(paragraph, "qas", list, where), _field(paragraph, "context", str, where)
            counts["empty paragraphs"] += not context.strip()
            for entry in entries:
                identity = _identity(entry, f"{source}, a question of {title!r}")
                yield _squad_item(entry, identity, context, title, source, answers_needed)


def _squad_rows(rows: Sequence[dict[str, Any]], source: str, answers_needed: bool) -> Iterator[_Item]:
    """One question per row, with its context: SQuAD as the hub has it."""
    for number, row in enumerate(rows, start=1):
        identity = _identity(row, f"{source}, item number {number}")
        context = _field(row, "context", str, f"{source}, item {identity!r}")
        yield _squad_item(row, identity, context, str(row.get("title") or ""), source, answers_needed)


def _squad_item(
    entry: Mapping[str, Any], identity: str, context: str, title: str, source: str, answers_needed: bool
) -> _Item:
    where = f"{source}, item {identity!r}"
    asked = _field(entry, "question", str, where)
    return _Item(identity, asked, context, _squad_answers(entry, where, answers_needed), title)


def _squad_answers(entry: Mapping[str, Any], where: str, needed: bool) -> list[tuple[str, int]]:
    """Texts and where each begins (-1 where it is not given), from [{"text": …, "answer_start": …}, …] or
    {"text": […], "answer_start": […]}."""
    if not needed and "answers" not in entry:
        return []
    answers = _field(entry, "answers", object, where)
    if isinstance(answers, dict):
        texts = _texts(_field(answers, "text", list, f"{where}, 'answers'"), "text", where)
        starts = answers.get("answer_start", [-1] * len(texts))
        if not isinstance(starts, list) or len(starts) != len(texts):
            raise UserError(f"{where} has {len(texts)} answers but places {starts!r:.40}: fix the file.")
    elif isinstance(answers, list):
        texts = [_field(answer, "text", str, f"{where}, an answer") for answer in answers]
        starts = [answer.get("answer_start", -1) for answer in answers]
    else:
        raise UserError(f"{where} has no list in 'answers' but {answers!r:.40}: fix the file.")
    for start in starts:
        if not isinstance(start, int) or isinstance(start, bool):
            raise UserError(f"{where} has no whole number in 'answer_start' but {start!r:.40}: fix the file.")
    return list(zip(texts, starts, strict=True))


# ---- HotpotQA --------------------------------------------------------------------------------------------


def _hotpotqa_items(
    rows: Sequence[dict[str, Any]], source: str, answers_needed: bool, counts: Counter[str]
) -> Iterator[_Item]:
    for number, row in enumerate(rows, start=1):
        identity = _identity(row, f"{source}, item number {number}")
        where = f"{source}, item {identity!r}"
        asked = _field(row, "question", str, where)
        paragraphs = _paragraphs(row, where)
        context, places = _join(paragraphs)
        counts["empty paragraphs"] += sum(not "".join(sentences).strip() for _, sentences in paragraphs)
        given = answers_needed or row.get("answer") is not None
        answers = [(_field(row, "answer", str, where), -1)] if given else []
        facts = _supporting_facts(row, where) if "supporting_facts" in row else []
        yield _Item(identity, asked, context, answers, regions=[places[fact] for fact in facts if fact in places])


def _paragraphs(item: Mapping[str, Any], where: str) -> list[tuple[str, list[str]]]:
    """Titles and sentences, from [[title, sentences], …] or {"title": […], "sentences": […]}."""
    context = _field(item, "context", object, where)
    if isinstance(context, dict):
        titles = _texts(_field(context, "title", list, f"{where}, 'context'"), "title", where)
        texts = _field(context, "sentences", list, f"{where}, 'context'")
        if len(titles) != len(texts):
            raise UserError(f"{where} has {len(titles)} titles but {len(texts)} paragraphs: fix the file.")
        pairs: list[Any] = list(zip(titles, texts, strict=True))
    elif isinstance(context, list):
        pairs = context
    else:
        raise UserError(f"{where} has no paragraphs in 'context' but {context!r:.40}: fix the file.")
    for pair in pairs:
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise UserError(f"{where} has a paragraph that is not [title, sentences]: {pair!r:.60}.")
        _texts(pair[1], "context", where)
    return [(title, list(sentences)) for title, sentences in pairs]


def _supporting_facts(item: Mapping[str, Any], where: str) -> list[tuple[str, int]]:
    """(title, sentence) pairs, from {"title": […], "sent_id": […]}, [[title, sentence], …] or
    [[title, [sentence, …], …], …]."""
    facts = item["supporting_facts"]
    if isinstance(facts, dict):
        titles, numbers = (_field(facts, name, list, f"{where}, 'supporting_facts'") for name in ("title", "sent_id"))
        facts = list(zip(titles, numbers, strict=False))
    pairs: list[tuple[str, int]] = []
    for fact in facts if isinstance(facts, list) else [facts]:
        if not (isinstance(fact, list | tuple) and len(fact) >= 2 and isinstance(fact[0], str)):
            raise UserError(f"{where} has a supporting fact that is not [title, sentence]: {fact!r:.60}.")
        sentences = fact[1] if isinstance(fact[1], list) else [fact[1]]
        if not all(isinstance(sentence, int) for sentence in sentences):
            raise UserError(f"{where} has a supporting fact whose sentence is not a number: {fact[1]!r:.60}.")
        pairs += [(fact[0], sentence) for sentence in sentences]
    return pairs


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


def join_paragraphs(paragraphs: Sequence[tuple[str, str]]) -> tuple[str, list[int]]:
    """One text of titled paragraphs, and the character at which the text of each begins."""
    named = [(title, [text]) for title, text in paragraphs]
    starts: list[int] = []
    context = ""
    for single in named:
        part, places = _join([single])
        context += "\n\n" if context else ""
        starts.append(len(context) + (places[single[0], 0][0] if places else 0))
        context += part
    return context, starts


# ---- NQ with gold paragraphs -----------------------------------------------------------------------------


def _gold_paragraph_items(
    rows: Sequence[dict[str, Any]], source: str, answers_needed: bool, counts: Counter[str]
) -> Iterator[_Item]:
    """Rows with `question`, `answers` and `ctxs`, a list of titled paragraphs; they need no ids."""
    for number, row in enumerate(rows, start=1):
        identity = f"line-{number}" if row.get("id") is None else str(row["id"])
        where = f"{source}, item {identity!r}"
        asked = _field(row, "question", str, where)
        answers = _texts(_field(row, "answers", list, where), "answers", where) if answers_needed else []
        paragraphs = [
            (_field(one, "title", str, f"{where}, 'ctxs'"), _field(one, "text", str, f"{where}, 'ctxs'"))
            for one in _field(row, "ctxs", list, where)
        ]
        counts["empty paragraphs"] += sum(not text.strip() for _, text in paragraphs)
        context = paragraphs[0][1] if len(paragraphs) == 1 else join_paragraphs(paragraphs)[0]
        title = paragraphs[0][0] if paragraphs else ""
        yield _Item(identity, asked, context, [(answer, -1) for answer in answers], title)


def gold_paragraphs(questions: Sequence[Question]) -> Iterator[tuple[str, str]]:
    """The distinct paragraphs, (title, text), of the questions."""
    yield from dict.fromkeys((plain_title(question.article), question.context) for question in questions)


def plain_title(title: str) -> str:
    """An article's title with blanks: SQuAD writes underscores, as in its address."""
    return " ".join(title.replace("_", " ").split())
