"""The tail against its description in plain tensor operations: loss, logits, memory and every gradient, in double
precision."""

from types import SimpleNamespace as Settings

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from support.checks import TAILS, assert_equals_reference, recurrent
from support.models import text
from support.reference import attend, remember

POOL = Settings(pooled_layers="all", pooling="mean", standardize=True, hidden_layers=1)


def run(w: dict[str, Tensor], s: Settings, c, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of the whole text and the memory left behind."""
    start, done, memory, logits = 0, 0, None, []
    while done < ids.shape[1]:
        piece = ids[:, start : start + s.window]
        outputs = window(w, s, c, piece, memory)
        final = norm(w, "base.transformer.ln_f", outputs[-1])
        logits.append(final[:, done - start :] @ w["base.transformer.wte.weight"].T)
        if piece.shape[1] == s.window:
            new = write(w, s, [output[:, : s.window - s.overlap] for output in outputs])
            if s.gated and memory is not None:
                kept = 1 / (1 + (-w["mechanism.gate"]).exp())
                new = kept * memory + (1 - kept) * new
            memory = new
        done, start = start + piece.shape[1], start + s.window - s.overlap
    return torch.cat(logits, 1), memory


def window(w: dict[str, Tensor], s: Settings, c, ids: Tensor, memory: Tensor | None) -> list[Tensor]:
    """What each layer makes of a window's own positions."""
    x = w["base.transformer.wte.weight"][ids] + w["base.transformer.wpe.weight"][: ids.shape[1]]
    last, extra, outputs = c.n_layer if s.until_layer == "top" else s.until_layer, 0, []
    for number in range(1, c.n_layer + 1):
        if memory is not None and number == s.insert_layer:
            x, extra = torch.cat([memory, x], 1), memory.shape[1]
        block = f"base.transformer.h.{number - 1}"
        q, k, v = linear(w, f"{block}.attn.c_attn", norm(w, f"{block}.ln_1", x)).split(c.n_embd, -1)
        q, k, v = (part.unflatten(-1, (c.n_head, -1)).transpose(1, 2) for part in (q, k, v))
        x = x + linear(w, f"{block}.attn.c_proj", attend(q, k, v))
        inner = gelu(linear(w, f"{block}.mlp.c_fc", norm(w, f"{block}.ln_2", x)), approximate="tanh")
        x = x + linear(w, f"{block}.mlp.c_proj", inner)
        outputs.append(x[:, extra:])
        if number == last:
            x, extra = x[:, extra:], 0
    return outputs


def write(w: dict[str, Tensor], s: Settings, outputs: list[Tensor]) -> Tensor:
    x = norm(w, "mechanism.norm", outputs[s.insert_layer - 2][:, -s.tail :])
    inner = gelu(x @ w["mechanism.network.0.weight"].T + w["mechanism.network.0.bias"])
    tail = x @ w["mechanism.linear.weight"].T + inner @ w["mechanism.network.2.weight"].T + w["mechanism.positions"]
    if not s.pooled_slots:
        return tail
    pool = {name.replace("mechanism.pool.", "mechanism."): value for name, value in w.items() if ".pool." in name}
    return torch.cat([remember(pool, POOL, outputs), tail], 1)


def norm(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)


def linear(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"]


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("variant", TAILS)
def test_equals_the_description(variant: str, training: bool) -> None:
    model = recurrent("gpt2", base={"dtype": torch.double}, **TAILS[variant]).train(training)
    weights = dict(model.named_parameters()) | {name: value.clone() for name, value in model.named_buffers()}
    ids = text(2, 28)
    logits, memory = run(weights, Settings(**vars(model.recurrence)), model.base.config, ids)
    assert_equals_reference(model, ids, logits, memory)
