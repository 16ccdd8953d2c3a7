"""Texts with classes: reading, holding out, windows and batches."""

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

from recurrify.data.labelled import LabelledText, LabelledTexts, hold_out, load_labelled
from recurrify.data.labelled_windows import collate_texts, tokenize_texts
from recurrify.errors import UserError
from support.tokenizers import like_bert
from support.words import word_tokenizer


def written(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def many(*counts: int) -> LabelledTexts:
    labels = [f"c{number}" for number, count in enumerate(counts) for _ in range(count)]
    return LabelledTexts("made", [LabelledText(line, f"text {line}", label) for line, label in enumerate(labels)], [])


def test_csv_with_quotes_newlines_and_long_texts(tmp_path: Path) -> None:
    book = "word, " * 40_000
    content = f'\ufeffid,label , text\r\n1,b,"two\nlines, ""quoted"""\r\n\r\n2, a ,"{book}"\r\n3,b,"  "\r\n4,b,end\r\n'
    found = load_labelled(written(tmp_path, "x.csv", content), "text", "label")
    assert found.texts == [
        LabelledText(2, 'two\nlines, "quoted"', "b"),
        LabelledText(5, book, "a"),
        LabelledText(7, "end", "b"),
    ]
    assert found.empty == [6]
    assert found.summary() == "3 texts, 2 classes: a (1), b (2); 1 empty left out: line 6"


def test_whole_numbers_are_sorted_by_value(tmp_path: Path) -> None:
    rows = [{"body": "a\u2028b", "y": 10}, {"body": "c", "y": 9}, {"body": "d", "y": "-1"}]
    content = "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n"
    path = tmp_path / "x.jsonl.gz"
    path.write_bytes(gzip.compress(content.encode()))
    found = load_labelled(str(path), "body", "y")
    assert found.texts[0].text == "a\u2028b"
    assert list(found.counts) == ["-1", "9", "10"]
    assert found.numbers(list(found.counts)).tolist() == [2, 1, 0]
    assert [text.label for text in load_labelled(str(path), "body", None).texts] == [None] * 3


def test_data_set_with_class_names(tmp_path: Path) -> None:
    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    parts = {
        "train": Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]}, features=features),
        "validation": Dataset.from_dict({"text": ["c", "d"], "label": [0, -1]}, features=features),
    }
    DatasetDict(parts).save_to_disk(str(tmp_path / "set"))
    source = f"hf:{tmp_path / 'set'}"
    for found in (load_labelled(source, "text", "label"), load_labelled(str(tmp_path / "set"), "text", "label")):
        assert [text[1:] for text in found.texts] == [("a", "pos"), ("b", "neg")]
    with pytest.raises(UserError, match="row 2, has no class in 'label' but None"):
        load_labelled(source, "text", "label", "test")
    with pytest.raises(UserError, match="has no field 'body', only text, label"):
        load_labelled(source, "body", "label")
    Dataset.from_dict({"text": ["a"], "label": ["x"]}).save_to_disk(str(tmp_path / "one"))
    with pytest.raises(UserError, match="has no test part, only train"):
        load_labelled(f"hf:{tmp_path / 'one'}", "text", "label", "test")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("x.csv", "a,b\n1,2\n", "line 2, has no field 'text', only a, b: choose one of them with --text-field"),
        ("x.csv", "text,b\n1,2\n", "line 2, has no field 'label', only text, b: choose one of them with --label-field"),
        ("x.csv", "text,text,label\n1,2,3\n", "has 2 columns 'text'"),
        ("x.csv", "text,label\n", "holds no text in 'text'"),
        ("x.csv", "text,label\n ,a\n", "1 empty"),
        ("x.csv", "text,label\none, two,a\n", "line 2, has 3 cells, but the header has 2"),
        ("x.csv", 'text,label\na,b\n"open,a\n', "line 3, is not CSV"),
        ("x.csv", "text,label\na,\n", "line 2, has an empty 'label'"),
        ("x.jsonl", '{"text": "a"}\n', "line 1, has no field 'label', only text"),
        ("x.jsonl", '{"text": "a", "label": 0.5}\n', "has no class in 'label' but 0.5"),
        ("x.jsonl", '{"text": "a", "label": true}\n', "has no class in 'label' but True"),
        ("x.txt", "text,label\n", "is none of .csv, .tsv, .json"),
    ],
)
def test_invalid_file_raises(name: str, content: str | bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        load_labelled(written(tmp_path, name, content), "text", "label")
    assert words in str(caught.value)


def test_unknown_class_raises_with_its_line(tmp_path: Path) -> None:
    found = load_labelled(written(tmp_path, "x.csv", "text,label\na,x\nb,z\n"), "text", "label")
    with pytest.raises(UserError, match=r"line 3, has the class 'z', which .* its classes are x, y\."):
        found.numbers(["x", "y"])


def test_a_tenth_of_each_class_is_held_out() -> None:
    given = many(100, 50, 7)
    trained, tested = hold_out(given, seed=3)
    assert sorted(trained.texts + tested.texts) == given.texts
    assert len(tested.texts) == 16
    held = tested.counts
    assert held["c0"] >= 10
    assert held["c1"] >= 5
    assert hold_out(given, seed=3) == (trained, tested)
    assert hold_out(given, seed=4) != (trained, tested)


def test_duplicates_stay_on_one_side() -> None:
    texts = [
        LabelledText(3 * number + again, f"t{number}", str(number % 2)) for number in range(40) for again in range(3)
    ]
    kept, held = hold_out(LabelledTexts("x", texts, []), seed=0)
    assert len(kept.texts) + len(held.texts) == 120
    assert len(held.texts) == 12
    assert not {text.text for text in kept.texts} & {text.text for text in held.texts}


def test_every_class_keeps_a_training_text() -> None:
    for seed in range(10):
        trained, tested = hold_out(many(1, 1, 1, 2), seed)
        assert list(trained.counts) == ["c0", "c1", "c2", "c3"]
        assert tested.counts == {"c3": 1}
    with pytest.raises(UserError, match="one text of each class"):
        hold_out(many(1, 1), 0)


def test_encoder_windows_have_special_tokens() -> None:
    words = [f"word{letter}" for letter in "abcdefghijk"]
    tokenizer = like_bert([" ".join(words)])
    first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    inside = tokenizer.convert_tokens_to_ids(words)
    short, long = tokenize_texts([" ".join(words[:3]), " ".join(words)], tokenizer, window=6)
    assert short.tolist() == [first, *inside[:3], last]
    windows = [inside[:4], inside[4:8], inside[8:]]
    assert long.tolist() == [token for window in windows for token in (first, *window, last)]
    (stream,) = tokenize_texts([" ".join(words)], tokenizer)
    assert stream.tolist() == [first, *inside, last]
    with pytest.raises(UserError, match="no room for text between its 2 special tokens"):
        tokenize_texts(["worda"], tokenizer, window=2)


def test_text_without_tokens_is_one_padding_token() -> None:
    tokenizer = word_tokenizer()
    tokenizer.backend_tokenizer.normalizer = None
    assert [ids.tolist() for ids in tokenize_texts(["w5 w6", "\u2003"], tokenizer)] == [[5, 6], [1]]


def test_batches_are_padded_on_the_right() -> None:
    texts: list[dict[str, Any]] = [
        {"input_ids": np.array([5, 6, 7], dtype=np.int32), "labels": 1},
        {"input_ids": np.array([8], dtype=np.int32), "labels": 0},
    ]
    batch = collate_texts(texts, pad_token_id=9)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]
    assert batch["labels"].tolist() == [1, 0]
    assert "attention_mask" not in collate_texts(texts[:1], 9)
