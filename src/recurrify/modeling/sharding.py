"""Models whose weights are divided among processes by torch's `fully_shard` (FSDP2)."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn


def is_sharded(module: nn.Module) -> bool:
    """Whether `fully_shard` divided this module."""
    return hasattr(module, "unshard")  # the method that `fully_shard` adds; its class takes seconds to import


def name_unit(model: Any) -> None:
    """Make the mechanism one unit of sharding and of device maps, as each of the base's layers is."""
    if model.mechanism is not None and any(True for _ in model.mechanism.parameters()):
        model._no_split_modules = {*(model._no_split_modules or ()), type(model.mechanism).__name__}


def gather_unit(module: nn.Module) -> None:
    """Gather the weights of a sharded module that is not used through its `forward`; backward passes release them."""
    if is_sharded(module):
        module.unshard()  # type: ignore[operator]


def whole_weights(model: nn.Module) -> dict[str, Tensor]:
    """The weights of a sharded model, gathered on the CPU of the first process; empty in the others, which call it."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    weights: Any = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    tied: Any = model.all_tied_weights_keys  # saved once, under their other name
    return {name: value for name, value in weights.items() if name not in tied}


def load_whole_weights(model: nn.Module, file: Path) -> None:
    """Load the weights of a file of safetensors into a model, sharded or not."""
    weights = load_file(file)
    if not is_sharded(model):
        model.load_state_dict(weights, strict=False)  # tied weights are saved once
        return
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, strict=False))


def level(inputs: dict[str, Tensor], ignored: int) -> dict[str, Tensor]:
    """A batch with as many columns as the longest one of all processes, which then run as many windows.

    Layers of a sharded model are gathered by all processes at once: one with fewer windows would leave the others
    waiting. Rows are continued by their own text, which is not scored.
    """
    ids = inputs["input_ids"]
    most = torch.tensor(ids.shape[1], device=ids.device)
    torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
    mask = inputs.get("attention_mask")
    lengths = torch.full_like(ids[:, 0], ids.shape[1]) if mask is None else mask.sum(1)
    columns = torch.arange(int(most), device=ids.device)[None] % lengths[:, None]
    missing = int(most) - ids.shape[1]
    labels = {
        name: nn.functional.pad(value, (0, missing), value=ignored)
        for name, value in inputs.items()
        if name in ("labels", "shift_labels", "targets")
    }
    return {"input_ids": ids.gather(1, columns), **labels}
