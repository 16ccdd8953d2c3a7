"""RSA in a decoder against its matrix form over all that came before: logits, memory and every gradient, in double
precision."""

from types import SimpleNamespace as Settings
from typing import Any

import pytest
import torch
from torch import Tensor

from recurrify import add_recurrence
from support.checks import assert_equals_reference, config
from support.models import text, tiny
from support.reference import Weights, attend, block, embed, final_norm, run

HEADS = 4
SETTINGS: dict[str, dict[str, Any]] = {
    "all_kinds": {"counts": (1, 1, 1, 0, 0, 0), "sharing": "pair"},
    "overlap": {"counts": (0, 1, 0, 1, 0, 1), "dilations": (2, 3), "overlap": 3},
    "pair": {"counts": (0, 0, 0, 0, 1, 1), "dilations": (5, 2), "sharing": "pair", "overlap": 3},
    # A dilation beyond the window: some values act for the first time two windows later.
    "far": {"counts": (0, 0, 0, 2, 1, 1), "dilations": (1, 11, 11, 9), "layers": (2,)},
}


def eigenvalues(w: Weights, s: Settings, place: int) -> list[tuple[str, int, complex | Tensor]]:
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


def mix(w: Weights, s: Settings, place: int, attended: Tensor, values: Tensor, before: Tensor) -> Tensor:
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


def carry(w: Weights, s: Settings, place: int, before: Tensor) -> Tensor:
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


def chosen_layers(s: Settings, c: Any) -> list[int]:
    return list(range(c.n_layer)) if s.layers == "all" else [layer - 1 for layer in s.layers]


def window(w: Weights, s: Settings, c: Any, ids: Tensor, before: list[Tensor] | None) -> tuple[Tensor, list[Tensor]]:
    """The memory is the values of all earlier windows in each layer."""
    empty = torch.zeros(len(ids), HEADS, 0, c.n_embd // HEADS, dtype=torch.double)
    x, before, chosen = embed(w, ids), before or [empty] * c.n_layer, chosen_layers(s, c)
    seen = list(before)
    for layer in range(c.n_layer):

        def attention(q: Tensor, k: Tensor, v: Tensor, layer: int = layer) -> Tensor:
            attended = attend(q, k, v).unflatten(-1, (HEADS, -1)).transpose(1, 2)
            if layer in chosen:
                attended = mix(w, s, chosen.index(layer), attended, v, before[layer])
            if ids.shape[1] == s.window:
                seen[layer] = torch.cat([before[layer], v[:, :, : s.window - s.overlap]], 2)
            return attended.transpose(1, 2).flatten(2)

        x = block(w, c, layer, x, attention)
    return final_norm(w, x), seen


@pytest.mark.parametrize("name", SETTINGS)
def test_equals_the_matrix_form(name: str) -> None:
    settings = {"dilations": (), "sharing": "none", **SETTINGS[name]}
    torch.manual_seed(2)
    model = add_recurrence(tiny("gpt2", dtype=torch.double, n_head=HEADS), config("rsa", **settings)).train()
    weights, ids = dict(model.named_parameters()) | dict(model.named_buffers()), text(2, 28)
    described, base = Settings(**vars(model.recurrence)), model.base.config
    logits, before = run(window, weights, described, base, ids)
    layers = chosen_layers(described, base)
    memory = torch.stack([carry(weights, described, place, before[layer]) for place, layer in enumerate(layers)], 1)
    assert_equals_reference(model, ids, logits, memory)
