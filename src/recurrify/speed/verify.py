"""Compiled and captured steps are used for training only after they agree with the eager step.

Training compares each kind of step when it first occurs, with that batch: see `Compared`. torch's compiler has produced
wrong gradients in several versions (see `recurrify.speed.compiling`), and other versions may do so, too. On a mismatch,
or if the compiled step fails, training continues eagerly, with one warning that names the torch version.

| precision of products | loss | gradient | gradient of one parameter |
|---|---|---|---|
| float32, float64 | 0.1 % | 1 % | 10 % |
| bfloat16 | 1 % | 8 % | 50 % |
| float16 | 1 % | 3 % | 30 % |

The numbers are the largest allowed differences, relative to the eager step: of the loss, of the gradients of all base
or all added parameters together (in the 2-norm), and of each parameter whose gradient is not tiny. Known faults are
larger (2 % in float32, 26 % in bfloat16). Where matrix products are in 16 bits, the rounding of some pretrained models
is larger than that, too: both steps are then compared with the eager step in float32, and the compiled one may be
`ROUNDING` times as far from it as the eager one.

Eager and compiled code draw different random numbers. During the comparison the rate of dropout is therefore `FAINT`:
the compiled step has the same operations and the same kernels as in training, and drops nothing. A model with dropout
is compiled twice; the two programs differ in the rate alone.
"""

import math
import warnings
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from recurrify.errors import UserError, first_line, is_out_of_memory
from recurrify.speed.head_loss import IGNORE
from recurrify.speed.products import product_dtype

EAGER_PARTS = 8
"""The eager step runs the rows of a batch in so many parts, so that it needs no more memory than the compiled one."""
TINY = 1e-3
"""Gradients smaller than this share of all are not compared one by one: they are mostly rounding."""
ROUNDING = 2.0
"""How many times as far as the eager step a compiled step may be from the step in float32."""
MOST = 0.5
"""Where the eager step is further than this from the step in float32, the compiled one may be as far, not further."""


FAINT = 1e-9
"""Rate of dropout during a comparison: too low to drop anything, but not 0, so that the compiled code still draws its
random numbers and multiplies by its masks."""


Found = TypeVar("Found")


class Tolerance(NamedTuple):
    """Relative differences."""

    loss: float
    gradient: float
    parameter: float


TOLERANCES = {
    torch.float64: Tolerance(1e-3, 1e-2, 0.1),
    torch.float32: Tolerance(1e-3, 1e-2, 0.1),
    torch.bfloat16: Tolerance(1e-2, 8e-2, 0.5),
    torch.float16: Tolerance(1e-2, 3e-2, 0.3),
}


class Step(NamedTuple):
    """The loss and the gradients of all trained parameters, by name; None where no gradient arrived."""

    loss: Tensor
    gradients: dict[str, Tensor | None]


class NotComparedError(Exception):
    """A compiled or captured step is of a kind that was not compared."""


class Compared:
    """The kinds of compiled windows and captured steps that agree with eager ones. What is compiled or captured
    separately is a kind: windows with a memory or without, batches with more windows."""

    def __init__(self) -> None:
        self.kinds: set[Hashable] = set()
        self.mode: Literal["checks", "notes", ""] = ""
        self.compare: Callable[[], object]

    @contextmanager
    def during(self, model: Any, compare: Callable[[], object]) -> Iterator[None]:
        """Call `compare` when a forward pass of `model` in this context meets a kind for the first time."""
        self.compare, model.compared = compare, self
        try:
            yield
        finally:
            model.compared = None

    def check(self, kind: Hashable) -> None:
        """Called before a compiled window or a captured step runs."""
        if self.mode == "notes":
            self.kinds.add(kind)
        elif self.mode == "checks" and kind not in self.kinds:
            raise NotComparedError

    def run(self, windows: Callable[[], Found]) -> Found:
        """The results of a batch's windows. They run again, with the same random numbers, after a comparison. This is
        inside the model's forward pass, because processes that share gradients count the passes."""
        if self.mode == "notes":
            return windows()
        generators = [torch.default_generator, *torch.cuda.default_generators]
        before = [one.get_state() for one in generators]
        try:
            self.mode = "checks"
            return windows()
        except NotComparedError:
            for one, state in zip(generators, before, strict=True):
                one.set_state(state)
        finally:
            self.mode = ""
        try:  # not inside `except`: the error holds the memory of the first attempt
            self.mode = "notes"
            self.compare()
        finally:
            self.mode = ""
        return windows()


