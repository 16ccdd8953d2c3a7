"""Models whose weights are divided among processes by torch's `fully_shard` (FSDP2)."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from recurrify.console import is_first
from recurrify.errors import UserError


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
    """Load the weights of a file of safetensors into a model; if it is sharded, all processes call this."""
    if is_sharded(model):
        spread_weights(model, load_file(file) if is_first() else {})
    else:
        model.load_state_dict(load_file(file), strict=False)  # tied weights are saved once


def spread_weights(model: nn.Module, weights: dict[str, Any]) -> None:
    """Give each process its part of the whole `weights` of the first one; all processes call this."""
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict

    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True, strict=False)
    set_model_state_dict(model, weights, options=options)


def from_first(make: Callable[[], Any]) -> Any:
    """What `make` returns, or the `UserError` that it raises, in the first process, in all of them."""
    found, error = None, None
    if is_first():
        try:
            found = make()
        except UserError as raised:
            error = str(raised)
    sent = [found, error]
    torch.distributed.broadcast_object_list(sent)
    found, error = sent
    if error is not None:
        raise UserError(error)
    return found


def without_weights(kind: type[Any], config: Any) -> Any:
    """A model of this config whose parameters have addresses on the CPU, but no memory: nothing is written there."""
    from accelerate import init_empty_weights

    with init_empty_weights():  # buffers that are not saved are computed
        model = kind(config)
    for module in model.modules():
        for name, value in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.empty_like(value, device="cpu"), value.requires_grad))
    model.tie_weights()
    return model


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
