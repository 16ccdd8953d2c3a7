"""Memories in plain tensor operations, written from their descriptions alone, without the library.

`w` holds the weights by name, `s` the settings of the mechanism, and `c` the config of the base. The window function of
a mechanism takes a window's tokens and the memory, and returns the states that enter the head and the new memory.
"""

import math
from collections.abc import Callable
from types import SimpleNamespace as Settings
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, silu

Weights = dict[str, Tensor]


def run(window: Callable[..., Any], w: Weights, s: Settings, c: Any, ids: Tensor) -> tuple[Tensor, Any]:
    """Logits of the whole text and the memory of the last full window."""
    start, done, memory, logits = 0, 0, None, []
    names = ("base.lm_head.weight", "base.transformer.wte.weight", "base.model.embed_tokens.weight")
    head = next(w[name] for name in names if name in w)
    while done < ids.shape[1]:
        piece = ids[:, start : start + s.window]
        final, memory = window(w, s, c, piece, memory)
        logits.append(final[:, done - start :] @ head.T)
        done, start = start + piece.shape[1], start + s.window - s.overlap
    return torch.cat(logits, 1), memory


def attend(q: Tensor, k: Tensor, v: Tensor, unseen: Tensor | None = None) -> Tensor:
    """(rows, heads, positions, width) to (rows, positions, heads · width). Keys that outnumber the queries come first
    and are seen by all, unless they are `unseen` (queries, keys)."""
    extra = k.shape[2] - q.shape[2]
    late = torch.arange(k.shape[2])[None] > torch.arange(q.shape[2])[:, None] + extra
    late = late if unseen is None else late | unseen
    odds = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(late, -math.inf).softmax(-1)
    return (odds @ v).transpose(1, 2).flatten(2)


# ---- GPT-2 ---------------------------------------------------------------------------------------------------------


