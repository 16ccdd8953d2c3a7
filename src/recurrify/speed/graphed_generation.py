"""One generation step as a CUDA graph: launching its hundred small kernels takes longer than running them.

Keys and values are in buffers of fixed size, so one graph serves every position of every window. It reads fixed
tensors: the newest tokens, their positions, and a copy of the memory, which is updated when a window is full. What
becomes of the hidden states is in it, too: logits, or the choice of the next token.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from recurrify.speed.capturing import capture, on_side_stream
from recurrify.speed.gelu import QuickInTraining
from recurrify.state import State

STEPS_BEFORE = 4
"""Eager steps before a capture, so that generating a few tokens does not wait for one."""
WARM_UPS = 2

Step = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Maps tokens (B, 1), their positions in the window (B,) and the memory to what is asked of the step."""
Finish = Callable[[Tensor], Tensor]
"""The end of a step: maps hidden states (B, 1, K) to its result."""


def graph_generation(model: Any) -> None:
    """Let a recurrent model on a CUDA device generate with CUDA graphs and GELU as one kernel. Greedy decoding and
    sampling of tokens alone do not wait for the host between steps. Tokens are the same except for ties within
    rounding."""
    model.graphs_generation = True
    for module in model.modules():
        if isinstance(module, QuickInTraining):
            module.always = True


class DecodingGraphs:
    """The graphs of one generated text, by the end of the step: without a memory (first window) and with one."""

    def __init__(self) -> None:
        self.steps: Counter[tuple[Finish, bool]] = Counter()
        self.graphs: dict[tuple[Finish, bool], DecodingGraph] = {}

    def take(
        self, model: Any, state: State, tokens: Tensor, places: Tensor, step: Step, finish: Finish
    ) -> Tensor | None:
        """The replayed result of `step`, which ends with `finish`; None if this step must run eagerly."""
        remembers = bool(state.live.any())
        if not can_capture(model, tokens) or remembers != bool(state.live.all()):
            return None
        kind = finish, remembers
        self.steps[kind] += 1
        if self.steps[kind] <= STEPS_BEFORE:
            return None
        if kind not in self.graphs:
            self.graphs[kind] = DecodingGraph(tokens, places, state.memory, step)
        return self.graphs[kind].replay(tokens, places, state.memory)


def can_capture(model: Any, tokens: Tensor) -> bool:
    """Not if a mechanism changes attention: it reads positions on the host."""
    mixes = model.mechanism is not None and model.mechanism.changes_attention
    plain = not torch.is_grad_enabled() and not torch.is_autocast_enabled(tokens.device.type)
    return bool(model.graphs_generation and tokens.is_cuda and plain and not mixes)


class DecodingGraph:
    def __init__(self, tokens: Tensor, places: Tensor, memory: Tensor | None, step: Step) -> None:
        self.tokens, self.places = tokens.clone(), places.clone()
        self.copied = memory
        self.memory = None if memory is None else memory.clone()
        self.run = captured(lambda: step(self.tokens, self.places, self.memory), tokens.device)

    def replay(self, tokens: Tensor, places: Tensor, memory: Tensor | None) -> Tensor:
        self.tokens.copy_(tokens)
        self.places.copy_(places)
        if self.memory is not None and memory is not None and memory is not self.copied:
            self.memory.copy_(memory)
            self.copied = memory
        return self.run().clone()


def captured(function: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
    """Capture the function's kernels; calling the result runs them again and returns the tensor that they write."""
    written: list[Tensor] = []
    with torch.cuda.device(device):
        with torch.random.fork_rng([device]):  # a seed gives the text that it gives without graphs
            for _ in range(WARM_UPS):  # writes the same newest keys and values again
                on_side_stream(function)
        replay = capture(lambda: written.append(function()))

    def run() -> Tensor:
        replay()
        return written[0]

    return run
