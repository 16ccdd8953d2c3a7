"""Scoring documents: compared with naive loops, and invariances."""

import copy
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from recurrify import CarryConfig, NoRecurrence, UserError, add_recurrence
from recurrify.data import TokenizedDocument
from recurrify.evaluate import Evaluation, Tally, evaluate_documents
from recurrify.results import load_result, save_result
from support.models import VOCABULARY, tiny

WINDOW = 8
LENGTHS = (30, 2, 9, 57, 8, 10, 41)
"""Shorter than a window of 8, exactly one window long, and many windows long."""


def document(name: str, length: int) -> TokenizedDocument:
    ids = np.random.default_rng(length).integers(0, VOCABULARY, length).astype(np.int32)
    return TokenizedDocument(name, ids, words=length // 2 + 1, characters=3 * length, bytes=4 * length)


DOCUMENTS = [document(f"document {index}", length) for index, length in enumerate(LENGTHS)]


def carrying(base: Any, **settings: Any) -> Any:
    torch.manual_seed(1)
    model = add_recurrence(base, CarryConfig(**{"window": WINDOW, "hidden_size": 8, **settings}))
    with torch.no_grad():
        for weight in model.mechanism.parameters():
            weight.normal_(std=0.5)
    return model


def plain(overlap: int) -> Any:
    return add_recurrence(tiny("gpt2"), NoRecurrence(window=WINDOW, overlap=overlap))


@torch.no_grad()
def naive_losses(base: Any, ids: np.ndarray, window: int, overlap: int) -> list[float]:
    """Each token's loss given its context in the first window that contains its predecessor."""
    losses = []
    base = base.eval()
    for target in range(1, len(ids)):
        start = 0
        while start + window < target:
            start += window - overlap
        logits = base(torch.tensor(ids[start:target])[None].long()).logits[0, -1]
        losses.append(-logits.log_softmax(-1)[ids[target]].item())
    return losses


@torch.no_grad()
def whole_document_losses(model: Any, ids: np.ndarray) -> np.ndarray:
    tokens = torch.tensor(ids)[None].long()
    output = model.eval()(tokens[:, :-1], targets=tokens[:, 1:], return_losses=True)
    return output.token_losses[0].double().numpy()


@pytest.mark.parametrize(("family", "overlap"), [("gpt2", 0), ("llama", 3), ("gpt2", WINDOW - 1)])
def test_plain_windows_equal_a_naive_loop(family: str, overlap: int) -> None:
    model = tiny(family)
    expected = [naive_losses(model, document.ids, WINDOW, overlap) for document in DOCUMENTS]
    found = evaluate_documents(model, DOCUMENTS, window=WINDOW, overlap=overlap, rows=3, windows_per_call=2)
    np.testing.assert_allclose(found.nll, [sum(losses) for losses in expected], rtol=1e-5)
    by_position: list[list[float]] = [[] for _ in range(WINDOW)]
    by_window: dict[int, list[float]] = {}
    for losses in expected:
        for index, loss in enumerate(losses):
            window = max(0, math.ceil((index + 1 - WINDOW) / (WINDOW - overlap)))
            by_window.setdefault(window, []).append(loss)
            by_position[index - window * (WINDOW - overlap)].append(loss)
    assert found.loss_by_position[:overlap] == (None,) * overlap
    assert found.loss_by_position[overlap:] == pytest.approx(
        [np.mean(losses) for losses in by_position[overlap:]], rel=1e-5
    )
    assert found.loss_by_window == pytest.approx([np.mean(by_window[window]) for window in sorted(by_window)], rel=1e-5)
    wrapped = add_recurrence(model, NoRecurrence(window=WINDOW, overlap=overlap))
    assert evaluate_documents(wrapped, DOCUMENTS, rows=3, windows_per_call=2).to_dict() == found.to_dict()


@pytest.mark.parametrize(
    ("overlap", "settings"),
    [
        (0, {}),
        (3, {"pooling": "attention", "insert_layer": "all", "slots": 2}),
        (WINDOW - 1, {"pooling": "max", "standardize": True}),
    ],
)
def test_carried_state_equals_one_call_over_the_whole_document(overlap: int, settings: Any) -> None:
    model = carrying(tiny("gpt2"), overlap=overlap, **settings)
    expected = [whole_document_losses(model, document.ids).sum() for document in DOCUMENTS]
    found = evaluate_documents(model, DOCUMENTS, rows=3, windows_per_call=2)
    np.testing.assert_allclose(found.nll, expected, rtol=1e-5)
    plain = evaluate_documents(model.base, DOCUMENTS, window=WINDOW, overlap=overlap)
    changed = np.array(LENGTHS) > WINDOW + 1
    assert (np.abs(plain.nll - found.nll)[changed] > 1e-3).all()
    np.testing.assert_allclose(plain.nll[~changed], found.nll[~changed], rtol=1e-5)


@pytest.mark.parametrize(("rows", "windows_per_call", "overlap"), [(1, 100, 0), (2, 3, 3)])
@pytest.mark.parametrize("remembers", [True, False])
def test_rows_and_windows_per_call_change_nothing(
    rows: int, windows_per_call: int, overlap: int, remembers: bool
) -> None:
    model = carrying(tiny("gpt2"), overlap=overlap) if remembers else plain(overlap)
    expected = evaluate_documents(model, DOCUMENTS)
    found = evaluate_documents(model, DOCUMENTS, rows=rows, windows_per_call=windows_per_call)
    np.testing.assert_allclose(found.nll, expected.nll, rtol=1e-5)
    assert found.loss_by_window == pytest.approx(expected.loss_by_window, rel=1e-5)
    assert found.loss_by_position[overlap:] == pytest.approx(expected.loss_by_position[overlap:], rel=1e-5)


@pytest.mark.gpu
def test_bf16_on_a_gpu_is_close_but_different() -> None:
    model = carrying(tiny("gpt2")).to("cuda")
    exact, rounded = (evaluate_documents(model, DOCUMENTS, rows=3, bf16=bf16) for bf16 in (False, True))
    np.testing.assert_allclose(rounded.nll, exact.nll, rtol=0.02)
    assert (rounded.nll != exact.nll).any()


@pytest.mark.parametrize(("overlap", "windows_per_call"), [(0, 1), (5, 3), (WINDOW - 1, 50)])
@pytest.mark.parametrize("remembers", [True, False])
def test_every_token_is_scored_once_and_every_window_run_once(
    monkeypatch: pytest.MonkeyPatch, overlap: int, windows_per_call: int, remembers: bool
) -> None:
    seen: list[tuple[int, int]] = []
    keep = Tally.add

    def add(tally: Tally, document: int, first: int, losses: np.ndarray) -> None:
        seen.extend((document, first + step + 1) for step in range(len(losses)))
        keep(tally, document, first, losses)

    monkeypatch.setattr(Tally, "add", add)
    model = carrying(tiny("gpt2"), overlap=overlap) if remembers else plain(overlap)
    windows_run: list[int] = []
    model.base.base_model.register_forward_hook(lambda *call: windows_run.append(len(call[2].last_hidden_state)))
    reported: list[int] = []
    found = evaluate_documents(model, DOCUMENTS, rows=1, windows_per_call=windows_per_call, progress=reported.append)
    expected = [(row, token) for row, length in enumerate(LENGTHS) for token in range(1, length)]
    assert sorted(seen) == expected
    assert found.tokens.tolist() == [length - 1 for length in LENGTHS]
    assert sum(reported) == len(expected)
    inputs = (length - 1 for length in LENGTHS)
    assert sum(windows_run) == sum(1 + max(0, math.ceil((n - WINDOW) / (WINDOW - overlap))) for n in inputs)


@pytest.mark.parametrize("memory", [True, False])
def test_model_is_unchanged_afterwards(memory: bool) -> None:
    base = tiny("gpt2", resid_pdrop=0.1)
    model = (carrying(base) if memory else add_recurrence(base, NoRecurrence(window=WINDOW))).train()
    model.base.transformer.h[0].eval()
    modes = [module.training for module in model.modules()]
    weights, config = copy.deepcopy(model.state_dict()), copy.deepcopy(model.config.to_dict())
    first = evaluate_documents(model, DOCUMENTS, window=6, overlap=2)
    assert (first.window, first.overlap) == (6, 2)
    # Dropout would make two runs differ.
    np.testing.assert_array_equal(first.nll, evaluate_documents(model, DOCUMENTS, window=6, overlap=2).nll)
    assert [module.training for module in model.modules()] == modes
    assert (model.recurrence.window, model.recurrence.overlap) == (WINDOW, 0)
    assert model.config.to_dict() == config
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())


