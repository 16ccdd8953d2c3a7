"""sentence-transformers and scikit-learn on recurrent models."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

from recurrify import TextEmbedder, embed
from support.checks import WINDOW, recurrent
from support.tools import MEMORIES, remembering
from support.words import word_tokenizer

TEXTS = [" ".join(f"w{4 + number * step % 50}" for number in range(20 + step)) for step in (1, 3, 7, 9)]
KINDS = [*((family, mechanism) for mechanism, family in MEMORIES.items()), ("bert", "carry")]


@pytest.mark.parametrize(("family", "mechanism"), KINDS)
def test_sentence_transformer(family: str, mechanism: str, tmp_path: Path) -> None:
    model, tokenizer = recurrent(family, "bare", mechanism=mechanism), word_tokenizer()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    words = Transformer(str(tmp_path / "model"))
    sentences = SentenceTransformer(modules=[words, Pooling(model.config.hidden_size)], device="cpu")
    sentences.save(str(tmp_path / "sentences"))
    for encoder in (sentences, SentenceTransformer(str(tmp_path / "sentences"), device="cpu")):
        found = encoder.encode(TEXTS)
        for text, vector in zip(TEXTS, found, strict=True):
            ids = tokenizer(text, return_tensors="pt").input_ids
            assert ids.shape[1] > 2 * WINDOW
            with torch.no_grad():
                expected = model(ids).last_hidden_state[0].mean(0)
            np.testing.assert_allclose(vector, expected.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mechanism", MEMORIES)
def test_scikit_learn(mechanism: str) -> None:
    step = TextEmbedder(remembering(mechanism), word_tokenizer())
    expected = np.stack([one.document.numpy() for one in embed(TEXTS, step.model, step.tokenizer)])
    np.testing.assert_array_equal(step.fit_transform(TEXTS), expected)
    assert not np.allclose(step.set_params(how="disjoint").transform(TEXTS), expected)
    texts = [f"{text} w5" for text in TEXTS] + TEXTS
    classify = make_pipeline(clone(step, safe=False), LogisticRegression())
    assert len(cross_val_score(classify, texts, [0] * 4 + [1] * 4, cv=2)) == 2
