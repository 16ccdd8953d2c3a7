"""Checkpointed training steps as CUDA graphs: texts of any length in the memory of one window.

Two kinds of window are captured: the first window of a text, and the windows after it. Each kind has two graphs: the
forward pass, and the forward pass again with the backward pass. A step replays the first graph along the text and the
second one backwards; between them it keeps only the memory before each window. Gradients of the weights are summed in
one place.

The head is a large part of a small model. If all losses have the same weight, it runs once: its gradients are computed
with the losses, and each window also keeps the gradient of its hidden states.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from recurrify.speed.capturing import capture, on_side_stream
from recurrify.speed.graphed_head import Head
from recurrify.speed.head_loss import weight_of_losses
from recurrify.speed.parameter_aliases import ParameterAliases
from recurrify.windows import Window, schedule

WARM_UPS = 2
"""Passes before a capture: the first ones compile and select kernels, which cannot be captured."""


class Clock:
    """Counts passes. Graphs of one model share a memory pool: results of a pass are valid until the next pass."""

    def __init__(self) -> None:
        self.passes = 0
        self.memory: Any = None

    def tick(self) -> int:
        self.passes += 1
        return self.passes


class WindowInputs(NamedTuple):
    tokens: Tensor
    """(B, window)."""
    targets: Tensor
    """(B, scored): targets of the tokens that no earlier window scored."""
    memory: Tensor | None
    statistics: tuple[Tensor, ...]


class WindowOutputs(NamedTuple):
    top: Tensor
    """(B, scored) losses, or (B, scored, K) hidden states for a head."""
    memory: Tensor | None
    summary: Tensor | None

    def each(self, act: Callable[[Tensor], Tensor]) -> "WindowOutputs":
        memory, summary = (None if one is None else act(one) for one in self[1:])
        return WindowOutputs(act(self.top), memory, summary)


RunWindow = Callable[[WindowInputs], WindowOutputs]


class WindowGraphs:
    """The graphs of one kind of window, and the tensors that they read and write."""

    def __init__(
        self, run: RunWindow, head: Head | None, inputs: WindowInputs, weights: ParameterAliases, pool: Any
    ) -> None:
        self.run, self.head, self.weights = run, head, weights
        memory = None if inputs.memory is None else inputs.memory.detach().clone().requires_grad_()
        self.inputs = inputs._replace(tokens=inputs.tokens.clone(), targets=inputs.targets.clone(), memory=memory)
        self.top_gradient: Tensor | None = None
        """Gradient of the summed losses with respect to the hidden states, if there is a head."""
        on_side(inputs.tokens, self._pass_forward)
        self.incoming = torch.zeros_like(self.outputs.top if head is None else self.top)
        self.incoming_memory = None if self.outputs.memory is None else torch.zeros_like(self.outputs.memory)
        for _ in range(WARM_UPS):
            on_side(inputs.tokens, self._pass_back)
        weights.reached.clear()
        self.forward = capture(self._pass_forward, pool)
        self.back = capture(self._pass_back, pool)
        self.reached = set(weights.reached)

    def _pass_forward(self) -> None:
        # Gradients are enabled although none are computed: the same compiled code draws the same random numbers.
        with torch.enable_grad():
            self.weights.tap()
            found = self.run(self.inputs)
        self.outputs = found.each(Tensor.detach)
        if self.head is not None:
            self.top = self.outputs.top
            losses, self.top_gradient = self.head.score(self.top, self.inputs.targets)
            self.outputs = self.outputs._replace(top=losses)

    def _pass_back(self) -> None:
        memory = [] if self.inputs.memory is None else [self.inputs.memory]
        with torch.enable_grad():
            self.weights.tap()
            found = self.run(self.inputs)
            ends = [(found.top, self.incoming)]
            if found.memory is not None and self.incoming_memory is not None:
                ends.append((found.memory, self.incoming_memory))
            ends = [one for one in ends if one[0].requires_grad]  # the first window of a frozen base has no gradient
            # The taps sum the weights' gradients; they are requested so that the pass reaches them.
            *_, reached = torch.autograd.grad(
                [end for end, _ in ends], [*self.weights.leaves, *memory], [one for _, one in ends], allow_unused=True
            )
        self.memory_gradient = reached if memory else None

    def replay_forward(self, inputs: WindowInputs) -> tuple[WindowOutputs, Tensor | None]:
        """Losses, memory and summary, and the gradient of the hidden states if there is a head. These are copies: the
        next replay overwrites the graph's tensors."""
        self._read(inputs)
        self.forward()
        return self.outputs.each(Tensor.clone), None if self.top_gradient is None else self.top_gradient.clone()

    def replay_back(
        self, inputs: WindowInputs, top_gradient: Tensor | None, incoming: Tensor, incoming_memory: Tensor | None
    ) -> Tensor | None:
        """Add to the summed gradients; return the gradient of the memory before the window."""
        self._read(inputs)
        if top_gradient is None:
            self.incoming.copy_(incoming)
        else:
            torch.mul(top_gradient, incoming[..., None], out=self.incoming)
        if self.incoming_memory is not None:
            if incoming_memory is None:
                self.incoming_memory.zero_()
            else:
                self.incoming_memory.copy_(incoming_memory)
        self.back()
        return None if self.memory_gradient is None else self.memory_gradient.clone()

    @torch.no_grad()
    def _read(self, inputs: WindowInputs) -> None:
        self.inputs.tokens.copy_(inputs.tokens)
        self.inputs.targets.copy_(inputs.targets)
        if self.inputs.memory is not None:
            assert inputs.memory is not None
            self.inputs.memory.copy_(inputs.memory)


