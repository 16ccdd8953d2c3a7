"""Questions come out of their files with exact places, and nothing odd passes in silence."""

import itertools
import json
import re
import unicodedata
from pathlib import Path
from typing import Any, Literal

import pytest

from recurrify.data.answer_spans import find_span, words_of
from recurrify.data.questions import Question, QuestionSet, load_questions, plain_title, save_questions
from recurrify.errors import UserError
from recurrify_papers.yoshida2020.distractors import mix_paragraphs

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
    def test_the_official_layout(self, tmp_path: Path) -> None:
        found = load_questions(written(tmp_path, [HOTPOT]))
        (question,) = found.questions
        assert question.context == CONTEXT
        assert question.kind == "span"
        assert question.answers == ("1833",)
        assert question.span is not None
        assert question.context[slice(*question.span)] == "1833"
        assert found.style == "hotpotqa"
        assert found.counts == {"empty paragraphs": 1}

    @pytest.mark.parametrize("name", ["questions.json", "questions.jsonl"])
    def test_other_layouts_say_the_same(self, name: str, tmp_path: Path) -> None:
        columns = changed(
            id="q1",
            context={"title": list(SENTENCES), "sentences": list(SENTENCES.values())},
            supporting_facts={"title": ["Ada"], "sent_id": [1]},
        )
        nested = changed(
            _id="q2", supporting_facts=[["Ada", [1], ["She met Babbage in 1833."], {"id": "7", "text": "…"}]]
        )
        first, second = load_questions(written(tmp_path, [columns, nested], name)).questions
        (official,) = load_questions(written(tmp_path, [HOTPOT], "official.json")).questions
        assert first == official
        assert second == official._replace(id="q2")

    def test_supporting_sentences_are_looked_at_first(self, tmp_path: Path) -> None:
        item = changed(answer="Babbage", supporting_facts=[["Babbage", 0]])
        (question,) = load_questions(written(tmp_path, [item])).questions
        assert question.span == (CONTEXT.index("Charles Babbage") + 8, CONTEXT.index("Charles Babbage") + 15)
        (question,) = load_questions(written(tmp_path, [changed(answer="Babbage", supporting_facts=None)])).questions
        assert question.span == (CONTEXT.index("Babbage"), CONTEXT.index("Babbage") + 7)

    def test_yes_and_no(self, tmp_path: Path) -> None:
        items = [changed(_id="a", answer="yes"), changed(_id="b", answer="no")]
        assert [(q.kind, q.span) for q in load_questions(written(tmp_path, items)).questions] == [
            ("yes", None),
            ("no", None),
        ]

    def test_an_answer_that_does_not_occur_is_kept_and_counted(self, tmp_path: Path) -> None:
        found = load_questions(written(tmp_path, [changed(answer="Turing")]))
        assert found.questions[0].span is None
        assert found.questions[0].answers == ("Turing",)
        assert found.counts["answers that do not occur"] == 1
        assert "answers that do not occur 1" in found.told()

    def test_an_empty_context_is_skipped_and_told(self, tmp_path: Path) -> None:
        found = load_questions(written(tmp_path, [HOTPOT, changed(_id="q2", context=[["Empty", [""]]])]))
        assert [entry.name for entry in found.skipped] == ["q2"]
        assert "skipped 1" in found.told()
        with pytest.raises(UserError, match="no question that can be asked"):
            load_questions(written(tmp_path, [changed(context=[["Empty", [""]]])]))

    def test_an_empty_answer_is_none(self, tmp_path: Path) -> None:
        found = load_questions(written(tmp_path, [HOTPOT, changed(_id="q2", answer=" ")]))
        assert [(entry.name, entry.reason) for entry in found.skipped] == [("q2", "has no answer")]

    @pytest.mark.parametrize("name", ["question", "context", "answer"])
    def test_a_missing_field_names_the_item(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=f"item 'q1' has no field '{name}'"):
            load_questions(written(tmp_path, [changed(**{name: None})]))

    def test_answers_are_not_needed_to_predict(self, tmp_path: Path) -> None:
        (question,) = load_questions(written(tmp_path, [changed(answer=None)]), answers_needed=False).questions
        assert question.answers == ()

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"_id": None}, "item number 1 has neither"),
            ({"context": "text"}, "'q1' has no paragraphs"),
            ({"context": [["title"]]}, "'q1' has a paragraph"),
            ({"context": [["title", "text"]]}, "'q1' has something else than texts"),
            ({"context": {"title": ["a"], "sentences": []}}, "1 titles but 0 paragraphs"),
            ({"context": {"sentences": []}}, "'q1', 'context' has no field 'title'"),
            ({"supporting_facts": [["Ada", "one"]]}, "'q1' has a supporting fact whose sentence"),
            ({"supporting_facts": [3]}, "'q1' has a supporting fact that is no"),
            ({"question": 3}, "'q1' has no str in 'question'"),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    def test_broken_items_are_named(self, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=words):
            load_questions(written(tmp_path, [changed(**changes)]))

    @pytest.mark.parametrize("needed", [True, False])
    def test_an_answer_that_is_no_text(self, needed: bool, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="item 'q1' has no str in 'answer' but 5"):
            load_questions(written(tmp_path, [changed(answer=5)]), answers_needed=needed)

    def test_two_items_with_one_id(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="two items 'q1'"):
            load_questions(written(tmp_path, [HOTPOT, HOTPOT]))


