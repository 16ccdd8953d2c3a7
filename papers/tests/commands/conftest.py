"""A model and text for commands, each made once."""

from support.commands import refused, transformers_as_before
from support.fixtures import base
from support.fixtures import many_texts as texts

__all__ = ["base", "refused", "texts", "transformers_as_before"]
