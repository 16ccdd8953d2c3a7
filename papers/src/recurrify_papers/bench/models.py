"""The models that are measured: random weights, the same for everybody, and random tokens."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedModel, set_seed

from recurrify.mechanisms.base import RecurrenceConfig, recurrence_config
from recurrify.modeling.heads import RecurrentForCausalLM, add_recurrence
from recurrify_papers.bench.sizes import Size

USUAL_KINDS = ("plain", "carry", "tail")
"""Those of who names none: plain windows through our own code, the paper's mechanism, and one of ours."""
KINDS = (*USUAL_KINDS, "lookback")
ENDS: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
"""Nothing ends a text: all generate the same number of tokens."""


def base_model(size: Size, device: torch.device, positions: int | None = None) -> Any:
    """transformers' own GPT-2."""
    set_seed(0)
    config = GPT2Config(
        vocab_size=size.vocabulary,
        n_positions=positions or size.positions,
        n_embd=size.width,
        n_layer=size.layers,
        n_head=size.heads,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        **ENDS,
    )
    return GPT2LMHeadModel(config).to(device)


def rotary_sizes(size: Size) -> dict[str, Any]:
    """The same shape for models with rotary positions."""
    return {
        "vocab_size": size.vocabulary,
        "hidden_size": size.width,
        "intermediate_size": 4 * size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.heads,
        "max_position_embeddings": max(size.positions, max(size.prompts) + 2 * size.window),
        **ENDS,
    }


def rotary_model(size: Size, device: torch.device) -> Any:
    set_seed(0)
    return LlamaForCausalLM(LlamaConfig(**rotary_sizes(size))).to(device)


def recurrence_of(size: Size, kind: str, **changes: Any) -> RecurrenceConfig:
    settings: dict[str, dict[str, Any]] = {
        "plain": {"mechanism": "none"},
        "carry": {"mechanism": "carry"},
        "tail": {"mechanism": "tail", "tail": size.tail, "pooled_slots": 1},
        "lookback": {"mechanism": "lookback", "keep": size.keep},
        "kv": {"mechanism": "kv", "keep": size.window // 2, "sinks": 4},
    }
    return recurrence_config({**settings[kind], "window": size.window, **changes})


def recurrent_model(base: PreTrainedModel, size: Size, kind: str, **changes: Any) -> RecurrentForCausalLM:
    set_seed(1)
    model: RecurrentForCausalLM = add_recurrence(base, recurrence_of(size, kind, **changes)).to(base.device)
    return model


def random_tokens(size: Size, rows: int, length: int, device: torch.device, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, size.vocabulary, (rows, length), generator=generator).to(device)


def half(device: torch.device) -> AbstractContextManager[Any]:
    """bfloat16 where a GPU has matrix units for it; a CPU computes in float32."""
    return torch.autocast("cuda", torch.bfloat16) if device.type == "cuda" else nullcontext()
