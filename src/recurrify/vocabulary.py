"""Token ids outside the vocabulary raise one clear sentence instead of torch's `index out of range in self`."""

import torch
from torch import Tensor, nn

from recurrify.errors import UserError

__all__ = ["check_ids"]


def check_ids(ids: Tensor, embedding: nn.Module) -> None:
    """Raise UserError for ids without a vector. Skipped on a GPU, where it would wait for the device, while a model is
    traced, and for embeddings of unknown size."""
    known = getattr(embedding, "num_embeddings", None)
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing()
    if known is None or traced or ids.device.type != "cpu" or ids.numel() == 0:
        return
    lowest, highest = (int(end) for end in ids.aminmax())
    wrong = lowest if lowest < 0 else highest
    if not 0 <= wrong < known:
        raise UserError(
            f"Id {wrong} is not in the model's vocabulary of {known}, which has the ids 0 to {known - 1}: encode the "
            "text with the model's own symbols or tokenizer."
        )
