"""Recurrence for pretrained Hugging Face models."""

from recurrify.recurrence.carry import CarryConfig
from recurrify.recurrence.compress import CompressConfig
from recurrify.recurrence.config import RecurrentConfig
from recurrify.recurrence.embedding import Embedding, embed
from recurrify.recurrence.families import Family, register_family
from recurrify.recurrence.heads import (
    RecurrentForCausalLM,
    RecurrentForMaskedLM,
    RecurrentModel,
    add_recurrence,
    register_with_transformers,
)
from recurrify.recurrence.kv import KVConfig
from recurrify.recurrence.loading import load_model, model_tokenizer, own_memory, own_recurrence, shipped_names
from recurrify.recurrence.lookback import LookbackConfig
from recurrify.recurrence.mechanism import NoRecurrence, RecurrenceConfig, mechanism_names, recurrence_config
from recurrify.recurrence.memory_tokens import MemoryTokensConfig
from recurrify.recurrence.model import RecurrentOutput, RecurrentPreTrainedModel
from recurrify.recurrence.rsa import RSARecurrenceConfig
from recurrify.recurrence.saving import is_recurrent
from recurrify.recurrence.summary import SummaryConfig
from recurrify.recurrence.tail import TailConfig
from recurrify.recurrence.task_heads import (
    RecurrentAnswerOutput,
    RecurrentForQuestionAnswering,
    RecurrentForSequenceClassification,
    RecurrentForTokenClassification,
)
from recurrify.recurrence.task_loading import load_task_model

register_with_transformers()

__all__ = [
    "CarryConfig",
    "CompressConfig",
    "Embedding",
    "Family",
    "KVConfig",
    "LookbackConfig",
    "MemoryTokensConfig",
    "NoRecurrence",
    "RSARecurrenceConfig",
    "RecurrenceConfig",
    "RecurrentAnswerOutput",
    "RecurrentConfig",
    "RecurrentForCausalLM",
    "RecurrentForMaskedLM",
    "RecurrentForQuestionAnswering",
    "RecurrentForSequenceClassification",
    "RecurrentForTokenClassification",
    "RecurrentModel",
    "RecurrentOutput",
    "RecurrentPreTrainedModel",
    "SummaryConfig",
    "TailConfig",
    "add_recurrence",
    "embed",
    "is_recurrent",
    "load_model",
    "load_task_model",
    "mechanism_names",
    "model_tokenizer",
    "own_memory",
    "own_recurrence",
    "recurrence_config",
    "register_family",
    "register_with_transformers",
    "shipped_names",
]
