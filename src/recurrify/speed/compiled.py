"""Training windows compiled by torch.compile: the base model, its extra inputs, the loss and the memory as one graph.

Only what training repeats is compiled: a window of a full batch, with a memory in all rows or in none. A smaller last
batch and everything outside training run as they are instead of being compiled once more.
"""

from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everyone's name for it
from torch import Tensor
from torch._functorch import config as functorch_config
from torch.compiler import config as compiler_config

from recurrify.families import Traffic, run_backbone
from recurrify.mechanisms.base import Mechanism, Past
from recurrify.modeling.model import IGNORE, RecurrentPreTrainedModel, token_losses
from recurrify.speed.backends import chosen_kernels, cudnn_is_safe, with_cudnn
from recurrify.speed.compiling import compiled

COMPILATIONS = 64
"""torch's own limit of 8 for one function is low where several models of a process are compiled."""
ALLOWED = "autograd_cache_allow_custom_autograd_functions"
KEPT_FOR_LATER = {ALLOWED: True} if hasattr(functorch_config, ALLOWED) else {}
"""What was compiled is found again by the next process, although our own gradients are in it: torch leaves those out
for fear that they change unnoticed, but traced as here they are part of what it looks for."""


def compile_windows(model: RecurrentPreTrainedModel, rows: int | None = None, memory_budget: float = 1.0) -> None:
    """Compile the model's training windows; it computes what it did, within rounding.

    `rows` is the size of a batch that training repeats; without it, that of the first batch. `memory_budget` is the
    share of a window's activations that are kept for the backward pass: the rest, what is cheapest, is computed again.
    """
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, COMPILATIONS)
    if model.family.causal:
        model.compiled_window = CompiledWindow(model, rows, memory_budget)


class CompiledWindow:
    """One training window as a function of its tokens and the memory before it."""

    def __init__(self, model: RecurrentPreTrainedModel, rows: int | None = None, memory_budget: float = 1.0) -> None:
        self.model = model
        self.rows = rows
        self.memory_budget = memory_budget
        self.compiled: dict[bool, Callable[..., Any]] = {
            cudnn: compiled(window_function(memory_budget, cudnn), dynamic=False) for cudnn in (False, True)
        }
        """Without and with cuDNN's attention."""

    def takes(self, tokens: Tensor, live: Tensor) -> bool:
        """Whether this is the window that training repeats; the first one decides on the number of rows."""
        model = self.model
        if not (model.training and torch.is_grad_enabled()) or bool(live.any()) != bool(live.all()):
            return False
        if self.rows is None and tokens.shape[1] == model.recurrence.window:
            self.rows = len(tokens)
        return len(tokens) == self.rows

    def __call__(
        self,
        tokens: Tensor,
        targets: Tensor | None,
        memory: Tensor | None,
        statistics: tuple[Tensor, ...],
        first: int,
        writes: bool,
        summed: bool = False,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """A short last window is filled up: nobody looks ahead, and filler is not scored."""
        scored = tokens.shape[1] - first
        missing = self.model.recurrence.window - tokens.shape[1]
        # Slices of batches of different lengths differ in their strides: one more reason to compile anew.
        tokens = F.pad(tokens, (0, missing)).contiguous()
        if targets is not None:
            targets = F.pad(targets, (0, missing), value=IGNORE).contiguous()
        cudnn = attends_plainly(self.model) and cudnn_is_safe(attended_lengths(self.model))
        # torch reads all of it when it compiles, which is whenever a call is unlike those before.
        kept = functorch_config.patch({"activation_memory_budget": self.memory_budget, **KEPT_FOR_LATER})
        with with_cudnn(cudnn), kept, compiler_config.patch(cache_key_tag=chosen_kernels()):  # type: ignore[attr-defined]
            top, written, summary = self.compiled[cudnn](
                self.model, tokens, targets, memory, statistics, first, writes, summed
            )
        return top[:, :scored], written, summary


@cache
def window_function(memory_budget: float, cudnn: bool) -> Callable[..., Any]:
    """`run_full_window` under a code object of its own for each budget and choice of kernels: what torch has compiled
    it finds by that, and does not ask for those that it had then."""
    code = run_full_window.__code__.replace(co_name=f"run_full_window_within_{memory_budget!r}{'_cudnn' * cudnn}")
    return FunctionType(code, run_full_window.__globals__, code.co_name)


def attends_plainly(model: RecurrentPreTrainedModel) -> bool:
    """Whether attention in its windows is causal, without a mask and without dropout."""
    config, mechanism = model.base.config, model.mechanism
    dropped = getattr(config, "attn_pdrop", None) or getattr(config, "attention_dropout", None) or 0.0
    masked = mechanism is not None and (mechanism.keys_only or type(mechanism).mix is not Mechanism.mix)
    return config._attn_implementation == "sdpa" and not dropped and not masked


def attended_lengths(model: RecurrentPreTrainedModel) -> set[int]:
    """Positions that layers of a window attend over, extra ones included."""
    window, mechanism = model.recurrence.window, model.mechanism
    if mechanism is None:
        return {window}
    behind = mechanism.inputs_behind()
    return {window + slots + extra for slots in (0, *mechanism.slots().values()) for extra in (0, behind)}


def run_full_window(
    model: RecurrentPreTrainedModel,
    tokens: Tensor,
    targets: Tensor | None,
    memory: Tensor | None,
    statistics: tuple[Tensor, ...],
    first: int,
    writes: bool,
    summed: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """What `RecurrentPreTrainedModel` does for a window, without the cases that never meet here: its losses or,
    without targets, its hidden states; the memory; the summary."""
    # Made in here: an object handed in from outside would be a reason to compile anew for each window.
    eager = model.base.config._attn_implementation == "eager"
    traffic = Traffic(causal=True, additive=eager, maskless=not eager)
    mechanism, past, notes = model.mechanism, Past(memory, None), None
    inputs: dict[str, Any] = {"input_ids": tokens, "use_cache": False}
    if mechanism is not None:
        inputs, notes = model.open_window(mechanism, traffic, inputs, past, writes)
    hidden = run_backbone(model.base, traffic, **inputs)
    top = hidden[:, first:]
    if targets is not None:
        if summed and model.makes_gradients_at_once(hidden):
            top = model.summed_losses(top, targets)
        else:
            top = token_losses(model.family.head(model.base, top), targets)
    if mechanism is None or notes is None:
        return top, None, None
    return top, mechanism.write(notes, past, statistics), notes.summary()
