"""Floating-point operations per token, counted from the model's matrices.

A product with a matrix of n weights costs 2n per input. Causal attention over n inputs costs 2·n²·k: scores
and weighted sums take 2·k each for every pair, k = heads × size of a head, and half of the pairs are masked.
"""

from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from recurrify.attention.fused import without_kernels
from recurrify.console import large
from recurrify.families import family_of, head_size
from recurrify.mechanisms import Mechanism, NoRecurrence, Past, WindowContext
from recurrify.modeling.model import RecurrentPreTrainedModel
from recurrify.windows import check_window


def paper_flops_per_token(model: PreTrainedModel, window: int | None = None, overlap: int | None = None) -> float:
    """The paper's count: the layers' matrices and causal attention, times window / (window − overlap).

    Embeddings, output head and memory are not counted, so a plain and a recurrent model cost the same. Window and
    overlap default to the model's own, or to those of `NoRecurrence` for a plain model.
    """
    window, overlap = _window_and_overlap(model, window, overlap)
    return _layers_flops(_base_of(model), window, {}) / (window - overlap)


def full_flops_per_token(model: PreTrainedModel, window: int | None = None, overlap: int | None = None) -> float:
    """The paper's count plus the output head, once per token, and the memory.

    The memory costs its own matrix products and, in each layer with extra inputs before or after the window, their keys
    and values for all queries and their own pass through the layer. Every window is assumed to be full and to receive a
    memory.
    """
    window, overlap = _window_and_overlap(model, window, overlap)
    stride = window - overlap
    base = _base_of(model)
    mechanism: Any = getattr(model, "mechanism", None)
    if mechanism is None:
        return _layers_flops(base, window, {}) / stride + _outside_flops(base)
    if mechanism.keys_only:
        # Queries meet kept keys and values.
        met = 4 * mechanism.slot_pairs(window) * _attention_width(base)
        per_window = _layers_flops(base, window, {}) + met + mechanism.kept_flops()
        return per_window / stride + _outside_flops(base)
    inputs = {layer: mechanism.slots().get(layer, 0) + mechanism.inputs_behind for layer in range(_layers(base))}
    per_window = _layers_flops(base, window, inputs) + _mechanism_flops(mechanism, base, window, stride)
    return per_window / stride + _outside_flops(base)


class MemoryCost(NamedTuple):
    """What a model's memory costs compared with the same base in plain windows."""

    mechanism: str
    added_parameters: int
    state_floats: int
    """The state size per batch row, in numbers."""
    extra_flops_per_token: float
    extra_share: float
    """The same as a share of the cost of plain windows."""

    def __str__(self) -> str:
        return (
            f"memory {self.mechanism!r}: {self.added_parameters:,} added parameters, {self.state_floats:,} numbers "
            f"from window to window, {large(self.extra_flops_per_token)} more FLOPs per token ({self.extra_share:.2%})"
        )


def memory_cost(model: RecurrentPreTrainedModel, window: int | None = None, overlap: int | None = None) -> MemoryCost:
    """Added parameters, state size and extra FLOPs; window and overlap default to the model's own."""
    window, overlap = _window_and_overlap(model, window, overlap)
    plain = full_flops_per_token(model.base, window, overlap)
    extra = full_flops_per_token(model, window, overlap) - plain
    return MemoryCost(
        mechanism=model.recurrence.mechanism,
        added_parameters=sum(value.numel() for value in model.added_parameters().values()),
        state_floats=0 if model.mechanism is None else model.mechanism.state_size(),
        extra_flops_per_token=extra,
        extra_share=extra / plain,
    )


def _window_and_overlap(model: PreTrainedModel, window: int | None, overlap: int | None) -> tuple[int, int]:
    settings = model.recurrence if isinstance(model, RecurrentPreTrainedModel) else NoRecurrence()
    window = settings.window if window is None else window
    overlap = settings.overlap if overlap is None else overlap
    check_window(window, overlap)
    return window, overlap


def _base_of(model: PreTrainedModel) -> PreTrainedModel:
    return model.base if isinstance(model, RecurrentPreTrainedModel) else model


def _layers(base: PreTrainedModel) -> int:
    return len(family_of(base.config).layers_of(base))


def _layers_flops(base: PreTrainedModel, window: int, extra: dict[int, int]) -> float:
    """One window through all layers, with `extra[layer]` inputs besides."""
    family = family_of(base.config)
    width = _attention_width(base)
    pairs = 2 if family.causal else 4
    total = 0.0
    for index, layer in enumerate(family.layers_of(base)):
        inputs = window + extra.get(index, 0)
        # Biases and norms are vectors; every matrix in a layer is one that each input is multiplied with.
        weights = sum(value.numel() for value in layer.parameters() if value.ndim == 2)
        total += 2 * weights * inputs + pairs * inputs**2 * width
    return total


def _attention_width(base: PreTrainedModel) -> int:
    return int(base.config.num_attention_heads * head_size(base.config))


def _outside_flops(base: PreTrainedModel) -> float:
    """Per token: the linear maps outside the layers, which are the output head and, in some OPT models, a
    projection next to the embeddings."""
    layers = family_of(base.config).layers_of(base)
    inside = {id(module) for module in layers.modules()}
    linear = [module for module in base.modules() if isinstance(module, nn.Linear) and id(module) not in inside]
    return 2.0 * sum(module.weight.numel() for module in linear)


def _mechanism_flops(mechanism: Mechanism, base: PreTrainedModel, window: int, stride: int) -> float:
    """The matrix products of the mechanism itself, counted while they run over a blank window: it may use a matrix
    once, once per carried vector or once per token, which its parameters alone do not tell."""
    rows = torch.zeros(1, window, base.config.hidden_size, device=base.device, dtype=base.dtype)
    heads = base.config.num_attention_heads
    values = rows.new_zeros(1, heads, window, _attention_width(base) // heads)
    behind = rows[:, :1].expand(-1, mechanism.inputs_behind, -1)
    inputs = {"input_ids": rows[..., 0].long()}
    with without_kernels(), torch.no_grad(), FlopCounterMode(display=False) as counter:
        recorder = mechanism.recorder(stride)
        first = WindowContext(recorder=recorder)
        mechanism.open(first, base, inputs)
        for layer in range(_layers(base)):
            recorder.see(layer, rows)
            recorder.see_behind(layer, behind)
            if layer in first.change_attention:
                first.change_attention[layer](lambda keys, values, seen=None: values, values, values)
        later = WindowContext(Past(mechanism.write(recorder, first.past, mechanism.statistics()), None))
        mechanism.open(later, base, inputs)
        if later.change_inputs is not None:
            for layer in range(_layers(base)):
                front = rows[:, :1].expand(-1, mechanism.slots().get(layer, 0), -1)
                later.change_inputs(layer, torch.cat([front, rows, behind], dim=1))
    return float(counter.get_total_flops())
