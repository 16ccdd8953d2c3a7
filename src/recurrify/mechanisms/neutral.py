"""Where added inputs start: as what a model's layers see of a first token, which they know to make little of.

Attention has to put its weight somewhere, and trained models learn to leave what they have no use for on the first
token. An extra input that looks like one takes a share of that weight and changes little else. One that looks like
nothing the model knows, however faint (the layers' norms make faint inputs as loud as others), draws attention from
everywhere and undoes much of what was learned.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel

from recurrify.families import family_of

PROBES = 64
"""First tokens to average over."""
TEXTS, AT_ONCE = 64, 4
"""Texts to average keys and values over, and how many are run at a time: those of all would take gigabytes. A quarter
of them leaves so much noise that a tenth of the gain is lost."""


@torch.no_grad()
def neutral_inputs(base: PreTrainedModel) -> list[Tensor] | None:
    """For each layer the input (width,) that a first token has there; None for a base whose weights are elsewhere."""
    layers = family_of(base.config).layers_of(base)
    device = next(base.parameters()).device
    if device.type == "meta":
        return None
    seen: list[Tensor] = []

    def keep(layer: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        hidden = args[0] if args else kwargs["hidden_states"]
        seen.append(hidden[:, 0].detach().float().mean(0))

    hooks = [layer.register_forward_pre_hook(keep, with_kwargs=True) for layer in layers]
    try:
        ids = first_tokens(base.config).to(device)[:, None]
        _run(base, ids)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


@torch.no_grad()
def mean_keys_and_values(base: PreTrainedModel, length: int) -> Tensor:
    """(layers, 2, heads, length, size): the means at each position of texts of tokens drawn at random."""
    drawn = torch.Generator().manual_seed(0)
    means: Tensor | float = 0.0
    for _ in range(0, TEXTS, AT_ONCE):
        ids = torch.randint(base.config.vocab_size, (AT_ONCE, length), generator=drawn).to(base.device)
        cache = DynamicCache()
        _run(base, ids, past_key_values=cache, use_cache=True)
        sums = [torch.stack([layer.keys.float().sum(0), layer.values.float().sum(0)]) for layer in cache.layers]
        means = means + torch.stack(sums) / TEXTS
    assert isinstance(means, Tensor)
    return means


def _run(base: PreTrainedModel, ids: Tensor, **more: Any) -> None:
    """As it is used, whatever mode it is in."""
    modes = [(module, module.training) for module in base.modules()]
    base.eval()
    try:
        # With a mask, or transformers would warn that a token might be padding.
        base.base_model(input_ids=ids, attention_mask=torch.ones_like(ids), **more)
    finally:
        for module, training in modes:
            module.training = training


def first_tokens(config: PretrainedConfig) -> Tensor:
    """A sample of the vocabulary. Their mean serves better than the token that texts begin with, of which models know
    that there is only one."""
    return torch.linspace(0, config.vocab_size - 1, min(PROBES, config.vocab_size)).long()
