"""PEFT's adapters on recurrent models."""

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import AutoPeftModelForCausalLM, LoraConfig, PromptTuningConfig, get_peft_model
from transformers import Trainer, TrainingArguments

from recurrify import CarryConfig, UserError, add_recurrence
from support.checks import MECHANISMS, ROTARY, WINDOW, fits, recurrent
from support.models import DECODERS, text, tiny
from support.tools import MEMORIES, remembering

pytestmark = pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False")
LORA = {"task_type": "CAUSAL_LM", "init_lora_weights": False}


def train_a_little(model: Any, folder: Path) -> None:
    ids = text(4, 3 * WINDOW)
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False}
    arguments = TrainingArguments(str(folder), max_steps=2, learning_rate=0.05, save_strategy="no", **quiet)
    Trainer(model, arguments, train_dataset=[{"input_ids": row, "labels": row} for row in ids]).train()


@pytest.mark.parametrize("mechanism", MEMORIES)
@pytest.mark.parametrize("with_memory", [False, True], ids=["base", "memory"])
def test_lora_trains_and_comes_back(mechanism: str, with_memory: bool, tmp_path: Path) -> None:
    settings = {"standardize": True} if mechanism == "carry" else {}
    remembering(mechanism, **settings).save_pretrained(tmp_path / "base")
    model = type(remembering(mechanism)).from_pretrained(tmp_path / "base")
    if with_memory and not model.added_parameters():
        pytest.skip("kv adds no weights")
    adapted = get_peft_model(model, LoraConfig(**LORA, modules_to_save=["mechanism"] if with_memory else None))
    trainable = {name for name, weight in adapted.named_parameters() if weight.requires_grad}
    assert all("lora_" in name or ".mechanism." in name for name in trainable)
    ids, memory = text(2, 3 * WINDOW), {k: v.clone() for k, v in model.mechanism.state_dict().items()}
    train_a_little(adapted, tmp_path / "run")
    if not with_memory:  # what adapters do not save stays as it was
        assert all(torch.equal(value, memory[name]) for name, value in model.mechanism.state_dict().items())
    adapted.eval().save_pretrained(tmp_path / "adapters")
    loaded = AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapters").eval()
    with torch.no_grad():
        expected = adapted(input_ids=ids).logits
        assert torch.equal(loaded(input_ids=ids).logits, expected)
        merged = loaded.merge_and_unload()
        torch.testing.assert_close(merged(ids).logits, expected, rtol=1e-4, atol=1e-4)
    assert loaded.generate(input_ids=ids, max_new_tokens=WINDOW, do_sample=False).shape[1] <= 4 * WINDOW


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_adapters_go_to_the_base_by_default(mechanism: str) -> None:
    families = [family for family in DECODERS if fits(family, mechanism)]
    for family in families[:2] if mechanism != "kv" else ROTARY[:2]:
        adapted = get_peft_model(recurrent(family, mechanism=mechanism), LoraConfig(task_type="CAUSAL_LM"))
        names = [name for name, weight in adapted.named_parameters() if weight.requires_grad]
        assert names
        assert all(".base." in name for name in names), (family, names)


def test_what_cannot_be_adapted() -> None:
    prompts = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    with pytest.raises(UserError, match="LoRA"):
        get_peft_model(remembering("carry"), prompts)(input_ids=text(1, 5))
    adapted = get_peft_model(tiny("gpt2"), LoraConfig(**LORA))
    for model in (adapted, adapted.get_base_model()):
        with pytest.raises(UserError, match="merge_and_unload"):
            add_recurrence(model, CarryConfig(window=WINDOW))
    add_recurrence(adapted.merge_and_unload(), CarryConfig(window=WINDOW))


@pytest.mark.parametrize("mechanism", MEMORIES)
def test_adapters_of_transformers(mechanism: str, tmp_path: Path) -> None:
    model, other, ids = remembering(mechanism), remembering(mechanism), text(1, 3 * WINDOW)
    model.add_adapter(LoraConfig(init_lora_weights=False))
    model.save_pretrained(tmp_path)
    other.load_adapter(tmp_path)
    assert torch.equal(other(ids).logits, model(ids).logits)
