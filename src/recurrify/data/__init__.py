"""Text in, token ids out: documents, their splits, their tokens, and the sequences a model trains on."""

from recurrify.data.answer_spans import words_of
from recurrify.data.documents import CORPORA, Corpus, check_source, load_documents
from recurrify.data.packed import PackedRows, collate_rows, pack_documents
from recurrify.data.question_windows import WindowedQuestion, collate_questions, window_questions
from recurrify.data.questions import (
    Question,
    QuestionSet,
    gold_paragraphs,
    join_paragraphs,
    load_questions,
    plain_title,
    save_questions,
)
from recurrify.data.records import Document, Skipped
from recurrify.data.sequences import TrainingSequences, collate
from recurrify.data.texts import pick_device, read_text
from recurrify.data.token_cache import tokenize_cached, tokenized
from recurrify.data.tokenizers import check_vocabulary_size, load_tokenizer, make_tokenizer, save_tokenizer
from recurrify.data.tokens import TokenizedDocument, checksum, tokenize_documents

__all__ = [
    "CORPORA",
    "Corpus",
    "Document",
    "PackedRows",
    "Question",
    "QuestionSet",
    "Skipped",
    "TokenizedDocument",
    "TrainingSequences",
    "WindowedQuestion",
    "check_source",
    "check_vocabulary_size",
    "checksum",
    "collate",
    "collate_questions",
    "collate_rows",
    "gold_paragraphs",
    "join_paragraphs",
    "load_documents",
    "load_questions",
    "load_tokenizer",
    "make_tokenizer",
    "pack_documents",
    "pick_device",
    "plain_title",
    "read_text",
    "save_questions",
    "save_tokenizer",
    "tokenize_cached",
    "tokenize_documents",
    "tokenized",
    "window_questions",
    "words_of",
]
