"""FLOPs per token: the nine published values, counts by hand, and torch's counter."""

from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from recurrify import CarryConfig, KVConfig, NoRecurrence, add_recurrence
from recurrify.evaluate import full_flops_per_token, memory_cost, paper_flops_per_token
from recurrify.evaluate.inspection import watched_attention
from recurrify.mechanisms import mechanism_names, recurrence_config

PUBLISHED = {
    0: 1.75e8,
    5: 1.78e8,
    10: 1.81e8,
    30: 1.94e8,
    50: 2.10e8,
    75: 2.33e8,
    100: 2.62e8,
    150: 3.50e8,
    200: 5.25e8,
}
K = 768
LAYER = 12 * K * K
"""GPT-2's weights per layer: 4 matrices of attention, 8 of the feed-forward network."""
HEAD = 50257 * K


@pytest.fixture(scope="module")
def gpt2_small() -> GPT2LMHeadModel:
    with torch.device("meta"):
        return GPT2LMHeadModel(GPT2Config())


def carrying(base: Any, **settings: Any) -> Any:
    with torch.device("meta"):
        return add_recurrence(base, CarryConfig(**settings))


@pytest.mark.parametrize(("overlap", "published"), PUBLISHED.items())
def test_published_values(gpt2_small: GPT2LMHeadModel, overlap: int, published: float) -> None:
    assert paper_flops_per_token(gpt2_small, 300, overlap) == pytest.approx(published, rel=5e-3)


def test_paper_count_is_exact_and_ignores_memory(gpt2_small: GPT2LMHeadModel) -> None:
    expected = 2 * 12 * LAYER + 2 * 12 * 300 * K
    assert paper_flops_per_token(gpt2_small, 300) == expected
    assert paper_flops_per_token(carrying(gpt2_small)) == expected
    assert paper_flops_per_token(carrying(gpt2_small, window=200, overlap=50)) == pytest.approx(
        (2 * 12 * LAYER + 2 * 12 * 200 * K) * 200 / 150
    )


@pytest.mark.parametrize("overlap", [0, 100])
def test_full_count_adds_the_head_once_per_token(gpt2_small: GPT2LMHeadModel, overlap: int) -> None:
    expected = paper_flops_per_token(gpt2_small, 300, overlap) + 2 * HEAD
    assert full_flops_per_token(gpt2_small, 300, overlap) == pytest.approx(expected)
    with torch.device("meta"):
        wrapped = add_recurrence(gpt2_small, NoRecurrence(window=300, overlap=overlap))
    assert full_flops_per_token(wrapped) == pytest.approx(expected)


@pytest.mark.parametrize("overlap", [0, 50])
def test_full_count_of_carry(gpt2_small: GPT2LMHeadModel, overlap: int) -> None:
    network = 200 * K + 200 * 200 * 2 + 200 * K
    slot = 2 * LAYER + 4 * 300 * K + 2 * K  # its way through the layer, 300 queries to it, its own query
    plain = full_flops_per_token(gpt2_small, 300, overlap)
    added = (2 * network + slot) / (300 - overlap)
    recurrent = carrying(gpt2_small, overlap=overlap)
    assert full_flops_per_token(recurrent) == pytest.approx(plain + added, rel=1e-12)


def small(**more: Any) -> dict[str, Any]:
    return {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, **more}


@pytest.mark.parametrize(
    ("model", "layer", "width", "outside"),
    [
        pytest.param(
            # Keys and values are half as wide as queries.
            lambda: LlamaForCausalLM(LlamaConfig(**small(intermediate_size=24, num_key_value_heads=1))),
            2 * 16 * 16 + 2 * 16 * 8 + 3 * 16 * 24,
            16,
            50 * 16,
            id="grouped queries",
        ),
        pytest.param(
            # Heads that together are wider than the model.
            lambda: Qwen3ForCausalLM(Qwen3Config(**small(intermediate_size=24, num_key_value_heads=1, head_dim=32))),
            2 * 16 * 64 + 2 * 16 * 32 + 3 * 16 * 24,
            64,
            50 * 16,
            id="wide heads",
        ),
        pytest.param(
            lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**small(intermediate_size=24))),
            4 * 16 * 16 + 2 * 16 * 24,
            16,
            50 * 16,
            id="gpt_neox",
        ),
        pytest.param(
            # The embeddings are narrower than the model: two more projections, and a narrower head.
            lambda: OPTForCausalLM(OPTConfig(**small(ffn_dim=24, word_embed_proj_dim=8, do_layer_norm_before=False))),
            4 * 16 * 16 + 2 * 16 * 24,
            16,
            50 * 8 + 2 * 16 * 8,
            id="opt",
        ),
    ],
)
def test_other_families(model: Any, layer: int, width: int, outside: int) -> None:
    base = model()
    paper = 2 * (2 * layer + 2 * 10 * width)
    assert paper_flops_per_token(base, 10) == paper
    assert full_flops_per_token(base, 10) == paper + 2 * outside