class TestSquad:
    def test_places_are_those_of_the_file(self, tmp_path: Path) -> None:
        content = squad("Ann saw Ann.", {"text": "Ann", "answer_start": 8}, {"text": "she", "answer_start": 0})
        found = load_questions(written(tmp_path, content))
        assert found.questions == [Question("s1", "Who?", "Ann saw Ann.", ("Ann", "she"), "span", (8, 11), "A_b")]
        assert found.style == "squad"
        assert not found.counts

    def test_a_wrong_place_is_mended_and_counted(self, tmp_path: Path) -> None:
        found = load_questions(written(tmp_path, squad("Ann saw Bob.", {"text": "Bob", "answer_start": 3})))
        assert found.questions[0].span == (8, 11)
        assert found.counts == {"answers not where the file says": 1}

    def test_questions_without_an_answer(self, tmp_path: Path) -> None:
        content = squad("Ann saw Bob.", {"text": "Bob", "answer_start": 8})
        content["data"][0]["paragraphs"][0]["qas"].append({"id": "s2", "question": "Why?", "answers": []})
        found = load_questions(written(tmp_path, content))
        assert [(entry.name, entry.reason) for entry in found.skipped] == [("s2", "has no answer")]

    def test_an_empty_paragraph(self, tmp_path: Path) -> None:
        content = squad("Ann saw Bob.", {"text": "Bob", "answer_start": 8})
        asked = {"id": "s2", "question": "Why?", "answers": [{"text": "Bob", "answer_start": 0}]}
        content["data"][0]["paragraphs"].append({"context": " \n", "qas": [asked]})
        found = load_questions(written(tmp_path, content))
        assert found.counts == {"empty paragraphs": 1}
        assert [entry.name for entry in found.skipped] == ["s2"]

    @pytest.mark.parametrize("name", ["question", "answers"])
    def test_a_missing_field(self, name: str, tmp_path: Path) -> None:
        content = squad("Ann.", {"text": "Ann", "answer_start": 0})
        del content["data"][0]["paragraphs"][0]["qas"][0][name]
        with pytest.raises(UserError, match=f"item 's1' has no field '{name}'"):
            load_questions(written(tmp_path, content))

    @pytest.mark.parametrize("needed", [True, False])
    @pytest.mark.parametrize(
        ("answers", "words"),
        [
            (None, "item 's1' has no list in 'answers' but None"),
            (["Ann"], "item 's1', an answer should have fields, but there is 'Ann'"),
            ([{"text": "Ann", "answer_start": "4"}], "item 's1' has no whole number in 'answer_start' but '4'"),
            ([{"text": "Ann", "answer_start": None}], "item 's1' has no whole number in 'answer_start' but None"),
            ({"text": ["Ann"], "answer_start": []}, "item 's1' has 1 answers but places"),
        ],
        ids=["null", "words", "start in words", "no start", "lengths"],
    )
    def test_broken_answers_are_named(self, answers: Any, words: str, needed: bool, tmp_path: Path) -> None:
        content = squad("Ann.")
        content["data"][0]["paragraphs"][0]["qas"][0]["answers"] = answers
        with pytest.raises(UserError, match=re.escape(words)):
            load_questions(written(tmp_path, content), answers_needed=needed)

    @pytest.mark.parametrize("needed", [True, False])
    @pytest.mark.parametrize(
        ("paragraph", "words"),
        [
            (5, "a paragraph of 'T' should have fields, but there is 5"),
            ({"context": "x", "qas": ["s"]}, "a question of 'T' should have fields, but there is 's'"),
            ({"context": "x", "qas": [{"id": None, "question": "q"}]}, "a question without 'id' in 'T'"),
        ],
        ids=["paragraph", "question", "id"],
    )
    def test_broken_entries_are_placed(self, paragraph: Any, words: str, needed: bool, tmp_path: Path) -> None:
        content = {"data": [{"title": "T", "paragraphs": [paragraph]}]}
        with pytest.raises(UserError, match=words):
            load_questions(written(tmp_path, content), answers_needed=needed)

    def test_answers_in_columns(self, tmp_path: Path) -> None:
        content = squad("Ann saw Ann.")
        content["data"][0]["paragraphs"][0]["qas"][0]["answers"] = {"text": ["Ann", "she"], "answer_start": [8, 0]}
        (question,) = load_questions(written(tmp_path, content)).questions
        assert (question.answers, question.span) == (("Ann", "she"), (8, 11))

    def test_empty_answers_are_left_out_and_counted(self, tmp_path: Path) -> None:
        content = squad("Ann saw.", {"text": " ", "answer_start": 3}, {"text": "Ann", "answer_start": 0})
        found = load_questions(written(tmp_path, content))
        assert (found.questions[0].answers, found.questions[0].span) == (("Ann",), (0, 3))
        assert found.counts == {"empty answers": 1}

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
        (b"{}", "q.json is empty, it holds {} alone"),
        (b"[]\n", "q.json is empty, it holds [] alone"),
        (b'{"data": []}', "can be asked (it has no items)"),
        (b'{"id": 1}\n\n{id: 2}\n', "q.json, line 3, is not JSON (Expecting property name"),
        (b'{"id": 1}\noops', "q.json, line 2, is not JSON"),
        (b'[{"id": 1},\n oops]', "q.json is not JSON (Expecting value at line 2, column 2)"),
    ],
    ids=["blank", "object", "list", "no articles", "third line", "second line", "a list's second line"],
)
def test_where_a_file_is_broken(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=re.escape(words)):
        load_questions(path)


