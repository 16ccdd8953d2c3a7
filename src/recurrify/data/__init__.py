"""Text in, token ids out: documents and their splits, labelled texts, questions, probes, tokens and sequences.

Names are imported when they are first used: a missing file is reported before torch is loaded.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recurrify.data.answer_spans import words_of
    from recurrify.data.corpora import CORPORA, Corpus, corpus_names, register_corpus
    from recurrify.data.documents import check_source, load_documents
    from recurrify.data.labelled import LabelledText, LabelledTexts, hold_out, load_labelled
    from recurrify.data.labelled_windows import GroupedByLength, collate_texts, tokenize_texts
    from recurrify.data.probes import SYMBOL_PROBES, SymbolProbe, SymbolTexts, symbol_probe
    from recurrify.data.probes_text import TEXT_PROBES, ProbeText, TextProbe, text_probe
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
    from recurrify.data.records import IGNORED, Document, Skipped
    from recurrify.data.sequences import TrainingSequences, collate
    from recurrify.data.splits import EVERYTHING, SPLITS, canonical_split
    from recurrify.data.tables import Table, open_table, read_table
    from recurrify.data.texts import Say, cache_folder, pick_device, read_text, shorten
    from recurrify.data.token_cache import tokenize_cached
    from recurrify.data.tokens import TokenizedDocument, checksum, tokenize_documents

_HOMES = (
    *("records", "splits", "documents", "corpora", "tables", "labelled", "questions", "answer_spans"),
    *("tokens", "token_cache", "probes", "probes_text"),
    *("sequences", "texts", "labelled_windows", "question_windows"),
)
"""The modules of the names; the last ones import torch."""
__all__ = [
    "CORPORA",
    "EVERYTHING",
    "IGNORED",
    "SPLITS",
    "SYMBOL_PROBES",
    "TEXT_PROBES",
    "Corpus",
    "Document",
    "GroupedByLength",
    "LabelledText",
    "LabelledTexts",
    "ProbeText",
    "Question",
    "QuestionSet",
    "Say",
    "Skipped",
    "SymbolProbe",
    "SymbolTexts",
    "Table",
    "TextProbe",
    "TokenizedDocument",
    "TrainingSequences",
    "WindowedQuestion",
    "cache_folder",
    "canonical_split",
    "check_source",
    "checksum",
    "collate",
    "collate_questions",
    "collate_texts",
    "corpus_names",
    "gold_paragraphs",
    "hold_out",
    "join_paragraphs",
    "load_documents",
    "load_labelled",
    "load_questions",
    "open_table",
    "pick_device",
    "plain_title",
    "read_table",
    "read_text",
    "register_corpus",
    "save_questions",
    "shorten",
    "symbol_probe",
    "text_probe",
    "tokenize_cached",
    "tokenize_documents",
    "tokenize_texts",
    "window_questions",
    "words_of",
]


def _load(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    homes = (import_module(f"{__name__}.{home}") for home in _HOMES)
    value = globals()[name] = next(getattr(home, name) for home in homes if hasattr(home, name))
    return value


if not TYPE_CHECKING:
    __getattr__ = _load
