"""Scoring documents under XLNet: against a reference that knows no memory, and whatever must not change the result."""

import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from recurrify import UserError
from recurrify.data import TokenizedDocument
from recurrify_papers.thesis import xlnet_scoring
from recurrify_papers.thesis.xlnet_run import xlnet_run
from recurrify_papers.thesis.xlnet_scoring import score_xlnet
from support.models import VOCABULARY
from support.runs import model_folder, run_settings, text_folder, validations
from support.xlnets import reference_losses, tiny_xlnet

WINDOW, MEMORY = 6, 4
BOTH = pytest.mark.parametrize("attention", ["uni", "bi"])


def document(name: str, length: int) -> TokenizedDocument:
    ids = np.random.default_rng(length).integers(0, VOCABULARY, length).astype(np.int32)
    return TokenizedDocument(name, ids, words=length // 2 + 1, characters=3 * length, bytes=4 * length)


DOCUMENTS = [document(f"document {index}", length) for index, length in enumerate((9, 2, 26, 7, 13))]


@BOTH
def test_every_token_is_scored_as_by_the_reference(attention: str):
    model = tiny_xlnet(attention)
    found = score_xlnet(model, DOCUMENTS, window=WINDOW, memory=MEMORY, rows=2)
    expected = [reference_losses(model, entry.ids, WINDOW, MEMORY) for entry in DOCUMENTS]
    assert found.nll == pytest.approx([sum(losses) for losses in expected], abs=1e-3)
    assert found.tokens.tolist() == [len(entry.ids) - 1 for entry in DOCUMENTS]
    assert (found.window, found.overlap) == (WINDOW, 0)
    assert found.words.tolist() == [entry.words for entry in DOCUMENTS]
    by_position = [[] for _ in range(WINDOW)]
    for losses in expected:
        for place, loss in enumerate(losses):
            by_position[place % WINDOW].append(loss)
    assert found.loss_by_position == pytest.approx([np.mean(losses) for losses in by_position], abs=1e-4)


@BOTH
def test_rows_do_not_change_the_result(attention: str):
    model = tiny_xlnet(attention)
    one, three, all_of_them = (
        score_xlnet(model, DOCUMENTS, window=WINDOW, memory=MEMORY, rows=rows).nll for rows in (1, 3, 8)
    )
    assert three == pytest.approx(one, abs=1e-4)
    assert all_of_them == pytest.approx(one, abs=1e-4)


def test_signal_ends_a_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step is saved at once; the run that resumes validates it."""
    base, texts = model_folder(tmp_path / "base"), text_folder(tmp_path / "texts")
    memory = {"mechanism": "xlnet", "window": 8, "memory": 4}
    settings = run_settings(base, texts, tmp_path / "run")
    settings = replace(settings, recurrence=memory, max_tokens=100, valid_every=100)
    real = xlnet_scoring.window_losses

    def disturbed(model: Any, *args: Any) -> Any:
        if not model.training:
            signal.raise_signal(signal.SIGTERM)
            monkeypatch.setattr(xlnet_scoring, "window_losses", real)
        return real(model, *args)

    monkeypatch.setattr(xlnet_scoring, "window_losses", disturbed)
    result = xlnet_run(settings, lambda text: None)
    assert (result["finished"], result["interrupted"], validations(result)) == (False, True, [])
    result = xlnet_run(settings, lambda text: None)
    assert result["finished"]
    assert len(validations(result)) == 1


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"documents": []}, "nothing to evaluate"),
        ({"documents": [document("short", 1)]}, "'short' has 1 token"),
        (
            {"documents": [DOCUMENTS[0]._replace(name="odd", ids=np.array([1, 99]))]},
            "'odd' has token ids up to 99, but the model knows 0 to 59",
        ),
    ],
    ids=["empty", "short", "vocabulary"],
)
def test_bad_input_raises(change: dict[str, Any], sentence: str):
    given = {"documents": DOCUMENTS, "window": WINDOW, "memory": MEMORY, "model": tiny_xlnet("uni"), **change}
    with pytest.raises(UserError, match=sentence):
        score_xlnet(given.pop("model"), given.pop("documents"), **given)


def test_loss_that_is_not_finite_raises():
    model = tiny_xlnet("uni")
    with torch.no_grad():
        model.lm_loss.bias[3] = float("nan")
    with pytest.raises(UserError, match="The loss of 'document 2' is not finite"):
        score_xlnet(model, DOCUMENTS, window=WINDOW, memory=MEMORY)
