"""Questions are read from every format with exact answer places, and nothing is dropped silently."""

import json
import lzma
import re
import unicodedata
from pathlib import Path
from typing import Any, Literal

import pytest
from datasets import Dataset, DatasetDict

from recurrify.data import Question, QuestionSet, load_questions, save_questions
from recurrify.data.answer_spans import find_span
from recurrify.errors import UserError

SENTENCES = {
    "Ada": ["Ada Lovelace wrote notes.", " She met Babbage in 1833."],
    "Babbage": ["Charles Babbage was born in 1791.", " He designed engines."],
    "Empty": ["", "  "],
}
HOTPOT: dict[str, Any] = {
    "_id": "q1",
    "question": "When did Ada meet Babbage?",
    "answer": "1833",
    "type": "bridge",
    "level": "easy",
    "supporting_facts": [["Ada", 1]],
    "context": [[title, sentences] for title, sentences in SENTENCES.items()],
}
CONTEXT = (
    "Ada\nAda Lovelace wrote notes. She met Babbage in 1833.\n\n"
    "Babbage\nCharles Babbage was born in 1791. He designed engines."
)


def written(folder: Path, content: Any, name: str = "questions.json") -> Path:
    path = folder / name
    lines = name.endswith("jsonl")
    path.write_text("\n".join(map(json.dumps, content)) + "\n" if lines else json.dumps(content), encoding="utf-8")
    return path


def changed(**changes: Any) -> dict[str, Any]:
    return {name: value for name, value in {**HOTPOT, **changes}.items() if value is not None}


def squad(context: str, *answers: dict[str, Any], **more: Any) -> dict[str, Any]:
    asked = {"id": "s1", "question": "Who?", "answers": list(answers), **more}
    return {"version": "1.1", "data": [{"title": "A_b", "paragraphs": [{"context": context, "qas": [asked]}]}]}


