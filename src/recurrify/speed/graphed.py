"""Whole training steps as CUDA graphs: all windows of a batch, forward and backward, launched at once.

A window launches some hundred kernels, and twenty windows run one after another: launching them takes several times as
long as running them. A graph is captured once per number of windows and then replayed. Only steps that training repeats
are captured: batches of the usual number of rows that start at the beginning of their documents. Shorter rows are
padded; padding is not scored, and causal attention never sees it. All other steps run eagerly, and are compiled after
`WORTH_COMPILING` of them. Checkpointed steps are captured window by window, in `graphed_windows`.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - everyone's name for it
from torch import Tensor
from torch.autograd.function import once_differentiable

from recurrify.context import WindowJob
from recurrify.errors import UserError
from recurrify.packing import Packed, open_windows
from recurrify.speed.capturing import capture
from recurrify.speed.compiled import AS_ONE, Choices, compile_windows
from recurrify.speed.graphed_head import Head
from recurrify.speed.graphed_windows import (
    CheckpointedStep,
    Clock,
    WindowInputs,
    WindowOutputs,
    generator_of,
    on_side,
    unmoved,
)
from recurrify.speed.head_loss import IGNORE, weight_of_losses
from recurrify.speed.parameter_aliases import ParameterAliases
from recurrify.state import State
from recurrify.windows import completed, schedule

WARM_UPS = 3
"""Steps before a capture: the first ones compile and select kernels, which cannot be captured."""
WORTH_COMPILING = 100
"""Steps that are not captured are compiled after this many of them: compiling takes as long as hundreds of steps."""
KEPT_OF_MODEL = 2
"""Size of the weights and their gradients, in multiples of the weights."""
MOST_GRAPHS = 16
"""Each graph takes memory of its own, besides the shared pool."""
NOT_CAPTURED = "Training steps could not be captured as CUDA graphs"


def graph_steps(model: Any, rows: int | None = None, choices: Choices = AS_ONE) -> None:
    """Let a recurrent model on a CUDA device replay its compiled training steps; results are the same.

    Between a step's forward and its backward pass there must be no other step of the same model, and the state that
    such a step returns carries no gradient. The other arguments are those of `compile_windows`.
    """
    # Eager code of some models reads values of their masks on the host, which cannot be captured.
    compile_windows(model, rows, choices)
    if model.graphed_steps is None:
        model.graphed_steps = GraphedSteps(model)


class GraphedSteps:
    """Captured steps by batch shape; each is captured at its first use."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.most_windows = 0
        self.built: tuple[Any, ...] = ()
        self.steps: dict[Key, GraphedStep | CheckpointedStep] = {}
        self.weights: dict[torch.dtype | None, ParameterAliases] = {}
        self.clock = Clock()
        self.refused = False
        """Whether a capture failed: then all steps run compiled."""
        self.others = 0
        """Number of training steps that were not replayed."""

    def compiles_others(self) -> bool:
        """Whether steps that are not replayed are compiled."""
        return self.refused or self.others > WORTH_COMPILING

    def takes(self, packed: Packed, state: State, summed: bool = False) -> bool:
        """Whether this batch is replayed; counts batches that are not."""
        if not self._is_training_step(packed):
            return False
        taken = self._begins_texts(packed, state) and self._has_graph(packed, summed)
        self.others += not taken
        return taken

    def _is_training_step(self, packed: Packed) -> bool:
        model = self.model
        if not (model.training and torch.is_grad_enabled() and packed.tokens.is_cuda):
            return False
        if model.compiled_window is None or self.refused:
            return False
        model.compiled_window.rows = model.compiled_window.rows or len(packed.lengths)
        if model.compiled_window.rows != len(packed.lengths):
            return False  # such windows are not compiled
        return any(weight.requires_grad for weight in model.parameters())

    def _begins_texts(self, packed: Packed, state: State) -> bool:
        """Whether all rows start a document and there is more than one window: one window may have no gradient."""
        fresh = not (bool(state.live.any()) or bool(state.lengths.any()))
        return fresh and packed.tokens.shape[1] > self.model.recurrence.window

    def _has_graph(self, packed: Packed, summed: bool) -> bool:
        """Whether there is a graph for this batch, or one may be captured."""
        built = as_built(self.model)
        if built != self.built:  # weights were replaced, or other ones are trained, or dropout changed
            self.steps.clear()
            self.weights.clear()
            self.built = built
        windows = self._windows(packed)
        if windows > self.most_windows:
            self._forget_former_most()
            self.most_windows = windows
        return self._key(packed, summed) in self.steps or len(self.steps) < MOST_GRAPHS

    def _forget_former_most(self) -> None:
        """Drop graphs of the former largest number of windows: such batches are now padded to a rounded number."""
        most = self.most_windows
        if round_up(most) != most:
            self.steps = {key: step for key, step in self.steps.items() if not (key.filled_up and key.windows == most)}

    def _windows(self, packed: Packed) -> int:
        return len(schedule(packed.tokens.shape[1], self.model.recurrence.window, self.model.recurrence.overlap))

    def _key(self, packed: Packed, summed: bool) -> "Key":
        windows = self._windows(packed)
        half = torch.get_autocast_dtype("cuda") if torch.is_autocast_enabled("cuda") else None
        summed = summed and self.model.has_summable_head(half or self.model.dtype)
        if self.model.recurrence.checkpoint:
            summed = summed and self._may_keep(packed.tokens.shape, half)
            return Key(len(packed.lengths), None, False, half, self.model.recurrence, summed)
        if len(set(packed.lengths)) > 1:
            windows = min(round_up(windows), self.most_windows)
        key = Key(len(packed.lengths), windows, False, half, self.model.recurrence, summed)
        return key._replace(filled_up=set(packed.lengths) != {key.width(windows)})

    def _may_keep(self, shape: torch.Size, half: torch.dtype | None) -> bool:
        """Whether the gradients of the hidden states are small compared with the model. For longer texts the head runs
        twice, so that memory does not grow with the length."""
        width = self.model.base.config.hidden_size
        model = sum(weight.numel() * weight.element_size() for weight in self.model.parameters())
        return shape.numel() * width * (half or self.model.dtype).itemsize <= KEPT_OF_MODEL * model

    def __call__(
        self, packed: Packed, state: State, targets: Tensor, summed: bool = False
    ) -> tuple[Tensor, State] | None:
        """The losses (B, P) and the state after the step; None, and a warning, if the step cannot be captured."""
        key, width = self._key(packed, summed), packed.tokens.shape[1]
        if self.model.compared is not None:
            self.model.compared.check(key)
        missing = key.width(key.windows or self._windows(packed)) - width
        tokens = F.pad(packed.tokens, (0, missing))
        targets = F.pad(targets, (0, missing), value=IGNORE)
        step = self.steps.get(key)
        if step is None:
            try:
                step = self.steps[key] = self._captured(key, packed, state, tokens, targets)
            except RuntimeError as error:
                self._give_up(error)
                return None
        if isinstance(step, CheckpointedStep):
            losses = step.replay(tokens, targets, self._statistics())
            memories, summaries = (torch.stack(one) if one else None for one in (step.memories, step.summaries))
            found = Found(losses, memories, summaries)
        else:
            losses, found = step.replay(tokens, targets), step.found
        return losses[:, :width], self._after(packed, state, found)

    def _give_up(self, error: RuntimeError) -> None:
        self.refused = True
        self.clock.tick()  # the warm-up overwrote what a pending backward pass needs
        self.steps.clear()
        self.weights.clear()
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        warnings.warn(
            f"{NOT_CAPTURED} ({reason}): they run compiled instead.",
            RuntimeWarning,
            stacklevel=2,
        )

    def _captured(
        self, key: "Key", packed: Packed, state: State, tokens: Tensor, targets: Tensor
    ) -> "GraphedStep | CheckpointedStep":
        if key.precision not in self.weights:
            self.weights[key.precision] = ParameterAliases(self.model, key.precision)
        weights, one = self.weights[key.precision], key.recurrence
        head = Head(self.model, weights, key.precision) if key.summed else None
        with capturing(self.model, tokens, self.clock), weights.in_place():
            if key.windows is not None:
                run = whole_rows(self.model, weights, packed, state, key, head)
                return GraphedStep(run, weights, tokens, targets, self.clock, head)
            return CheckpointedStep(
                (self._window(0, head is None), self._window(one.overlap, head is None)),
                WindowInputs(tokens, targets, None, self._statistics()),
                one.window,
                one.overlap,
                one.bptt_windows,
                weights,
                self.clock,
                head,
            )

    def _statistics(self) -> tuple[Tensor, ...]:
        return self.model.mechanism.statistics() if self.model.mechanism is not None else ()

    def _window(self, first: int, scores: bool = True) -> Callable[[WindowInputs], WindowOutputs]:
        """Runs a window; returns losses or, if a separate head scores them, hidden states."""
        model = self.model  # not `self`: a reference cycle would keep graphs until garbage collection

        def run(inputs: WindowInputs) -> WindowOutputs:
            tokens, targets, memory, statistics = inputs
            job = WindowJob(tokens, targets if scores else None, first, writes=True, summed=False)
            return WindowOutputs(*model.compiled_window(job, memory, statistics))

        return run

    def _after(self, packed: Packed, state: State, found: "Found") -> State:
        """The state at the end of each row; only windows that a row fills update statistics."""
        recurrence, device = self.model.recurrence, packed.tokens.device
        filled = torch.tensor([completed(one, recurrence.window, recurrence.overlap) for one in packed.lengths])
        memory, live = None, state.live
        if found.memories is not None and bool(filled.any()):
            last = (filled - 1).clamp(min=0, max=len(found.memories) - 1).to(device)
            memory = found.memories[last, torch.arange(len(last), device=device)]
            live = filled > 0
        if found.summaries is not None and bool(filled.any()):
            taught = (torch.arange(len(found.summaries))[:, None] < filled[None]).flatten().nonzero()[:, 0]
            self.model.learn_statistics([found.summaries.flatten(0, 1)[taught.to(device)]])
        tokens, lengths = open_windows(packed, recurrence.window, recurrence.overlap)
        return State(memory, live, tokens, torch.tensor(lengths), recurrence.memory_settings)


