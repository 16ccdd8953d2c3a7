"""lm-evaluation-harness reads whole documents with memory."""

import json
import math
from pathlib import Path
from typing import Any

import lm_eval
import numpy as np
import pytest
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from torch.nn.functional import cross_entropy

from recurrify.data.tokens import TokenizedDocument
from recurrify.evaluate import evaluate_documents
from support.checks import WINDOW
from support.tools import MEMORIES, saved
from support.words import word_tokenizer

TEXTS = [" ".join(f"w{4 + number * step % 56}" for number in range(length)) for length, step in ((90, 7), (41, 11))]
"""The first is longer than three times the base's positions."""


def task(folder: Path, **more: Any) -> dict[str, Any]:
    data = folder / "documents.jsonl"
    data.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS), encoding="utf-8")
    return {
        "task": "documents",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "word_perplexity"}],
        **more,
    }


@pytest.mark.parametrize("mechanism", MEMORIES)
def test_whole_documents(mechanism: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    model = saved(mechanism, tmp_path / "model")
    tokenizer = word_tokenizer()
    harness = HFLM(pretrained=str(tmp_path / "model"), device="cpu", dtype="float32", batch_size=2)
    tasks, manager = [task(tmp_path)], TaskManager(include_defaults=False)
    found = lm_eval.simple_evaluate(harness, tasks=tasks, task_manager=manager, bootstrap_iters=0)
    assert found is not None
    perplexity = found["results"]["documents"]["word_perplexity,none"]

    documents, by_hand, words = [], 0.0, 0
    for text in TEXTS:
        ids = [harness.prefix_token_id, *tokenizer(text, add_special_tokens=False).input_ids]
        with torch.no_grad():
            logits = model(torch.tensor([ids])).logits[0, :-1]
        by_hand += cross_entropy(logits, torch.tensor(ids[1:]), reduction="sum").item()
        documents.append(TokenizedDocument("d", np.array(ids), len(text.split()), len(text), len(text)))
        words += len(text.split())
    assert perplexity == pytest.approx(math.exp(by_hand / words), rel=1e-4)
    ours = evaluate_documents(model, documents)
    assert perplexity == pytest.approx(math.exp(ours.total_nll / words), rel=1e-4)


@pytest.mark.parametrize("mechanism", MEMORIES)
def test_answers_behind_long_contexts(mechanism: str, tmp_path: Path) -> None:
    model = saved(mechanism, tmp_path)
    harness = HFLM(pretrained=model, tokenizer=word_tokenizer(), batch_size=1)
    context, answers = TEXTS[0], (" w5 w6", " w7 w8")
    ids = word_tokenizer()(context, add_special_tokens=False).input_ids
    assert len(ids) > 2 * 32 > WINDOW
    requests = [("", ids, word_tokenizer()(answer, add_special_tokens=False).input_ids) for answer in answers]
    found = [score for score, _ in harness._loglikelihood_tokens([(r[:1] * 2, *r[1:]) for r in requests])]
    for (_, before, answer), score in zip(requests, found, strict=True):
        with torch.no_grad():
            logits = model(torch.tensor([before + answer])).logits[0, len(before) - 1 : -1]
        expected = -cross_entropy(logits, torch.tensor(answer), reduction="sum").item()
        assert score == pytest.approx(expected, abs=1e-4)