def verify_windows(
    model: Any, inputs: dict[str, Tensor], autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> bool:
    """Compare a recurrent model's compiled or captured step with its eager step, and switch it off on a mismatch.

    Weights, gradients, buffers and random numbers are the same afterwards.

    Args:
        model: A `RecurrentPreTrainedModel` in training, after `compile_windows` or `graph_steps`.
        inputs: A training batch: tensors (rows, …) with `input_ids`, and `labels` or `targets`.
        autocast: The context in which training steps run.

    Returns:
        Whether the step agrees, or is not compiled.
    """
    fast = getattr(model, "compiled_window", None), getattr(model, "graphed_steps", None)
    if fast == (None, None):
        return True  # eager, or a model that has no windows of ours
    wanted = inputs["targets"] if "targets" in inputs else inputs["labels"][:, 1:]
    scored = int((wanted != IGNORE).sum())
    checkpoint = model.recurrence.checkpoint
    with _own_randomness(model), _own_forward(model), autocast(), _faint_dropout(model):
        try:
            ours = take_step(model, lambda: model(**inputs, num_items_in_batch=scored).loss)
        except Exception as error:
            if isinstance(error, UserError) or is_out_of_memory(error):
                raise
            warn_of(f"fails ({type(error).__name__}: {first_line(error)})")
            return False
        finally:
            model.compiled_window = model.graphed_steps = None
        try:
            model.set_recurrence(checkpoint=True)
            theirs = _in_parts(model, inputs, scored)
            weight = next(model.parameters())
            dtype = product_dtype(weight)
            exact = None
            if dtype != weight.dtype:
                with torch.autocast(weight.device.type, enabled=False):
                    exact = _in_parts(model, inputs, scored)
        finally:
            model.set_recurrence(checkpoint=checkpoint)
    difference = compare_steps(ours, theirs, dtype, lambda name: name.startswith("mechanism."), exact)
    if difference is not None:
        warn_of(f"differs from the eager one ({difference})")
        return False
    model.compiled_window, model.graphed_steps = fast
    return True


def verify_step(
    model: nn.Module,
    fast: Callable[[], Tensor],
    eager: Callable[[], Tensor],
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> bool:
    """Whether the compiled step of any model agrees with its eager step; warns if it does not.

    Args:
        model: The model, in training.
        fast: Gives the loss of a training batch, compiled.
        eager: Gives it without compilation.
        autocast: The context in which training steps run.
    """
    weight = next(model.parameters())
    with _own_randomness(model), autocast(), _faint_dropout(model):
        ours, theirs = take_step(model, fast), take_step(model, eager)
        dtype = product_dtype(weight)
        difference = compare_steps(ours, theirs, dtype)
        if difference is not None and dtype != weight.dtype:  # it may be rounding
            with torch.autocast(weight.device.type, enabled=False), _own_forward(model):
                difference = compare_steps(ours, theirs, dtype, exact=take_step(model, eager))
    if difference is not None:
        warn_of(f"differs from the eager one ({difference})")
    return difference is None


def warn_of(fault: str, kind: str = "compiled") -> None:
    """One warning that names the torch version."""
    warnings.warn(
        f"The {kind} training step of torch {torch.__version__} {fault}: training continues without it. "
        "Please report it, with the torch version and the GPU.",
        RuntimeWarning,
        stacklevel=3,
    )


def take_step(model: nn.Module, loss_of: Callable[[], Tensor]) -> Step:
    """A training step without an update; the parameters' own `.grad` and all buffers stay the same."""
    trained = {name: weight for name, weight in model.named_parameters() if weight.requires_grad}
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    loss = loss_of()
    found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
    with torch.no_grad():
        for buffer, value in buffers:
            buffer.copy_(value)
    return Step(loss.detach(), dict(zip(trained, found, strict=True)))


def compare_steps(
    ours: Step,
    theirs: Step,
    dtype: torch.dtype,
    is_added: Callable[[str], bool] = lambda name: False,
    exact: Step | None = None,
) -> str | None:
    """What differs by more than is allowed; None if nothing does. `exact` is the eager step in float32, if `theirs` is
    in 16 bits."""
    wanted, allowed = exact or theirs, TOLERANCES[dtype]
    off, rounding = (_relative(step.loss, wanted.loss) for step in (ours, theirs))
    if not off <= max(allowed.loss, _explained(rounding)):
        return f"the loss by {off:.2g} of it{_beside(exact, rounding)}"
    for added in (False, True):
        names = [name for name in wanted.gradients if is_added(name) == added]
        norms = [_norm(wanted.gradients[name]) for name in names]
        errors, roundings = ([_distance(step, wanted, name) for name in names] for step in (ours, theirs))
        whole = math.hypot(*norms)
        off, rounding = (_share(math.hypot(*one), whole) for one in (errors, roundings))
        if not off <= max(allowed.gradient, _explained(rounding)):
            which = "added" if added else "base"
            return f"the gradients of the {which} parameters by {off:.2g} of their norm{_beside(exact, rounding)}"
        for name, norm, error, noise in zip(names, norms, errors, roundings, strict=True):
            off, rounding = _share(error, norm), _share(noise, norm)
            if norm > TINY * whole and not off <= max(allowed.parameter, _explained(rounding)):
                return f"the gradient of {name} by {off:.2g} of its norm{_beside(exact, rounding)}"
    return None


def _beside(exact: Step | None, rounding: float) -> str:
    """In a message: how far the eager step itself is from the step in float32, if that was computed."""
    return "" if exact is None else f" from the step in float32, from which the eager one differs by {rounding:.2g}"


def _explained(rounding: float) -> float:
    """The difference that rounding explains, from that of the eager step."""
    return min(ROUNDING * rounding, max(MOST, rounding))


def _norm(gradient: Tensor | None) -> float:
    return 0.0 if gradient is None else float(gradient.double().norm())


def _distance(step: Step, other: Step, name: str) -> float:
    def of(found: Step) -> Tensor:
        gradient = found.gradients[name]
        return torch.zeros(()) if gradient is None else gradient.double().cpu()

    return float((of(step) - of(other)).norm())


def _relative(ours: Tensor, theirs: Tensor) -> float:
    return _share(float((ours.double() - theirs.double()).abs()), float(theirs.double().abs()))


def _share(error: float, norm: float) -> float:
    return 0.0 if error == 0 else error / norm if norm else float("inf")


def _in_parts(model: Any, inputs: dict[str, Tensor], scored: int) -> Step:
    """The eager step, summed over parts of the batch's rows."""
    rows = len(inputs["input_ids"])
    total: Step | None = None
    for part in torch.arange(rows).split(max(1, -(-rows // EAGER_PARTS))):
        chosen = {name: value[part.to(value.device)] for name, value in inputs.items()}
        step = take_step(model, partial(_loss_of, model, chosen, scored))
        total = step if total is None else _sum(total, step)
    assert total is not None, "a batch has rows"
    return total


def _loss_of(model: Any, inputs: dict[str, Tensor], scored: int) -> Tensor:
    loss: Tensor = model(**inputs, num_items_in_batch=scored).loss
    if loss.requires_grad:
        return loss
    # A frozen base and texts of one window: nothing was read from a memory.
    return loss + 0.0 * sum(weight.sum() for weight in model.parameters() if weight.requires_grad)


def _sum(one: Step, other: Step) -> Step:
    gradients = dict(one.gradients)
    for name, value in other.gradients.items():
        mine = gradients[name]
        gradients[name] = value if mine is None else mine if value is None else mine + value
    return Step(one.loss + other.loss, gradients)


@contextmanager
def _own_forward(model: nn.Module) -> Iterator[None]:
    """Without the autocast that Trainer puts around a model's forward pass, which cannot be entered twice."""
    wrapped = vars(model).pop("forward", None)
    try:
        yield
    finally:
        if wrapped is not None:
            model.forward = wrapped


def _own_randomness(model: nn.Module) -> AbstractContextManager[None]:
    """Random numbers continue afterwards where they were."""
    return torch.random.fork_rng(sorted({weight.device.index for weight in model.parameters() if weight.is_cuda}))


@contextmanager
def _faint_dropout(model: nn.Module) -> Iterator[None]:
    """Lower the rates of dropout modules, and the numbers that some models have instead, to `FAINT`."""
    found = [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if isinstance(value, float) and ("dropout" in name or (name == "p" and isinstance(module, nn.Dropout)))
    ]
    try:
        for module, name, value in found:
            setattr(module, name, min(value, FAINT))
        yield
    finally:
        for module, name, value in found:
            setattr(module, name, value)
