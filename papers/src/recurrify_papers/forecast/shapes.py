"""What the recurrence of a model has learned, as plain numbers: gates, eigenvalues, and weights by distance."""

import math
from typing import Any

import torch
from torch import nn

from recurrify.attention.encoding import RecurrenceEncoding
from recurrify.attention.reference import rem_matrix

CURVE_LENGTH = 48
"""Distances up to which a head's weights are listed."""


@torch.no_grad()
def recurrence_shapes(model: nn.Module) -> list[dict[str, Any]]:
    """For each layer with recurrence: its gate, and each head's kind, dilation, λ or γ and θ, and weights p(0 … 48)."""
    return [
        {"layer": name.removesuffix(".attention.encoding"), "gate": module.gate().item(), "heads": _heads(module)}
        for name, module in model.named_modules()
        if isinstance(module, RecurrenceEncoding)
    ]


def _heads(encoding: RecurrenceEncoding) -> list[dict[str, Any]]:
    kernel = encoding.kernel()
    # The last row of the causal matrix holds the weights of the largest distance first.
    curves = rem_matrix(encoding, CURVE_LENGTH + 1)[:, -1].flip(-1)
    heads = []
    for index, plan in enumerate(encoding.plan):
        head: dict[str, Any] = {"kind": plan.kind, "dilation": plan.dilation}
        if plan.kind == "regular":
            head["lambda"] = (kernel.sign[index] * kernel.decay[index]).item()
        else:
            head["gamma"] = kernel.decay[index].item()
            head["theta"] = kernel.angle[index].item()
            head["period"] = _period(kernel.angle[index].item(), plan.dilation)
        head["weights"] = curves[index].tolist()
        heads.append(head)
    return heads


def _period(angle: float, dilation: int) -> float | None:
    """Rows after which the wave comes round; None for a wave that does not turn."""
    return 2 * math.pi / abs(angle) * dilation if angle else None
