"""What a recurrent model makes of one text: losses and states, attention on what was carried, and what was used.

Everything here reads a single text in the model's own windows. Shapes: N tokens, W windows, T positions of a window, K
windows back, H heads.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from recurrify.errors import UserError
from recurrify.evaluate.perplexity import (
    Lane,
    batch_of,
    check_counts,
    check_finite,
    evaluation_mode,
    read_side_by_side,
    scoring,
)
from recurrify.modeling.heads import RecurrentForCausalLM
from recurrify.modeling.model import RecurrentOutput
from recurrify.state import State
from recurrify.windows import schedule

REACH = 8
"""How many windows back gradients are followed."""
STARTS = 16
"""From how many windows' losses at most."""


class Text(NamedTuple):
    """A text by the model's own tokens."""

    name: str
    ids: np.ndarray


@dataclass(frozen=True)
class Reading:
    """One pass over a text."""

    losses: np.ndarray
    """(N − 1,) float64: of predicting each token but the first."""
    norms: list[float]
    """Of the memory after each window that was filled to the brim; empty where the model has none."""
    changes: list[float | None]
    """The norm of what changed since the window before; None for the first."""


@dataclass(frozen=True)
class SlotAttention:
    """How much of their attention a window's tokens give to what was carried into it."""

    layers: list[int]
    """The layers that see slots, counted from 0."""
    slots: list[int]
    """How many each of them sees."""
    windows: int
    """How many windows had a memory to look at: all but the first."""
    mass: np.ndarray
    """(layers, T): the mean over these windows and all heads; not a number at positions that no such window has."""


@dataclass(frozen=True)
class GradientProfile:
    """How strongly a window's loss depends on the inputs of the windows before it."""

    windows: list[int]
    """The windows whose losses were taken, counted from 0."""
    norms: np.ndarray
    """(windows, K + 1) float64: column k is the norm of d mean loss / d input embeddings of the window k before."""


def read_text(model: RecurrentForCausalLM, text: Text) -> Reading:
    """The loss of every token, as `evaluate_documents` scores it, and the memory's size after every window."""
    losses: list[np.ndarray] = []
    norms: list[float] = []
    changes: list[float | None] = []

    def see(lane: Lane, before: State, output: RecurrentOutput) -> None:
        assert output.token_losses is not None
        assert output.state is not None
        found = output.token_losses[0].cpu().double().numpy()
        check_finite(found, text, lane.start, "loss")
        losses.append(found)
        old, new = before.memory, output.state.memory
        if new is not None and new is not old:
            norms.append(_norm(new))
            changes.append(None if old is None else _norm(new - old))

    with scoring(model, [text], None, None, bf16=False) as reader:
        _each_window(reader, text, see)
    return Reading(np.concatenate(losses), norms, changes)


def slot_attention(model: RecurrentForCausalLM, text: Text) -> SlotAttention | None:
    """Attention on the slots, or on the keys kept, by layer and position; None for a model that has neither, or a
    text that ends with its first window."""
    mechanism = model.mechanism
    slots = {} if mechanism is None else mechanism.slots()
    if mechanism is None or not slots:
        return None
    layers = sorted(slots)
    sums, counts = np.zeros((len(layers), model.recurrence.window)), np.zeros(model.recurrence.window, dtype=np.int64)

    def see(lane: Lane, before: State, output: RecurrentOutput) -> None:
        if not bool(before.live[0]):
            return
        length = int(before.lengths[0]) + lane.stop - lane.start
        behind = mechanism.inputs_behind if length == model.recurrence.window else 0
        for row, layer in enumerate(layers):
            first = 0 if mechanism.keys_only else slots[layer]
            sums[row, :length] += _mass(weights.get(layer), layer, slots[layer], first, length, behind)
        counts[:length] += 1

    with scoring(model, [text], None, None, bf16=False) as reader, watched_attention(reader, layers) as weights:
        _each_window(reader, text, see)
    windows = int(counts[0])
    if not windows:
        return None
    mass = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    return SlotAttention(layers, [slots[layer] for layer in layers], windows, mass)


