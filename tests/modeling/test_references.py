"""Learned memories against their descriptions in plain tensor operations: logits, loss, memory and every gradient, in
double precision. `test_kv.py` does this for kept keys, and `test_rsa_reference.py` for RSA."""

from types import SimpleNamespace as Settings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from support import reference
from support.checks import CARRIES, LOOKBACKS, MEMORIES, TAILS, assert_equals_reference, recurrent
from support.models import text
from support.reference import Weights, attend, block, embed, final_norm, norm, pooled

Window = tuple[Tensor, Tensor | None]
POOL = {"pooled_layers": "all", "pooling": "mean", "standardize": True, "hidden_layers": 1}


def memory_tokens(w: Weights, s: Settings, c: Any, ids: Tensor, memory: Tensor | None) -> Window:
    x = embed(w, ids)
    front = x[:, :0] if memory is None else memory
    behind = w["mechanism.first"].expand(len(x), -1, -1) if memory is None else memory
    if ids.shape[1] < s.window:
        return final_norm(w, stack(w, c, torch.cat([front, x], 1))[:, front.shape[1] :]), memory
    y = stack(w, c, torch.cat([front, x, behind], 1))
    written = norm(w, "mechanism.norm", y[:, -s.tokens :])
    if s.gated:
        gate = 1 / (1 + (-y[:, -s.tokens :] @ w["mechanism.gate.weight"].T - w["mechanism.gate.bias"]).exp())
        written = gate * written + (1 - gate) * behind
    return final_norm(w, y[:, front.shape[1] : -s.tokens]), written


def summary(w: Weights, s: Settings, c: Any, ids: Tensor, memory: Tensor | None) -> Window:
    x = embed(w, ids)
    front = x[:, :0] if memory is None else memory
    if ids.shape[1] < s.window:
        return final_norm(w, stack(w, c, torch.cat([front, x], 1))[:, front.shape[1] :]), memory
    y = stack(w, c, torch.cat([front, x, w["mechanism.tokens"].expand(len(x), -1, -1)], 1))
    if memory is None:
        memory = torch.cat([w["mechanism.empty"]] * s.limit).expand(len(x), -1, -1)
    memory = torch.cat([memory, norm(w, "mechanism.norm", y[:, -s.tokens :])], 1)
    return final_norm(w, y[:, front.shape[1] : -s.tokens]), memory[:, -s.limit * s.tokens :]


def compress(w: Weights, s: Settings, c: Any, ids: Tensor, memory: Tensor | None) -> Window:
    x, full = embed(w, ids), ids.shape[1] == s.window
    if full:
        x = torch.cat([x, w["mechanism.tokens"].expand(len(x), -1, -1)], 1)
    written = []
    for layer in range(c.n_layer):
        if memory is not None:
            query = features(layer_norm(x, x.shape[-1:]) @ w["mechanism.query"][layer])
            x = x + query @ memory[:, layer] @ w["mechanism.out"][layer]
        x = block(w, c, layer, x)
        old = torch.zeros(len(x), 6 * s.size, s.size, dtype=x.dtype) if memory is None else memory[:, layer]
        behind = layer_norm(x[:, -s.tokens :], x.shape[-1:]).unbind(1)
        strengths = [1 / (1 + (-token @ w["mechanism.strength"][layer]).exp()) for token in behind]
        old = old / (s.fade * sum(strengths)).exp()[..., None]
        for token, strength in zip(behind, strengths, strict=True):
            key, value = features(token @ w["mechanism.key"][layer]), token @ w["mechanism.value"][layer]
            error = value - torch.einsum("bf,bfd->bd", key, old)
            old = old + torch.einsum("bf,bd->bfd", key, strength * error)
        written.append(old)
    return (final_norm(w, x[:, : -s.tokens]), torch.stack(written, 1)) if full else (final_norm(w, x), memory)


def features(x: Tensor) -> Tensor:
    halves, found = torch.cat([x, -x], -1).clamp(min=0), []
    for by in (1, 2, 3):
        for place in range(halves.shape[-1]):
            found.append(halves[..., place] * halves[..., place - by])
    found = torch.stack(found, -1)
    return found / found.square().sum(-1, keepdim=True).sqrt()


