"""Questions with their contexts: SQuAD's and HotpotQA's files, and those of "lost in the middle" with NQ's questions.

Nothing is dropped in silence: what cannot be used is counted, or told in a sentence with the item's id.
"""

import json
import lzma
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from recurrify.data.answer_spans import find_span
from recurrify.data.records import Skipped
from recurrify.errors import UserError
from recurrify.results import write_whole

KINDS = ("span", "yes", "no")
"""The kinds of answers, in the order of the model's scores for them."""
EMPTY_CONTEXT, NO_ANSWER = "has an empty context", "has no answer"
"""Why a question is skipped."""


class Question(NamedTuple):
    id: str
    question: str
    context: str
    answers: tuple[str, ...]
    """Every answer that counts as right; none where the file does not tell."""
    kind: str = "span"
    """span, yes or no."""
    span: tuple[int, int] | None = None
    """First and past-the-last character of the answer in the context: what training aims at. None where the answer
    does not occur; such a question is evaluated but cannot be learnt from."""
    article: str = ""
    """What the context was taken from."""


@dataclass
class QuestionSet:
    """Questions of one file, and what was met on the way."""

    questions: list[Question]
    style: str
    """squad or hotpotqa: whose rules score the answers and whose format predictions are written in."""
    counts: Counter[str] = field(default_factory=Counter)
    """How often something needed handling, by what it was."""
    skipped: list[Skipped] = field(default_factory=list)
    """Items that make no question at all."""

    def told(self) -> str:
        """The counts in one line."""
        parts = [f"{len(self.questions):,} questions"]
        parts += [f"{what} {count:,}" for what, count in sorted(self.counts.items())]
        if self.skipped:
            parts.append(f"skipped {len(self.skipped):,}")
        return ", ".join(parts)


def load_questions(path: str | Path, answers_needed: bool = True) -> QuestionSet:
    """The questions of a file: SQuAD's JSON, HotpotQA's JSON or JSON lines, or JSON lines with `ctxs`.

    `answers_needed=False` takes questions whose answers are not told, to predict them.
    """
    path = Path(path)
    content = _read(path)
    if isinstance(content, dict):
        found = _read_squad(content, str(path), answers_needed)
    elif content and "ctxs" in content[0]:
        found = _read_oracle(content, str(path), answers_needed)
    else:
        found = _read_hotpotqa(content, str(path), answers_needed)
    found.counts = +found.counts  # without those that never happened
    seen: set[str] = set()
    for question in found.questions:
        if question.id in seen:
            raise UserError(f"{path} has two items {question.id!r}: predictions could not be told apart; rename one.")
        seen.add(question.id)
    if not found.questions:
        reasons = Counter(entry.reason for entry in found.skipped)
        why = "; ".join(f"{count:,} skipped: {reason}" for reason, count in reasons.items()) or "it has no items"
        raise UserError(f"{path} holds no question that can be asked ({why}): give another file.")
    asked_nothing = sum(not question.question.strip() for question in found.questions)
    if asked_nothing:
        found.counts["empty questions"] = asked_nothing
    return found


def save_questions(questions: QuestionSet, path: str | Path) -> None:
    """As a SQuAD file, which `load_questions` and everybody else's tools read."""
    for question in questions.questions:
        if question.kind != "span":
            raise UserError(
                f"Question {question.id!r} is answered by {question.kind!r}, which SQuAD's format cannot say."
            )
    paragraphs: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for question in questions.questions:
        answers = [{"text": text, "answer_start": -1} for text in question.answers]
        if question.span is not None:
            # The first answer is the one that training aims at, as it stands there.
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


# ---- files -----------------------------------------------------------------------------------------------


