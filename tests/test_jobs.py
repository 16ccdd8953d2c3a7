"""Parts of training jobs that no other test covers."""

from pathlib import Path

from recurrify.data.records import Document
from recurrify.data.texts import shorten
from recurrify.data.tokens import tokenize_documents
from recurrify.train.finetune import train_run
from support.runs import model_folder, run_settings, text_folder
from support.words import word_tokenizer


def test_a_shortened_document_counts_its_remaining_words() -> None:
    long, short = tokenize_documents(
        [Document("long", "w10 w11 w12 w13 w14 w15"), Document("short", "w10 w11")], word_tokenizer()
    )
    cut, same = shorten([long, short], word_tokenizer(), 4)
    assert same == short
    assert cut.ids.tolist() == long.ids[:4].tolist()
    assert (cut.words, cut.characters, cut.bytes) == (4, len("w10 w11 w12 w13"), len("w10 w11 w12 w13"))


def test_validation_text_of_its_own_is_read_whole(tmp_path: Path) -> None:
    base, texts = model_folder(tmp_path / "base"), text_folder(tmp_path / "texts")
    valid = text_folder(tmp_path / "valid", documents=7, seed=1)
    said: list[str] = []
    train_run(run_settings(base, texts, tmp_path / "run", valid=str(valid)), said.append, show_progress=False)
    assert any(line.startswith(f"{valid} (all): 7 documents") for line in said)
    assert not any("(valid)" in line for line in said)
