"""Recurrence for pretrained Hugging Face models."""

from recurrify.recurrence.carry import CarryConfig
from recurrify.recurrence.config import RecurrentConfig
from recurrify.recurrence.families import Family, register_family
from recurrify.recurrence.heads import (
    RecurrentForCausalLM,
    RecurrentForMaskedLM,
    RecurrentModel,
    add_recurrence,
    register_with_transformers,
)
from recurrify.recurrence.loading import load_model, own_windows, shipped_names
from recurrify.recurrence.mechanism import NoRecurrence, RecurrenceConfig, mechanism_names, recurrence_config
from recurrify.recurrence.model import RecurrentOutput, RecurrentPreTrainedModel
from recurrify.recurrence.saving import is_recurrent
from recurrify.recurrence.tail import TailConfig

__all__ = [
    "CarryConfig",
    "Family",
    "NoRecurrence",
    "RecurrenceConfig",
    "RecurrentConfig",
    "RecurrentForCausalLM",
    "RecurrentForMaskedLM",
    "RecurrentModel",
    "RecurrentOutput",
    "RecurrentPreTrainedModel",
    "TailConfig",
    "add_recurrence",
    "is_recurrent",
    "load_model",
    "mechanism_names",
    "own_windows",
    "recurrence_config",
    "register_family",
    "register_with_transformers",
    "shipped_names",
]