def test_settings_are_restored_after_an_error_and_training_continues() -> None:
    model = carrying(tiny("gpt2")).train()

    def stop(scored: int) -> None:
        if scored:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate_documents(model, DOCUMENTS, window=6, overlap=2, progress=stop)
    assert model.training
    assert (model.recurrence.window, model.recurrence.overlap) == (WINDOW, 0)
    ids = torch.tensor(DOCUMENTS[0].ids)[None].long()
    model(ids, labels=ids).loss.backward()
    assert all(weight.grad is not None for weight in model.mechanism.parameters())


class Sized(NamedTuple):
    name: str
    ids: np.ndarray
    words: int
    characters: int
    bytes: int


def evaluation(nll: Sequence[float], tokens: Sequence[int]) -> Evaluation:
    """Two words, ten characters and twelve bytes to each document."""
    documents = [Sized(f"document {index}", np.zeros(2), 2, 10, 12) for index in range(len(nll))]
    tally = Tally(documents, window=4, overlap=1)
    for index, (total, count) in enumerate(zip(nll, tokens, strict=True)):
        tally.add(index, 0, np.full(count, total / count))
    return tally.evaluation()


def test_metrics_by_hand(tmp_path: Any) -> None:
    made = evaluation([6 * math.log(2), 2 * math.log(2)], [3, 5])
    assert made.total_nll == pytest.approx(8 * math.log(2))
    assert made.perplexity_per_token == pytest.approx(2)
    assert made.perplexity_per_word == pytest.approx(4)
    assert made.bits_per_character == pytest.approx(0.4)
    assert made.metric("bits_per_byte") == pytest.approx(8 / 24)
    save_result(tmp_path / "result.json", made.to_dict())
    saved = load_result(tmp_path / "result.json")
    assert saved == made.to_dict()
    assert saved["perplexity_per_word"] == pytest.approx(4)
    assert saved["tokens"] == 8
    assert saved["documents"][1] == {
        "name": "document 1",
        "nll": pytest.approx(2 * math.log(2)),
        "tokens": 5,
        "words": 2,
        "characters": 10,
        "bytes": 12,
    }
    # The second document's fifth input is at position 1 of its second window.
    assert made.loss_by_position[0] is None
    assert np.array(made.loss_by_position[1:]) / math.log(2) == pytest.approx([2.8 / 3, 2.4 / 2, 0.4])
    assert np.array(made.loss_by_window) / math.log(2) == pytest.approx([7.6 / 7, 0.4])


