"""A trained base is almost as good with a new memory as without, unless the memory starts at random."""

from typing import Any

import pytest
import torch

from recurrify import CarryConfig, TailConfig, add_recurrence
from recurrify.data.texts import read_text
from recurrify.evaluate.perplexity import evaluate_documents
from recurrify.mechanisms.compress import CompressConfig
from recurrify.mechanisms.memory_tokens import MemoryTokensConfig
from recurrify.mechanisms.neutral import first_tokens, neutral_inputs
from recurrify.mechanisms.summary import SummaryConfig
from recurrify.modeling.loading import load_model
from support.models import tiny

WINDOW = 64
MEMORIES: dict[str, dict[str, Any]] = {
    "carry": {"mechanism": "carry"},
    "pooled_tail": {"mechanism": "tail", "tail": 16, "pooled_slots": 1},
    "memory_tokens": {"mechanism": "memory_tokens"},
    "summary": {"mechanism": "summary", "tokens": 2},
    "compress": {"mechanism": "compress"},
}


@pytest.fixture(scope="module")
def loss_of() -> Any:
    """Mean loss on source code; all windows but the first have a memory."""
    tokenizer = load_model("shipped:base")[1]
    documents = read_text("stdlib", "valid", tokenizer, lambda text: None, tokens_per_document=300)[0][:5]

    def loss(**recurrence: Any) -> float:
        torch.manual_seed(0)
        found = evaluate_documents(load_model("shipped:base", {**recurrence, "window": WINDOW})[0], documents)
        return found.total_nll / int(found.tokens.sum())

    return loss


@pytest.fixture(scope="module")
def plain(loss_of: Any) -> float:
    return loss_of(mechanism="none")


@pytest.mark.parametrize("name", MEMORIES)
def test_new_memory_does_little_harm(loss_of: Any, plain: float, name: str) -> None:
    neutral, random = (loss_of(**MEMORIES[name], neutral_start=start) for start in (True, False))
    assert neutral < plain + 0.05
    assert random > plain + 0.05


@pytest.mark.parametrize("family", ["gpt2", "llama", "gemma2", "bert"])
def test_neutral_inputs_are_those_of_a_first_token(family: str) -> None:
    base = tiny(family, "bare").train()
    found = neutral_inputs(base)
    assert base.training
    tokens = first_tokens(base.config)
    assert len(set(tokens.tolist())) == 60
    base.eval()
    with torch.no_grad():
        alone = [base(token.view(1, 1), output_hidden_states=True).hidden_states for token in tokens]
    layers = len(alone[0]) - 1
    assert len(found) == layers
    for layer in range(layers):
        expected = torch.stack([hidden[layer][0, 0] for hidden in alone]).mean(0)
        torch.testing.assert_close(found[layer], expected, rtol=1e-4, atol=1e-5)


def test_new_carry_writes_neutral_inputs() -> None:
    base = tiny("gpt2")
    neutral = neutral_inputs(base)
    model = add_recurrence(base, CarryConfig(window=8, insert_layer="all", slots=2))
    with torch.no_grad():
        model.mechanism.network[-1].weight.zero_()
        memory = model(torch.arange(4, 20)[None]).state.memory
    for layer in range(3):
        torch.testing.assert_close(memory[0, 2 * layer : 2 * layer + 2], neutral[layer].expand(2, -1))


def test_random_start_is_that_of_torch() -> None:
    base = tiny("gpt2")
    config = CarryConfig(window=8, neutral_start=False, standardize=True)
    torch.manual_seed(3)
    model = add_recurrence(base, config)
    torch.manual_seed(3)
    own = type(model.mechanism)(config, 3, 16)
    for name, value in own.state_dict().items():
        torch.testing.assert_close(model.mechanism.state_dict()[name], value, rtol=0, atol=0, msg=name)


def test_every_new_weight_gets_a_gradient() -> None:
    """Weights of exactly zero would leave the first layers of the network without a gradient."""
    for config in (
        CarryConfig(window=8, standardize=True),
        TailConfig(window=8, tail=4, pooled_slots=1, gated=True),
        MemoryTokensConfig(window=8, tokens=3),
        SummaryConfig(window=8, tokens=2),
        CompressConfig(window=8, tokens=2),
    ):
        model = add_recurrence(tiny("gpt2"), config).train()
        ids = torch.arange(4, 36)[None]
        model(ids, labels=ids).loss.backward()
        for name, value in model.mechanism.named_parameters():
            assert value.grad.abs().max() > 0, name


def test_memory_is_initialised_on_the_given_device() -> None:
    """On a GPU that takes a second instead of a minute."""
    model, _ = load_model("shipped:base", {"mechanism": "carry", "window": 64}, device=torch.device("meta"))
    assert {value.device.type for value in model.parameters()} == {"meta"}
