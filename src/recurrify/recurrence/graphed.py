"""Whole training steps as CUDA graphs: all windows of a batch, forward and backward, launched at once.

A window is some hundred kernels, and twenty windows go one after another: launching them one by one takes several times
as long as they run. A graph is captured once for a shape of batch and then replayed. Only what training repeats is
captured: a batch of full rows of one length that begins its documents. Everything else runs as it is.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recurrify.errors import UserError
from recurrify.recurrence.compiled import compile_windows
from recurrify.recurrence.model import RecurrentPreTrainedModel, WindowsRun
from recurrify.recurrence.packing import Packed, open_windows
from recurrify.state import State

WARM_UPS = 3
"""Steps before a capture: the first ones compile and choose kernels, which a graph cannot hold."""
SEEN_BEFORE = 2
"""How often a shape must have come before it is worth a graph."""

Losses = Callable[[Tensor, Tensor], tuple[Tensor, Tensor | None]]


def graph_steps(model: RecurrentPreTrainedModel, rows: int | None = None) -> None:
    """Let the model replay its training steps, compiled; it computes what it did. For models on a CUDA device.

    Between a step's forward and its backward pass there must be no other step of the same model, and the state that
    such a step returns carries no gradient. `rows` is the size of a batch, as in `compile_windows`.
    """
    compile_windows(model, rows)  # as they are, some models look at their masks, for which a graph cannot wait
    if model.graphed_steps is None:
        model.graphed_steps = GraphedSteps(model)


class GraphedSteps:
    """The one shape of batch that a model's training repeats, captured when it has come often enough."""

    def __init__(self, model: RecurrentPreTrainedModel) -> None:
        self.model = model
        self.seen: dict[tuple[Any, ...], int] = {}
        self.key: tuple[Any, ...] | None = None
        self.step: GraphedStep | None = None

    def takes(self, packed: Packed, state: State) -> bool:
        """Whether this batch is replayed; counts how often its shape has come."""
        model = self.model
        if not (model.training and torch.is_grad_enabled() and packed.tokens.is_cuda):
            return False
        if model.compiled_window is None or model.compiled_window.rows != len(packed.lengths):
            return False  # such windows are not compiled
        if model.recurrence.checkpoint or packed.tokens.shape[1] <= model.recurrence.window:
            return False  # a single window may have nothing to learn from
        if bool(state.live.any()) or bool(state.lengths.any()) or set(packed.lengths) != {packed.tokens.shape[1]}:
            return False
        key = self._key(packed.tokens)
        if self.step is not None and key[0] == self.key and key != (self.key, self.step.places):
            self.step = None  # the weights have moved or another choice of them is trained
        self.seen[key[0]] = self.seen.get(key[0], 0) + 1
        return self.key == key[0] if self.step is not None else self.seen[key[0]] > SEEN_BEFORE

    def _key(self, tokens: Tensor) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        """What a graph holds for: the shape and precision, and the places of the weights."""
        model = self.model
        half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        return (tuple(tokens.shape), half, model.recurrence), places(trained(model))

    def __call__(self, packed: Packed, state: State, targets: Tensor) -> WindowsRun:
        if self.step is None:
            self.key = self._key(packed.tokens)[0]
            self.step = GraphedStep(self.model, self._losses(packed, state), packed.tokens, targets)
        losses, memory = self.step.replay(packed.tokens, targets)
        recurrence = self.model.recurrence
        tokens, lengths = open_windows(packed, recurrence.window, recurrence.overlap)
        live = torch.full_like(state.live, memory is not None)
        return WindowsRun(None, losses, State(memory, live, tokens, torch.tensor(lengths)))

    def _losses(self, packed: Packed, state: State) -> Losses:
        def losses(tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
            run = self.model.run_windows(packed._replace(tokens=tokens), state, targets, keep_hidden=False)
            assert run.losses is not None
            return run.losses, run.state.memory

        return losses


def trained(model: torch.nn.Module) -> list[torch.nn.Parameter]:
    return [parameter for parameter in model.parameters() if parameter.requires_grad]


def places(parameters: list[torch.nn.Parameter]) -> tuple[int, ...]:
    return tuple(parameter.data_ptr() for parameter in parameters)


@contextmanager
def stand_ins(model: torch.nn.Module) -> Iterator[list[torch.nn.Parameter]]:
    """Put others that share their memory in the place of the trained weights, and give these, in their order.

    While a loss of an earlier step is alive, its weights remember the stream of that step, on which a capture must not
    wait. A graph knows places in memory only, so that it serves the weights themselves afterwards.
    """
    others = {parameter: torch.nn.Parameter(parameter.data) for parameter in trained(model)}
    spots = [
        (module, name, parameter)
        for module in model.modules()
        for name, parameter in module._parameters.items()
        if parameter in others
    ]
    try:
        for module, name, parameter in spots:
            module._parameters[name] = others[parameter]
        yield list(others.values())
    finally:
        for module, name, parameter in spots:
            module._parameters[name] = parameter


class GraphedStep:
    """Two graphs, and the tensors that they read and write."""

    def __init__(self, model: torch.nn.Module, losses: Losses, tokens: Tensor, targets: Tensor) -> None:
        self.parameters = trained(model)
        self.places = places(self.parameters)
        self.tokens, self.targets = tokens.clone(), targets.clone()
        self.replays = 0
        half = torch.is_autocast_enabled("cuda")
        # A cached cast of a weight would be captured once and never be made anew.
        cast = torch.autocast("cuda", torch.get_autocast_dtype("cuda"), enabled=half, cache_enabled=False)
        with cast, stand_ins(model) as parameters:
            self._warm_up(model, losses, parameters)
            pool = torch.cuda.graph_pool_handle()
            self.forward_graph, self.backward_graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.forward_graph, pool=pool):
                found, memory = losses(self.tokens, self.targets)
            self.incoming = torch.ones_like(found)
            with torch.cuda.graph(self.backward_graph, pool=pool):
                self.gradients = torch.autograd.grad(found, parameters, self.incoming, allow_unused=True)
        self.losses = found.detach()
        self.memory = None if memory is None else memory.detach()

    def _warm_up(self, model: torch.nn.Module, losses: Losses, parameters: list[torch.nn.Parameter]) -> None:
        """Run a few steps that leave no trace: statistics and random numbers stay where they were."""
        before = [(buffer, buffer.clone()) for buffer in model.buffers()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), torch.random.fork_rng(devices=[self.tokens.device]):
            for _ in range(WARM_UPS):
                found, _ = losses(self.tokens, self.targets)
                torch.autograd.grad(found.sum(), parameters, allow_unused=True)
        torch.cuda.current_stream().wait_stream(stream)
        for buffer, value in before:
            buffer.copy_(value)

    def replay(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor | None]:
        losses, memory = _Replay.apply(self, tokens, targets, *self.parameters)
        return losses, memory


class _Replay(torch.autograd.Function):
    """The graphs as one operation: what it returns is the caller's own, for the next replay writes over the rest."""

    @staticmethod
    def forward(ctx: Any, step: GraphedStep, tokens: Tensor, targets: Tensor, *_: Tensor) -> tuple[Tensor, Any]:
        step.tokens.copy_(tokens)
        step.targets.copy_(targets)
        step.forward_graph.replay()
        step.replays += 1
        ctx.step, ctx.replay = step, step.replays
        memory = None if step.memory is None else step.memory.clone()
        if memory is not None:
            ctx.mark_non_differentiable(memory)
        return step.losses.clone(), memory

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        step = ctx.step
        if step.replays != ctx.replay:
            raise UserError(
                "A training step ran before the backward pass of the one before it, or that pass was repeated: call "
                "backward once after each step, or leave out `graph_steps`."
            )
        step.replays += 1  # it may write over what it has read: there is no second pass
        step.incoming.copy_(incoming)
        step.backward_graph.replay()
        return (None, None, None, *(None if one is None else one.clone() for one in step.gradients))