class TestHotpotqa:
    def test_official_layout(self, tmp_path: Path) -> None:
        found = load_questions(written(tmp_path, [HOTPOT]))
        start = CONTEXT.index("1833")
        assert found.questions == [Question("q1", HOTPOT["question"], CONTEXT, ("1833",), "span", (start, start + 4))]
        assert found.style == "hotpotqa"
        assert found.counts == {"empty paragraphs": 1}

    @pytest.mark.parametrize("name", ["questions.json", "questions.jsonl", "questions.parquet", "saved"])
    def test_other_layouts_and_containers_give_the_same(self, name: str, tmp_path: Path) -> None:
        columns = changed(
            id="q1",
            _id=None,
            context={"title": list(SENTENCES), "sentences": list(SENTENCES.values())},
            supporting_facts={"title": ["Ada"], "sent_id": [1]},
        )
        match name:
            case "saved":
                Dataset.from_list([columns]).save_to_disk(tmp_path / name)
            case "questions.parquet":
                Dataset.from_list([columns]).to_parquet(tmp_path / name)
            case _:
                written(tmp_path, [columns], name)
        (official,) = load_questions(written(tmp_path, [HOTPOT], "official.json")).questions
        assert load_questions(tmp_path / name).questions == [official]

    def test_data_set_with_several_parts_needs_a_split(self, tmp_path: Path) -> None:
        row = {"id": "s1", "context": "Ann.", "question": "Who?", "answers": {"text": ["Ann"], "answer_start": [0]}}
        parts = {"train": Dataset.from_list([row]), "validation": Dataset.from_list([row | {"id": "s2"}])}
        DatasetDict(parts).save_to_disk(tmp_path / "saved")
        assert load_questions(tmp_path / "saved", split="test").questions[0].id == "s2"
        with pytest.raises(UserError, match="has no single part, only train, validation"):
            load_questions(tmp_path / "saved")

    def test_nested_supporting_facts(self, tmp_path: Path) -> None:
        facts = [["Ada", [1], ["She met Babbage in 1833."], {"id": "7", "text": "…"}]]
        (question,) = load_questions(written(tmp_path, [changed(supporting_facts=facts)])).questions
        assert question == load_questions(written(tmp_path, [HOTPOT])).questions[0]

    def test_supporting_sentences_are_searched_first(self, tmp_path: Path) -> None:
        item = changed(answer="Babbage", supporting_facts=[["Babbage", 0]])
        (question,) = load_questions(written(tmp_path, [item])).questions
        assert question.span == (CONTEXT.index("Charles Babbage") + 8, CONTEXT.index("Charles Babbage") + 15)
        (question,) = load_questions(written(tmp_path, [changed(answer="Babbage", supporting_facts=None)])).questions
        assert question.span == (CONTEXT.index("Babbage"), CONTEXT.index("Babbage") + 7)

    def test_unusual_items_are_kept_or_counted(self, tmp_path: Path) -> None:
        items = [
            changed(_id="yes", answer="yes"),
            changed(_id="no", answer=" No"),
            changed(_id="absent", answer="Turing"),
            changed(_id="nothing asked", question=" "),
            changed(_id="no answer", answer=" "),
            changed(_id="no context", context=[["Empty", [""]]]),
        ]
        found = load_questions(written(tmp_path, items))
        assert [(question.id, question.kind, question.span is None) for question in found.questions] == [
            ("yes", "yes", True),
            ("no", "no", True),
            ("absent", "span", True),
            ("nothing asked", "span", False),
        ]
        assert dict(found.skipped) == {"no answer": "has no answer", "no context": "has an empty context"}
        assert found.counts["answers that do not occur"] == found.counts["empty questions"] == 1
        assert "answers that do not occur 1" in found.summary()
        assert "skipped 2" in found.summary()

    def test_answers_are_optional_for_prediction(self, tmp_path: Path) -> None:
        (question,) = load_questions(written(tmp_path, [changed(answer=None)]), answers_needed=False).questions
        assert question.answers == ()

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"_id": None}, "item 1, has neither"),
            ({"question": None}, "item 'q1', has no field 'question'"),
            ({"answer": None}, "item 'q1', has no field 'answer'"),
            ({"answer": 5}, "item 'q1', .*its answer is 5, not a text"),
            ({"context": 3}, "item 'q1', is not a question in this format"),
            ({"context": [["title"]]}, "item 'q1', is not a question in this format"),
            ({"context": [["title", "text"]]}, "a paragraph is not .title, sentences. but .'title', 'text'"),
            ({"context": {"title": ["a"], "sentences": []}}, "title and sentences differ in length"),
            ({"supporting_facts": [3]}, "item 'q1', is not a question in this format"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_invalid_item_raises_with_its_id(self, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=words):
            load_questions(written(tmp_path, [changed(**changes)]))

    def test_repeated_id_raises(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="two items 'q1'"):
            load_questions(written(tmp_path, [HOTPOT, HOTPOT]))


class TestSquad:
    def test_places_are_those_of_the_file(self, tmp_path: Path) -> None:
        content = squad("Ann saw Ann.", {"text": "Ann", "answer_start": 8}, {"text": "she", "answer_start": 0})
        found = load_questions(written(tmp_path, content))
        assert found.questions == [Question("s1", "Who?", "Ann saw Ann.", ("Ann", "she"), "span", (8, 11), "A_b")]
        assert found.style == "squad"
        assert not found.counts
        compressed = tmp_path / "q.json.xz"
        compressed.write_bytes(lzma.compress(json.dumps(content).encode()))
        assert load_questions(compressed).questions == found.questions

    @pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
    def test_flat_rows_as_on_the_hub(self, name: str, tmp_path: Path) -> None:
        row = {"id": "s1", "title": "A_b", "context": "Ann saw Ann.", "question": "Who?"}
        row |= {"answers": {"text": ["Ann", "she"], "answer_start": [8, 0]}}  # type: ignore[dict-item]
        if name == "rows.parquet":
            Dataset.from_list([row]).to_parquet(tmp_path / name)
        else:
            written(tmp_path, [row], name)
        found = load_questions(tmp_path / name)
        assert found.questions == [Question("s1", "Who?", "Ann saw Ann.", ("Ann", "she"), "span", (8, 11), "A_b")]
        assert found.style == "squad"

    def test_unusual_items_are_kept_or_counted(self, tmp_path: Path) -> None:
        answers = ({"text": " ", "answer_start": 3}, {"text": "Bob", "answer_start": 3})
        content = squad("Ann saw Bob.", *answers)
        paragraphs = content["data"][0]["paragraphs"]
        paragraphs[0]["qas"].append({"id": "s2", "question": "Why?", "answers": []})
        asked = {"id": "s3", "question": "Why?", "answers": [{"text": "Bob", "answer_start": 0}]}
        paragraphs.append({"context": " \n", "qas": [asked]})
        found = load_questions(written(tmp_path, content))
        assert found.questions[0].span == (8, 11)
        assert dict(found.skipped) == {"s2": "has no answer", "s3": "has an empty context"}
        assert found.counts == {"answers not where the file says": 1, "empty answers": 1, "empty paragraphs": 1}

    @pytest.mark.parametrize(
        ("entry", "words"),
        [
            ("s", "item 'T', is not a question in this format"),
            ({"id": None, "question": "q", "answers": []}, "item 'T', has neither '_id' nor 'id'"),
            ({"id": "s1", "answers": []}, "item 'T', question 's1', has no field 'question'"),
            ({"id": "s1", "question": "q", "answers": None}, "question 's1', is not a question in this format"),
            ({"id": "s1", "question": "q", "answers": [{"text": "x", "answer_start": "4"}]}, "is '4', not a whole"),
            ({"id": "s1", "question": "q", "answers": {"text": ["x"], "answer_start": []}}, "differ in length"),
        ],
        ids=["question", "id", "field", "null", "start in words", "lengths"],
    )
    def test_invalid_entry_raises_with_its_article(self, entry: Any, words: str, tmp_path: Path) -> None:
        content = {"data": [{"title": "T", "paragraphs": [{"context": "x", "qas": [entry]}]}]}
        with pytest.raises(UserError, match=re.escape(words)):
            load_questions(written(tmp_path, content))

    def test_saved_and_loaded(self, tmp_path: Path) -> None:
        questions = [
            Question("a", "Who?", "Ann saw Bob.", ("Robert", "Bob"), "span", (8, 11), "x"),
            Question("b", "Whom?", "Ann saw Bob.", ("Eve",), "span", None, "x"),
        ]
        save_questions(QuestionSet(questions, "squad"), tmp_path / "q.json")
        found = load_questions(tmp_path / "q.json")
        assert found.questions == [questions[0]._replace(answers=("Bob", "Robert")), questions[1]]
        assert found.counts == {"answers that do not occur": 1}
        with pytest.raises(UserError, match="'c' is answered by 'yes'"):
            save_questions(QuestionSet([questions[0]._replace(id="c", kind="yes")], "squad"), tmp_path / "q.json")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b" \n", "q.json is empty: give"),
        (b"{}", "q.json, item 1, has neither"),
        (b"[]\n", "no usable question (it has no items)"),
        (b'{"data": []}', "no usable question (it has no items)"),
        (b'{"id": 1}\n\n{id: 2}\n', "q.json, line 3, is not JSON (Expecting property name"),
        (b'[{"id": 1},\n oops]', "q.json is not JSON (Expecting value at line 2, column 2)"),
        (b'"text"', "q.json is not a list of JSON objects"),
    ],
)
def test_invalid_file_raises(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(words)):
        load_questions(path)


