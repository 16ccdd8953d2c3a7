"""What PEFT needs to know of recurrent models, and where adapters cannot be."""

import sys
from typing import Any

from torch import nn

from recurrify.errors import UserError
from recurrify.families import known_model_types
from recurrify.modeling.config import RecurrentConfig


def give_peft_defaults() -> None:
    """Let PEFT adapt the modules of a recurrent model's base by default: those that it adapts in any known family."""
    for name, modules in vars(sys.modules["peft.utils.constants"]).items():
        if name.startswith("TRANSFORMERS_MODELS_TO_") and name.endswith("_MODULES_MAPPING"):
            known = [modules[kind] for kind in known_model_types() if isinstance(modules.get(kind), list)]
            if known:
                modules[RecurrentConfig.model_type] = sorted({module for one in known for module in one})


def check_no_adapters(model: Any) -> None:
    """Raise UserError for a base with adapters, which would be saved as if they were its own weights."""
    wrapped = isinstance(model, nn.Module) and any(".base_layer." in name for name, _ in model.named_parameters())
    if wrapped or hasattr(model, "peft_config"):
        raise UserError(
            "This model has adapters: add the memory to `model.merge_and_unload()`, or add the memory first and the "
            "adapters to the recurrent model."
        )
