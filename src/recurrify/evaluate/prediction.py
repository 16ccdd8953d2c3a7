"""Predicting the next token as a classification: how often the model is right, and for which tokens.

scikit-learn is imported where it is used: a machine without it can still do everything else.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurrify.errors import UserError
from recurrify.evaluate.perplexity import (
    Lane,
    NamedTokens,
    batch_of,
    check_counts,
    check_finite,
    read_side_by_side,
    scoring,
)
from recurrify.state import State

TOP = 5


class FirstTokens(NamedTuple):
    """The beginning of a document."""

    name: str
    ids: np.ndarray


class Predictions(NamedTuple):
    """One entry per scored token."""

    targets: np.ndarray
    predicted: np.ndarray
    in_top: np.ndarray
    """bool: whether the target is among the five likeliest tokens."""
    probabilities: np.ndarray
    """(tokens, classes): what the model gave each of the most frequent tokens."""
    classes: np.ndarray
    """(classes,): those tokens."""


def predict_documents(model: PreTrainedModel, documents: Sequence[NamedTokens], **settings: Any) -> dict[str, Any]:
    """`collect_predictions`, and what `prediction_metrics` finds in them."""
    found = collect_predictions(model, documents, **settings)
    return {"tokens": len(found.targets), "classes": len(found.classes), "metrics": prediction_metrics(found)}


def collect_predictions(
    model: PreTrainedModel,
    documents: Sequence[NamedTokens],
    *,
    window: int | None = None,
    overlap: int | None = None,
    classes: int = 100,
    tokens_per_document: int | None = None,
    rows: int = 8,
    bf16: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Predictions:
    """What the model predicts for every token of every document except its first.

    - `window`, `overlap`, `rows`, `bf16` and `progress` are as in `evaluate_documents`; the logits of one window
      of each row are the most that exists at once.
    - `tokens_per_document` scores only the first so many tokens of each document.
    - `classes` are the most frequent targets, whose probabilities are kept; fewer where fewer occur.
    """
    check_counts(classes=classes, rows=rows)
    if tokens_per_document is not None:
        if tokens_per_document < 2:
            raise UserError(
                f"`tokens_per_document` must be at least 2, as the first is not scored: got {tokens_per_document}."
            )
        documents = [FirstTokens(document.name, document.ids[:tokens_per_document]) for document in documents]
    parts: list[tuple[np.ndarray, ...]] = []
    with scoring(model, documents, window, overlap, bf16) as recurrent:
        frequent = _most_frequent(documents, classes)
        chosen = torch.from_numpy(frequent).to(recurrent.device)

        def read(lanes: Sequence[Lane], state: State) -> State:
            batch = batch_of(lanes, recurrent.device)
            output = recurrent(batch.inputs, attention_mask=batch.mask, state=state, return_logits=True)
            for row, lane in enumerate(lanes):
                count = lane.stop - lane.start
                part = _predictions(output.logits[row, :count], batch.labels[row, :count], chosen)
                check_finite(part[-1], documents[lane.document], lane.start, "prediction")
                parts.append(part)
            return output.state

        read_side_by_side(recurrent, documents, read, rows, 1, progress)
    targets, predicted, in_top, probabilities = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Predictions(targets, predicted, in_top, probabilities, frequent)


def _most_frequent(documents: Sequence[NamedTokens], classes: int) -> np.ndarray:
    """The most frequent targets, of equally frequent ones those with the smaller id."""
    tokens, counts = np.unique(np.concatenate([document.ids[1:] for document in documents]), return_counts=True)
    return tokens[np.argsort(-counts, kind="stable")[:classes]].astype(np.int64)


def _predictions(logits: Tensor, targets: Tensor, classes: Tensor) -> tuple[np.ndarray, ...]:
    """The first four columns of `Predictions`."""
    logits = logits.float()
    top = logits.topk(min(TOP, logits.shape[1])).indices
    in_top = (top == targets[:, None]).any(1)
    probabilities = logits.softmax(-1)[:, classes]
    return tuple(part.cpu().numpy() for part in (targets, top[:, 0], in_top, probabilities))


def prediction_metrics(found: Predictions) -> dict[str, float | None]:
    """The classification metrics of next-token prediction.

    - Macro averages weigh alike all tokens that occur as a target or as a prediction, weighted ones by how often
      they are the target; what is never predicted has a precision of 0. (Weighted recall is the accuracy.)
    - `auc_roc` is the mean over the classes: one against all others, scored by that token's own probability among
      the whole vocabulary; None where all targets are one token.
    """
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support

    metrics: dict[str, float | None] = {
        "accuracy": float(accuracy_score(found.targets, found.predicted)),
        "top5_accuracy": float(found.in_top.mean()),
    }
    for average in ("macro", "weighted"):
        scores = precision_recall_fscore_support(found.targets, found.predicted, average=average, zero_division=0)
        for name, score in zip(("precision", "recall", "f1"), scores, strict=False):
            metrics[f"{name}_{average}"] = float(score)
    metrics["auc_roc"] = _auc(found)
    return metrics


def _auc(found: Predictions) -> float | None:
    from sklearn.metrics import roc_auc_score

    if (found.targets == found.targets[0]).all():
        return None
    areas = [roc_auc_score(found.targets == token, found.probabilities[:, i]) for i, token in enumerate(found.classes)]
    return float(np.mean(areas))
