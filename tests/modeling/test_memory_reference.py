"""Mechanisms that write behind the window, against their descriptions in plain tensor operations: loss, logits, memory
and every gradient, in double precision."""

from types import SimpleNamespace as Settings

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from support.checks import MEMORIES, assert_equals_reference, recurrent
from support.models import text
from support.reference import attend


def run(w: dict[str, Tensor], s: Settings, c, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of the whole text and the memory left behind."""
    start, done, memory, logits = 0, 0, None, []
    while done < ids.shape[1]:
        piece = ids[:, start : start + s.window]
        hidden, memory = WINDOWS[s.mechanism](w, s, c, piece, memory)
        final = norm(w, "base.transformer.ln_f", hidden)
        logits.append(final[:, done - start :] @ w["base.transformer.wte.weight"].T)
        done, start = start + piece.shape[1], start + s.window - s.overlap
    return torch.cat(logits, 1), memory


def memory_tokens(w: dict[str, Tensor], s: Settings, c, ids: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
    x = embed(w, ids)
    front = x[:, :0] if memory is None else memory
    behind = w["mechanism.first"].expand(len(x), -1, -1) if memory is None else memory
    if ids.shape[1] < s.window:
        return stack(w, c, torch.cat([front, x], 1))[:, front.shape[1] :], memory
    y = stack(w, c, torch.cat([front, x, behind], 1))
    written = norm(w, "mechanism.norm", y[:, -s.tokens :])
    if s.gated:
        gate = 1 / (1 + (-y[:, -s.tokens :] @ w["mechanism.gate.weight"].T - w["mechanism.gate.bias"]).exp())
        written = gate * written + (1 - gate) * behind
    return y[:, front.shape[1] : -s.tokens], written


def summary(w: dict[str, Tensor], s: Settings, c, ids: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
    x = embed(w, ids)
    front = x[:, :0] if memory is None else memory
    if ids.shape[1] < s.window:
        return stack(w, c, torch.cat([front, x], 1))[:, front.shape[1] :], memory
    y = stack(w, c, torch.cat([front, x, w["mechanism.tokens"].expand(len(x), -1, -1)], 1))
    if memory is None:
        memory = torch.cat([w["mechanism.empty"]] * s.limit).expand(len(x), -1, -1)
    memory = torch.cat([memory, norm(w, "mechanism.norm", y[:, -s.tokens :])], 1)
    return y[:, front.shape[1] : -s.tokens], memory[:, -s.limit * s.tokens :]


def compress(w: dict[str, Tensor], s: Settings, c, ids: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor]:
    x, full = embed(w, ids), ids.shape[1] == s.window
    if full:
        x = torch.cat([x, w["mechanism.tokens"].expand(len(x), -1, -1)], 1)
    left = []
    for layer in range(c.n_layer):
        if memory is not None:
            asked = features(layer_norm(x, x.shape[-1:]) @ w["mechanism.query"][layer])
            x = x + asked @ memory[:, layer] @ w["mechanism.out"][layer]
        x = block(w, c, layer, x)
        old = torch.zeros(len(x), 6 * s.size, s.size, dtype=x.dtype) if memory is None else memory[:, layer]
        behind = layer_norm(x[:, -s.tokens :], x.shape[-1:]).unbind(1)
        strengths = [1 / (1 + (-token @ w["mechanism.strength"][layer]).exp()) for token in behind]
        old = old / (s.fade * sum(strengths)).exp()[..., None]
        for token, strength in zip(behind, strengths, strict=True):
            key, value = features(token @ w["mechanism.key"][layer]), token @ w["mechanism.value"][layer]
            wrong = value - torch.einsum("bf,bfd->bd", key, old)
            old = old + torch.einsum("bf,bd->bfd", key, strength * wrong)
        left.append(old)
    return (x[:, : -s.tokens], torch.stack(left, 1)) if full else (x, memory)


def features(x: Tensor) -> Tensor:
    halves, found = torch.cat([x, -x], -1).clamp(min=0), []
    for by in (1, 2, 3):
        for place in range(halves.shape[-1]):
            found.append(halves[..., place] * halves[..., place - by])
    found = torch.stack(found, -1)
    return found / found.square().sum(-1, keepdim=True).sqrt()


WINDOWS = {"memory_tokens": memory_tokens, "summary": summary, "compress": compress}


def embed(w: dict[str, Tensor], ids: Tensor) -> Tensor:
    return w["base.transformer.wte.weight"][ids] + w["base.transformer.wpe.weight"][: ids.shape[1]]


def stack(w: dict[str, Tensor], c, x: Tensor) -> Tensor:
    for layer in range(c.n_layer):
        x = block(w, c, layer, x)
    return x


def block(w: dict[str, Tensor], c, layer: int, x: Tensor) -> Tensor:
    name = f"base.transformer.h.{layer}"
    q, k, v = linear(w, f"{name}.attn.c_attn", norm(w, f"{name}.ln_1", x)).split(c.n_embd, -1)
    q, k, v = (part.unflatten(-1, (c.n_head, -1)).transpose(1, 2) for part in (q, k, v))
    x = x + linear(w, f"{name}.attn.c_proj", attend(q, k, v))
    inner = gelu(linear(w, f"{name}.mlp.c_fc", norm(w, f"{name}.ln_2", x)), approximate="tanh")
    return x + linear(w, f"{name}.mlp.c_proj", inner)


def norm(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)


def linear(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("variant", MEMORIES)
def test_equals_the_description(variant: str, training: bool) -> None:
    model = recurrent("gpt2", base={"dtype": torch.double}, **MEMORIES[variant]).train(training)
    weights = dict(model.named_parameters()) | dict(model.named_buffers())
    settings = Settings(mechanism=model.recurrence.mechanism, **vars(model.recurrence))
    ids = text(2, 36)
    logits, memory = run(weights, settings, model.base.config, ids)
    assert_equals_reference(model, ids, logits, memory)
