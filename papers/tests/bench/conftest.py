"""Refused commands, and transformers as it was before them."""

from support.commands import refused, transformers_as_before

__all__ = ["refused", "transformers_as_before"]
