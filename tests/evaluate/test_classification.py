"""The classification metrics, by hand."""

import numpy as np
import pytest
from scipy.stats import binomtest

from recurrify.errors import UserError
from recurrify.evaluate import classification_metrics, share_interval


def test_two_classes() -> None:
    # Predicted 1, 1, 0, 0, 1 for the true 1, 0, 0, 1, 1.
    scores = np.log([[0.2, 0.8], [0.4, 0.6], [0.9, 0.1], [0.7, 0.3], [0.1, 0.9]])
    found = classification_metrics(scores, np.array([1, 0, 0, 1, 1]))
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["precision"] == pytest.approx(2 / 3)
    assert found["recall"] == pytest.approx(2 / 3)
    assert found["f1"] == pytest.approx(2 / 3)
    # Of the six pairs of a 1 and a 0, the 1 has the higher score in five.
    assert found["roc_auc"] == pytest.approx(5 / 6)


def test_several_classes_are_macro_averaged() -> None:
    scores = np.eye(3)[[0, 0, 1, 1]] * 4.0
    found = classification_metrics(scores, np.array([0, 0, 1, 2]))
    assert found["accuracy"] == pytest.approx(3 / 4)
    assert found["precision"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert found["recall"] == pytest.approx((1 + 1 + 0) / 3)
    assert found["f1"] == pytest.approx((1 + 2 / 3 + 0) / 3)
    # Each class against the rest: all pairs in order, two and a tie of three, nothing but ties.
    assert found["roc_auc"] == pytest.approx((1 + 2.5 / 3 + 0.5) / 3)


def test_single_class_has_no_roc_curve() -> None:
    found = classification_metrics(np.array([[1.0, 2.0], [2.0, 1.0]]), np.array([1, 1]))
    assert found["roc_auc"] is None
    assert found["recall"] == 0.5


@pytest.mark.parametrize(
    ("scores", "labels"),
    [
        (np.ones((2, 2)), np.array([0, 2])),
        (np.ones((2, 1)), np.array([0, 0])),
        (np.ones((2, 2)), np.array([0])),
        (np.array([[np.nan, 1.0], [0.0, 1.0]]), np.array([0, 1])),
        (np.ones((2, 2)), np.array(["a", "b"])),
    ],
    ids=["label", "one class", "lengths", "nan", "words"],
)
def test_invalid_scores_or_labels_raise(scores: np.ndarray, labels: np.ndarray) -> None:
    with pytest.raises(UserError):
        classification_metrics(scores, labels)


def test_share_interval_is_wilsons() -> None:
    for hits, total in ((0, 21), (12, 12), (7, 10), (1, 1), (431, 819)):
        expected = binomtest(hits, total).proportion_ci(method="wilson")
        assert share_interval(hits, total) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_absent_positive_class_has_no_recall() -> None:
    found = classification_metrics(np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([0, 0]))
    assert found["recall"] is None
    assert found["f1"] is None
    assert found["precision"] == 0.0