def test_why_nothing_can_be_asked(tmp_path: Path) -> None:
    content = squad("Ann.", {"text": " ", "answer_start": 0})
    asked = [{"id": f"s{number}", "question": "Why?", "answers": []} for number in (2, 3)]
    content["data"][0]["paragraphs"].append({"context": " ", "qas": asked})
    with pytest.raises(UserError, match=re.escape("(1 skipped: has no answer; 2 skipped: has an empty context)")):
        load_questions(written(tmp_path, content))


def test_empty_questions_are_asked_and_counted(tmp_path: Path) -> None:
    found = load_questions(written(tmp_path, [changed(question=" "), changed(_id="q2")]))
    assert [question.id for question in found.questions] == ["q1", "q2"]
    assert found.counts["empty questions"] == 1


@pytest.mark.parametrize("content", [b"\xff\xfe", b"{", b"[1]", b'"text"', b'{"data": 3}'], ids=repr)
def test_files_that_are_no_questions(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "q.json"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"q\.json"):
        load_questions(path)


def test_questions_with_titled_paragraphs(tmp_path: Path) -> None:
    lines = [
        {"question": "who", "answers": ["Nobody", "bob"], "ctxs": [{"title": "T", "text": "Ann saw Bob."}]},
        {"question": "why", "answers": ["x"], "ctxs": [{"title": "T", "text": " "}]},
    ]
    found = load_questions(written(tmp_path, lines, "nq.jsonl"))
    assert found.questions == [Question("line-1", "who", "Ann saw Bob.", ("Nobody", "bob"), "span", (8, 11), "T")]
    assert [entry.name for entry in found.skipped] == ["line-2"]
    assert found.counts == {"answers found under normalisation": 1, "empty paragraphs": 1}


@pytest.mark.parametrize("needed", [True, False])
def test_a_paragraph_that_is_none(needed: bool, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="item 'line-1', 'ctxs' should have fields, but there is 5"):
        load_questions(written(tmp_path, [{"question": "q", "answers": ["a"], "ctxs": [5]}]), answers_needed=needed)


