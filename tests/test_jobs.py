"""Parts of whole jobs that no other test would miss."""

from recurrify.data import Document, tokenize_documents
from recurrify.jobs import shorten
from support.words import word_tokenizer


def test_a_shortened_document_counts_what_is_left() -> None:
    long, short = tokenize_documents(
        [Document("long", "w10 w11 w12 w13 w14 w15"), Document("short", "w10 w11")], word_tokenizer()
    )
    cut, same = shorten([long, short], word_tokenizer(), 4)
    assert same == short
    assert cut.ids.tolist() == long.ids[:4].tolist()
    assert (cut.words, cut.characters, cut.bytes) == (4, len("w10 w11 w12 w13"), len("w10 w11 w12 w13"))