def _read(path: Path) -> dict[str, Any] | list[dict[str, Any]]:
    """One JSON value, or a list of one for each line."""
    try:
        raw = path.read_bytes()
        text = (lzma.decompress(raw) if path.suffix == ".xz" else raw).decode("utf-8").removeprefix("\ufeff")
    except (OSError, UnicodeDecodeError, lzma.LZMAError) as error:
        raise UserError(f"Could not read questions from {str(path)!r}: {error}.") from error
    # Not `splitlines`: it also breaks at characters such as U+2028 that may stand inside a JSON string.
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise UserError(f"{path} is empty: give a SQuAD or a HotpotQA file.")
    # JSON lines are told by a first line that is whole; one line alone is either.
    if len(lines) > 1 and _is_object(lines[0][1]):
        content: Any = [_parsed(line, f"{path}, line {number},") for number, line in lines]
    else:
        content = _parsed(text, str(path))
    if content in ({}, []):
        raise UserError(f"{path} is empty, it holds {text.strip()} alone: give a SQuAD or a HotpotQA file.")
    if isinstance(content, dict) and "data" not in content:
        content = [content]
    entries = content.get("data") if isinstance(content, dict) else content
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise UserError(f"{path} is neither a SQuAD nor a HotpotQA file: it has no list of items.")
    return content


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        # A line that is read alone is its own first line, which would be taken for the file's.
        place = f"line {error.lineno}, column {error.colno}" if "\n" in text else f"column {error.colno}"
        raise UserError(f"{where} is not JSON ({error.msg} at {place}): give a SQuAD or a HotpotQA file.") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} is not JSON ({error}): give a SQuAD or a HotpotQA file.") from error


def _field(item: Any, name: str, kind: type, where: str) -> Any:
    _must_have_fields(item, where)
    if name not in item:
        raise UserError(f"{where} has no field {name!r}: its fields are {', '.join(item) or 'none at all'}.")
    value = item[name]
    if not isinstance(value, kind):
        raise UserError(f"{where} has no {kind.__name__} in {name!r} but {value!r:.40}: mend the file.")
    return value


def _must_have_fields(item: Any, where: str) -> None:
    if not isinstance(item, Mapping):
        raise UserError(f"{where} should have fields, but there is {item!r:.40}: mend the file.")


def _texts(values: Any, name: str, where: str) -> list[str]:
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise UserError(f"{where} has something else than texts in {name!r}: {values!r:.60}.")
    return values


# ---- SQuAD -----------------------------------------------------------------------------------------------


def _read_squad(content: dict[str, Any], path: str, answers_needed: bool) -> QuestionSet:
    found = QuestionSet([], "squad")
    for number, article in enumerate(content["data"], start=1):
        title = article.get("title", f"article {number}")
        for paragraph in _field(article, "paragraphs", list, f"{path}, article {title!r}"):
            where = f"{path}, a paragraph of {title!r}"
            entries = _field(paragraph, "qas", list, where)
            context = _field(paragraph, "context", str, where)
            if not context.strip():
                found.counts["empty paragraphs"] += 1
            for entry in entries:
                _must_have_fields(entry, f"{path}, a question of {title!r}")
                _add_squad(found, entry, context, str(title), path, answers_needed)
    return found


def _add_squad(
    found: QuestionSet, entry: Mapping[str, Any], context: str, title: str, path: str, answers_needed: bool
) -> None:
    if entry.get("id") is None:
        raise UserError(f"{path} has a question without 'id' in {title!r}: {str(dict(entry))[:60]}.")
    identity = str(entry["id"])
    where = f"{path}, item {identity!r}"
    asked = _field(entry, "question", str, where)
    answers = _squad_answers(entry, where, answers_needed)
    if not context.strip():
        found.skipped.append(Skipped(identity, EMPTY_CONTEXT))
        return
    kept = [answer for answer in answers if answer[0].strip()]
    found.counts["empty answers"] += len(answers) - len(kept)
    if not kept and answers_needed:
        found.skipped.append(Skipped(identity, NO_ANSWER))
        return
    texts = tuple(text for text, _ in kept)
    span = None
    for text, start in kept[:1]:
        stop = start + len(text)
        if start >= 0 and context[start:stop] == text:
            span = (start, stop)
        else:
            found.counts["answers not where the file says"] += start != -1
            span = _found(found, context, texts)
    found.questions.append(Question(identity, asked, context, texts, "span", span, title))


