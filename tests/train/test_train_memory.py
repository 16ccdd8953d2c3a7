"""The estimate of GPU memory, against peaks that were measured."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from recurrify import add_recurrence
from recurrify.mechanisms import recurrence_config
from recurrify.modeling.loading import load_model
from recurrify.train.memory import GIB, estimate_memory, memory_sentence
from support.models import tiny


def test_sharding_divides_weights_alone() -> None:
    model = add_recurrence(tiny("gpt2"), recurrence_config({"mechanism": "carry", "window": 8}))
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
    """Eager steps: `recurrify bench training` measures captured ones and larger shapes."""
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
