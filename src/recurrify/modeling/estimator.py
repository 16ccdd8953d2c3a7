"""Embeddings of texts as a step of a scikit-learn pipeline."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin

from recurrify.modeling.embedding import How, embed


class TextEmbedder(TransformerMixin, BaseEstimator):
    """Turns texts of any length into vectors: the document vectors of `embed`. There is nothing to fit.

    Args:
        model: A base model or a recurrent one.
        tokenizer: Its tokenizer.
        how: As in `embed`: "recurrent", "strided" or "disjoint".
        overlap: As in `embed`.
        batch: How many texts are read in parallel.
    """

    def __init__(
        self, model: Any, tokenizer: Any, how: How = "recurrent", overlap: int | None = None, batch: int = 8
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.how = how
        self.overlap = overlap
        self.batch = batch

    def fit(self, texts: Any, labels: Any = None) -> "TextEmbedder":
        return self

    def transform(self, texts: Sequence[str]) -> np.ndarray:
        """(texts, width)."""
        found = embed(list(texts), self.model, self.tokenizer, self.how, self.overlap, self.batch)
        return np.stack([one.document.float().numpy() for one in found])

    def __sklearn_is_fitted__(self) -> bool:
        return True
