"""Corpora and data that only the reproductions use."""