def stack(w: Weights, c: Any, x: Tensor) -> Tensor:
    for layer in range(c.n_layer):
        x = block(w, c, layer, x)
    return x


def tail(w: Weights, s: Settings, c: Any, ids: Tensor, memory: Tensor | None) -> Window:
    x, last, extra, outputs = embed(w, ids), c.n_layer if s.until_layer == "top" else s.until_layer, 0, []
    for number in range(1, c.n_layer + 1):
        if memory is not None and number == s.insert_layer:
            x, extra = torch.cat([memory, x], 1), memory.shape[1]
        x = block(w, c, number - 1, x)
        outputs.append(x[:, extra:])
        if number == last:
            x, extra = x[:, extra:], 0
    if ids.shape[1] == s.window:
        below = outputs[s.insert_layer - 2][:, : s.window - s.overlap]
        y = norm(w, "mechanism.norm", below[:, -s.tail :])
        inner = gelu(y @ w["mechanism.network.0.weight"].T + w["mechanism.network.0.bias"])
        new = y @ w["mechanism.linear.weight"].T + inner @ w["mechanism.network.2.weight"].T + w["mechanism.positions"]
        if s.pooled_slots:
            pool = Settings(**POOL, window=s.window, overlap=s.overlap)
            new = torch.cat([pooled(w, pool, outputs, "mechanism.pool"), new], 1)
        if s.gated and memory is not None:
            kept = 1 / (1 + (-w["mechanism.gate"]).exp())
            new = kept * memory + (1 - kept) * new
        memory = new
    return final_norm(w, outputs[-1]), memory


def lookback(w: Weights, s: Settings, c: Any, ids: Tensor, memory: Tensor | None) -> Window:
    x, own = embed(w, ids, 0 if memory is None else s.room), []
    for layer in range(c.n_layer):

        def attention(q: Tensor, k: Tensor, v: Tensor, layer: int = layer) -> Tensor:
            own.append((k, v))
            if memory is None:
                return attend(q, k, v)
            sink = (
                w["mechanism.sink"][layer][:, None].expand(-1, len(ids), -1, -1, -1) if s.sink else (k[:, :, :0],) * 2
            )
            k, v = (torch.cat([sink[i], memory[:, layer, i], part], 2) for i, part in enumerate((k, v)))
            return attend(q, k, v)

        x = block(w, c, layer, x, attention)
    if ids.shape[1] == s.window:
        span = slice(s.window - s.overlap - s.keep, s.window - s.overlap)
        which, kept = 0 if memory is None else 1, []
        for layer, ((k, v), maps) in enumerate(zip(own, w["mechanism.maps"], strict=True)):
            k = k[:, :, span] @ maps[0] + w["mechanism.shifts"][which, layer]
            v = v[:, :, span] @ maps[1] + w["mechanism.value_shifts"][which, layer]
            kept.append(torch.stack([k, v], 1))
        memory = torch.stack(kept, 1)
    return final_norm(w, x), memory


WINDOWS: dict[str, Any] = {
    "carry": reference.carry_gpt2,
    "memory_tokens": memory_tokens,
    "summary": summary,
    "compress": compress,
    "tail": tail,
    "lookback": lookback,
}
SETTINGS = CARRIES | TAILS | MEMORIES | LOOKBACKS


def check(family: str, window: Any, settings: dict[str, Any], training: bool) -> None:
    model = recurrent(family, base={"dtype": torch.double}, **settings).train(training)
    weights = dict(model.named_parameters()) | {name: value.clone() for name, value in model.named_buffers()}
    described, ids = Settings(**vars(model.recurrence)), text(2, 28)
    assert_equals_reference(model, ids, *reference.run(window, weights, described, model.base.config, ids))


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("variant", SETTINGS)
def test_equals_the_description(variant: str, training: bool) -> None:
    settings = SETTINGS[variant]
    check("gpt2", WINDOWS[settings.get("mechanism", "carry")], settings, training)


@pytest.mark.parametrize("variant", ["overlap", "attention", "standardized"])
def test_carry_in_a_rotary_model_equals_the_description(variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # transformers' own norm rounds to float32.
    exact = lambda self, x: self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)  # noqa: E731
    monkeypatch.setattr(LlamaRMSNorm, "forward", exact)
    check("llama", reference.carry_llama, CARRIES[variant], training=True)