def _squad_answers(entry: Mapping[str, Any], where: str, needed: bool) -> list[tuple[str, int]]:
    """Texts and where each begins (-1 where that is not told), from [{"text": …, "answer_start": …}, …] or
    {"text": […], "answer_start": […]}."""
    if not needed and "answers" not in entry:
        return []
    answers = _field(entry, "answers", object, where)
    if isinstance(answers, dict):
        texts = _texts(_field(answers, "text", list, f"{where}, 'answers'"), "text", where)
        starts = answers.get("answer_start", [-1] * len(texts))
        if not isinstance(starts, list) or len(starts) != len(texts):
            raise UserError(f"{where} has {len(texts)} answers but places {starts!r:.40}: mend the file.")
    elif isinstance(answers, list):
        texts = [_field(answer, "text", str, f"{where}, an answer") for answer in answers]
        starts = [answer.get("answer_start", -1) for answer in answers]
    else:
        raise UserError(f"{where} has no list in 'answers' but {answers!r:.40}: mend the file.")
    for start in starts:
        if not isinstance(start, int) or isinstance(start, bool):
            raise UserError(f"{where} has no whole number in 'answer_start' but {start!r:.40}: mend the file.")
    return list(zip(texts, starts, strict=True))


def _found(found: QuestionSet, context: str, answers: Sequence[str], regions: Sequence[tuple[int, int]] = ()) -> Any:
    """Where the first answer that occurs does so, the `regions` looked at first; what is odd is counted."""
    for answer in answers:
        for start, stop in (*regions, (0, len(context))):
            place = find_span(context[start:stop], answer)
            if place is not None:
                found.counts["answers found under normalisation"] += not place.exact
                return start + place.start, start + place.stop
    if answers:
        found.counts["answers that do not occur"] += 1
    return None


# ---- HotpotQA --------------------------------------------------------------------------------------------


def _read_hotpotqa(content: Sequence[dict[str, Any]], path: str, answers_needed: bool) -> QuestionSet:
    found = QuestionSet([], "hotpotqa")
    for number, item in enumerate(content, start=1):
        named = [item[name] for name in ("_id", "id") if item.get(name) not in (None, "")]
        identity = str(named[0]) if named else ""
        if not identity:
            raise UserError(f"{path}, item number {number} has neither '_id' nor 'id': give each item one.")
        where = f"{path}, item {identity!r}"
        asked = _field(item, "question", str, where)
        titled = _paragraphs(item, where)
        context, places = _join(titled)
        found.counts["empty paragraphs"] += sum(not "".join(sentences).strip() for _, sentences in titled)
        if not context.strip():
            found.skipped.append(Skipped(identity, EMPTY_CONTEXT))
            continue
        told = answers_needed or item.get("answer") is not None
        answer = _field(item, "answer", str, where) if told else None
        supporting = _supporting_facts(item, where) if "supporting_facts" in item else []
        if answer is None:
            found.questions.append(Question(identity, asked, context, ()))
        elif not answer.strip():
            found.skipped.append(Skipped(identity, NO_ANSWER))
        elif answer.strip().lower() in ("yes", "no"):
            found.questions.append(Question(identity, asked, context, (answer,), answer.strip().lower()))
        else:
            regions = [places[fact] for fact in supporting if fact in places]
            span = _found(found, context, (answer,), regions)
            found.questions.append(Question(identity, asked, context, (answer,), "span", span))
    return found


