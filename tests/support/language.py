"""Tiny models from scratch, with weights that all have a visible effect."""

from typing import Any

import torch
from torch import Tensor, nn


def stirred(kind: type[nn.Module], config: Any) -> Any:
    """A model with larger weights than the usual start, in double precision."""
    torch.manual_seed(1)
    model = kind(config).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "encoding" not in name:
                parameter.copy_(0.5 * torch.randn_like(parameter))
    return model


def ids(length: int, batch: int = 2) -> Tensor:
    return torch.randint(0, 11, (batch, length), generator=torch.Generator().manual_seed(length))