class TestFindingAnswers:
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
            ("two ½ cups", "½", "½"),
            ("a cafe\u0301 there", "cafe", "cafe\u0301"),
            ("cafe\u0301 or cafe", "cafe", "cafe"),
        ],
    )
    def test_characters_are_exact(self, text: str, answer: str, found: str) -> None:
        place = find_span(text, answer)
        assert place is not None
        assert text[place.start : place.stop] == found
        assert place.exact == (found == answer)

    def test_whole_words_are_preferred(self) -> None:
        text = "1957 and 5"
        place = find_span(text, "5")
        assert place is not None
        assert place.start == 9

    @pytest.mark.parametrize("form", ["NFC", "NFD"])
    def test_a_syllable_is_not_cut_in_two(self, form: Literal["NFC", "NFD"]) -> None:
        text = unicodedata.normalize(form, "한국 하")
        place = find_span(text, "하")
        assert place is not None
        assert unicodedata.normalize("NFC", text[: place.start]) == "한국 "
        assert find_span(unicodedata.normalize(form, "한국"), "하") is None

    @pytest.mark.parametrize("answer", ["", "  ", "zebra", "\u0301"])
    def test_what_is_not_there(self, answer: str) -> None:
        assert find_span("a horse", answer) is None

    def test_decomposed_text_around_the_answer_does_not_shift_it(self) -> None:
        text = unicodedata.normalize("NFD", "Ångström äöü ") + "mètre étalon" + unicodedata.normalize("NFD", " äöü")
        place = find_span(text, "METRE ETALON")
        assert place is not None
        assert text[place.start : place.stop] == "mètre étalon"

    def test_words(self) -> None:
        assert words_of("The Pig's é—5!") == " the pig s e 5 "


class TestMixedParagraphs:
    def made(self) -> list[QuestionSet]:
        questions = []
        for article, part, number in itertools.product(range(30), range(2), range(2)):
            front, word = f"Article {article} has in part {part} the word ", f"w{article}x{part}"
            span = (len(front), len(front) + len(word))
            name = f"{article}-{part}-{number}"
            questions.append(Question(name, "?", f"{front}{word}.", (word,), "span", span, f"Title_{article}"))
        lost = questions[0]._replace(id="lost", span=None)
        return [QuestionSet(questions[:60], "squad"), QuestionSet([*questions[60:], lost], "squad")]

    def test_answers_stay_where_they_were_and_stand_once(self) -> None:
        train, test = mix_paragraphs(self.made(), test_share=0.4)
        assert len(train.questions) + len(test.questions) == 120
        assert train.counts + test.counts == {"answers that do not occur": 1}
        positions = set()
        for question in (*train.questions, *test.questions):
            assert question.span is not None
            assert question.context[slice(*question.span)] == question.answers[0]
            assert question.context.count(question.answers[0]) == 1
            paragraphs = question.context.split("\n\n")
            assert len(paragraphs) == len(set(paragraphs)) == 10
            positions.add(next(i for i, part in enumerate(paragraphs) if question.answers[0] in part))
        assert positions == set(range(10))

    def test_no_article_is_in_both(self) -> None:
        def articles(questions: QuestionSet) -> set[str]:
            return {part.split("\n")[0] for question in questions.questions for part in question.context.split("\n\n")}

        train, test = mix_paragraphs(self.made(), test_share=0.4)
        assert len(articles(train)) == 18
        assert len(articles(test)) == 12
        assert not articles(train) & articles(test)
        assert mix_paragraphs(self.made(), test_share=0.4)[1].questions == test.questions
        assert mix_paragraphs(self.made(), test_share=0.4, seed=1)[1].questions != test.questions

    def test_answers_that_are_everywhere_are_counted(self) -> None:
        sets = self.made()
        sets[0].questions[0] = sets[0].questions[0]._replace(answers=("article",))
        train, test = mix_paragraphs(sets, test_share=0.4)
        assert (train.counts + test.counts)["answers that occur everywhere"] == 1

    def test_too_few_articles(self) -> None:
        with pytest.raises(UserError, match="give more articles"):
            mix_paragraphs([QuestionSet(self.made()[0].questions[:8], "squad")], test_share=0.5)

    def test_titles_of_two_manners_are_one(self) -> None:
        assert plain_title("Super_Bowl_50") == plain_title("Super Bowl 50")