def _paragraphs(item: Mapping[str, Any], where: str) -> list[tuple[str, list[str]]]:
    """Titles and sentences, from [[title, sentences], …] or {"title": […], "sentences": […]}."""
    context = _field(item, "context", object, where)
    if isinstance(context, dict):
        titles = _texts(_field(context, "title", list, f"{where}, 'context'"), "title", where)
        texts = _field(context, "sentences", list, f"{where}, 'context'")
        if len(titles) != len(texts):
            raise UserError(f"{where} has {len(titles)} titles but {len(texts)} paragraphs: mend the file.")
        pairs: list[Any] = list(zip(titles, texts, strict=True))
    elif isinstance(context, list):
        pairs = context
    else:
        raise UserError(f"{where} has no paragraphs in 'context' but {context!r:.40}: mend the file.")
    for pair in pairs:
        if not (isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise UserError(f"{where} has a paragraph that is no [title, sentences]: {pair!r:.60}.")
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
            raise UserError(f"{where} has a supporting fact that is no [title, sentence]: {fact!r:.60}.")
        sentences = fact[1] if isinstance(fact[1], list) else [fact[1]]
        if not all(isinstance(sentence, int) for sentence in sentences):
            raise UserError(f"{where} has a supporting fact whose sentence is no number: {fact[1]!r:.60}.")
        pairs += [(fact[0], sentence) for sentence in sentences]
    return pairs


def _join(paragraphs: Sequence[tuple[str, Sequence[str]]]) -> tuple[str, dict[tuple[str, int], tuple[int, int]]]:
    """One text of titled paragraphs, empty ones left out, and where in it each sentence stands."""
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
    """One text of titled paragraphs, and at which character the text of each begins."""
    named = [(title, [text]) for title, text in paragraphs]
    starts: list[int] = []
    context = ""
    for single in named:
        part, places = _join([single])
        context += "\n\n" if context else ""
        starts.append(len(context) + (places[single[0], 0][0] if places else 0))
        context += part
    return context, starts


# ---- NQ with its gold paragraph --------------------------------------------------------------------------


def _read_oracle(content: Sequence[dict[str, Any]], path: str, answers_needed: bool) -> QuestionSet:
    """JSON lines with `question`, `answers` and `ctxs`, a list of titled paragraphs; they have no ids of their own."""
    found = QuestionSet([], "squad")
    for number, item in enumerate(content, start=1):
        identity = f"line-{number}" if item.get("id") is None else str(item["id"])
        where = f"{path}, item {identity!r}"
        asked = _field(item, "question", str, where)
        answers = tuple(_texts(_field(item, "answers", list, where), "answers", where)) if answers_needed else ()
        paragraphs = [
            (_field(one, "title", str, f"{where}, 'ctxs'"), _field(one, "text", str, f"{where}, 'ctxs'"))
            for one in _field(item, "ctxs", list, where)
        ]
        found.counts["empty paragraphs"] += sum(not text.strip() for _, text in paragraphs)
        if not any(text.strip() for _, text in paragraphs):
            found.skipped.append(Skipped(identity, EMPTY_CONTEXT))
            continue
        kept = tuple(answer for answer in answers if answer.strip())
        found.counts["empty answers"] += len(answers) - len(kept)
        if answers_needed and not kept:
            found.skipped.append(Skipped(identity, NO_ANSWER))
            continue
        context = paragraphs[0][1] if len(paragraphs) == 1 else join_paragraphs(paragraphs)[0]
        span = _found(found, context, kept)
        found.questions.append(Question(identity, asked, context, kept, "span", span, paragraphs[0][0]))
    return found


def gold_paragraphs(questions: Sequence[Question]) -> Iterator[tuple[str, str]]:
    """The different paragraphs, (title, text), that questions stand on."""
    yield from dict.fromkeys((plain_title(question.article), question.context) for question in questions)


def plain_title(title: str) -> str:
    """SQuAD writes an article's title as its address does, others as its heading does."""
    return " ".join(title.replace("_", " ").split())
