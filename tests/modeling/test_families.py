"""Every model family meets the contract, with a memory that adds inputs to most of its layers."""

import pytest
import torch

from recurrify import CarryConfig, TailConfig
from recurrify.testing import check_mechanism
from support.models import DECODERS, ENCODERS, tiny

CHECKS = ("calls", "batches", "dtypes", "generate")
"""What depends on the insides of a family; `test_saving.py` saves every one."""


@pytest.mark.parametrize("family", [*DECODERS, *ENCODERS])
def test_family_meets_the_contract(family: str) -> None:
    config = TailConfig(window=8, overlap=3, tail=4, pooled_slots=2, hidden_size=12)
    check_mechanism(config, CHECKS, base=lambda: tiny(family, dtype=torch.double))


@pytest.mark.parametrize("family", ["gpt2", "llama", "bert"])
def test_eager_attention_meets_the_contract(family: str) -> None:
    config = CarryConfig(window=8, overlap=3, insert_layer="all", hidden_layers=1, hidden_size=12)
    base = lambda: tiny(family, dtype=torch.double, attn_implementation="eager")  # noqa: E731
    check_mechanism(config, CHECKS, base=base)
