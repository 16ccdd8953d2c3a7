"""recurrify: give pretrained transformers a memory."""

from importlib.metadata import PackageNotFoundError, version

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
    __version__ = version("recurrify")
except PackageNotFoundError:  # run from a source tree that was never installed
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
