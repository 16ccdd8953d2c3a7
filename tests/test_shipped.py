"""The shipped models and text: small, loadable, and better with memory than without on unseen modules."""

import json
from pathlib import Path

import pytest

from recurrify import model_names
from recurrify.data.documents import load_documents
from recurrify.data.texts import shorten
from recurrify.data.tokens import tokenize_documents
from recurrify.evaluate.bootstrap import relative_gain
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.model_names import shipped_names
from recurrify.modeling.loading import load_model


def test_models_are_shipped_and_small() -> None:
    assert shipped_names() == ["shipped:base", "shipped:plain", "shipped:recurrent"]
    size = sum(path.stat().st_size for path in model_names.SHIPPED.rglob("*") if path.is_file())
    assert size < 5_000_000
    for name in shipped_names():
        model, tokenizer = load_model(name)
        assert model.num_parameters() < 1_000_000
        assert len(tokenizer) == model.get_input_embeddings().num_embeddings


def test_novel_is_shipped() -> None:
    text = (model_names.SHIPPED / "novel.txt").read_text(encoding="utf-8")
    assert text.startswith("Chapter I")
    assert 30_000 < len(text) < 40_000


def test_configs_hold_no_paths() -> None:
    for path in model_names.SHIPPED.rglob("*.json"):
        assert "/" not in (path.read_text(encoding="utf-8") if path.name == "config.json" else ""), path


def test_memory_is_better_than_plain_windows() -> None:
    plain, tokenizer = load_model("shipped:plain")
    recurrent, _ = load_model("shipped:recurrent")
    assert plain.mechanism is None
    assert recurrent.mechanism is not None
    assert plain.recurrence.window == recurrent.recurrence.window
    documents = tokenize_documents(load_documents("stdlib", "test")[:12], tokenizer)
    short = shorten(documents, tokenizer, 1_000)
    gain = relative_gain(
        evaluate_documents(plain, short, rows=12),
        evaluate_documents(recurrent, short, rows=12),
        metric="perplexity_per_token",
    )
    assert gain.relative_gain > 0.01
    assert not gain.within_noise


RESULTS = Path(__file__).parent.parent / "papers" / "results"


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.json")), ids=lambda path: str(path.relative_to(RESULTS)))
def test_results_have_provenance_and_no_paths(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert json.loads(text)["provenance"]
    assert "/tmp" not in text
    assert "/root" not in text