def norm(w: Weights, name: str, x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"]


def embed(w: Weights, ids: Tensor, first: int = 0) -> Tensor:
    return w["base.transformer.wte.weight"][ids] + w["base.transformer.wpe.weight"][first : first + ids.shape[1]]


def block(w: Weights, c: Any, layer: int, x: Tensor, attention: Callable[..., Tensor] = attend) -> Tensor:
    name = f"base.transformer.h.{layer}"
    q, k, v = linear(w, f"{name}.attn.c_attn", norm(w, f"{name}.ln_1", x)).split(c.n_embd, -1)
    q, k, v = (part.unflatten(-1, (c.n_head, -1)).transpose(1, 2) for part in (q, k, v))
    x = x + linear(w, f"{name}.attn.c_proj", attention(q, k, v))
    inner = gelu(linear(w, f"{name}.mlp.c_fc", norm(w, f"{name}.ln_2", x)), approximate="tanh")
    return x + linear(w, f"{name}.mlp.c_proj", inner)


def final_norm(w: Weights, x: Tensor) -> Tensor:
    return norm(w, "base.transformer.ln_f", x)


# ---- Llama ---------------------------------------------------------------------------------------------------------


def rms_norm(w: Weights, c: Any, name: str, x: Tensor) -> Tensor:
    return w[f"{name}.weight"] * x / (x.square().mean(-1, keepdim=True) + c.rms_norm_eps).sqrt()


def rotate(c: Any, x: Tensor, places: Tensor) -> Tensor:
    """Rotary positions; transformers computes their angles in float32 for models of any type."""
    half = x.shape[-1] // 2
    rates = 1.0 / (c.rope_parameters["rope_theta"] ** (torch.arange(half).float() * 2 / x.shape[-1]))
    angles = (places.float()[:, None] * rates).repeat(1, 2)
    rotated = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * angles.cos().to(x.dtype) + rotated * angles.sin().to(x.dtype)


def llama_block(w: Weights, c: Any, layer: int, x: Tensor, attention: Callable[..., Tensor]) -> Tensor:
    """`attention` gets queries and keys without positions."""
    name = f"base.model.layers.{layer}"
    keyed = rms_norm(w, c, f"{name}.input_layernorm", x)
    counts = {"q": c.num_attention_heads, "k": c.num_key_value_heads, "v": c.num_key_value_heads}
    q, k, v = (
        (keyed @ w[f"{name}.self_attn.{part}_proj.weight"].T).unflatten(-1, (count, -1)).transpose(1, 2)
        for part, count in counts.items()
    )
    x = x + attention(q, k, v) @ w[f"{name}.self_attn.o_proj.weight"].T
    inner = rms_norm(w, c, f"{name}.post_attention_layernorm", x)
    gate, up, down = (w[f"{name}.mlp.{part}_proj.weight"].T for part in ("gate", "up", "down"))
    return x + (silu(inner @ gate) * (inner @ up)) @ down


# ---- carry ---------------------------------------------------------------------------------------------------------


def carry_gpt2(w: Weights, s: Settings, c: Any, ids: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
    x, outputs = embed(w, ids), []
    for layer in range(c.n_layer):
        extra = carried_to(layer, s, memory, x)
        x = block(w, c, layer, torch.cat([extra, x], 1))[:, extra.shape[1] :]
        outputs.append(x)
    return final_norm(w, x), pooled(w, s, outputs) if ids.shape[1] == s.window else memory


def carry_llama(w: Weights, s: Settings, c: Any, ids: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor | None]:
    x, outputs = w["base.model.embed_tokens.weight"][ids], []
    for layer in range(c.num_hidden_layers):
        extra = carried_to(layer, s, memory, x)
        # Extra inputs have the position of the window's first token.
        places = torch.cat([torch.zeros(extra.shape[1]), torch.arange(ids.shape[1])])

        def attention(q: Tensor, k: Tensor, v: Tensor, places: Tensor = places) -> Tensor:
            return attend(rotate(c, q, places), rotate(c, k, places), v)

        x = llama_block(w, c, layer, torch.cat([extra, x], 1), attention)[:, extra.shape[1] :]
        outputs.append(x)
    return rms_norm(w, c, "base.model.norm", x), pooled(w, s, outputs) if ids.shape[1] == s.window else memory


def carried_to(layer: int, s: Settings, memory: Tensor | None, x: Tensor) -> Tensor:
    if memory is None or (s.insert_layer != "all" and layer != s.insert_layer - 1):
        return x[:, :0]
    first = layer * s.slots if s.insert_layer == "all" else 0
    return memory[:, first : first + s.slots]


def pooled(w: Weights, s: Settings, outputs: list[Tensor], name: str = "mechanism") -> Tensor:
    outputs = [output[:, : s.window - s.overlap] for output in outputs]
    mixed = outputs[-1]
    if s.pooled_layers == "all":
        shares = w[f"{name}.layer_scores"].exp() / w[f"{name}.layer_scores"].exp().sum()
        mixed = sum(share * output for share, output in zip(shares, outputs, strict=True))
    width = mixed.shape[-1]
    z = mixed.max(1).values if s.pooling == "max" else mixed.sum(1) / mixed.shape[1]
    if s.pooling == "attention":
        odds = (mixed @ w[f"{name}.key"] / math.sqrt(width)).exp()
        z = (odds[..., None] * mixed).sum(1) / odds.sum(1)[:, None]
    if s.standardize:
        z = (z - w[f"{name}.running_mean"]) / (w[f"{name}.running_variance"] + 1e-5).sqrt()
    y = z
    for layer in range(s.hidden_layers + 1):
        y = y @ w[f"{name}.network.{2 * layer}.weight"].T + w[f"{name}.network.{2 * layer}.bias"]
        y = gelu(y) if layer < s.hidden_layers else y
    y = y + z @ w[f"{name}.skip.weight"].T if s.standardize else y
    return y.reshape(len(y), -1, width)
