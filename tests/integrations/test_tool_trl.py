"""TRL's trainers on recurrent models, and on a plain one as a control."""

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

from recurrify import UserError
from support.checks import recurrent
from support.models import tiny
from support.tools import MEMORIES, remembering
from support.words import word_tokenizer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
WORDS = 30
"""In a document: more than three windows."""
every_memory = pytest.mark.parametrize("mechanism", MEMORIES)
DOCUMENTS = [" ".join(f"w{4 + number * step % 50}" for number in range(WORDS)) for step in range(1, 9)]
PAIR = {"prompt": " ".join(DOCUMENTS[0].split()[:20]), "chosen": " w13 w14 w15", "rejected": " w20 w21"}


def settings(folder: Path, **more: Any) -> dict[str, Any]:
    quiet = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "dataloader_pin_memory": False, "bf16": False}
    steps = {"max_steps": 6, "learning_rate": 1e-2, "save_strategy": "no", "logging_steps": 1}
    return {"output_dir": str(folder), "per_device_train_batch_size": len(DOCUMENTS), **quiet, **steps, **more}


def sft(model: Any, folder: Path, **more: Any) -> list[float]:
    data = Dataset.from_dict({"text": DOCUMENTS})
    run = SFTTrainer(
        model, args=SFTConfig(**settings(folder, **more)), train_dataset=data, processing_class=word_tokenizer()
    )
    run.train()
    return [entry["loss"] for entry in run.state.log_history if "loss" in entry]


def dpo(model: Any, folder: Path, **more: Any) -> list[dict[str, float]]:
    model.save_pretrained(folder)  # the trainer loads its reference from there
    model, data = type(model).from_pretrained(folder), Dataset.from_list([PAIR] * len(DOCUMENTS))
    arguments = DPOConfig(**settings(folder / "run", **more))
    run = DPOTrainer(model, args=arguments, train_dataset=data, processing_class=word_tokenizer())
    run.train()
    return [entry for entry in run.state.log_history if "loss" in entry]


@every_memory
def test_fine_tuning(mechanism: str, tmp_path: Path) -> None:
    model, tokenizer = remembering(mechanism), word_tokenizer()
    ids = torch.tensor([[*tokenizer(text).input_ids, tokenizer.eos_token_id] for text in DOCUMENTS])
    expected = model(input_ids=ids, labels=ids).loss.item()
    losses = sft(model, tmp_path)
    assert losses[0] == pytest.approx(expected, rel=1e-3)
    assert losses[-1] < losses[0] - 0.2


@every_memory
def test_texts_in_one_window_train_like_the_base(mechanism: str, tmp_path: Path) -> None:
    """The control: in the first window the memory has no part, neither in the loss nor in the base's gradients."""
    # Not GPT-2: Trainer divides a plain one's loss by all tokens, as if the first of a row were predicted.
    family, window = {"lookback": "opt"}.get(mechanism, "llama"), 16
    plain, model = tiny(family), recurrent(family, mechanism=mechanism, window=window)
    expected, found = (sft(one, tmp_path, max_length=window, max_steps=3) for one in (plain, model))
    assert found == pytest.approx(expected, rel=1e-4)


@every_memory
def test_preferences(mechanism: str, tmp_path: Path) -> None:
    family, window = MEMORIES[mechanism], 24
    bases = tiny(family), recurrent(family, mechanism=mechanism, window=window)
    plain, whole = (dpo(one, tmp_path / type(one).__name__, max_steps=2) for one in bases)
    assert [entry["logps/chosen"] for entry in whole] == pytest.approx([entry["logps/chosen"] for entry in plain])
    entries = dpo(remembering(mechanism), tmp_path / "windows")
    assert entries[0]["logps/chosen"] != pytest.approx(plain[0]["logps/chosen"], rel=1e-3)
    assert entries[0]["loss"] == pytest.approx(0.6931, abs=1e-3)
    assert entries[-1]["loss"] < 0.5


@every_memory
def test_packed_documents_are_rejected(mechanism: str, tmp_path: Path) -> None:
    for how in ({"packing": True, "max_length": 64}, {"padding_free": True, "max_length": None}):
        sft(tiny("gpt2"), tmp_path, **how, max_steps=1)
        with pytest.raises(UserError, match="packing=False, padding_free=False"):
            sft(remembering(mechanism), tmp_path, **how)


def test_capped_scores() -> None:
    """The trainers compute logits themselves, from a setting of the base."""
    assert recurrent("gemma2", mechanism="kv").config.get_text_config().final_logit_softcapping == 30.0
