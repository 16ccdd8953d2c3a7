"""GELU (tanh) with few operations, in training and in captured generation: transformers uses eight, each of which is a
kernel and saves a tensor."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional
from transformers.activations import FastGELUActivation, NewGELUActivation

WRITTEN_OUT = (NewGELUActivation, FastGELUActivation)
TWICE_STEEPNESS, CUBIC = 2 * math.sqrt(2 / math.pi), 0.044715
"""Of the tanh."""


class QuickInTraining(nn.Module):
    """Outside of training the base's own GELU runs, bit by bit, unless `always` is set."""

    def __init__(self, written_out: nn.Module) -> None:
        super().__init__()
        self.written_out = written_out
        self.always = False

    def forward(self, hidden: Tensor) -> Tensor:
        if not (self.training or self.always):
            return self.written_out(hidden)
        if hidden.device.type != "cpu" or hidden.dtype != torch.float32:
            return functional.gelu(hidden, approximate="tanh")
        if torch.compiler.is_compiling():
            return hidden * torch.sigmoid(hidden * (TWICE_STEEPNESS * (1 + CUBIC * hidden.square())))
        found: Tensor = _BySigmoid.apply(hidden)
        return found


class _BySigmoid(torch.autograd.Function):
    """(1 + tanh x) / 2 is the sigmoid of 2x, and a CPU's sigmoid is several times as fast as its tanh. The slope is
    computed together with the output; torch's GELU computes the tanh a second time for it."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor) -> Tensor:
        square = hidden * hidden
        gate = square.mul(TWICE_STEEPNESS * CUBIC).add_(TWICE_STEEPNESS).mul_(hidden).sigmoid_()
        output = hidden * gate
        if ctx.needs_input_grad[0]:
            bend = square.mul_(3 * TWICE_STEEPNESS * CUBIC).add_(TWICE_STEEPNESS).mul_(output)
            ctx.save_for_backward(torch.addcmul(gate, bend, 1 - gate))
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> Tensor:
        (slope,) = ctx.saved_tensors
        return incoming * slope
