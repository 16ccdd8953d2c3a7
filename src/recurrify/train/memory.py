"""How much GPU memory training needs, from the sizes of a model: a few rules, fitted to measured peaks.

- Weights, gradients and both moments of Adam take 16 bytes per parameter; copies in half precision and one more place
  for gradients 4. FSDP divides the 16 bytes among its processes.
- Each matrix of a layer keeps its output of every token for the backward pass, four of them their input too, which
  others share, and each layer one residual in float32.
- The head needs room for the logits of one window.
- A memory is kept for each window; kept keys and values also lie behind those of the window in every layer.
- With checkpoints, only one window's layers are kept at a time.

`recurrify bench training` prints estimates and measured peaks; see docs/performance.md.
"""

from dataclasses import dataclass

import torch

from recurrify.families import family_of, key_width
from recurrify.modeling.model import RecurrentPreTrainedModel

GIB = 2**30
WORKSPACE = 350_000_000
"""Of cuBLAS and the like."""
MORE = 1.08
"""What lies between the tensors that are counted."""
INPUTS = 4
"""Different inputs of a layer's matrices: queries, keys and values share one, and so do a gate and what it gates."""
HEAD_BYTES, HEAD_BYTES_CHECKPOINTED = 4.1, 7.4
"""Per logit of a window: checkpointed windows do not make the gradients with the losses."""


@dataclass(frozen=True)
class MemoryEstimate:
    """The peak of a training step, in bytes."""

    parameters: float
    """Weights, gradients and optimizer."""
    layers: float
    """What layers keep for the backward pass."""
    memory: float
    """The states that windows pass on."""
    head: float

    @property
    def total(self) -> float:
        return self.parameters + self.layers + self.memory + self.head + WORKSPACE

    @property
    def gib(self) -> float:
        return self.total / GIB


def estimate_memory(
    model: RecurrentPreTrainedModel, rows: int, windows: int, *, half: bool = True, shards: int = 1
) -> MemoryEstimate:
    """The GPU memory of a training step with AdamW on `rows` sequences of `windows` windows.

    Args:
        model: The model; its window, overlap and `checkpoint` count.
        rows: Sequences in a batch of one process.
        windows: Windows of a sequence.
        half: Whether products are computed in half precision, with weights in float32.
        shards: Processes that divide the weights among themselves (FSDP).
    """
    recurrence, mechanism, base = model.recurrence, model.mechanism, model.base
    width, size = base.config.hidden_size, 2 if half else 4
    layers = family_of(base.config).layers_of(base)
    trained = sum(value.numel() for value in model.parameters() if value.requires_grad)
    fixed = sum(value.numel() for value in model.parameters() if not value.requires_grad)
    kept_windows = 1 if recurrence.checkpoint else windows
    inputs = [recurrence.window] * len(layers)
    met = state = 0
    if mechanism is not None:
        state = mechanism.state_size()
        if mechanism.keys_only:
            met = state + 2 * recurrence.window * key_width(base.config) * len(layers)
        else:
            more = mechanism.inputs_behind
            inputs = [count + more + mechanism.slots().get(at, 0) for at, count in enumerate(inputs)]
    per_window = sum(count * _layer_bytes(layer, width, size) for count, layer in zip(inputs, layers, strict=True))
    logits = rows * recurrence.window * base.config.vocab_size
    return MemoryEstimate(
        parameters=trained * (16 / shards + 4) + fixed * (4 / shards + (2 if half else 0)),
        layers=rows * kept_windows * (MORE * per_window + size * met),
        memory=rows * windows * state * (4 + 2),
        head=logits * (HEAD_BYTES_CHECKPOINTED if recurrence.checkpoint else HEAD_BYTES),
    )


def _layer_bytes(layer: torch.nn.Module, width: int, size: int) -> int:
    """What a layer keeps per token."""
    matrices = [sum(value.shape) for value in layer.parameters() if value.ndim == 2]
    shared = max(0, len(matrices) - INPUTS) * width
    return 4 * width + size * (sum(matrices) - shared)


def free_gib() -> float | None:
    """The memory of this process's GPU that it uses or that is free; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    return (torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()) / GIB


def memory_sentence(model: RecurrentPreTrainedModel, needed: float, free: float) -> str:
    """What training needs and the GPU has, in GiB; a warning with ways out if it is more than there is."""
    if needed <= free:
        return f"training needs about {needed:.0f} GiB per GPU; {free:.0f} GiB are free"
    checkpoint = "" if model.recurrence.checkpoint else "--set checkpoint=true, "
    return (
        f"warning: training needs about {needed:.0f} GiB per GPU, but {free:.0f} GiB are free: use {checkpoint}"
        "a smaller --batch with --accumulate, or FSDP on several GPUs"
    )
