"""Tokenizers made from text, and documents packed into rows."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from recurrify import UserError
from recurrify.data import Document, TokenizedDocument
from recurrify_papers.data import tokenizers
from recurrify_papers.data.packed import PackedRows, collate_rows, pack_documents
from recurrify_papers.data.tokenizers import load_tokenizer, make_tokenizer, save_tokenizer
from support.words import word_tokenizer

TEXT = "the cat sat on the mat and the cat ate the rat; " * 30
ODD = "naïve 日本 🙂\t\r\n\x07 never seen before"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer([Document("a", TEXT)], 300)


class TestMaking:
    def test_any_text_decodes(self, tokenizer: PreTrainedTokenizerFast) -> None:
        for text in (TEXT, ODD, " ", "\n\n"):
            assert tokenizer.decode(tokenizer(text)["input_ids"], clean_up_tokenization_spaces=False) == text

    def test_frequent_words_are_one_token(self, tokenizer: PreTrainedTokenizerFast) -> None:
        assert len(tokenizer(" the cat")["input_ids"]) == 2
        assert len(tokenizer("日")["input_ids"]) == 3  # unknown: its bytes

    def test_sizes_and_special_tokens(self, tokenizer: PreTrainedTokenizerFast) -> None:
        # The given number, or until no pair occurs twice.
        assert len(make_tokenizer([Document("a", TEXT)], 270)) == 270
        assert 257 < len(tokenizer) < 300
        assert len(make_tokenizer([Document("a", "x")], 300)) == 257
        assert tokenizer.all_special_ids == [tokenizer.eos_token_id]
        assert tokenizer.bos_token_id == tokenizer.pad_token_id == tokenizer.eos_token_id

    def test_vocabulary_too_small_raises(self) -> None:
        with pytest.raises(UserError, match=r"at least 257.*got 256"):
            make_tokenizer([Document("a", TEXT)], 256)

    def test_long_texts_are_counted_in_pieces(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Cut between words, with nothing lost: the tokenizer is the same."""
        whole = make_tokenizer([Document("a", TEXT)], 300).backend_tokenizer.to_str()
        monkeypatch.setattr(tokenizers, "PIECE_CHARACTERS", 20)
        pieces = list(tokenizers._pieces(TEXT))
        assert "".join(pieces) == TEXT
        assert len(pieces) > 50
        assert all(piece.startswith(" ") for piece in pieces[1:])
        assert make_tokenizer([Document("a", TEXT)], 300).backend_tokenizer.to_str() == whole
        assert list(tokenizers._pieces("x" * 50)) == ["x" * 20, "x" * 20, "x" * 10]


class TestSavingAndLoading:
    def test_saved_and_loaded(self, tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
        save_tokenizer(tokenizer, tmp_path / "kept")
        for loaded in (load_tokenizer(str(tmp_path / "kept")), AutoTokenizer.from_pretrained(tmp_path / "kept")):
            assert loaded(ODD)["input_ids"] == tokenizer(ODD)["input_ids"]
            assert loaded.eos_token_id == tokenizer.eos_token_id
        assert [path.name for path in tmp_path.iterdir()] == ["kept"]
        # The folder of a finished run holds it in `model/`.
        shutil.copytree(tmp_path / "kept", tmp_path / "run" / "model")
        assert load_tokenizer(str(tmp_path / "run")).get_vocab() == tokenizer.get_vocab()

    def test_missing_folder_raises(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="There is no folder"):
            load_tokenizer(str(tmp_path / "nothing"))

    def test_folder_without_tokenizer_raises(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="tokenizer"):
            load_tokenizer(str(tmp_path))

    def test_tokenizer_without_end_of_text_raises(self, tmp_path: Path) -> None:
        endless = word_tokenizer()
        endless.eos_token = None
        endless.save_pretrained(tmp_path)
        with pytest.raises(UserError, match="no end-of-text token"):
            load_tokenizer(str(tmp_path))


def documents(*lengths: int) -> list[TokenizedDocument]:
    ids = np.split(np.arange(100, 100 + sum(lengths), dtype=np.int32), np.cumsum(lengths)[:-1])
    return [TokenizedDocument(str(number), part, 1, 1, 1) for number, part in enumerate(ids)]


class TestPacking:
    def test_documents_are_separated_by_ends(self) -> None:
        ids = pack_documents(documents(3, 2), end=7, vocabulary=2**16)
        assert ids.dtype == np.uint16
        assert ids.tolist() == [100, 101, 102, 7, 103, 104, 7]
        assert pack_documents(documents(3), end=2**16, vocabulary=2**16 + 1).tolist() == [100, 101, 102, 2**16]

    def test_every_token_but_the_first_is_a_target_once(self) -> None:
        ids = pack_documents(documents(10, 13, 4), end=7, vocabulary=500)
        rows = PackedRows(ids, length=4)
        assert len(rows) == (len(ids) - 1) // 4
        batch = collate_rows(rows.__getitems__(list(range(len(rows)))))
        assert batch["input_ids"].flatten().tolist() == ids[: 4 * len(rows)].tolist()
        assert batch["shift_labels"].flatten().tolist() == ids[1 : 4 * len(rows) + 1].tolist()

    def test_too_few_tokens_raise(self) -> None:
        ids = pack_documents(documents(4), end=7, vocabulary=500)
        assert len(PackedRows(ids, length=4)) == 1
        with pytest.raises(UserError, match=r"5 tokens, fewer than the 6 of one sequence"):
            PackedRows(ids, length=5)
