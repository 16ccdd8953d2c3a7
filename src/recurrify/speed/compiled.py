"""Training windows compiled by torch.compile: the base model, its extra inputs, the loss and the memory as one graph.

Only windows that training repeats are compiled: of a full batch, with a memory in all rows or in none. A smaller last
batch and everything outside training run uncompiled.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812 - everyone's name for it
from torch import Tensor
from torch._functorch import config as functorch_config
from transformers.cache_utils import DynamicLayer

from recurrify.context import Past, WindowJob
from recurrify.speed.backends import cudnn_is_safe, with_cudnn, with_padded_queries
from recurrify.speed.compiling import compile_function
from recurrify.speed.head_loss import IGNORE

COMPILATIONS = 64
"""torch's own limit of 8 for one function is low if a process compiles several models."""
ALLOWED = "autograd_cache_allow_custom_autograd_functions"
KEPT_FOR_LATER = {ALLOWED: True} if hasattr(functorch_config, ALLOWED) else {}
"""Let the next process reuse compiled windows although they contain autograd functions of ours. torch excludes these,
because they might change unnoticed; but here they are traced, so that they are part of the cache key."""
WindowResult = tuple[Tensor, Tensor | None, Tensor | None]
"""Losses or hidden states, memory, summary."""


class Choices(NamedTuple):
    """How windows are compiled. None of these changes a result."""

    joined: bool = True
    """Linear layers that read the same input are one product."""
    by_layer: bool = False
    """Compile one layer and use it for all layers like it, instead of a window as one graph: the first step comes
    several times sooner, and operations are not fused across layers."""
    padded: bool = False
    """Windows that attend to kept keys get as many queries as keys: see `backends.attend_to_earlier`."""


AS_ONE = Choices()


def compile_windows(model: Any, rows: int | None = None, choices: Choices = AS_ONE) -> None:
    """Compile a recurrent model's training windows; results are the same within rounding.

    Args:
        model: A `RecurrentPreTrainedModel`. Encoders stay as they are.
        rows: The batch size that training repeats; None takes that of the first batch.
        choices: How windows are compiled.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, COMPILATIONS)
    if model.family.causal:
        model.compiled_window = CompiledWindow(model, rows, choices)


class CompiledWindow:
    """One training window as a function of its tokens and the memory before it."""

    def __init__(self, model: Any, rows: int | None = None, choices: Choices = AS_ONE) -> None:
        self.model = model
        self.rows = rows
        self.choices = choices
        # torch does not guard the choice of kernels: it is part of the compiler's options.
        compiled = {
            cudnn: compile_function(
                run_layer if choices.by_layer else run_full_window,
                f"windows{', cudnn' * cudnn}{', padded' * choices.padded}",
                joins=choices.joined,
                dynamic=False,
            )
            for cudnn in (False, True)
        }
        self.compiled: dict[bool, Callable[..., Any]] = {
            cudnn: partial(run_with_layers, one) if choices.by_layer else one for cudnn, one in compiled.items()
        }
        """Without and with cuDNN's attention."""

    def takes(self, job: WindowJob, live: Tensor) -> bool:
        """Whether training repeats this window; the first one decides on the number of rows."""
        model, rows = self.model, len(job.tokens) // job.windows
        if not (model.training and torch.is_grad_enabled()) or bool(live.any()) != bool(live.all()):
            return False
        if self.rows is None and job.tokens.shape[1] == model.recurrence.window:
            self.rows = rows
        return rows == self.rows

    def __call__(self, job: WindowJob, memory: Tensor | None, statistics: tuple[Tensor, ...]) -> WindowResult:
        """A short last window is padded: attention is causal, and padding is not scored."""
        tokens, targets = job.tokens, job.targets
        scored = tokens.shape[1] - job.first
        missing = self.model.recurrence.window - tokens.shape[1]
        # Slices of batches of different lengths differ in their strides, which would compile them again.
        tokens = F.pad(tokens, (0, missing)).contiguous()
        if targets is not None:
            targets = F.pad(targets, (0, missing), value=IGNORE).contiguous()
        padded = self.choices.padded
        cudnn = attends_plainly(self.model, memory is not None, padded) and cudnn_is_safe(attended_lengths(self.model))
        # torch reads these options when it compiles, which can happen in any call.
        with with_cudnn(cudnn), with_padded_queries(padded), functorch_config.patch(KEPT_FOR_LATER):
            full = job._replace(tokens=tokens, targets=targets)
            top, written, summary = self.compiled[cudnn](self.model, memory, statistics, *full)
        return top[:, :scored], written, summary


def attends_plainly(model: Any, remembers: bool = True, padded: bool = False) -> bool:
    """Whether attention in its windows is causal, without a mask and without dropout.

    Args:
        model: A `RecurrentPreTrainedModel`.
        remembers: Whether the windows have a memory.
        padded: Whether windows with kept keys have as many queries as keys.
    """
    config, mechanism = model.base.config, model.mechanism
    dropped = getattr(config, "attn_pdrop", None) or getattr(config, "attention_dropout", None) or 0.0
    if config._attn_implementation != "sdpa" or dropped:
        return False
    if mechanism is None:
        return True
    if mechanism.changes_attention:
        return False
    return not (mechanism.keys_only and remembers) or (padded and sees_all_slots(mechanism))


def sees_all_slots(mechanism: Any) -> bool:
    """Whether every position sees all kept keys, so that windows need no mask."""
    return mechanism.sees_slots(torch.zeros(1, dtype=torch.long)) is None


def attended_lengths(model: Any) -> set[int]:
    """Positions that layers of a window attend over, extra ones included."""
    window, mechanism = model.recurrence.window, model.mechanism
    if mechanism is None:
        return {window}
    behind = mechanism.inputs_behind
    return {window + slots + extra for slots in (0, *mechanism.slots().values()) for extra in (0, behind)}


def run_full_window(model: Any, memory: Tensor | None, statistics: tuple[Tensor, ...], *job: Any) -> WindowResult:
    """The model's own function for windows in which all rows have a memory, or none."""
    # Made in here: an object from outside would be a reason to compile again for each window.
    result: WindowResult = model.run_job(WindowJob(*job), Past(memory, None), statistics)
    return result


def run_with_layers(run: Callable[..., Any], model: Any, *window: Any) -> WindowResult:
    """`run_full_window` with compiled layers; what is around them runs eagerly."""
    with replaced_layers(model, run):
        return run_full_window(model, *window)


@contextmanager
def replaced_layers(model: Any, run: Callable[..., Any]) -> Iterator[None]:
    """Let `run` run the model's layers inside the context. Their hooks stay outside of it, because they know the number
    of their layer, and code that depends on it would be compiled for each layer."""
    layers = model.family.layers_of(model.base)
    before = [vars(layer).get("forward") for layer in layers]
    for index, layer in enumerate(layers):
        layer.forward = partial(_with_own_cache, partial(run, layer), index)
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            del layer.forward
            if own is not None:
                layer.forward = own


def _with_own_cache(run: Callable[..., Any], index: int, *inputs: Any, **named: Any) -> Any:
    cache = named.get("past_key_values")
    if cache is not None:
        cache.layers += [DynamicLayer() for _ in range(index + 1 - len(cache.layers))]
        named["past_key_values"] = _LayerCache(cache.layers[index])
    return run(*inputs, **named)


class _LayerCache:
    """The cache as one layer sees it, without the layer's number."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self.layer.update(keys, values)
        return found


def run_layer(layer: Any, *inputs: Any, **named: Any) -> Any:
    """A layer's own function."""
    return type(layer).forward(layer, *inputs, **named)
