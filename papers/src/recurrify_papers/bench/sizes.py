"""The shapes that are measured: random weights, so that only the size matters."""

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from recurrify import UserError

LARGE_GPU = 40 * 2**30
"""Bytes of GPU memory from which `auto` selects GPT-2's shape."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """One shape of model and text, the same for everything that is measured."""

    name: str
    purpose: str
    family: Literal["gpt2", "llama"] = "gpt2"
    vocabulary: int
    width: int
    layers: int
    heads: int
    kv_heads: int | None = None
    """Key and value heads of a Llama shape; None: as many as `heads`."""
    inner: int | None = None
    """Width of the feed-forward layers of a Llama shape; None: 4 times `width`."""
    positions: int
    """Context of the unmodified model."""
    window: int
    windows: int = 20
    """Windows of a training sequence."""
    batches: tuple[int, ...] = (1, 16, 64)
    windows_at_once: int = 64
    """Windows that the unmodified model takes as rows of one forward pass: all their logits exist at once."""
    keep: int
    """Kept positions of `lookback` and `kv`."""
    lengths: tuple[int, ...] = (5, 20, 80, 320)
    """Windows of single sequences, for memory and speed by length."""
    prompts: tuple[int, ...] = (1, 600, 10_000, 100_000)
    """Tokens that are read before generation is timed."""
    texts: tuple[int, ...] = (1, 32)
    """Texts that are generated at once."""
    most_prompt_tokens: int = 400_000
    """Of all texts together; longer prompts are left out."""
    documents: int = 26
    document_tokens: int = 30_000
    rounds: int = 3
    """Interleaved repeats."""
    matrices: tuple[int, ...] = (2048, 4096, 8192)
    """Sides of the matrix products of the measured ceiling."""


TINY = Size(
    name="tiny",
    purpose="the shipped model's shape: minutes on two cores",
    vocabulary=1024,
    width=96,
    layers=4,
    heads=4,
    positions=256,
    window=64,
    windows=8,
    batches=(1, 4, 16),
    keep=32,
    lengths=(4, 16, 64),
    prompts=(1, 128, 1_000, 4_000),
    texts=(1, 8),
    most_prompt_tokens=8_000,
    documents=16,
    document_tokens=2_000,
    rounds=5,
    matrices=(512, 1024, 2048),
)
SMALL = Size(
    name="small",
    purpose="25 M parameters: a smaller GPU",
    vocabulary=16_384,
    width=512,
    layers=8,
    heads=8,
    positions=1024,
    window=300,
    keep=256,
)
GPT2 = replace(
    SMALL,
    name="gpt2",
    purpose="GPT-2 small with windows of 300: one large GPU",
    vocabulary=50_257,
    width=768,
    layers=12,
    heads=12,
    matrices=(4096, 8192, 16_384),
)
SMOLLM2 = replace(
    GPT2,
    name="smollm2",
    purpose="SmolLM2-135M's shape, rotary positions: one large GPU",
    family="llama",
    vocabulary=49_152,
    width=576,
    layers=30,
    heads=9,
    kv_heads=3,
    inner=1536,
    positions=8192,
    windows=8,  # of 64 sequences in 140 GiB; twenty need more
)
LLAMA_1B = replace(
    SMOLLM2,
    name="llama-1b",
    purpose="a Llama shape of 1.2 B parameters: one large GPU",
    vocabulary=128_256,
    width=2048,
    layers=16,
    heads=32,
    kv_heads=8,
    inner=8192,
    batches=(1, 4, 16),
    windows_at_once=16,
)
SIZES = {size.name: size for size in (TINY, SMALL, GPT2, SMOLLM2, LLAMA_1B)}


def size_for(name: str, device: torch.device) -> Size:
    """The size of this name; `auto` selects the one that fits the device."""
    if name == "auto" and device.type != "cuda":
        return TINY
    if name == "auto":
        return GPT2 if torch.cuda.get_device_properties(device).total_memory >= LARGE_GPU else SMALL
    if name not in SIZES:
        raise UserError(f"Unknown size {name!r}: choose auto, {', '.join(SIZES)}.")
    return SIZES[name]


def shape_settings(size: Size) -> dict[str, Any]:
    """Arguments of the transformers config of this shape."""
    tokens: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": None, "pad_token_id": 0}
    if size.family == "gpt2":
        dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        shape = {"n_embd": size.width, "n_layer": size.layers, "n_head": size.heads, "n_positions": size.positions}
        return {"vocab_size": size.vocabulary, **shape, **dropout, **tokens}
    return {
        "vocab_size": size.vocabulary,
        "hidden_size": size.width,
        "intermediate_size": size.inner or 4 * size.width,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads or size.heads,
        "max_position_embeddings": max(size.positions, max(size.prompts) + 2 * size.window),
        "tie_word_embeddings": True,
        **tokens,
    }
