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
DOCUMENTS = [" ".join(f"w{4 + number * step % 50}" for number in range(WORDS)) for step in range(1, 9)]
PAIR = {"prompt": " ".join(DOCUMENTS[0].split()[:20]), "chosen": " w13 w14 w15", "rejected": " w20 w21"}
every_model = pytest.mark.parametrize("mechanism", ["plain", *MEMORIES])


def made(mechanism: str) -> Any:
    return tiny("gpt2") if mechanism == "plain" else remembering(mechanism)


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


@every_model
def test_fine_tuning(mechanism: str, tmp_path: Path) -> None:
    model, tokenizer = made(mechanism), word_tokenizer()
    ids = torch.tensor([[*tokenizer(text).input_ids, tokenizer.eos_token_id] for text in DOCUMENTS])
    expected = model(input_ids=ids, labels=ids).loss.item()
    losses = sft(model, tmp_path)
    if mechanism != "plain":
        assert losses[0] == pytest.approx(expected, rel=1e-3)
    assert losses[-1] < losses[0] - 0.2


@every_model
def test_preferences(mechanism: str, tmp_path: Path) -> None:
    made(mechanism).save_pretrained(tmp_path / "model")  # the trainer loads its reference from there
    model = type(made(mechanism)).from_pretrained(tmp_path / "model")
    data = Dataset.from_list([PAIR] * len(DOCUMENTS))
    run = DPOTrainer(model, args=DPOConfig(**settings(tmp_path)), train_dataset=data, processing_class=word_tokenizer())
    run.train()
    losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
    assert losses[0] == pytest.approx(0.6931, abs=1e-3)
    assert losses[-1] < 0.5


def test_packed_documents_are_rejected(tmp_path: Path) -> None:
    sft(tiny("gpt2"), tmp_path, packing=True, max_length=64)
    for how in ({"packing": True, "max_length": 64}, {"padding_free": True, "max_length": None}):
        with pytest.raises(UserError, match="packing=False, padding_free=False"):
            sft(remembering("carry"), tmp_path, **how)


def test_capped_scores() -> None:
    """The trainers compute logits themselves, from a setting of the base."""
    assert recurrent("gemma2", mechanism="kv").config.get_text_config().final_logit_softcapping == 30.0
