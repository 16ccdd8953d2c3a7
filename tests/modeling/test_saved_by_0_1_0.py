"""Models saved by recurrify 0.1.0 load, and compute what they did: one tiny folder of each mechanism."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

SAVED = Path(__file__).parent.parent / "saved_by_0.1.0"


@torch.no_grad()
@pytest.mark.parametrize("mechanism", sorted(folder.name for folder in SAVED.iterdir()))
def test_loads_and_computes_the_same(mechanism: str) -> None:
    model = AutoModelForCausalLM.from_pretrained(SAVED / mechanism)
    assert model.recurrence.mechanism == mechanism
    ids = torch.arange(3, 23)[None] % 24
    expected = json.loads((SAVED / mechanism / "expected.json").read_text())["loss"]
    assert model(ids, labels=ids).loss.item() == pytest.approx(expected, rel=1e-5)
