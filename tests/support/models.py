"""Tiny random models of every supported family: 3 layers, width 16, 60 tokens, no dropout."""

from collections.abc import Callable
from typing import Any

import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertConfig,
    DistilBertConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    OPTConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
    SmolLM3Config,
    XLMRobertaConfig,
)

VOCABULARY, WIDTH, LAYERS, POSITIONS = 60, 16, 3, 32
PAD, BOS, EOS = 1, 2, 3
FIRST_WORD = 4
"""Tokens below are special; texts are made of the others."""
IDS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "pad_token_id": PAD,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}


def _gpt2(**more: Any) -> PretrainedConfig:
    still = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2Config(
        **{**IDS, "n_positions": POSITIONS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": 2, **still, **more}
    )


def _opt(**more: Any) -> PretrainedConfig:
    sizes = {"hidden_size": WIDTH, "word_embed_proj_dim": WIDTH, "ffn_dim": 32, "num_hidden_layers": LAYERS}
    still = {"dropout": 0.0, "attention_dropout": 0.0, "max_position_embeddings": POSITIONS}
    return OPTConfig(**{**IDS, **sizes, **still, "num_attention_heads": 2, **more})


def _neox(**more: Any) -> PretrainedConfig:
    return GPTNeoXConfig(**{**_SIZES, "rotary_pct": 0.5, **more})


def _distilbert(**more: Any) -> PretrainedConfig:
    sizes = {
        "dim": WIDTH,
        "hidden_dim": 32,
        "n_layers": LAYERS,
        "n_heads": 2,
        "max_position_embeddings": POSITIONS,
    }
    still = {"dropout": 0.0, "attention_dropout": 0.0}
    return DistilBertConfig(**{"vocab_size": VOCABULARY, "pad_token_id": PAD, **sizes, **still, **more})


_SIZES: dict[str, Any] = {
    **IDS,
    "hidden_size": WIDTH,
    "intermediate_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "max_position_embeddings": POSITIONS,
}
_GROUPED = {"num_key_value_heads": 1, "head_dim": 8}
_STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _sized(config: type[PretrainedConfig], **fixed: Any) -> Callable[..., PretrainedConfig]:
    return lambda **more: config(**{**_SIZES, **fixed, **more})


DECODERS: dict[str, Callable[..., PretrainedConfig]] = {
    "gpt2": _gpt2,
    "gpt_neox": _neox,
    "opt": _opt,
    "llama": _sized(LlamaConfig, num_key_value_heads=1),
    "mistral": _sized(MistralConfig, **_GROUPED, sliding_window=POSITIONS),
    "qwen2": _sized(Qwen2Config, num_key_value_heads=1),
    "qwen3": _sized(Qwen3Config, **_GROUPED),
    "gemma": _sized(GemmaConfig, **_GROUPED),
    "gemma2": _sized(
        Gemma2Config,
        **_GROUPED,
        sliding_window=POSITIONS,
        attn_implementation="eager",
        query_pre_attn_scalar=8,
    ),
    "gemma3_text": _sized(
        Gemma3TextConfig,
        **_GROUPED,
        sliding_window=POSITIONS,
        query_pre_attn_scalar=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
    ),
    # One of its layers has no positions at all.
    "smollm3": _sized(SmolLM3Config, num_key_value_heads=1, no_rope_layers=[1, 0, 1]),
}
ENCODERS: dict[str, Callable[..., PretrainedConfig]] = {
    "bert": _sized(BertConfig, **_STILL),
    "roberta": _sized(RobertaConfig, **_STILL, type_vocab_size=1),
    "xlm-roberta": _sized(XLMRobertaConfig, **_STILL, type_vocab_size=1),
    "distilbert": _distilbert,
}
TASKS = {
    "causal": AutoModelForCausalLM,
    "masked": AutoModelForMaskedLM,
    "bare": AutoModel,
    "tags": AutoModelForTokenClassification,
    "label": AutoModelForSequenceClassification,
    "answers": AutoModelForQuestionAnswering,
}

KINDS = [
    *[(family, "causal") for family in DECODERS],
    *[(family, task) for task in ("masked", "bare") for family in ENCODERS],
    ("gpt2", "bare"),
    ("llama", "bare"),
]
"""Every family with every head that it has."""


def tiny(family: str, task: str | None = None, seed: int = 0, dtype: torch.dtype | None = None, **more: Any) -> Any:
    """A random model in eval mode; weights are larger than usual, so that every input has a visible effect."""
    config = (DECODERS | ENCODERS)[family](**more)
    build = TASKS[task or ("causal" if family in DECODERS else "masked")]
    torch.manual_seed(seed)
    model: PreTrainedModel = build.from_config(config, attn_implementation=config._attn_implementation)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.15)
            else:
                weight.add_(torch.randn_like(weight) * 0.1)
    return model.to(dtype or torch.float32).eval()


def text(rows: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(FIRST_WORD, VOCABULARY, (rows, length), generator=generator)
