"""XLNet (Yang et al., 2019), read from left to right in windows, with its own memory: the hidden states that each layer
kept of the windows before.

A model with one-way attention ("uni") predicts the next token by its content stream. The published models look both
ways ("bi") and were trained to predict a token from any others: they predict by their query stream, which knows a
token's position but not the token, with everything from that position on hidden.

Shapes: B rows, N inputs of a window, M remembered positions, W width, V vocabulary.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PretrainedConfig, XLNetConfig, XLNetLMHeadModel
from transformers.models.xlnet.modeling_xlnet import XLNetLMHeadModelOutput

IGNORED = -100
"""The target of an input that is not scored."""

Memory = list[Tensor] | None
"""For each layer (M, B, W), as transformers has it; None before a document's first window."""


def xlnet_config(like: PretrainedConfig, *, window: int, memory: int, attention: str = "uni") -> XLNetConfig:
    """An XLNet as wide, deep and many-headed as another model, for the same tokens."""
    inner = getattr(like, "n_inner", None) or getattr(like, "intermediate_size", None) or 4 * like.hidden_size
    return XLNetConfig(
        vocab_size=like.vocab_size,
        d_model=like.hidden_size,
        n_layer=like.num_hidden_layers,
        n_head=like.num_attention_heads,
        d_inner=inner,
        attn_type=attention,
        dropout=getattr(like, "resid_pdrop", 0.1),
        mem_len=memory,
        window=window,
        pad_token_id=getattr(like, "pad_token_id", None),
        bos_token_id=getattr(like, "bos_token_id", None),
        eos_token_id=getattr(like, "eos_token_id", None),
    )


def left_to_right_inputs(ids_BN: Tensor) -> dict[str, Tensor]:
    """What a two-stream model takes to predict the token after each input, and nothing from what comes later.

    A blank after the last input marks the position of the next token. Its id is never attended to.
    """
    rows, inputs = ids_BN.shape
    positions = torch.arange(inputs + 1, device=ids_BN.device)
    # The query at a position sees what precedes it; the content there sees itself as well, which is XLNet's rule.
    hidden = (positions[None] >= positions[:, None]).float()
    queries = torch.eye(inputs + 1, device=ids_BN.device)[1:]
    return {
        "input_ids": functional.pad(ids_BN, (0, 1)),
        "perm_mask": hidden.expand(rows, -1, -1),
        "target_mapping": queries.expand(rows, -1, -1),
    }


def window_losses(
    model: XLNetLMHeadModel, ids_BN: Tensor, targets_BN: Tensor, memory: Memory, length: int
) -> tuple[Tensor, Memory]:
    """The losses (B, N) of predicting the targets, 0 where they are to be ignored, and the memory of the last `length`
    tokens. To be called inside `whole_memory`."""
    two_streams = model.config.attn_type == "bi"
    inputs = left_to_right_inputs(ids_BN) if two_streams else {"input_ids": ids_BN}
    output = model.transformer(**inputs, mems=memory, use_mems=length > 0)
    logits = model.lm_loss(output.last_hidden_state).flatten(0, 1).float()
    losses = functional.cross_entropy(logits, targets_BN.flatten(), ignore_index=IGNORED, reduction="none")
    if length == 0:
        return losses.view_as(targets_BN), None
    # Of two streams the last position is the blank: the next window begins with the real token in its place.
    kept = [part[:-1] if two_streams else part for part in output.mems]
    return losses.view_as(targets_BN), [part[-length:] for part in kept]


@contextmanager
def whole_memory(model: XLNetLMHeadModel) -> Iterator[None]:
    """Let the model hand out all it remembers, for `window_losses` to choose from; its own settings come back."""
    body: Any = model.transformer
    before = body.mem_len, body.reuse_len
    body.mem_len = body.reuse_len = None
    try:
        yield
    finally:
        body.mem_len, body.reuse_len = before


class WindowedXLNet(XLNetLMHeadModel):
    """XLNet for training on sequences of windows: no gradient crosses from one to the next, only the memory.

    The weights, and what is saved, are those of `XLNetLMHeadModel`.
    """

    accepts_loss_kwargs = True

    def __init__(self, config: XLNetConfig) -> None:
        super().__init__(config)
        self.window: int = getattr(config, "window", 300)
        self.memory: int = self.window if config.mem_len is None else config.mem_len
        self.checkpoint = False
        if config.tie_word_embeddings:
            # It is the embedding, which is saved: Trainer would miss it in its checkpoints.
            self._keys_to_ignore_on_save = ["lm_loss.weight"]

    def set_windows(self, *, window: int, memory: int, checkpoint: bool = False) -> None:
        """`checkpoint` keeps only the memory of each window and recomputes the window in the backward pass."""
        self.window, self.memory, self.checkpoint = window, memory, checkpoint
        self.config.window, self.config.mem_len = window, memory

    def forward(
        self,
        input_ids: Tensor,
        targets: Tensor | None = None,
        num_items_in_batch: Tensor | int | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        **inner: Any,
    ) -> XLNetLMHeadModelOutput:
        """With `targets`, the loss over all windows; without, transformers' own forward pass.

        `targets` names the token after each input. Padding must stand on the right, where nothing that counts sees
        it: `attention_mask` and `labels`, which come along from the collator, add nothing then.
        """
        if targets is None:
            return super().forward(input_ids, attention_mask=attention_mask, labels=labels, **inner)
        total, memory = torch.zeros((), device=input_ids.device), None
        with whole_memory(self):
            for start in range(0, input_ids.shape[1], self.window):
                part = slice(start, start + self.window)
                losses, memory = self._run(input_ids[:, part], targets[:, part], memory)
                total = total + losses.sum()
        scored = (targets != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        return XLNetLMHeadModelOutput(loss=total / scored)

    def _run(self, ids_BN: Tensor, targets_BN: Tensor, memory: Memory) -> tuple[Tensor, Memory]:
        if self.checkpoint and torch.is_grad_enabled():
            return checkpoint(window_losses, self, ids_BN, targets_BN, memory, self.memory, use_reentrant=False)
        return window_losses(self, ids_BN, targets_BN, memory, self.memory)
