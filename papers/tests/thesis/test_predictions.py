"""Next-token metrics compared with counts from logits of whole documents."""

from typing import Any

import numpy as np
import pytest
import torch

from recurrify import UserError
from recurrify.data import TokenizedDocument
from recurrify_papers.thesis.predictions import collect_predictions, prediction_metrics
from support.checks import WINDOW, recurrent
from support.models import VOCABULARY, tiny

LENGTHS = (30, 2, 9, 57, 21)


def document(name: str, ids: Any) -> TokenizedDocument:
    return TokenizedDocument(name, np.asarray(ids, dtype=np.int32), words=1, characters=1, bytes=1)


@torch.no_grad()
def documents(model: Any) -> list[TokenizedDocument]:
    """Tokens that the model sometimes predicts."""
    random = np.random.default_rng(0)
    expected = model(torch.arange(VOCABULARY)[:, None]).logits[:, -1].argmax(-1).tolist()
    texts = []
    for length in LENGTHS:
        ids = [length]
        while len(ids) < length:
            ids.append(expected[ids[-1]] if random.random() < 0.6 else int(random.geometric(0.15)) % VOCABULARY)
        texts.append(document(f"document {length}", ids))
    return texts


@torch.no_grad()
def naive_logits(model: Any, ids: np.ndarray, overlap: int) -> np.ndarray:
    """(tokens - 1, vocabulary) of a plain model, from the first window that contains the token before."""
    rows = []
    for target in range(1, len(ids)):
        start = 0
        while start + WINDOW < target:
            start += WINDOW - overlap
        rows.append(model(torch.tensor(ids[start:target])[None].long()).logits[0, -1])
    return torch.stack(rows).double().numpy()


@torch.no_grad()
def whole_logits(model: Any, ids: np.ndarray) -> np.ndarray:
    return model(torch.tensor(ids[:-1])[None].long()).logits[0].double().numpy()


def naive_metrics(logits: np.ndarray, targets: np.ndarray, classes: int) -> dict[str, float]:
    order = np.argsort(-logits, axis=1)
    predicted = order[:, 0]
    tokens = np.union1d(targets, predicted)
    scores = np.zeros((len(tokens), 3))
    for row, token in enumerate(tokens):
        hits = np.sum((targets == token) & (predicted == token))
        precision = hits / np.sum(predicted == token) if np.any(predicted == token) else 0
        recall = hits / np.sum(targets == token) if np.any(targets == token) else 0
        f1 = 2 * precision * recall / (precision + recall) if hits else 0
        scores[row] = precision, recall, f1
    weights = np.array([np.mean(targets == token) for token in tokens])
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    areas = []
    for token in sorted(set(targets.tolist()), key=lambda token: (-np.sum(targets == token), token))[:classes]:
        own, others = probabilities[targets == token, token], probabilities[targets != token, token]
        # The probability that a place with the token scores above one without.
        areas.append(np.mean(own[:, None] > others[None]) + np.mean(own[:, None] == others[None]) / 2)
    named = {
        "accuracy": np.mean(predicted == targets),
        "top5_accuracy": np.mean((order[:, :5] == targets[:, None]).any(1)),
    }
    for average, values in (("macro", scores.mean(0)), ("weighted", weights @ scores)):
        named |= {f"{name}_{average}": value for name, value in zip(("precision", "recall", "f1"), values, strict=True)}
    return {**named, "auc_roc": np.mean(areas)}


def found_in(model: Any, texts: list[TokenizedDocument], **settings: Any) -> dict[str, Any]:
    found = collect_predictions(model, texts, **settings)
    return {"tokens": len(found.targets), "classes": len(found.classes), "metrics": prediction_metrics(found)}


def targets_of(texts: list[TokenizedDocument]) -> np.ndarray:
    return np.concatenate([text.ids[1:] for text in texts])


@pytest.mark.parametrize(("family", "overlap"), [("gpt2", 0), ("llama", 3)])
def test_plain_windows_equal_counts_by_hand(family: str, overlap: int) -> None:
    model = tiny(family)
    texts = documents(model)
    found = found_in(model, texts, window=WINDOW, overlap=overlap, classes=7, rows=2)
    logits = np.concatenate([naive_logits(model, text.ids, overlap) for text in texts])
    expected = naive_metrics(logits, targets_of(texts), 7)
    # Plain windows that begin with the same token score alike there, and rounding ranks them.
    assert found["metrics"].pop("auc_roc") == pytest.approx(expected.pop("auc_roc"), abs=3e-4)
    assert found["metrics"] == pytest.approx(expected)
    counts = {"tokens": sum(LENGTHS) - len(LENGTHS), "classes": 7}
    assert {name: found[name] for name in counts} == counts
    assert 0.05 < found["metrics"]["accuracy"] < found["metrics"]["top5_accuracy"]


def test_carried_state_equals_one_call_over_each_document() -> None:
    overlap = 3
    model = recurrent("gpt2", overlap=overlap)
    texts = documents(model.base)
    expected = naive_metrics(np.concatenate([whole_logits(model, text.ids) for text in texts]), targets_of(texts), 100)
    for rows in (1, 3):
        found = found_in(model, texts, rows=rows)
        assert found["metrics"] == pytest.approx(expected)
        assert found["classes"] == len(np.unique(targets_of(texts))) < VOCABULARY
    plain = found_in(model.base, texts, window=WINDOW, overlap=overlap)
    assert plain["metrics"]["auc_roc"] != pytest.approx(expected["auc_roc"], rel=1e-3)


def test_tokens_per_document() -> None:
    model = recurrent("gpt2")
    texts = documents(model)
    beginnings = [document(text.name, text.ids[:20]) for text in texts]
    assert found_in(model, texts, tokens_per_document=20) == found_in(model, beginnings)


def test_logits_of_one_window_per_row_at_most() -> None:
    model, held = recurrent("gpt2"), list[int]()
    texts = documents(model)
    model.base.lm_head.register_forward_hook(lambda _, __, logits: held.append(logits.shape[:-1].numel()))
    reported: list[int] = []
    found = found_in(model, texts, rows=2, progress=reported.append)
    assert max(held) == 2 * WINDOW
    assert sum(reported) == found["tokens"]


def test_single_target_has_no_auc() -> None:
    found = found_in(tiny("gpt2"), [document("same", [5] * 12)], window=WINDOW)
    assert found["metrics"]["auc_roc"] is None
    assert found["classes"] == 1
    assert found["metrics"]["accuracy"] == found["metrics"]["recall_weighted"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"classes": 0}, "`classes` must be at least 1"),
        ({"tokens_per_document": 1}, "`tokens_per_document` must be at least 2.*got 1"),
    ],
    ids=["classes", "tokens"],
)
def test_invalid_input_raises(changes: dict[str, Any], message: str) -> None:
    model = recurrent("gpt2")
    with pytest.raises(UserError, match=message):
        collect_predictions(model, documents(model), **changes)
