"""A small Llama with random weights: checks the rotary experiment where no model can be downloaded."""

from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from recurrify import load_model
from recurrify.results import provenance
from recurrify_papers.plan import MODEL
from recurrify_papers.runner import Say


def make_base(settings: dict[str, Any], folder: Path, say: Say) -> dict[str, Any]:
    """Save the model with the tokenizer of another one."""
    tokenizer = load_model(settings["like"])[1]
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4 * settings["window"],
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    tokenizer.save_pretrained(folder / MODEL)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder / MODEL)
    return {"kind": "model", "provenance": provenance(settings)}
