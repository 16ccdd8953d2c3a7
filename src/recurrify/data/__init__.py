"""Text in, token ids out: documents and their splits, labelled texts, questions, probes, tokens and sequences.

Names are imported when they are first used: a missing file is reported before torch is loaded.
"""

from typing import TYPE_CHECKING

from recurrify.lazy import lazily

if TYPE_CHECKING:
    from recurrify.caching import cache_folder
    from recurrify.data.corpora import CORPORA, Corpus, corpus_names
    from recurrify.data.documents import check_source, load_documents
    from recurrify.data.labelled import LabelledText, LabelledTexts, hold_out, load_labelled
    from recurrify.data.labelled_windows import collate_texts, tokenize_texts
    from recurrify.data.probes_text import TEXT_PROBES, ProbeText, TextProbe, text_probe, whole_distances
    from recurrify.data.question_windows import WindowedQuestion, collate_questions, window_questions
    from recurrify.data.questions import (
        Question,
        QuestionSet,
        load_questions,
        save_questions,
    )
    from recurrify.data.records import IGNORED, Document, Skipped
    from recurrify.data.sequences import TrainingSequences, collate
    from recurrify.data.splits import EVERYTHING, SPLITS, canonical_split
    from recurrify.data.tables import Table, dataset_errors, open_dataset, open_table, read_table
    from recurrify.data.texts import Say, pick_device, read_text, report_skipped, shorten
    from recurrify.data.token_cache import tokenize_cached
    from recurrify.data.tokens import TokenizedDocument, checksum, tokenize_documents

__all__ = [
    "CORPORA",
    "EVERYTHING",
    "IGNORED",
    "SPLITS",
    "TEXT_PROBES",
    "Corpus",
    "Document",
    "LabelledText",
    "LabelledTexts",
    "ProbeText",
    "Question",
    "QuestionSet",
    "Say",
    "Skipped",
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
    "dataset_errors",
    "hold_out",
    "load_documents",
    "load_labelled",
    "load_questions",
    "open_dataset",
    "open_table",
    "pick_device",
    "read_table",
    "read_text",
    "report_skipped",
    "save_questions",
    "shorten",
    "text_probe",
    "tokenize_cached",
    "tokenize_documents",
    "tokenize_texts",
    "whole_distances",
    "window_questions",
]


if not TYPE_CHECKING:
    __getattr__ = lazily(__name__)
