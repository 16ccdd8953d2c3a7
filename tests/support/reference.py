"""The mechanism in plain tensor operations, from its description alone: nothing here is the library's.

`w` names the weights, `s` holds the mechanism's settings, `c` the base model's config. A window's function gives
the states that go into the head and the list of every layer's output.
"""

import math
from types import SimpleNamespace as Settings

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, silu


def run(window, w: dict[str, Tensor], s: Settings, c, ids: Tensor) -> tuple[Tensor, Tensor | None]:
    """Logits of the whole text and the memory left behind."""
    start, done, memory, logits = 0, 0, None, []
    head = w.get("base.lm_head.weight", w.get("base.transformer.wte.weight", w.get("base.model.embed_tokens.weight")))
    while done < ids.shape[1]:
        piece = ids[:, start : start + s.window]
        final, outputs = window(w, s, c, piece, memory)
        logits.append(final[:, done - start :] @ head.T)
        if piece.shape[1] == s.window:
            memory = remember(w, s, [output[:, : s.window - s.overlap] for output in outputs])
        done, start = start + piece.shape[1], start + s.window - s.overlap
    return torch.cat(logits, 1), memory


def remember(w: dict[str, Tensor], s: Settings, outputs: list[Tensor]) -> Tensor:
    mixed = outputs[-1]
    if s.pooled_layers == "all":
        shares = w["mechanism.layer_scores"].exp() / w["mechanism.layer_scores"].exp().sum()
        mixed = sum(share * output for share, output in zip(shares, outputs, strict=True))
    width = mixed.shape[-1]
    z = mixed.max(1).values if s.pooling == "max" else mixed.sum(1) / mixed.shape[1]
    if s.pooling == "attention":
        odds = (mixed @ w["mechanism.key"] / math.sqrt(width)).exp()
        z = (odds[..., None] * mixed).sum(1) / odds.sum(1)[:, None]
    if s.standardize:
        z = (z - w["mechanism.running_mean"]) / (w["mechanism.running_variance"] + 1e-5).sqrt()
    y = z
    for layer in range(s.hidden_layers + 1):
        y = y @ w[f"mechanism.network.{2 * layer}.weight"].T + w[f"mechanism.network.{2 * layer}.bias"]
        y = gelu(y) if layer < s.hidden_layers else y
    y = y + z @ w["mechanism.skip.weight"].T if s.standardize else y
    return y.reshape(len(y), -1, width)


def carried_to(layer: int, s: Settings, memory: Tensor | None, x: Tensor) -> Tensor:
    if memory is None or (s.insert_layer != "all" and layer != s.insert_layer - 1):
        return x[:, :0]
    first = layer * s.slots if s.insert_layer == "all" else 0
    return memory[:, first : first + s.slots]


def attend(q: Tensor, k: Tensor, v: Tensor, unseen: Tensor | None = None) -> Tensor:
    """(rows, heads, positions, width); the keys that outnumber the queries come first and are seen by all, unless
    they are `unseen` (queries, keys)."""
    extra = k.shape[2] - q.shape[2]
    late = torch.arange(k.shape[2])[None] > torch.arange(q.shape[2])[:, None] + extra
    late = late if unseen is None else late | unseen
    odds = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(late, -math.inf).softmax(-1)
    return (odds @ v).transpose(1, 2).flatten(2)


def gpt2_window(w: dict[str, Tensor], s: Settings, c, ids: Tensor, memory: Tensor | None) -> tuple[Tensor, list]:
    def norm(name: str, x: Tensor) -> Tensor:
        return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], c.layer_norm_epsilon)

    def linear(name: str, x: Tensor) -> Tensor:
        return x @ w[f"{name}.weight"] + w[f"{name}.bias"]

    body, outputs = "base.transformer", []
    x = w[f"{body}.wte.weight"][ids] + w[f"{body}.wpe.weight"][: ids.shape[1]]
    for layer in range(c.n_layer):
        block = f"{body}.h.{layer}"
        keyed = torch.cat([carried_to(layer, s, memory, x), x], 1)
        q, k, v = linear(f"{block}.attn.c_attn", norm(f"{block}.ln_1", keyed)).split(c.n_embd, -1)
        q, k, v = (part.unflatten(-1, (c.n_head, -1)).transpose(1, 2) for part in (q, k, v))
        x = x + linear(f"{block}.attn.c_proj", attend(q[:, :, -x.shape[1] :], k, v))
        x = x + linear(
            f"{block}.mlp.c_proj",
            gelu(linear(f"{block}.mlp.c_fc", norm(f"{block}.ln_2", x)), approximate="tanh"),
        )
        outputs.append(x)
    return norm(f"{body}.ln_f", x), outputs


def llama_window(w: dict[str, Tensor], s: Settings, c, ids: Tensor, memory: Tensor | None) -> tuple[Tensor, list]:
    def norm(name: str, x: Tensor) -> Tensor:
        return w[f"{name}.weight"] * x / (x.square().mean(-1, keepdim=True) + c.rms_norm_eps).sqrt()

    def turn(x: Tensor, places: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        # transformers keeps the angles in float32, whatever the model is in.
        rates = 1.0 / (c.rope_parameters["rope_theta"] ** (torch.arange(half).float() * 2 / x.shape[-1]))
        angles = (places.float()[:, None] * rates).repeat(1, 2)
        turned = torch.cat([-x[..., half:], x[..., :half]], -1)
        return x * angles.cos().to(x.dtype) + turned * angles.sin().to(x.dtype)

    body, outputs, places = "base.model", [], torch.arange(ids.shape[1])
    x = w[f"{body}.embed_tokens.weight"][ids]
    for layer in range(c.num_hidden_layers):
        block = f"{body}.layers.{layer}"
        extra = carried_to(layer, s, memory, x)
        keyed = norm(f"{block}.input_layernorm", torch.cat([extra, x], 1))
        q, k, v = (
            (keyed @ w[f"{block}.self_attn.{name}_proj.weight"].T).unflatten(-1, (heads, -1)).transpose(1, 2)
            for name, heads in (
                ("q", c.num_attention_heads),
                ("k", c.num_key_value_heads),
                ("v", c.num_key_value_heads),
            )
        )
        k = turn(k, torch.cat([places[:1].expand(extra.shape[1]), places]))
        mixed = attend(turn(q[:, :, extra.shape[1] :], places), k, v)
        x = x + mixed @ w[f"{block}.self_attn.o_proj.weight"].T
        inner = norm(f"{block}.post_attention_layernorm", x)
        gate, up, down = (w[f"{block}.mlp.{name}_proj.weight"].T for name in ("gate", "up", "down"))
        x = x + (silu(inner @ gate) * (inner @ up)) @ down
        outputs.append(x)
    return norm(f"{body}.norm", x), outputs