class Key(NamedTuple):
    """What a graph is valid for."""

    rows: int
    windows: int | None
    """None if each window is a graph: then any number of windows works."""
    filled_up: bool
    """Whether rows end before the last window, so that the memory after every window may be needed."""
    precision: torch.dtype | None
    recurrence: Any
    """The model's `MechanismConfig`."""
    summed: bool
    """Whether only the sum of the losses matters."""

    def width(self, windows: int) -> int:
        return self.recurrence.window + (windows - 1) * self.recurrence.stride


def round_up(windows: int) -> int:
    """Round up to three significant binary digits, so that few shapes are captured; at most a quarter is padding."""
    unit = 1 << max(windows.bit_length() - 3, 0)
    return -(-windows // unit) * unit


def as_built(model: torch.nn.Module) -> tuple[Any, ...]:
    """What a graph depends on: addresses of weights and buffers, which of them are trained, training modes, dropout."""
    weights = [(id(one), one.data_ptr(), one.requires_grad) for one in model.parameters()]
    buffers = [one.data_ptr() for one in model.buffers()]
    # Some models store the dropout rate as a number instead of a module.
    dropped = [one.p for one in model.modules() if isinstance(one, torch.nn.Dropout)] + [
        value
        for module in model.modules()
        for name, value in vars(module).items()
        if "dropout" in name and isinstance(value, float)
    ]
    return *weights, *buffers, *(module.training for module in model.modules()), *dropped


class Found(NamedTuple):
    losses: Tensor
    """(B, P)."""
    memories: Tensor | None
    """(W, B, …): the memory behind each window, or (1, B, …), behind the last."""
    summaries: Tensor | None
    """(W, B, …): input of the running statistics."""
    tops: Sequence[Tensor] = ()
    """(B, scored, K) per window: hidden states that a separate head scored."""
    top_gradients: Sequence[Tensor] = ()
    """Gradient of the summed losses with respect to `tops`."""


Run = Callable[[Tensor, Tensor], Found]


def whole_rows(model: Any, weights: ParameterAliases, packed: Packed, state: State, key: Key, head: Head | None) -> Run:
    """Run all windows of full rows; the losses come from the windows or from `head`."""

    def run(tokens: Tensor, targets: Tensor) -> Found:
        full = packed._replace(tokens=tokens, lengths=[tokens.shape[1]] * len(tokens))
        memories: list[Tensor] = []
        summaries, losses, tops, gradients = [], [], [], []
        most = max(len(tokens) * key.recurrence.window, model.tokens_at_once)
        workspace = None if head is None else head.workspace(min(most, tokens.numel()))
        weights.tap()
        wanted = targets if head is None else None
        for one in model.each_window(full, state, wanted, compiles=True, all_memories=key.filled_up):
            losses.append(one.output)
            if head is not None:
                tops.append(one.output)
                losses[-1], gradient = head.score(one.output.detach(), targets[:, one.scored], workspace)
                gradients.append(gradient)
            if one.memory is not None:
                memories += one.memories or [one.memory]
            if one.summary is not None:
                summaries.append(one.summary)
            weights.tap()  # for the next one
        return Found(
            torch.cat(losses, dim=1),
            torch.stack(memories if key.filled_up else memories[-1:]).detach() if memories else None,
            torch.stack(summaries).detach() if summaries else None,
            tops,
            gradients,
        )

    return run


@contextmanager
def capturing(model: torch.nn.Module, tokens: Tensor, clock: Clock) -> Iterator[None]:
    """Context of a capture; restores buffers and the random generator."""
    if clock.memory is None:
        clock.memory = torch.cuda.graph_pool_handle()
    half = torch.is_autocast_enabled("cuda")
    # A cached cast of a weight would be captured once and never repeated.
    cast = torch.autocast("cuda", torch.get_autocast_dtype("cuda"), enabled=half, cache_enabled=False)
    before = [(buffer, buffer.clone()) for buffer in model.buffers()]
    # Memory of earlier eager steps is cached for another stream.
    torch.cuda.empty_cache()
    with cast, torch.cuda.device(tokens.device), unmoved(generator_of(tokens)), warnings.catch_warnings():
        # Some torch versions read `.grad` of tensors that are not leaves.
        warnings.filterwarnings("ignore", message=r"The \.grad attribute of a Tensor that is not a leaf")
        yield
    for buffer, value in before:
        buffer.copy_(value)
    # Memory of the warm-up, as much as the graphs use.
    torch.cuda.empty_cache()


class GraphedStep:
    """Two graphs, and the tensors that they read and write."""

    def __init__(
        self, run: Run, weights: ParameterAliases, tokens: Tensor, targets: Tensor, clock: Clock, head: Head | None
    ) -> None:
        self.run, self.weights, self.clock, self.head = run, weights, clock, head
        self.tokens, self.targets = tokens.clone(), targets.clone()
        self.found: Found
        for _ in range(WARM_UPS):
            on_side(tokens, self._pass_forward)
            self.incoming = torch.ones_like(self.found.losses)
            on_side(tokens, self._pass_back)
        weights.reached.clear()
        self.forward = capture(self._pass_forward, clock.memory)
        self.back = capture(self._pass_back, clock.memory)
        self.reached = set(weights.reached) | (set() if head is None else head.reached)
        # Keep only what callers read: other graphs may reuse the remaining memory.
        self.found = self.found._replace(losses=self.found.losses.detach(), tops=(), top_gradients=())

    def _pass_forward(self) -> None:
        self.weights.refresh()
        torch._foreach_zero_(self.weights.sums)
        with torch.enable_grad():
            self.found = self.run(self.tokens, self.targets)

    def _pass_back(self) -> None:
        ends: list[tuple[Tensor, Tensor]] = [(self.found.losses, self.incoming)]
        if self.head is not None:
            incoming, common = weight_of_losses(self.incoming, self.targets)
            if self.head.sum is not None:
                self.head.sum.mul_(common)
            parts = incoming.split([top.shape[1] for top in self.found.tops], dim=1)
            scored = zip(self.found.tops, self.found.top_gradients, parts, strict=True)
            ends = [(top, (gradient * part[..., None]).to(top.dtype)) for top, gradient, part in scored]
        ends = [one for one in ends if one[0].requires_grad]  # the first window of a frozen base has no gradient
        # The gradients of the leaves are summed by the taps; they are requested so that the pass reaches them.
        torch.autograd.grad([end for end, _ in ends], self.weights.leaves, [one for _, one in ends], allow_unused=True)

    def replay(self, tokens: Tensor, targets: Tensor) -> Tensor:
        losses: Tensor = _Replay.apply(self, tokens, targets, *self.weights.weights)
        return losses


class _Replay(torch.autograd.Function):
    """The graphs as one autograd operation; returns copies, because the next replay overwrites the graph's tensors."""

    @staticmethod
    def forward(ctx: Any, step: GraphedStep, tokens: Tensor, targets: Tensor, *_: Tensor) -> Tensor:
        step.tokens.copy_(tokens)
        step.targets.copy_(targets)
        step.forward()
        ctx.step, ctx.time = step, step.clock.tick()
        return step.found.losses.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor | None, ...]:
        step = ctx.step
        if step.clock.passes != ctx.time:
            raise UserError(
                "A training step ran before the backward pass of the one before it, or that pass was repeated: call "
                "backward once after each step, or leave out `graph_steps`."
            )
        step.clock.tick()  # the graph may overwrite its inputs: no second backward pass
        step.incoming.copy_(incoming)
        step.back()
        return (None, None, None, *step.weights.gradients(step.reached))