def on_side(tokens: Tensor, step: Callable[[], None]) -> None:
    if tokens.is_cuda:
        on_side_stream(step)
    else:
        step()


def generator_of(tokens: Tensor) -> torch.Generator:
    if tokens.is_cuda:
        return torch.cuda.default_generators[tokens.device.index]
    return torch.default_generator


@contextmanager
def unmoved(generator: torch.Generator) -> Iterator[None]:
    """Restore the generator's state afterwards."""
    state = generator.get_state()
    try:
        yield
    finally:
        generator.set_state(state)


class CheckpointedStep:
    """A training step over any number of windows."""

    def __init__(
        self,
        runs: tuple[RunWindow, RunWindow],
        inputs: WindowInputs,
        window: int,
        overlap: int,
        bptt_windows: int | None,
        weights: ParameterAliases,
        clock: Clock,
        head: Head | None = None,
    ) -> None:
        """`runs`: the first window and a later window; `inputs`: a text of at least two windows."""
        self.head = head
        self.window, self.overlap, self.bptt_windows, self.clock = window, overlap, bptt_windows, clock
        self.statistics = tuple(one.clone() for one in inputs.statistics)
        self.weights = weights
        weights.refresh()
        first, second = schedule(2 * window - overlap, window, overlap)
        one = self._inputs(inputs.tokens, inputs.targets, first, None)
        self.first = WindowGraphs(runs[0], head, one, weights, clock.memory)
        memory = self.first.replay_forward(one)[0].memory
        two = self._inputs(inputs.tokens, inputs.targets, second, memory)
        self.later = WindowGraphs(runs[1], head, two, weights, clock.memory)

    def _inputs(self, tokens: Tensor, targets: Tensor, span: Window, memory: Tensor | None) -> WindowInputs:
        return WindowInputs(
            tokens[:, span.start : span.stop], targets[:, span.first : span.stop], memory, self.statistics
        )

    def replay(self, tokens: Tensor, targets: Tensor, statistics: tuple[Tensor, ...]) -> Tensor:
        """(B, P) losses. The windows' memories and summaries are in `memories` and `summaries`."""
        for mine, now in zip(self.statistics, statistics, strict=True):
            mine.copy_(now)
        losses: Tensor = _Replay.apply(self, tokens, targets, *self.weights.weights)
        return losses

    def forward(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, "Kept"]:
        self.clock.tick()
        self.weights.refresh()
        kept = Kept(tokens, targets, tuple(one.clone() for one in self.statistics), [], [], [])
        head_sum = None if self.head is None else self.head.sum
        if head_sum is not None:
            head_sum.zero_()
        generator, memory = generator_of(tokens), None
        self.memories: list[Tensor] = []
        self.summaries: list[Tensor] = []
        losses = []
        for index, span in enumerate(schedule(tokens.shape[1], self.window, self.overlap)):
            kept.memories.append(memory)
            kept.random.append(generator.get_state())
            graphs = self.later if index else self.first
            found, top_gradient = graphs.replay_forward(self._inputs(tokens, targets, span, memory))
            kept.top_gradients.append(top_gradient)
            losses.append(found.top)
            memory = found.memory
            if found.memory is not None:
                self.memories.append(found.memory)
            if found.summary is not None:
                self.summaries.append(found.summary)
        return torch.cat(losses, dim=1), kept._replace(head_gradient=None if head_sum is None else head_sum.clone())

    def back(self, kept: "Kept", incoming: Tensor) -> list[Tensor | None]:
        """The gradients of the weights; None for weights that no window uses, which the optimizer then skips."""
        self.clock.tick()
        reached = self.first.reached | self.later.reached
        torch._foreach_zero_(self.weights.sums)
        if self.head is not None:
            incoming, common = weight_of_losses(incoming, kept.targets)
            if kept.head_gradient is not None and self.head.sum is not None:
                self.head.sum.addcmul_(kept.head_gradient, common)
            reached |= self.head.reached
        for mine, then in zip(self.statistics, kept.statistics, strict=True):
            mine.copy_(then)
        generator = generator_of(kept.tokens)
        spans = schedule(kept.tokens.shape[1], self.window, self.overlap)
        flowing: Tensor | None = None
        with unmoved(generator):
            for index in reversed(range(len(spans))):
                span, graphs = spans[index], self.later if index else self.first
                generator.set_state(kept.random[index])
                inputs = self._inputs(kept.tokens, kept.targets, span, kept.memories[index])
                weight = incoming[:, span.first : span.stop]
                flowing = graphs.replay_back(inputs, kept.top_gradients[index], weight, flowing)
                if self.bptt_windows is not None and index % self.bptt_windows == 0:
                    flowing = None
        return self.weights.gradients(reached)


class Kept(NamedTuple):
    """What the forward pass saves for the backward pass."""

    tokens: Tensor
    targets: Tensor
    statistics: tuple[Tensor, ...]
    memories: list[Tensor | None]
    """Before each window."""
    random: list[Tensor]
    """The generator's state before each window, so that both passes use the same dropout."""
    top_gradients: list[Tensor | None]
    """Per window: gradient of the summed losses with respect to the hidden states, if there is a head."""
    head_gradient: Tensor | None = None
    """Gradient of the summed losses with respect to the head's weights, if they are trained."""


class _Replay(torch.autograd.Function):
    """A step as one autograd operation."""

    @staticmethod
    def forward(ctx: Any, step: CheckpointedStep, tokens: Tensor, targets: Tensor, *_: Tensor) -> Tensor:
        losses, ctx.kept = step.forward(tokens, targets)
        ctx.step = step
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:
        return (None, None, None, *ctx.step.back(ctx.kept, incoming))
