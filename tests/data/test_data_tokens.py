"""Token ids, their cache, and the checksum."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from recurrify.data import token_cache, tokens
from recurrify.data.records import Document, Skipped
from recurrify.data.token_cache import tokenize_cached, tokenized
from recurrify.data.tokens import TokenizedDocument, checksum, tokenize_documents
from recurrify.errors import UserError

DOCUMENTS = [
    Document("one", "the cat sat on the mat, déjà vu"),
    Document("none", "x"),
    Document("two", "the dog\r\nsat on the cat  " * 50),
]


def make_tokenizer(vocabulary: int) -> PreTrainedTokenizerFast:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>"],
        show_progress=False,
    )
    backend.train_from_iterator(["the cat sat on the mat", "the dog sat on the cat"] * 5, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", model_max_length=16)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer(280)


def assert_same(left: list[TokenizedDocument], right: list[TokenizedDocument]) -> None:
    assert [document._replace(ids=None) for document in left] == [document._replace(ids=None) for document in right]
    for first, second in zip(left, right, strict=True):
        assert first.ids.dtype == second.ids.dtype == np.int32
        np.testing.assert_array_equal(first.ids, second.ids)


def test_documents_come_back_from_their_ids(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    skipped: list[Skipped] = []
    result = tokenize_documents(DOCUMENTS, tokenizer, skipped=skipped)
    assert [document.name for document in result] == ["one", "two"]
    assert [tokenizer.decode(document.ids.tolist()) for document in result] == [
        DOCUMENTS[0].text,
        DOCUMENTS[2].text,
    ]
    assert len(result[1].ids) > tokenizer.model_max_length
    assert (result[0].words, result[0].characters, result[0].bytes) == (8, 31, 33)
    assert skipped == [Skipped("none", "gives 1 token(s), too few to predict any")]
    assert "longer than" not in caplog.text


def test_batches_do_not_change_the_ids(
    tokenizer: PreTrainedTokenizerFast, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = tokenize_documents(DOCUMENTS, tokenizer)
    monkeypatch.setattr(tokens, "BATCH_CHARACTERS", 1)
    assert_same(tokenize_documents(DOCUMENTS, tokenizer, show_progress=True), whole)
    assert capsys.readouterr().out == ""


def test_documents_that_cannot_be_scored_are_an_error(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UserError, match="no text gives 2 tokens or more"):
        tokenize_documents(DOCUMENTS[1:2], tokenizer)


def test_the_checksum_tells_documents_apart() -> None:
    assert checksum([Document("a", "b")]) == ("3c9d591045bc8876f9d0399bbfb05c6a412096e906f73278f98406cd5dca86df")
    variants = [
        [Document("ab", "c")],
        [Document("a", "bc")],
        [Document("a", "b"), Document("c", "")],
        [Document("c", ""), Document("a", "b")],
        [],
    ]
    assert len({checksum(documents) for documents in variants}) == len(variants)


def test_the_cache_gives_the_same_without_tokenizing(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first_skipped: list[Skipped] = []
    first = tokenize_cached(DOCUMENTS, tokenizer, tmp_path / "cache", skipped=first_skipped)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".safetensors"]
    # What the tokenizer was last called with is no part of what it is.
    tokenizer("some text", truncation=True, max_length=4)
    monkeypatch.setattr(token_cache, "tokenize_documents", None)
    second_skipped: list[Skipped] = []
    second = tokenize_cached(DOCUMENTS, tokenizer, tmp_path / "cache", skipped=second_skipped)
    assert_same(first, second)
    assert first_skipped == second_skipped != []


def test_another_text_or_tokenizer_is_not_taken_from_the_cache(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    tokenize_cached(DOCUMENTS, tokenizer, tmp_path)
    other = make_tokenizer(262)
    assert_same(tokenize_cached(DOCUMENTS, other, tmp_path), tokenize_documents(DOCUMENTS, other))
    changed = [Document("one", "the cat sat on the dog")]
    assert_same(tokenize_cached(changed, tokenizer, tmp_path), tokenize_documents(changed, tokenizer))
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("damage", ["truncated", "flipped", "emptied", "foreign"])
def test_a_damaged_cache_is_rebuilt(tokenizer: PreTrainedTokenizerFast, tmp_path: Path, damage: str) -> None:
    fresh = tokenize_cached(DOCUMENTS, tokenizer, tmp_path)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    damaged = {
        "truncated": whole[:-5],
        "flipped": whole[:-1] + bytes([whole[-1] ^ 1]),
        "emptied": b"",
        "foreign": b"not safetensors at all",
    }
    path.write_bytes(damaged[damage])
    assert_same(tokenize_cached(DOCUMENTS, tokenizer, tmp_path), fresh)
    assert path.read_bytes() == whole


def test_a_run_that_dies_while_writing_leaves_nothing_behind(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", die)
    with pytest.raises(KeyboardInterrupt):
        tokenize_cached(DOCUMENTS, tokenizer, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_named(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UserError, match=r"file/cache cannot be written .* choose another `cache_dir`"):
        tokenize_cached(DOCUMENTS, tokenizer, tmp_path / "file" / "cache")


def test_a_source_is_loaded_and_tokenized(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\n" * 100)
    without_cache = tokenized(text, "valid", tokenizer)
    assert_same(tokenized(str(text), "valid", tokenizer, tmp_path / "cache"), without_cache)
    assert without_cache[0].words == 30
