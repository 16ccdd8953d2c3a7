"""The estimate of GPU memory, against peaks that were measured."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, LlamaConfig

from recurrify import add_recurrence
from recurrify.mechanisms import recurrence_config
from recurrify.modeling.loading import load_model
from recurrify.train.memory import GIB, estimate_memory, memory_sentence
from support.models import tiny

BENCH = Path(__file__).parents[2] / "papers" / "results" / "bench"
GPT2 = GPT2Config(vocab_size=50_304)
SMOLLM2 = LlamaConfig(
    vocab_size=49_152,
    hidden_size=576,
    intermediate_size=1_536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    tie_word_embeddings=True,
)
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {"mechanism": "none"},
    "carry": {"mechanism": "carry"},
    "lookback": {"mechanism": "lookback", "keep": 256},
    "kv-64": {"mechanism": "kv", "keep": 64},
    "kv": {"mechanism": "kv", "keep": 256},
}


def model_of(config: Any, checkpoint: bool, **settings: Any) -> Any:
    """A model without memory of its own for its weights."""
    with torch.device("meta"):
        base = AutoModelForCausalLM.from_config(config)
        return add_recurrence(base, recurrence_config({"window": 300, "checkpoint": checkpoint, **settings}))


@pytest.mark.parametrize(
    ("name", "config", "windows", "checkpoint"),
    [
        *((name, GPT2, 20, False) for name in ("training", "training_64", "training_lookback")),
        *((name, GPT2, 20, True) for name in ("training", "training_64", "training_lookback")),
        ("training_smollm2", SMOLLM2, 8, False),
        ("training_smollm2_modes", SMOLLM2, 8, False),
    ],
)
def test_within_a_tenth_of_measured_peaks(name: str, config: Any, windows: int, checkpoint: bool) -> None:
    groups = json.loads((BENCH / f"{name}.json").read_text())["groups"]
    rows = [
        (group["batch"], row)
        for group in groups
        for row in group["rows"]
        if row["checkpoint"] == checkpoint and row["model"] in SETTINGS and row["peak_bytes"]
    ]
    assert rows
    for batch, row in rows:
        model = model_of(config, checkpoint, **SETTINGS[row["model"]])
        estimate = estimate_memory(model, batch, windows).total
        assert estimate == pytest.approx(row["peak_bytes"], rel=0.1), (batch, row["model"])


def test_sharding_divides_weights_alone() -> None:
    model = model_of(GPT2Config(), False, mechanism="carry")
    one, four = (estimate_memory(model, 2, 3, shards=shards) for shards in (1, 4))
    count = sum(value.numel() for value in model.parameters())
    assert one.total - four.total == pytest.approx(12 * count)


def test_weights_load_straight_to_devices(base: Path, tmp_path: Path) -> None:
    settings = {"mechanism": "carry", "window": 8}
    torch.manual_seed(0)
    plain, tokenizer = load_model(str(base), settings)
    torch.manual_seed(0)
    placed, _ = load_model(str(base), settings, device_map={"": "cpu"})
    plain.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    again, _ = load_model(str(tmp_path), device_map={"": "cpu"})
    for name, value in plain.state_dict().items():
        assert torch.equal(placed.state_dict()[name], value), name
        assert torch.equal(again.state_dict()[name], value), name


def test_sentence_names_the_way_out() -> None:
    model = add_recurrence(tiny("gpt2"), recurrence_config({"mechanism": "carry", "window": 8}))
    assert memory_sentence(model, 20.6, 24) == "training needs about 21 GiB per GPU; 24 GiB are free"
    said = memory_sentence(model, 31, 24)
    assert "needs about 31 GiB per GPU, but 24 GiB are free: use --set checkpoint=true, a smaller --batch" in said
    model.set_recurrence(checkpoint=True)
    assert "checkpoint" not in memory_sentence(model, 31, 24)


@pytest.mark.gpu
@pytest.mark.parametrize("mechanism", ["none", "carry"])
@pytest.mark.parametrize("checkpoint", [False, True])
def test_estimate_on_this_gpu(mechanism: str, checkpoint: bool) -> None:
    """Eager steps: `tools/memory_table.py` measures compiled ones and larger shapes."""
    settings = recurrence_config({"mechanism": mechanism, "window": 300, "checkpoint": checkpoint})
    with torch.device("cuda"):
        config = GPT2Config(vocab_size=50_304, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
        model = add_recurrence(AutoModelForCausalLM.from_config(config), settings).train()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    ids = torch.randint(1_000, (8, 6_001), device="cuda")
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        with torch.autocast("cuda", torch.bfloat16):
            model(ids[:, :-1], targets=ids[:, 1:], num_items_in_batch=48_000).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    peak, estimate = torch.cuda.max_memory_allocated() / GIB, estimate_memory(model, 8, 20).gib
    print(f"\n{mechanism}, checkpoint={checkpoint}: estimate {estimate:.1f} GiB, measured {peak:.1f} GiB")
    assert estimate == pytest.approx(peak, rel=0.25)
