"""recurrify: give pretrained transformers a memory.

Names are imported when they are first used: torch and transformers take seconds, which `--help` should not.
"""

from importlib import import_module as _import_module
from importlib import metadata as _metadata
from typing import TYPE_CHECKING, Any

from recurrify.after_import import after_import as _after_import
from recurrify.errors import UserError
from recurrify.windows import Window, schedule

if TYPE_CHECKING:
    from recurrify.attention import RSAConfig
    from recurrify.evaluate import memory_cost
    from recurrify.families import Family, register_family
    from recurrify.mechanisms.base import Mechanism, NoRecurrence, RecurrenceConfig, register_mechanism
    from recurrify.mechanisms.carry import CarryConfig
    from recurrify.mechanisms.compress import CompressConfig
    from recurrify.mechanisms.kv import KVConfig
    from recurrify.mechanisms.lookback import LookbackConfig
    from recurrify.mechanisms.memory_tokens import MemoryTokensConfig
    from recurrify.mechanisms.rsa import RSARecurrenceConfig
    from recurrify.mechanisms.summary import SummaryConfig
    from recurrify.mechanisms.tail import TailConfig
    from recurrify.modeling.config import RecurrentConfig
    from recurrify.modeling.embedding import embed
    from recurrify.modeling.heads import (
        RecurrentForCausalLM,
        RecurrentForMaskedLM,
        RecurrentModel,
        add_recurrence,
        register_with_transformers,
    )
    from recurrify.modeling.loading import load_model
    from recurrify.modeling.task_heads import (
        RecurrentForQuestionAnswering,
        RecurrentForSequenceClassification,
        RecurrentForTokenClassification,
    )
    from recurrify.state import State

try:
    __version__ = _metadata.version("recurrify")
except _metadata.PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "CarryConfig",
    "CompressConfig",
    "Family",
    "KVConfig",
    "LookbackConfig",
    "Mechanism",
    "MemoryTokensConfig",
    "NoRecurrence",
    "RSAConfig",
    "RSARecurrenceConfig",
    "RecurrenceConfig",
    "RecurrentConfig",
    "RecurrentForCausalLM",
    "RecurrentForMaskedLM",
    "RecurrentForQuestionAnswering",
    "RecurrentForSequenceClassification",
    "RecurrentForTokenClassification",
    "RecurrentModel",
    "State",
    "SummaryConfig",
    "TailConfig",
    "UserError",
    "Window",
    "__version__",
    "add_recurrence",
    "embed",
    "load_model",
    "memory_cost",
    "register_family",
    "register_mechanism",
    "register_with_transformers",
    "schedule",
]
_HOMES = {"RSAConfig": "attention", "State": "state", "memory_cost": "evaluate"}
"""The subpackages of the names that are not in `modeling`."""


def _load(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _import_module(f"{__name__}.{_HOMES.get(name, 'modeling')}")
    value = globals()[name] = getattr(home, name)
    return value


if not TYPE_CHECKING:  # or every name would seem to exist
    __getattr__ = _load


def __dir__() -> list[str]:
    return list(__all__)


# After `import recurrify`, transformers' Auto classes find its models, whenever transformers is imported.
_after_import("transformers", lambda: _import_module("recurrify.modeling"))
