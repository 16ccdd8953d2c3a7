"""Text in, token ids out: documents, their splits, their tokens, and the sequences a model trains on."""

from recurrify.data.documents import CORPORA, Corpus, load_documents
from recurrify.data.records import Document, Skipped
from recurrify.data.sequences import TrainingSequences, collate
from recurrify.data.token_cache import tokenize_cached, tokenized
from recurrify.data.tokens import TokenizedDocument, checksum, tokenize_documents

__all__ = [
    "CORPORA",
    "Corpus",
    "Document",
    "Skipped",
    "TokenizedDocument",
    "TrainingSequences",
    "checksum",
    "collate",
    "load_documents",
    "tokenize_cached",
    "tokenize_documents",
    "tokenized",
]
