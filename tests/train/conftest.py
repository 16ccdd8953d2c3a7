"""One tiny model and one folder of text for all training tests."""

from support.fixtures import base, quiet, texts

__all__ = ["base", "quiet", "texts"]
