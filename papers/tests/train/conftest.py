"""Text that the training runs of this folder share."""

from support.fixtures import quiet, texts

__all__ = ["quiet", "texts"]
