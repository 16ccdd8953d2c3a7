"""How good a classifier is: accuracy, precision, recall, F1 and the area under the ROC curve."""

import numpy as np

from recurrify.errors import UserError


def classification_metrics(scores: np.ndarray, labels: np.ndarray) -> dict[str, float | None]:
    """The usual five, from the scores (texts, classes), logits or probabilities, and the true classes (texts,).

    With two classes, precision, recall and F1 are those of class 1; with more they are averaged over the classes, each
    counting alike. `roc_auc` is None where the labels hold one class only: there is no curve then.
    """
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support, roc_auc_score

    scores, labels = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    if scores.ndim != 2 or scores.shape[1] < 2 or labels.shape != (len(scores),) or not len(labels):
        raise UserError(
            f"Scores (texts, classes) and labels (texts,) must belong together: got {scores.shape} and {labels.shape}."
        )
    classes = scores.shape[1]
    if not np.isfinite(scores.max(1)).all():
        raise UserError(
            "Every text needs a finite score: the model gave NaN or infinity, so its weights are of no use."
        )
    if labels.dtype.kind not in "iub":
        raise UserError(f"Labels must be whole numbers: got {labels[0]!r}.")
    if labels.min() < 0 or labels.max() >= classes:
        raise UserError(f"Labels must lie between 0 and {classes - 1}: got {labels.min()} to {labels.max()}.")
    shares = np.exp(scores - scores.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    predicted = scores.argmax(1)
    average = "binary" if classes == 2 else "macro"
    precision, recall, f1, _ = precision_recall_fscore_support(
        labels, predicted, labels=None if classes == 2 else range(classes), average=average, zero_division=0.0
    )
    return {
        "accuracy": float(accuracy_score(labels, predicted)),
        "precision": float(precision),
        "recall": float(recall),
        "f1": float(f1),
        "roc_auc": _area(shares, labels, roc_auc_score),
    }


def _area(shares: np.ndarray, labels: np.ndarray, roc_auc_score: object) -> float | None:
    present = np.unique(labels)
    if len(present) < 2:
        return None
    assert callable(roc_auc_score)
    if shares.shape[1] == 2:
        return float(roc_auc_score(labels, shares[:, 1]))
    # One class against the rest, for each class that occurs.
    return float(np.mean([roc_auc_score(labels == one, shares[:, one]) for one in present]))
