"""Floating-point operations per token, counted from the model's own matrices.

A product with a matrix of n weights costs 2n per input. Causal attention over n inputs costs 2·n²·k: scores
and weighted sums take 2·k each for every pair, k = heads × size of a head, and half of the pairs are masked.
"""

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode
from transformers import PreTrainedModel

from recurrify.recurrence import NoRecurrence, RecurrentPreTrainedModel
from recurrify.recurrence.families import family_of
from recurrify.recurrence.mechanism import Mechanism
from recurrify.windows import check_window


def paper_flops_per_token(model: PreTrainedModel, window: int | None = None, overlap: int | None = None) -> float:
    """As the paper counts: the layers' matrices and causal attention, times window / (window − overlap).

    Embeddings, output head and recurrence are left out, so a plain and a recurrent model cost the same. A
    recurrent model's own window and overlap stand in for what is not given; a plain one's are the defaults of
    `NoRecurrence`.
    """
    window, overlap = _window_and_overlap(model, window, overlap)
    return _layers_flops(_base_of(model), window, {}) / (window - overlap)


def full_flops_per_token(model: PreTrainedModel, window: int | None = None, overlap: int | None = None) -> float:
    """The paper's count, and what it leaves out: the output head, once per token, and the recurrence.

    Recurrence costs the module's own matrix products, once per window; and in each layer that receives
    carried vectors, their keys and values for all queries and their own way through the layer. Every window
    is taken to be full and to receive something, as all but the first and the last of a long text are.
    """
    window, overlap = _window_and_overlap(model, window, overlap)
    stride = window - overlap
    base = _base_of(model)
    mechanism: Mechanism | None = getattr(model, "mechanism", None)
    slots = {} if mechanism is None else mechanism.slots()
    per_window = _layers_flops(base, window, slots)
    if mechanism is not None:
        per_window += _mechanism_flops(mechanism, base, window, stride)
    return per_window / stride + _outside_flops(base)


def _window_and_overlap(model: PreTrainedModel, window: int | None, overlap: int | None) -> tuple[int, int]:
    settings = model.recurrence if isinstance(model, RecurrentPreTrainedModel) else NoRecurrence()
    window = settings.window if window is None else window
    overlap = settings.overlap if overlap is None else overlap
    check_window(window, overlap)
    return window, overlap


def _base_of(model: PreTrainedModel) -> PreTrainedModel:
    return model.base if isinstance(model, RecurrentPreTrainedModel) else model


def _layers_flops(base: PreTrainedModel, window: int, slots: dict[int, int]) -> float:
    """One window through all layers, `slots[layer]` carried vectors in front of it."""
    family = family_of(base.config)
    width = _attention_width(base)
    pairs = 2 if family.causal else 4
    total = 0.0
    for index, layer in enumerate(family.layers_of(base)):
        inputs = window + slots.get(index, 0)
        # Biases and norms are vectors; every matrix in a layer is one that each input is multiplied with.
        weights = sum(value.numel() for value in layer.parameters() if value.ndim == 2)
        total += 2 * weights * inputs + pairs * inputs**2 * width
    return total


def _attention_width(base: PreTrainedModel) -> int:
    config = base.config
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(config.num_attention_heads * head_size)


def _outside_flops(base: PreTrainedModel) -> float:
    """Per token: the linear maps outside the layers, which are the output head and, in some OPT models, a
    projection next to the embeddings."""
    layers = family_of(base.config).layers_of(base)
    inside = {id(module) for module in layers.modules()}
    linear = [module for module in base.modules() if isinstance(module, nn.Linear) and id(module) not in inside]
    return 2.0 * sum(module.weight.numel() for module in linear)


def _mechanism_flops(mechanism: Mechanism, base: PreTrainedModel, window: int, stride: int) -> float:
    """The matrix products between two windows, counted while they run over a blank one: a mechanism may use a
    matrix once or once per carried vector, which its parameters alone do not tell."""
    hidden = torch.zeros(1, window, base.config.hidden_size, device=base.device, dtype=base.dtype)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        notes = mechanism.start_window(stride)
        for layer in range(len(family_of(base.config).layers_of(base))):
            notes.see(layer, hidden)
        mechanism.read(mechanism.write(notes, None, mechanism.statistics()))
    return float(counter.get_total_flops())
