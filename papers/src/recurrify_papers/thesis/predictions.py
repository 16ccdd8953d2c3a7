"""Next-token prediction scored as a classification: accuracy, precision, recall, F1, area under the ROC curve."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from recurrify import State, UserError
from recurrify.data import TokenizedDocument
from recurrify.evaluate import (
    BatchRow,
    batch_of,
    check_counts,
    check_finite,
    read_in_parallel,
    scoring,
)

TOP = 5


class Predictions(NamedTuple):
    """One entry per scored token."""

    targets: np.ndarray
    predicted: np.ndarray
    in_top: np.ndarray
    """bool: whether the target is among the five most likely tokens."""
    probabilities: np.ndarray
    """(tokens, classes): the probability of each of the most frequent tokens."""
    classes: np.ndarray
    """(classes,): those tokens."""


def collect_predictions(
    model: PreTrainedModel,
    documents: Sequence[TokenizedDocument],
    *,
    window: int | None = None,
    overlap: int | None = None,
    classes: int = 100,
    tokens_per_document: int | None = None,
    rows: int = 8,
    bf16: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Predictions:
    """The model's predictions for every token of every document except its first.

    Args:
        model: A causal language model, recurrent or plain.
        documents: The tokenized documents.
        classes: How many of the most frequent targets to keep the probabilities of.
        tokens_per_document: Score only the first tokens of each document.
        window, overlap, rows, bf16, progress: As in `evaluate_documents`.
    """
    check_counts(classes=classes, rows=rows)
    if tokens_per_document is not None:
        if tokens_per_document < 2:
            raise UserError(
                f"`tokens_per_document` must be at least 2, as the first is not scored: got {tokens_per_document}."
            )
        documents = [one._replace(ids=one.ids[:tokens_per_document]) for one in documents]
    parts: list[tuple[np.ndarray, ...]] = []
    with scoring(model, documents, window, overlap, bf16) as recurrent:
        frequent = _most_frequent(documents, classes)
        chosen = torch.from_numpy(frequent).to(recurrent.device)

        def read(batch_rows: Sequence[BatchRow], state: State) -> State:
            batch = batch_of(batch_rows, recurrent.device)
            output = recurrent(batch.inputs, attention_mask=batch.mask, state=state, return_logits=True)
            for index, row in enumerate(batch_rows):
                count = row.stop - row.start
                part = _predictions(output.logits[index, :count], batch.labels[index, :count], chosen)
                check_finite(part[-1], documents[row.document], row.start, "prediction")
                parts.append(part)
            return output.state

        read_in_parallel(recurrent, documents, read, rows, 1, progress)
    targets, predicted, in_top, probabilities = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Predictions(targets, predicted, in_top, probabilities, frequent)


def _most_frequent(documents: Sequence[TokenizedDocument], classes: int) -> np.ndarray:
    """The most frequent targets; ties go to the smaller id."""
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

    - Macro averages are over all tokens that occur as a target or a prediction; weighted ones weigh tokens by how often
      they are the target. A token that is never predicted has a precision of 0. (Weighted recall is the accuracy.)
    - `auc_roc` is the mean over the classes, each against all other tokens; None if all targets are one token.
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
