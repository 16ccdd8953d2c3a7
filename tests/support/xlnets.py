"""Tiny random XLNets, and their expected losses, from forward passes without a memory."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import XLNetConfig

from recurrify_papers.thesis.xlnet import WindowedXLNet
from support.models import VOCABULARY


def tiny_xlnet(attention: str, **more: Any) -> WindowedXLNet:
    """In eval mode; weights are larger than usual, so that every input has a visible effect."""
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "d_model": 16, "n_layer": 3, "n_head": 2, "d_inner": 24, "dropout": 0.0}
    model = WindowedXLNet(XLNetConfig(**{**sizes, "attn_type": attention, "mem_len": 5, **more}))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.3)
            else:
                weight.add_(torch.randn_like(weight) * 0.1)
    return model.eval()


def reference_losses(model: WindowedXLNet, ids: np.ndarray, window: int, memory: int) -> list[float]:
    """Each token's loss, without memory or windows: one pass over the document from its start for every token, in which
    masks hide everything outside the memory of the window in which a token was read."""
    return [_loss(model, torch.tensor(ids[: target + 1]).long(), window, memory) for target in range(1, len(ids))]


@torch.no_grad()
def _loss(model: Any, ids: Tensor, window: int, memory: int) -> float:
    target = len(ids) - 1
    hidden = torch.ones(len(ids), len(ids))
    for reader in range(len(ids)):
        # The target itself is not read: it is predicted in the window of the token before it.
        read_as = reader if reader < target else target - 1
        first = read_as // window * window - memory
        for seen in range(max(first, 0), min(reader, target - 1) + 1):
            hidden[reader, seen] = 0.0
    if model.config.attn_type == "uni":
        logits = model(ids[None, :-1], perm_mask=hidden[None, :-1, :-1], use_mems=False).logits[0, -1]
    else:
        asked = torch.zeros(1, 1, len(ids))
        asked[0, 0, -1] = 1.0
        blank = torch.cat([ids[:-1], torch.tensor([7])])
        logits = model(blank[None], perm_mask=hidden[None], target_mapping=asked, use_mems=False).logits[0, 0]
    return -logits.log_softmax(-1)[ids[-1]].item()
