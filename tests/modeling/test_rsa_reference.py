"""RSA in a decoder against its matrix form over all that came before: logits, memory and every gradient, in double
precision."""

import math
from types import SimpleNamespace as Settings
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm

from recurrify import add_recurrence
from support.checks import assert_equals_reference, config
from support.models import text, tiny

HEADS = 4
SETTINGS: dict[str, dict[str, Any]] = {
    "all_kinds": {"counts": (1, 1, 1, 0, 0, 0), "sharing": "pair"},
    "overlap": {"counts": (0, 1, 0, 1, 0, 1), "dilations": (2, 3), "overlap": 3},
    "pair": {"counts": (0, 0, 0, 0, 1, 1), "dilations": (5, 2), "sharing": "pair", "overlap": 3},
    # A dilation beyond the window: some values act for the first time two windows later.
    "far": {"counts": (0, 0, 0, 2, 1, 1), "dilations": (1, 11, 11, 9), "layers": (2,)},
}


def eigenvalues(w: dict[str, Tensor], s: Settings, place: int) -> list[tuple[str, int, complex | Tensor]]:
    """Kind, dilation and z of each head with a REM."""
    eta, nu, theta = (w[f"mechanism.encodings.{place}.{name}"] for name in ("eta", "nu", "theta"))
    dilations, real, found, pairs = list(s.dilations), 0, [], 0
    for group, dilated in ((s.counts[:3], False), (s.counts[3:], True)):
        regular, cosine, sine = group
        first_sine = pairs if s.sharing == "pair" else pairs + cosine
        kinds = [("regular", real + n) for n in range(regular)]
        kinds += [("cosine", pairs + n) for n in range(cosine)] + [("sine", first_sine + n) for n in range(sine)]
        for kind, number in kinds:
            z = (
                torch.tanh(eta[number]) + 0j
                if kind == "regular"
                else torch.sigmoid(nu[number]) * (1j * theta[number]).exp()
            )
            found.append((kind, dilations.pop(0) if dilated else 1, z))
        real, pairs = real + regular, first_sine + sine
    return found


def weight(z: Tensor, dilation: int, distance: int) -> Tensor:
    return z ** (distance // dilation) if distance > 0 and distance % dilation == 0 else 0 * z


def mix(w: dict[str, Tensor], s: Settings, place: int, attended: Tensor, values: Tensor, before: Tensor) -> Tensor:
    """(rows, heads, positions, size): `before` are the values of all earlier windows, each position once."""
    gate = torch.sigmoid(w[f"mechanism.encodings.{place}.mu"])
    everything, past = torch.cat([before, values], 2), before.shape[2]
    heads = list(attended.unbind(1))
    for head, (kind, dilation, z) in enumerate(eigenvalues(w, s, place)):
        rows = [
            torch.stack([weight(z, dilation, past + i - j) for j in range(everything.shape[2])])
            for i in range(attended.shape[2])
        ]
        p = torch.stack(rows)
        p = p.imag if kind == "sine" else p.real
        heads[head] = (1 - gate) * heads[head] + gate * (p @ everything[:, head])
    return torch.stack(heads, 1)


def carry(w: dict[str, Tensor], s: Settings, place: int, before: Tensor) -> Tensor:
    """What all that came before adds to the outputs to come, up to each head's dilation: real parts, then imaginary."""
    slots, past, heads = max([1, *s.dilations]), before.shape[2], []
    for head, (_, dilation, z) in enumerate(eigenvalues(w, s, place)):
        p = torch.stack(
            [
                torch.stack([weight(z, dilation, past + slot - j) * (slot < dilation) for j in range(past)])
                for slot in range(slots)
            ]
        )
        heads.append(torch.cat([p.real @ before[:, head], p.imag @ before[:, head]], 1))
    return torch.stack(heads, 1)


def run(w: dict[str, Tensor], s: Settings, c: Any, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Logits of the whole text and the memory left behind."""
    chosen = range(c.n_layer) if s.layers == "all" else [layer - 1 for layer in s.layers]
    empty = torch.zeros(len(ids), HEADS, 0, c.n_embd // HEADS, dtype=torch.double)
    before, start, done, logits = [empty] * c.n_layer, 0, 0, []
    while done < ids.shape[1]:
        piece = ids[:, start : start + s.window]
        x = w["base.transformer.wte.weight"][piece] + w["base.transformer.wpe.weight"][: piece.shape[1]]
        for layer in range(c.n_layer):
            block = f"base.transformer.h.{layer}"
            q, k, v = linear(w, f"{block}.attn.c_attn", norm(w, f"{block}.ln_1", x)).split(c.n_embd, -1)
            q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (q, k, v))
            attended = attend(q, k, v)
            if layer in chosen:
                attended = mix(w, s, chosen.index(layer), attended, v, before[layer])
            if piece.shape[1] == s.window:
                before[layer] = torch.cat([before[layer], v[:, :, : s.window - s.overlap]], 2)
            x = x + linear(w, f"{block}.attn.c_proj", attended.transpose(1, 2).flatten(2))
            inner = gelu(linear(w, f"{block}.mlp.c_fc", norm(w, f"{block}.ln_2", x)), approximate="tanh")
            x = x + linear(w, f"{block}.mlp.c_proj", inner)
        final = norm(w, "base.transformer.ln_f", x)
        logits.append(final[:, done - start :] @ w["base.transformer.wte.weight"].T)
        done, start = start + piece.shape[1], start + s.window - s.overlap
    memory = torch.stack([carry(w, s, place, before[layer]) for place, layer in enumerate(chosen)], 1)
    return torch.cat(logits, 1), memory


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    late = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    return (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(late, -math.inf).softmax(-1) @ v


def norm(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return layer_norm(x, x.shape[-1:], w[f"{name}.weight"], w[f"{name}.bias"], 1e-5)


def linear(w: dict[str, Tensor], name: str, x: Tensor) -> Tensor:
    return x @ w[f"{name}.weight"] + w[f"{name}.bias"]


@pytest.mark.parametrize("name", SETTINGS)
def test_equals_the_matrix_form(name: str) -> None:
    settings = {"dilations": (), "sharing": "none", **SETTINGS[name]}
    torch.manual_seed(2)
    model = add_recurrence(tiny("gpt2", dtype=torch.double, n_head=HEADS), config("rsa", **settings)).train()
    weights, ids = dict(model.named_parameters()) | dict(model.named_buffers()), text(2, 28)
    logits, memory = run(weights, Settings(**vars(model.recurrence)), model.base.config, ids)
    assert_equals_reference(model, ids, logits, memory)
