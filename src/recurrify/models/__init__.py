"""Models that are trained from scratch, each in a file of its own."""

from recurrify.models.transformer_xl import (
    TransformerXL,
    TransformerXLConfig,
    TransformerXLOutput,
    TransformerXLState,
)

__all__ = ["TransformerXL", "TransformerXLConfig", "TransformerXLOutput", "TransformerXLState"]