def test_bidirectional_attention_costs_twice_as_much() -> None:
    base = BertForMaskedLM(BertConfig(**small(intermediate_size=24)))
    assert paper_flops_per_token(base, 10) == 2 * (2 * (4 * 16 * 16 + 2 * 16 * 24) + 4 * 10 * 16)


def counted(model: Any, ids: torch.Tensor, memory: torch.Tensor | None) -> int:
    """What torch counts in a window that reads and writes; eager attention is counted whole, masked half included."""
    live = torch.tensor([memory is not None])
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        hidden, *_ = model.run_one_window({"input_ids": ids}, memory, live, model_statistics(model), writes=True)
        model.family.head(model.base, hidden[:, model.recurrence.overlap :])
    return counter.get_total_flops()


def model_statistics(model: Any) -> tuple[torch.Tensor, ...]:
    return () if model.mechanism is None else model.mechanism.statistics()


@pytest.mark.parametrize("overlap", [0, 4])
@pytest.mark.parametrize("mechanism", sorted(set(mechanism_names()) - {"none"}))
def test_memory_cost_equals_torch_flop_counter(mechanism: str, overlap: int) -> None:
    if mechanism == "lookback":  # for absolute positions alone
        base: Any = GPT2LMHeadModel(GPT2Config(**small(), attn_implementation="eager"))
    else:
        grouped = small(intermediate_size=24, num_key_value_heads=1)
        base = LlamaForCausalLM(LlamaConfig(**grouped, attn_implementation="eager"))
    plain = add_recurrence(base, NoRecurrence(window=10, overlap=overlap))
    sizes = {"tail": {"tail": 3}, "kv": {"keep": 3, "sinks": 1}, "lookback": {"keep": 3}}
    settings = sizes.get(mechanism, {})
    config = recurrence_config({"mechanism": mechanism, "window": 10, "overlap": overlap, **settings})
    model = add_recurrence(base, config).eval()
    ids = torch.arange(10)[None]
    with torch.no_grad():
        memory = model(ids).state.memory
    found = counted(model, ids, memory) - counted(plain, ids, None)
    extra = {} if model.mechanism.keys_only else model.mechanism.slots()
    lengths = [10 + extra.get(layer, 0) + model.mechanism.inputs_behind for layer in range(2)]
    masked = sum(2 * (length**2 - 10**2) * 16 for length in lengths)
    cost = memory_cost(model)
    # Angles of rotary positions, of which kv has more, are made by a product in some versions of transformers.
    angles = 2 * (3 + 1) * 8 // 2 if mechanism == "kv" else 0
    assert cost.extra_flops_per_token * (10 - overlap) + masked == pytest.approx(found, rel=1e-9, abs=angles)
    assert cost.extra_share == pytest.approx(full_flops_per_token(model) / full_flops_per_token(plain) - 1)
    assert cost.state_floats == memory[0].numel()
    assert cost.added_parameters == sum(value.numel() for value in model.mechanism.parameters())


@pytest.mark.gpu
@pytest.mark.parametrize("mechanism", sorted(set(mechanism_names()) - {"none", "lookback"}))
def test_memory_costs_the_same_on_a_gpu(mechanism: str) -> None:
    """Our kernels, which cannot be counted, do not run while products are counted."""
    base = LlamaForCausalLM(LlamaConfig(**small(intermediate_size=24, num_key_value_heads=1)))
    sizes = {"tail": {"tail": 3}, "kv": {"keep": 3, "sinks": 1}}.get(mechanism, {})
    model = add_recurrence(base, recurrence_config({"mechanism": mechanism, "window": 10, **sizes}))
    assert memory_cost(model) == memory_cost(model.cuda())


@pytest.mark.parametrize("keep", [4, 9])
def test_sliding_attention_counts_only_visible_pairs(keep: int) -> None:
    base = LlamaForCausalLM(LlamaConfig(**small(intermediate_size=24, num_key_value_heads=1)))
    model = add_recurrence(base, KVConfig(window=10, keep=keep, sinks=1, sliding=True)).eval()
    with torch.no_grad(), watched_attention(model, [0, 1]) as weights:
        model(torch.arange(40)[None] % 20)
    seen = [int((weights[layer][0, 0, :, : keep + 1] > 0).sum()) for layer in (0, 1)]
    assert seen[0] == seen[1] < 10 * (keep + 1)
    assert memory_cost(model).extra_flops_per_token * 10 == pytest.approx(4 * 16 * sum(seen))


def test_printed_cost(gpt2_small: GPT2LMHeadModel) -> None:
    cost = memory_cost(carrying(gpt2_small))
    assert str(cost) == (
        "memory 'carry': 388,580 added parameters, 768 numbers from window to window, "
        "52.8 k more FLOPs per token (0.02%)"
    )
    assert memory_cost(add_recurrence(gpt2_small, NoRecurrence())) == ("none", 0, 0, 0.0, 0.0)