def _mass(weights: Tensor | None, layer: int, slots: int, first: int, length: int, behind: int) -> np.ndarray:
    """(length,): what the window's tokens, queries from `first` on, give to the `slots` keys in front."""
    if weights is None or weights.shape[2:] != (first + length + behind, slots + length + behind):
        raise UserError(f"Layer {layer + 1} does not show its attention: this model cannot be inspected.")
    return weights[0, :, first : first + length, :slots].sum(-1).double().mean(0).cpu().numpy()


@contextmanager
def watched_attention(model: RecurrentForCausalLM, layers: Sequence[int]) -> Iterator[dict[int, Tensor]]:
    """The attention weights (rows, H, queries, keys) of each of these layers' last run.

    Fused attention never has them: meanwhile the base computes its attention step by step.
    """
    seen: dict[int, Tensor] = {}

    def keep(module: nn.Module, args: Any, output: Any, layer: int) -> None:
        if isinstance(output, tuple) and len(output) > 1 and isinstance(output[1], Tensor):
            seen[layer] = output[1].detach()

    own = model.base.config._attn_implementation
    hooks = [
        module.register_forward_hook(partial(keep, layer=layer))
        for layer in layers
        for module in model.family.layers_of(model.base)[layer].modules()
        if type(module).__name__.endswith("Attention")
    ]
    model.base.set_attn_implementation("eager")
    try:
        yield seen
    finally:
        model.base.set_attn_implementation(own)
        for hook in hooks:
            hook.remove()


def gradient_profile(
    model: RecurrentForCausalLM, text: Text, reach: int = REACH, starts: int = STARTS
) -> GradientProfile:
    """Norms of the gradients of windows' losses at the input embeddings of up to `reach` windows before.

    The losses are those of the first `starts` windows that have so many before them. Where windows overlap, a token is
    embedded anew in each: what is counted for an earlier window came through the memory alone. Gradients are followed
    through all windows, also those of a model whose training cuts them: what a loss depends on is not how it learned.
    """
    check_counts(reach=reach, starts=starts)
    recurrence = model.recurrence
    spans = schedule(len(text.ids) - 1, recurrence.window, recurrence.overlap)
    reach = min(reach, len(spans) - 1)
    spans = spans[: reach + starts]
    embedded: list[Tensor] = []

    def keep(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        embedded.append(output.detach().requires_grad_())
        return embedded[-1]

    ids = torch.as_tensor(text.ids[: spans[-1].stop + 1], dtype=torch.long, device=model.device)[None]
    hook = model.get_input_embeddings().register_forward_hook(keep)
    # A checkpointed window would be embedded a second time on the way back.
    model.set_recurrence(checkpoint=False, bptt_windows=None)
    try:
        with evaluation_mode(model), torch.enable_grad():
            output = model(ids[:, :-1], targets=ids[:, 1:], return_logits=False, return_losses=True)
    finally:
        hook.remove()
        model.set_recurrence(checkpoint=recurrence.checkpoint, bptt_windows=recurrence.bptt_windows)
    ends = list(range(reach, len(spans)))
    norms = np.zeros((len(ends), reach + 1))
    for row, end in enumerate(ends):
        loss = output.token_losses[0, spans[end].first : spans[end].stop].mean()
        inputs = embedded[end - reach : end + 1][::-1]
        found = torch.autograd.grad(loss, inputs, retain_graph=end != ends[-1], allow_unused=True)
        norms[row] = [0.0 if gradient is None else _norm(gradient) for gradient in found]
    return GradientProfile(ends, norms)


def _each_window(model: RecurrentForCausalLM, text: Text, see: Callable[[Lane, State, RecurrentOutput], None]) -> None:
    """Read the text window by window; `see` gets the inputs that are new in it, the state before it and the output."""

    def read(lanes: Sequence[Lane], state: State) -> State:
        batch = batch_of(lanes, model.device)
        output = model(
            batch.inputs,
            attention_mask=batch.mask,
            targets=batch.labels,
            state=state,
            return_logits=False,
            return_losses=True,
        )
        see(lanes[0], state, output)
        return output.state

    read_side_by_side(model, [text], read, rows=1, windows_per_call=1, progress=None)


def _norm(values: Tensor) -> float:
    return float(values.detach().double().norm())
