"""Former home of `inspect_text`."""

from recurrify.evaluate.inspection import TextChoice, inspect_text

__all__ = ["TextChoice", "inspect_text"]
