"""A language model's head and its loss in one step, for training: gradients are computed together with the losses.

The logits of a large vocabulary need more memory than everything else that a step keeps. Here they are temporary: only
the gradients of the hidden states and of the head's weights are kept for the backward pass. This requires that all
losses have the same weight, as in a sum or a mean.

Shapes: R rows of hidden states, K width, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everyone's name for it
from torch import Tensor
from torch.autograd.function import once_differentiable

from recurrify.attention import kernels
from recurrify.speed.products import product_dtype

IGNORE = -100
ALIGNED = 64
"""The vocabulary is padded to a multiple of this: matrix units are slow on unaligned rows."""
LOGITS_AT_ONCE = 2**26
"""Eager operations copy the logits several times; compiled code is fused and takes all rows at once."""
LOGITS_IN_CACHE = 2**18
"""A CPU is fastest if its cache holds the logits between operations."""


def summed_losses(hidden_RK: Tensor, weight_VK: Tensor, targets_R: Tensor) -> Tensor:
    """(R,) cross entropies in float32 or better, 0 where the target is ignored.

    Only for losses that are summed or averaged: gradients assume the same weight for all of them.
    """
    half = product_dtype(hidden_RK)
    plain_cpu = is_plain_cpu(hidden_RK)
    at_once = LOGITS_IN_CACHE if plain_cpu else LOGITS_AT_ONCE
    rows = len(hidden_RK) if torch.compiler.is_compiling() else max(at_once // len(weight_VK), 1)
    aligned = 1 if plain_cpu else ALIGNED
    losses: Tensor = _SummedLosses.apply(hidden_RK, weight_VK, targets_R, half, rows, aligned, weight_VK.requires_grad)
    return losses


def is_plain_cpu(hidden: Tensor) -> bool:
    """Whether operations run eagerly on a CPU."""
    return hidden.device.type == "cpu" and not torch.compiler.is_compiling()


class _SummedLosses(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden_RK: Tensor,
        weight_VK: Tensor,
        targets_R: Tensor,
        half: torch.dtype,
        rows: int,
        aligned: int,
        learns: bool,
    ) -> Tensor:
        losses, *gradients = losses_and_gradients(hidden_RK, weight_VK, targets_R, half, rows, aligned, learns)
        ctx.save_for_backward(*gradients, targets_R)
        ctx.types = hidden_RK.dtype, weight_VK.dtype
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming_R: Tensor) -> tuple[Tensor | None, ...]:
        hidden_gradient, weight_gradient, targets_R = ctx.saved_tensors
        incoming_R, common = weight_of_losses(incoming_R, targets_R)
        hidden = (hidden_gradient.to(incoming_R.dtype) * incoming_R[:, None]).to(ctx.types[0])
        if weight_gradient is None:
            return hidden, None, None, None, None, None, None
        return hidden, (weight_gradient.to(incoming_R.dtype) * common).to(ctx.types[1]), None, None, None, None, None


def losses_and_gradients(
    hidden_RK: Tensor, weight_VK: Tensor, targets_R: Tensor, half: torch.dtype, rows: int, aligned: int, learns: bool
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(R,) losses, and the gradients of their sum with respect to the hidden states and, if `learns`, the weights.

    `rows` at a time, products in `half`, the vocabulary padded to a multiple of `aligned`.
    """
    weight = F.pad(weight_VK.to(half), (0, 0, 0, -len(weight_VK) % aligned))
    losses, hidden_gradients, weight_gradient = [], [], None
    for start in range(0, max(len(hidden_RK), 1), max(rows, 1)):  # zero rows are one part, too
        hidden = hidden_RK[start : start + rows].to(half)
        loss, error = losses_and_errors(hidden, weight, len(weight_VK), targets_R[start : start + rows])
        losses.append(loss)
        hidden_gradients.append(error @ weight)
        if learns:
            part = (error.T @ hidden)[: len(weight_VK)]
            # Several parts are summed in 32 bits.
            weight_gradient = part if weight_gradient is None else weight_gradient.to(loss.dtype) + part
    return torch.cat(losses), torch.cat(hidden_gradients), weight_gradient


def weight_of_losses(incoming: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The incoming gradient of each loss, and the weight that all losses share."""
    scored = targets != IGNORE
    # Gradients of ignored losses are undefined, and infinite for a mean over no loss.
    incoming = incoming.where(scored, 0)
    return incoming, incoming.sum() / scored.sum().clamp(min=1)


def losses_and_errors(hidden_RK: Tensor, weight: Tensor, vocabulary: int, targets_R: Tensor) -> tuple[Tensor, Tensor]:
    """(R,) losses, and the gradient of their sum with respect to the logits (R, V), zero in the padding, in the
    precision of the hidden states."""
    logits = hidden_RK @ weight.T
    if kernel_takes(logits):
        from recurrify.speed import cross_entropy  # imports Triton, which may not be there

        return cross_entropy.losses_and_errors(logits, targets_R, vocabulary)
    return plain_losses_and_errors(logits, targets_R, vocabulary)


def turn_into_errors(logits: Tensor, targets_R: Tensor, vocabulary: int) -> Tensor:
    """(R,) losses; overwrites the logits with their gradients."""
    if kernel_takes(logits):
        from recurrify.speed import cross_entropy  # imports Triton, which may not be there

        return cross_entropy.turn_into_errors(logits, targets_R, vocabulary)
    losses, errors = plain_losses_and_errors(logits, targets_R, vocabulary)
    logits.copy_(errors)
    return losses


def plain_losses_and_errors(logits: Tensor, targets_R: Tensor, vocabulary: int) -> tuple[Tensor, Tensor]:
    """`losses_and_errors` in plain PyTorch."""
    dtype, logits = logits.dtype, logits.to(torch.promote_types(logits.dtype, torch.float32))
    token = torch.arange(logits.shape[1], device=logits.device)
    if logits.shape[1] > vocabulary:
        logits = logits.masked_fill(token >= vocabulary, -torch.inf)
    scored_R = targets_R != IGNORE
    target_R = targets_R.where(scored_R, 0)
    highest = logits.amax(dim=-1, keepdim=True)
    found = logits.gather(1, target_R[:, None])
    if is_plain_cpu(logits):  # few passes over the logits, because none are fused
        errors = (logits - highest).exp_()
        total = errors.sum(dim=-1, keepdim=True)
        errors.mul_(scored_R[:, None] / total)
        errors.scatter_add_(1, target_R[:, None], -scored_R[:, None].to(errors.dtype))
    else:
        # Not `logsumexp`: in this form torch's compiler computes both sums of a row in one pass.
        powers = (logits - highest).exp()
        total = powers.sum(dim=-1, keepdim=True)
        errors = (powers / total - (token == target_R[:, None]).to(logits.dtype)) * scored_R[:, None]
    losses = (total.log() + highest - found)[:, 0].where(scored_R, 0)
    return losses, errors.to(dtype)


def kernel_takes(logits: Tensor) -> bool:
    """Only aligned rows: a GPU reads unaligned rows one logit at a time."""
    usable = kernels.TRITON_INSTALLED and logits.dtype in kernels.KERNEL_TYPES
    return usable and logits.is_cuda and logits.shape[1] % ALIGNED == 0
