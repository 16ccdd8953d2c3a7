"""The arguments that tools pass to every model of transformers, and checks of what a forward pass gets.

Shapes: B rows, N input columns.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from torch import Tensor
from transformers.utils import can_return_tuple

from recurrify.errors import UserError

STANDARD = ("inputs_embeds", "position_ids", "cache_position", "output_hidden_states", "output_attentions")


def takes_standard_arguments(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Add `return_dict` and the arguments of `STANDARD` to a model's `forward`, so that tools may pass them. Raises
    UserError for values that a recurrent model does not support."""
    answer = can_return_tuple(forward)

    @wraps(forward)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        standard = {name: kwargs.pop(name, None) for name in STANDARD}
        check_standard_arguments(standard, kwargs.get("attention_mask", args[1] if len(args) > 1 else None))
        return answer(self, *args, **kwargs)

    signature = inspect.signature(forward)
    added = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in STANDARD]
    checked.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *added])  # type: ignore[attr-defined]
    return checked


def check_standard_arguments(values: Mapping[str, Any], mask: Tensor | None) -> None:
    """Raise UserError for values that recurrent models do not support, and TypeError for unknown arguments."""
    if values.get("inputs_embeds") is not None:
        raise UserError(
            "`inputs_embeds` is not supported: the state holds the tokens of the open window, so pass `input_ids`; "
            "instead of prompt tuning use LoRA."
        )
    for name in ("output_hidden_states", "output_attentions"):
        if values.get(name):
            raise UserError(
                f"`{name}` is not supported, because windows do not keep it: leave it out, or pass one window to "
                "`model.base`."
            )
    if values.get("position_ids") is not None:
        _check_positions(values["position_ids"], mask)
    if unknown := values.keys() - set(STANDARD):
        raise TypeError(f"unexpected keyword argument {min(unknown)!r}")


def _check_positions(positions: Tensor, mask: Tensor | None) -> None:
    """Raise UserError for positions that do not simply count the tokens of a row."""
    jumps = positions.diff(dim=-1) != 1
    if mask is not None and mask.ndim == 2:
        real = mask[:, -positions.shape[-1] :].bool()
        jumps = jumps & real[:, 1:] & real[:, :-1]
    if bool(jumps.any()):
        raise UserError(
            "`position_ids` must count the tokens of a row one by one, but they jump or start again: documents packed "
            "into one row are not supported, so pass a row for each (in TRL: packing=False, padding_free=False)."
        )


def check_shapes(input_ids: Tensor, attention_mask: Tensor | None, labels: Tensor | None) -> None:
    """Raise UserError for inputs that are not (B, N)."""
    shape = tuple(input_ids.shape)
    if input_ids.ndim != 2 or 0 in shape:
        raise UserError(
            f"`input_ids` must be (rows, tokens) with at least one row and at least one token: got {shape}."
        )
    if labels is not None and labels.shape != input_ids.shape:
        raise UserError(
            f"`labels` (or `targets`) must have the shape of `input_ids`, {shape}: got {tuple(labels.shape)}."
        )
    if attention_mask is not None and (
        attention_mask.ndim != 2 or len(attention_mask) != shape[0] or attention_mask.shape[1] < shape[1]
    ):
        raise UserError(
            f"`attention_mask` must be (rows, tokens) like `input_ids`, {shape}: got {tuple(attention_mask.shape)}."
        )