def test_huge_perplexity_is_infinite() -> None:
    made = evaluation([1e5], [3])
    assert made.perplexity_per_word == math.inf
    assert made.perplexity_per_token == math.inf
    assert math.isfinite(made.metric("bits_per_byte"))


def test_losses_that_are_not_finite_raise() -> None:
    # With tied weights the NaN below would reach every document.
    model = tiny("gpt2", tie_word_embeddings=False)
    rare = VOCABULARY - 1
    texts = [document._replace(ids=document.ids % rare) for document in DOCUMENTS]
    texts[3].ids[20] = rare
    with torch.no_grad():
        model.transformer.wte.weight[rare] = torch.nan
    with pytest.raises(UserError, match=r"'document 3' is not a finite number from token \d+ on"):
        evaluate_documents(model, texts, window=WINDOW)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"documents": []}, "at least one document"),
        ({"documents": [document("short", 1)]}, "'short' has 1 token"),
        ({"documents": [document("odd", 4)._replace(ids=np.array([1, 99]))]}, "'odd' has token ids up to 99"),
        ({"rows": 0}, "`rows` must be at least 1: got rows=0"),
        ({"windows_per_call": 0}, "`windows_per_call` must be at least 1"),
        ({"overlap": WINDOW}, "smaller than `window`"),
        ({"window": 33}, "only 32 positions"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_invalid_input_raises(changes: dict[str, Any], message: str, wrapped: bool) -> None:
    model = carrying(tiny("gpt2")) if wrapped else tiny("gpt2")
    arguments = {"documents": DOCUMENTS, "window": WINDOW, **changes}
    with pytest.raises(UserError, match=message):
        evaluate_documents(model, **arguments)


def test_model_without_language_head_raises() -> None:
    with pytest.raises(UserError, match="AutoModelForCausalLM"):
        evaluate_documents(tiny("gpt2", "bare"), DOCUMENTS, window=WINDOW)