def test_rows_with_gold_paragraphs(tmp_path: Path) -> None:
    lines = [
        {"question": "who", "answers": ["Nobody", "bob"], "ctxs": [{"title": "T", "text": "Ann saw Bob."}]},
        {"question": "why", "answers": ["x"], "ctxs": [{"title": "T", "text": " "}]},
    ]
    found = load_questions(written(tmp_path, lines, "nq.jsonl"))
    assert found.questions == [Question("line-1", "who", "Ann saw Bob.", ("Nobody", "bob"), "span", (8, 11), "T")]
    assert [entry.name for entry in found.skipped] == ["line-2"]
    assert found.counts == {"answers found under normalisation": 1, "empty paragraphs": 1}
    with pytest.raises(UserError, match="item 1, is not a question in this format"):
        load_questions(written(tmp_path, [{"question": "q", "answers": ["a"], "ctxs": [5]}]))


class TestFindSpan:
    @pytest.mark.parametrize(
        ("text", "answer", "found"),
        [
            ("In 1957 it was 5.", "5", "5"),
            ("the theatre", "heat", "heat"),
            ("He met ANN.", "Ann", "ANN"),
            ("Zoe\u0308 saw it", "Zoë", "Zoe\u0308"),
            ("Zoë saw it", "Zoe\u0308", "Zoë"),
            ("the o\ufb03ce there", "office", "o\ufb03ce"),
            ("die Straße dort", "STRASSE", "Straße"),
            ("12.65\xa0m wide", "12.65 m", "12.65\xa0m"),
            ("İstanbul, then", "istanbul", "İstanbul"),
            ("a cafe\u0301 there", "cafe", "cafe\u0301"),
            ("cafe\u0301 or cafe", "cafe", "cafe"),
            ("A\u030angstro\u0308m mètre étalon a\u0308", "METRE ETALON", "mètre étalon"),
        ],
    )
    def test_characters_are_exact(self, text: str, answer: str, found: str) -> None:
        place = find_span(text, answer)
        assert place is not None
        assert text[place.start : place.stop] == found
        assert place.exact == (found == answer)

    def test_whole_words_are_preferred(self) -> None:
        place = find_span("1957 and 5", "5")
        assert place is not None
        assert place.start == 9

    @pytest.mark.parametrize("form", ["NFC", "NFD"])
    def test_syllable_is_not_cut(self, form: Literal["NFC", "NFD"]) -> None:
        text = unicodedata.normalize(form, "한국 하")
        place = find_span(text, "하")
        assert place is not None
        assert unicodedata.normalize("NFC", text[: place.start]) == "한국 "
        assert find_span(unicodedata.normalize(form, "한국"), "하") is None

    @pytest.mark.parametrize("answer", ["", "  ", "zebra", "\u0301"])
    def test_absent_answer(self, answer: str) -> None:
        assert find_span("a horse", answer) is None


@pytest.mark.parametrize(
    "row",
    [
        {"answers": "Paris", "ctxs": [{"title": "France", "text": "The capital of France is Paris."}]},
        {"answers": {"text": "Paris"}, "context": "The capital of France is Paris."},
    ],
    ids=["gold paragraphs", "as on the hub"],
)
def test_answers_that_are_a_text_raise(row: dict[str, Any], tmp_path: Path) -> None:
    """Instead of being read as a list of letters."""
    with pytest.raises(UserError, match="its answers are 'Paris', not a list"):
        load_questions(written(tmp_path, [{"id": "1", "question": "Capital?", **row}]))
