"""Neutral inputs: what a first token looks like to each layer, which trained models mostly ignore.

Attention weights sum to one, and trained models learn to put unused weight on the first token. An extra input that
looks like a first token takes a share of that weight and changes little else. Any other extra input, even a small one
(norms scale it up), takes attention from everywhere and undoes much of what was learned.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import DynamicCache, PretrainedConfig, PreTrainedModel

from recurrify.families import family_of

PROBES = 64
"""First tokens to average over."""
TEXTS, AT_ONCE = 64, 4
"""Texts to average keys and values over, and how many run at a time to limit memory. With a quarter of them, noise
costs a tenth of the gain."""


@torch.no_grad()
def neutral_inputs(base: PreTrainedModel) -> list[Tensor]:
    """For each layer, the mean input (width,) that a first token has there."""
    layers = family_of(base.config).layers_of(base)
    device = next(base.parameters()).device
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
    """(layers, 2, heads, length, size): the mean keys and values at each position, over random tokens."""
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
    """Run the base in eval mode, and restore its mode."""
    modes = [(module, module.training) for module in base.modules()]
    base.eval()
    try:
        # With a mask, or transformers would warn that a token might be padding.
        base.base_model(input_ids=ids, attention_mask=torch.ones_like(ids), **more)
    finally:
        for module, training in modes:
            module.training = training


def first_tokens(config: PretrainedConfig) -> Tensor:
    """A sample of the vocabulary. Their mean works better than the token that texts begin with, which models expect
    only once."""
    return torch.linspace(0, config.vocab_size - 1, min(PROBES, config.vocab_size)).long()
