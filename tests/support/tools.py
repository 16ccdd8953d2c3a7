"""Recurrent models for the tests of other tools: one of each kind of mechanism."""

from pathlib import Path
from typing import Any

from support.checks import recurrent
from support.words import word_tokenizer

MEMORIES = {"carry": "gpt2", "kv": "llama", "lookback": "gpt2"}
"""Mechanisms with the family of their base: slots in front of a layer, kept keys that turn, and learned shifts."""


def remembering(mechanism: str, **settings: Any) -> Any:
    return recurrent(MEMORIES[mechanism], mechanism=mechanism, **settings)


def saved(mechanism: str, folder: Path, **settings: Any) -> Any:
    """A recurrent model that is saved in `folder` with its tokenizer."""
    model = remembering(mechanism, **settings)
    model.save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return model
