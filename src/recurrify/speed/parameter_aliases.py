"""Aliases of a model's weights while its training steps are captured as CUDA graphs.

They share the weights' memory, or hold them in half precision: under autocast every window would cast all matrices
again, and their gradients back. Each window reads the aliases through its own tap, which sums gradients in one place,
in the weights' precision.

The aliases are put into `module._parameters`, as `torch.func.functional_call` does. That function itself does not fit:
it swaps parameters for one call of a module, while here they change between the windows of one call.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers.pytorch_utils import Conv1D


def trained(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


class ParameterAliases:
    """Aliases of all trained weights of a model, and of all weights that autocast would cast to `half` precision.

    While a loss of an earlier step is alive, its weights refer to the stream of that step, on which a capture must not
    wait: therefore weights that stay the same get an alias, too. A graph only knows addresses, so that it works on the
    weights themselves afterwards.
    """

    def __init__(self, model: nn.Module, half: torch.dtype | None) -> None:
        self.weights = trained(model)
        cast = matrices(model) if half is not None else []
        self.cast: list[Tensor] = [weight for weight in cast if weight.dtype == torch.float32]
        self.halves: list[Tensor] = [
            nn.Parameter(one.detach().to(half), requires_grad=one.requires_grad) for one in self.cast
        ]
        others: dict[Tensor, Any] = {weight: nn.Parameter(weight.data) for weight in self.weights}
        others |= dict(zip(self.cast, self.halves, strict=True))
        self.leaves = [others[weight] for weight in self.weights]
        self.sums = [torch.zeros_like(weight, requires_grad=False) for weight in self.weights]
        self.reached: set[int] = set()
        """Indices of weights that received a gradient."""
        self.spots = [
            (module, name, weight, others[weight])
            for module in model.modules()
            for name, weight in module._parameters.items()
            if weight in others
        ]
        self.places = {id(weight): place for place, weight in enumerate(self.weights)}

    @contextmanager
    def in_place(self) -> Iterator["ParameterAliases"]:
        """Replace the weights by their aliases inside the context."""
        try:
            for module, name, _, other in self.spots:
                module._parameters[name] = other
            yield self
        finally:
            for module, name, weight, _ in self.spots:
                module._parameters[name] = weight

    @torch.no_grad()
    def refresh(self) -> None:
        """Copy the weights' current values."""
        if self.halves:
            torch._foreach_copy_(self.halves, self.cast)

    def tap(self) -> None:
        """Let the model read through a new tap; call it before every window."""
        tapped = _Tap.apply(self, *self.leaves)
        for module, name, weight, _ in self.spots:
            if id(weight) in self.places:
                module._parameters[name] = tapped[self.places[id(weight)]]

    @torch.no_grad()
    def add(self, gradients: Sequence[Tensor | None]) -> None:
        """Add the gradients of one window, one per trained weight."""
        found = [(place, one) for place, one in enumerate(gradients) if one is not None]
        self.reached |= {place for place, _ in found}
        alike = [(self.sums[place], one) for place, one in found if one.dtype == self.sums[place].dtype]
        if alike:
            torch._foreach_add_([total for total, _ in alike], [one for _, one in alike])
        for place, one in found:  # `_foreach_add_` would cast these first
            if one.dtype != self.sums[place].dtype:
                add_half(self.sums[place], one)

    def gradients(self, reached: set[int]) -> list[Tensor | None]:
        """Copies of the sums; None for weights that no window uses, which the optimizer then skips."""
        found: list[Tensor | None] = [None] * len(self.sums)
        places = sorted(reached)
        if places:
            copies = torch._foreach_mul([self.sums[place] for place in places], 1.0)  # a copy of all at once
            for place, copied in zip(places, copies, strict=True):
                found[place] = copied
        return found


def add_half(total: Tensor, part: Tensor) -> None:
    """total += part, which has a smaller dtype."""
    from recurrify.speed.adding import add_into  # imports Triton, which training alone needs

    add_into(total, part)


def matrices(model: nn.Module) -> list[nn.Parameter]:
    """The weights of the base's linear layers that no other module shares (such as tied embeddings)."""
    uses: dict[nn.Parameter, int] = {}
    found = []
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                uses[weight] = uses.get(weight, 0) + 1
                if name == "weight" and type(module) in (nn.Linear, Conv1D):
                    found.append(weight)
    own = {id(weight) for weight in model.get_submodule("base").parameters()}
    return [weight for weight in found if uses[weight] == 1 and id(weight) in own]


class _Tap(torch.autograd.Function):
    """Returns the weights; adds their gradients to the sums of all windows and passes none on."""

    @staticmethod
    def forward(ctx: Any, aliases: ParameterAliases, *leaves: Tensor) -> tuple[Tensor, ...]:
        ctx.aliases = aliases
        ctx.set_materialize_grads(False)
        return tuple(leaf.data for leaf in leaves)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[None, ...]:
        ctx.aliases.add(gradients)
        return (None,) * (1 + len(gradients))
