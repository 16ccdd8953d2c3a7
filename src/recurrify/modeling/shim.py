"""Loads a model that recurrify saved with `trust_remote_code=True`; its code is in the package."""

try:
    from recurrify.modeling import (
        RecurrentConfig,
        RecurrentForCausalLM,
        RecurrentForMaskedLM,
        RecurrentForQuestionAnswering,
        RecurrentForSequenceClassification,
        RecurrentForTokenClassification,
        RecurrentModel,
    )
except ImportError as error:
    raise ImportError("This model needs the package recurrify: install it with `pip install recurrify`.") from error

__all__ = [
    "RecurrentConfig",
    "RecurrentForCausalLM",
    "RecurrentForMaskedLM",
    "RecurrentForQuestionAnswering",
    "RecurrentForSequenceClassification",
    "RecurrentForTokenClassification",
    "RecurrentModel",
]
