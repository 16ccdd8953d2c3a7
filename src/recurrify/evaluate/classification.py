"""Accuracy, precision, recall, F1, the area under the ROC curve, and intervals of shares."""

import numpy as np

from recurrify.errors import UserError

NORMAL = 1.959964
"""The 97.5 % quantile of the normal distribution."""


def classification_metrics(scores: np.ndarray, labels: np.ndarray) -> dict[str, float | None]:
    """The metrics of scores (texts, classes), logits or probabilities, for the true classes (texts,).

    With two classes, precision, recall and F1 are those of class 1, and recall and F1 are None if no text has it; with
    more they are macro averages. `roc_auc` is None if all labels are equal.
    """
    from sklearn.metrics import accuracy_score, precision_recall_fscore_support, roc_auc_score

    scores, labels = np.asarray(scores, dtype=np.float64), np.asarray(labels)
    if scores.ndim != 2 or scores.shape[1] < 2 or labels.shape != (len(scores),) or not len(labels):
        raise UserError(
            f"Scores (texts, classes) and labels (texts,) must match: got {scores.shape} and {labels.shape}."
        )
    classes = scores.shape[1]
    if not np.isfinite(scores.max(1)).all():
        raise UserError("Every text needs a finite score: the model returned NaN or infinity; check its weights.")
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
        "recall": None if classes == 2 and not labels.any() else float(recall),
        "f1": None if classes == 2 and not labels.any() else float(f1),
        "roc_auc": _area(shares, labels, roc_auc_score),
    }


def share_interval(hits: float, total: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share, valid at 0 and 1 too. By hand, since scipy's takes whole `hits` only."""
    share, spread = hits / total, NORMAL**2 / total
    middle = (share + spread / 2) / (1 + spread)
    reach = NORMAL * np.sqrt(share * (1 - share) / total + spread / 4 / total) / (1 + spread)
    return max(0.0, float(middle - reach)), min(1.0, float(middle + reach))


def _area(shares: np.ndarray, labels: np.ndarray, roc_auc_score: object) -> float | None:
    present = np.unique(labels)
    if len(present) < 2:
        return None
    assert callable(roc_auc_score)
    if shares.shape[1] == 2:
        return float(roc_auc_score(labels, shares[:, 1]))
    # One class against the rest, for each class that occurs.
    return float(np.mean([roc_auc_score(labels == one, shares[:, one]) for one in present]))
