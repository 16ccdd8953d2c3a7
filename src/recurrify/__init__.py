"""recurrify: give pretrained transformers a memory."""

from importlib import metadata as _metadata

from recurrify.errors import UserError
from recurrify.recurrence import (
    CarryConfig,
    CompressConfig,
    KVConfig,
    MemoryTokensConfig,
    NoRecurrence,
    RecurrentConfig,
    RecurrentForCausalLM,
    RecurrentForMaskedLM,
    RecurrentForQuestionAnswering,
    RecurrentForSequenceClassification,
    RecurrentForTokenClassification,
    RecurrentModel,
    RSARecurrenceConfig,
    SummaryConfig,
    TailConfig,
    add_recurrence,
    embed,
    register_with_transformers,
)
from recurrify.state import State
from recurrify.windows import Window, schedule

try:
    __version__ = _metadata.version("recurrify")
except _metadata.PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0+unknown"

register_with_transformers()

__all__ = [
    "CarryConfig",
    "CompressConfig",
    "KVConfig",
    "MemoryTokensConfig",
    "NoRecurrence",
    "RSARecurrenceConfig",
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
    "register_with_transformers",
    "schedule",
]


def __dir__() -> list[str]:
    """What is for users: not also the modules that were loaded on the way."""
    return list(__all__)
