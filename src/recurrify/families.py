"""The one file that knows the insides of Hugging Face models.

A base model keeps running its own forward pass: embeddings, masks, rotary positions and layers stay its own. Hooks on
its layers do three things, and only when a `Traffic` object is handed down with the call: they put extra inputs in
front of a layer's hidden states and behind them and take their outputs away again, to drop them or to give them to the
next layer; they let a mechanism change a layer's inputs; and they show each layer's output to whoever takes notes.
Where a mechanism asks for it, attention itself is opened in the same way: what a layer attended to is changed before
the layer's output projection sees it, and keys that outnumber the queries need no mask. With extra inputs in front and
behind, a causal mask over the longer input is already right, so fused attention stays on.

To add a family, register what this file lists for the others:

    register_family(Family("MyModel", ("my_model_type",), layers="layers", causal=True))

`layers` is the path from the backbone (`model.base_model`) to its list of layers. The backbone must hand unknown
keyword arguments down to its layers, as transformers' models do.
"""

import copy
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from recurrify.errors import UserError
from recurrify.speed.backends import attend_to_earlier
from recurrify.speed.gelu import WRITTEN_OUT, QuickInTraining

TRAFFIC = "recurrify_traffic"
ATTENTION = ("eager", "sdpa")
MIXING = "recurrify_mixing"
OPENED = "recurrify_opened"
ALIGNMENT = 8
"""Of a mask's rows, in numbers."""


@dataclass
class Traffic:
    """What enters and leaves the layers of one window; handed down with the call and gone after it."""

    slots: dict[int, Tensor] = field(default_factory=dict)
    """Extra inputs (rows, count, width) of each layer that has some."""
    lasting: set[int] = field(default_factory=set)
    """Layers whose extra inputs are what the layer before makes of its own."""
    cached_slots: dict[int, int] = field(default_factory=dict)
    """Layers whose cache already begins with this many extra inputs: only their masks are widened."""
    seen_slots: Tensor | None = None
    """(rows, count): which of those each row's token sees; None means all."""
    widened: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Masks as they came and as they were widened, by the first one's identity and by how much."""
    behind: Tensor | None = None
    """Extra inputs (rows, count, width) behind the window: they enter the first layer, live on to the top and see all
    that stands before them; the window does not see them."""
    live: Tensor | None = None
    """(rows,) bool on the device: the rows that may attend to the extra inputs; None means all."""
    recall: Callable[[int, Tensor], Tensor] | None = None
    """Called with each layer's index and inputs, extra ones included: gives the inputs it gets instead."""
    mix: Callable[[int, Tensor, Tensor], Tensor] | None = None
    """Called in each layer of a base with opened attention, with its index, what was attended to and the values, both
    (rows, heads, positions, size): gives what goes on instead."""
    see: Callable[[int, Tensor], None] | None = None
    """Called with each layer's index and output."""
    see_behind: Callable[[int, Tensor], None] | None = None
    """Called with each layer's index and what it made of the extra inputs behind."""
    causal: bool = True
    """What attention does where it is given no mask."""
    additive: bool = False
    """Whether masks are added to the scores (eager attention) rather than boolean."""
    maskless: bool = False
    """Take away the masks that the base makes, where they say no more than what attention does without one, in a base
    with opened attention also where keys from elsewhere stand in front. (While it is compiled, transformers makes such
    masks all the same, and fused attention is slower with than without.)"""

    def needs_no_mask(self, base: PreTrainedModel, inputs: dict[str, Any], keeps_keys: bool, has_memory: bool) -> bool:
        """Whether a window's masks say no more than what attention does without one. Keys from elsewhere are seen by
        all where all rows have them, but only attention that was opened knows that."""
        unmasked = self.maskless or (keeps_keys and self.live is None and not self.additive)
        outnumbered = has_memory and "past_key_values" in inputs
        opened = bool(getattr(base, OPENED, False))
        return unmasked and inputs.get("attention_mask") is None and (opened or not outnumbered)


def _output_embeddings(base: PreTrainedModel, hidden: Tensor) -> Tensor:
    logits = base.get_output_embeddings()(hidden)
    softcap = getattr(base.config, "final_logit_softcapping", None)
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap


def plain_head(base: PreTrainedModel, family: "Family") -> Tensor | None:
    """The weights (vocabulary, width) of a head that is a linear map and nothing else; None for any other, such as one
    whose weights are computed, as in pruning, or that somebody watches."""
    head = base.get_output_embeddings()
    capped = getattr(base.config, "final_logit_softcapping", None) is not None
    if family.head is not _output_embeddings or capped or type(head) is not nn.Linear or head.bias is not None:
        return None
    changed = "weight" not in head._parameters or "forward" in vars(head)
    return None if changed or head._forward_hooks or head._forward_pre_hooks else head.weight


def _distilbert_head(base: Any, hidden: Tensor) -> Tensor:
    return base.vocab_projector(base.vocab_layer_norm(base.activation(base.vocab_transform(hidden))))


def _distilbert_classifier(base: Any, pooled: Tensor) -> Tensor:
    return base.classifier(base.dropout(torch.relu(base.pre_classifier(pooled))))


def _tagger(base: Any, hidden: Tensor) -> Tensor:
    return base.classifier(base.dropout(hidden))


def _tied_language_head(base: PreTrainedModel, hidden: Tensor) -> Tensor:
    """A classifier has no head for the next token: its input embeddings serve, as GPT ties the two."""
    return functional.linear(hidden, base.get_input_embeddings().weight)


def _max_positions(config: PretrainedConfig) -> int | None:
    return getattr(config, "max_position_embeddings", None)


def _roberta_positions(config: PretrainedConfig) -> int:
    # RoBERTa counts its positions from the padding index on.
    return config.max_position_embeddings - config.pad_token_id - 1


@dataclass(frozen=True)
class Family:
    """How to reach the parts of one architecture."""

    name: str
    model_types: tuple[str, ...]
    layers: str
    causal: bool
    rotary: bool = False
    """Whether the backbone's `rotary_emb` turns the first and the second half of each key's first features against
    each other, as in Llama: such keys can be moved to other positions."""
    head: Callable[[PreTrainedModel, Tensor], Tensor] = _output_embeddings
    positions: Callable[[PretrainedConfig], int | None] = _max_positions
    classifier: Callable[[Any, Tensor], Tensor] = lambda base, pooled: base.score(pooled)
    """From one vector (rows, width) for each text to its labels' scores, in a model for sequence classification."""
    tagger: Callable[[Any, Tensor], Tensor] = _tagger
    """From hidden states to the scores of each token's labels, in a model for token classification."""
    spans: Callable[[Any, Tensor], Tensor] = lambda base, hidden: base.qa_outputs(hidden)
    """From hidden states to each token's scores as start and as end of an answer."""
    language: Callable[[PreTrainedModel, Tensor], Tensor] = _tied_language_head
    """From hidden states to the scores of the next token, in a decoder that was made a classifier."""

    def layers_of(self, base: PreTrainedModel) -> nn.ModuleList:
        return base.base_model.get_submodule(self.layers)


_FAMILIES: dict[str, Family] = {}


def register_family(family: Family) -> None:
    for model_type in family.model_types:
        _FAMILIES[model_type] = family


LLAMA_SHAPED = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "gemma", "gemma2", "gemma3_text")
for _family in (
    Family("GPT-2", ("gpt2",), layers="h", causal=True),
    Family("GPT-NeoX (Pythia)", ("gpt_neox",), layers="layers", causal=True, rotary=True),
    Family("OPT", ("opt",), layers="decoder.layers", causal=True),
    Family("Llama, Mistral, Qwen2, Qwen3, SmolLM, Gemma", LLAMA_SHAPED, layers="layers", causal=True, rotary=True),
    Family(
        "BERT",
        ("bert",),
        layers="encoder.layer",
        causal=False,
        head=lambda base, hidden: base.cls(hidden),
        # Poolers and classification heads look at the first position of what they get.
        classifier=lambda base, pooled: base.classifier(base.dropout(base.bert.pooler(pooled[:, None]))),
    ),
    Family(
        "RoBERTa, XLM-R",
        ("roberta", "xlm-roberta"),
        layers="encoder.layer",
        causal=False,
        head=lambda base, hidden: base.lm_head(hidden),
        positions=_roberta_positions,
        classifier=lambda base, pooled: base.classifier(pooled[:, None]),
    ),
    Family(
        "DistilBERT",
        ("distilbert",),
        layers="transformer.layer",
        causal=False,
        head=_distilbert_head,
        classifier=_distilbert_classifier,
        spans=lambda base, hidden: base.qa_outputs(base.dropout(hidden)),
    ),
):
    register_family(_family)


def family_of(config: PretrainedConfig) -> Family:
    family = _FAMILIES.get(config.model_type)
    if family is None or getattr(config, "is_encoder_decoder", False):
        supported = sorted({known.name for known in _FAMILIES.values()})
        raise UserError(
            f"Models of type {config.model_type!r} are not supported: supported are {', '.join(supported)}; "
            "recurrify.families.register_family adds another."
        )
    if not family.causal and getattr(config, "is_decoder", False):
        raise UserError(f"A {config.model_type!r} model set up as a decoder is not supported: set is_decoder=False.")
    if family.causal and getattr(config, "use_bidirectional_attention", False):
        raise UserError(
            f"A {config.model_type!r} model that attends in both directions is not supported: set "
            "use_bidirectional_attention=False."
        )
    return family


def check_fits(config: PretrainedConfig, window: int, slots: int, first: int = 0) -> None:
    """Refuse a window that the base model cannot run as one piece, from position `first` on."""
    check_attention(config)
    positions = family_of(config).positions(config)
    if positions is not None and first + window > positions:
        behind = f" behind {first} positions for what is kept" if first else ""
        way_out = f"choose window={positions - first} or less" if positions > first else "keep less"
        raise UserError(
            f"`window` is {window}{behind}, but this {config.model_type} model has only {positions} positions: "
            f"{way_out}."
        )
    reach = attention_reach(config)
    if reach is not None and window + slots > reach:
        way_out = f"choose window={reach - slots} or less" if reach > slots else "carry fewer"
        raise UserError(
            f"`window` is {window} with {slots} carried vectors, but this {config.model_type} model attends only "
            f"{reach} tokens back: {way_out}."
        )


def has_absolute_positions(config: PretrainedConfig) -> bool:
    """Whether this is a decoder whose keys do not turn; a family may have been registered without a word of that."""
    family = family_of(config)
    turns = any(getattr(config, name, None) is not None for name in ("rope_parameters", "rope_theta"))
    return family.causal and not family.rotary and not turns


def attention_reach(config: PretrainedConfig) -> int | None:
    """How many tokens back its layers attend at least; None where all see all."""
    layer_types = getattr(config, "layer_types", None)
    slides = layer_types is None or "sliding_attention" in layer_types
    return getattr(config, "sliding_window", None) if slides and getattr(config, "use_sliding_window", True) else None


def check_attention(config: PretrainedConfig) -> None:
    if config._attn_implementation not in ATTENTION:
        raise UserError(
            f"Attention implementation {config._attn_implementation!r} is not supported: load the model with "
            f"attn_implementation='sdpa' (fused) or 'eager'."
        )


def attach(base: PreTrainedModel) -> None:
    """Put the hooks on a base model's layers, once; without `Traffic` in the call they do nothing."""
    for index, layer in enumerate(family_of(base.config).layers_of(base)):
        if any(getattr(hook, "func", None) is _enter for hook in layer._forward_pre_hooks.values()):
            continue
        parameters = tuple(inspect.signature(type(layer).forward).parameters)[1:]
        layer.register_forward_pre_hook(partial(_enter, index=index, names=parameters), with_kwargs=True)
        layer.register_forward_hook(partial(_leave, index=index), with_kwargs=True)
        _fuse_activations(layer)


def _fuse_activations(layer: nn.Module) -> None:
    for module in list(layer.modules()):  # as they are before any is exchanged
        for name, child in module.named_children():
            if isinstance(child, WRITTEN_OUT):
                setattr(module, name, QuickInTraining(child))


def open_attention(base: PreTrainedModel) -> None:
    """Let `Traffic.mix` reach into the base's attention, and `Traffic.maskless` be true of keys from elsewhere, once;
    without them attention stays what it was."""
    for layer in family_of(base.config).layers_of(base):
        for module in layer.modules():
            config: Any = getattr(module, "config", None)
            if not hasattr(module, "is_causal") or config._attn_implementation == MIXING:
                continue
            # Only attention reads this one: masks still follow the base's own config.
            opened = copy.copy(config)
            opened._attn_implementation = MIXING
            opened.recurrify_unopened = config
            module.config = opened
    setattr(base, OPENED, True)


def _attend_and_mix(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """The attention that the base is set to, and what `Traffic.mix` makes of it."""
    eager = sys.modules[type(module).__module__].eager_attention_forward
    chosen = module.config.recurrify_unopened._attn_implementation
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(chosen, eager)
    traffic: Traffic | None = kwargs.get(TRAFFIC)
    if attention_mask is None and traffic is not None and traffic.maskless and key.shape[2] > query.shape[2]:
        attended = attend_to_earlier(query, key, value, kwargs.get("scaling"), kwargs.get("dropout", 0.0))
        attended, weights = attended.transpose(1, 2).contiguous(), None
    else:
        attended, weights = attend(module, query, key, value, attention_mask, **kwargs)
    if traffic is None or traffic.mix is None:
        return attended, weights
    if value.shape[1] < query.shape[1]:  # heads that share their values
        value = value.repeat_interleave(query.shape[1] // value.shape[1], dim=1)
    return traffic.mix(module.layer_idx, attended.transpose(1, 2), value).transpose(1, 2).contiguous(), weights


AttentionInterface.register(MIXING, _attend_and_mix)


def run_backbone(base: PreTrainedModel, traffic: Traffic, **inputs: Any) -> Tensor:
    """The base model's own backbone over one window; returns the hidden states its head would get."""
    return base.base_model(**inputs, **{TRAFFIC: traffic}).last_hidden_state


def turn_keys(base: PreTrainedModel, layer: int, keys: Tensor, by: int) -> Tensor:
    """Keys (rows, heads, positions, size) of a rotary model, moved by so many positions."""
    attention = getattr(family_of(base.config).layers_of(base)[layer], "self_attn", None)
    if not getattr(attention, "use_rope", True):  # a layer without positions
        return keys
    rotary = base.base_model.rotary_emb
    types = {}
    if "layer_type" in inspect.signature(type(rotary).forward).parameters:
        types["layer_type"] = base.config.layer_types[layer]
    # At least in float32: the angle is the same for all keys, and so would be its error.
    exact = keys.to(torch.promote_types(keys.dtype, torch.float32))
    places = torch.full((1, 1), by, device=keys.device)
    cos, sin = rotary(exact.float(), places, **types)
    scale = (cos.square() + sin.square()).rsqrt()
    turned, still = exact.split([cos.shape[-1], exact.shape[-1] - cos.shape[-1]], dim=-1)
    front, back = turned.chunk(2, dim=-1)
    turned = turned * (cos * scale)[:, None] + torch.cat([-back, front], dim=-1) * (sin * scale)[:, None]
    return torch.cat([turned, still], dim=-1).to(keys.dtype)


def _enter(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], index: int, names: tuple[str, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    traffic: Traffic | None = kwargs.get(TRAFFIC)
    if traffic is None:
        return None
    front, behind = traffic.slots.get(index), traffic.behind
    cached = traffic.cached_slots.get(index)
    changes = (front, behind, cached, traffic.recall)
    if not traffic.maskless and all(change is None for change in changes):
        return None
    # Not `or`: the compiler of torch 2.10 cannot tell whether a function is true.
    recall = _unchanged if traffic.recall is None else traffic.recall
    named = dict(zip(names, args, strict=False)) | kwargs
    hidden = named.pop("hidden_states")
    if traffic.maskless:
        named["attention_mask"] = None
    if cached is not None and named.get("attention_mask") is not None:
        named["attention_mask"] = _widened(named["attention_mask"], cached, traffic)
    if front is None and behind is None:
        return (recall(index, hidden),), named
    counts = tuple(0 if part is None else part.shape[1] for part in (front, behind))
    named["attention_mask"] = _longer_mask(named.get("attention_mask"), hidden, traffic, *counts)
    # Extra inputs stand where the window's first token stands, and behind it where its last does.
    if named.get("position_embeddings") is not None:
        named["position_embeddings"] = tuple(_longer(part, *counts) for part in named["position_embeddings"])
    if isinstance(named.get("position_ids"), Tensor):
        named["position_ids"] = _longer(named["position_ids"], *counts)
    parts = [part.to(hidden.dtype) for part in (front, hidden, behind) if part is not None]
    return (recall(index, torch.cat(parts, dim=1)),), named


def _unchanged(index: int, inputs: Tensor) -> Tensor:
    return inputs


def _leave(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, index: int) -> Any:
    traffic: Traffic | None = kwargs.get(TRAFFIC)
    if traffic is None:
        return None
    hidden = output[0] if isinstance(output, tuple) else output
    if index in traffic.slots:
        count = traffic.slots.pop(index).shape[1]
        slots, hidden = hidden.split([count, hidden.shape[1] - count], dim=1)
        if index + 1 in traffic.lasting:
            traffic.slots[index + 1] = slots
    if traffic.behind is not None:
        count = traffic.behind.shape[1]
        hidden, traffic.behind = hidden.split([hidden.shape[1] - count, count], dim=1)
        if traffic.see_behind is not None:
            traffic.see_behind(index, traffic.behind)
    if traffic.see is not None:
        traffic.see(index, hidden)
    return (hidden, *output[1:]) if isinstance(output, tuple) else hidden


def _longer(positions: Tensor, front: int, behind: int) -> Tensor:
    """Positions (rows, N, …) with the first and the last repeated for what stands in front and behind."""
    rest = positions.shape[2:]
    first, last = (positions[:, at].unsqueeze(1) for at in (0, -1))
    return torch.cat([first.expand(-1, front, *rest), positions, last.expand(-1, behind, *rest)], dim=1)


def _longer_mask(mask: Tensor | None, hidden: Tensor, traffic: Traffic, front: int, behind: int) -> Tensor | None:
    """The mask of a window with `front` and `behind` extra inputs; None where attention needs none."""
    if mask is None and ((front and traffic.live is not None) or (behind and not traffic.causal)):
        mask = _open_mask(hidden, traffic)
    if mask is None:
        return None
    if front:
        mask = _add_queries(_widen(mask, front, traffic.live), front, traffic.causal)
    return _add_behind(mask, behind, front + hidden.shape[1], traffic.causal) if behind else mask


def _open_mask(hidden: Tensor, traffic: Traffic) -> Tensor:
    """What attention does when it is given no mask, as a mask."""
    length = hidden.shape[1]
    allowed = torch.ones(length, length, dtype=torch.bool, device=hidden.device)
    return as_mask(allowed.tril() if traffic.causal else allowed, traffic.additive, hidden.dtype)[None, None]


def as_mask(allowed: Tensor, additive: bool, dtype: torch.dtype) -> Tensor:
    """A boolean mask in the form that the attention in use expects."""
    if not additive:
        return allowed
    return torch.zeros_like(allowed, dtype=dtype).masked_fill(~allowed, torch.finfo(dtype).min)


def aligned(mask: Tensor) -> Tensor:
    """A mask that is added, its rows where fused attention wants them, which would copy it in each layer otherwise."""
    length = mask.shape[-1]
    room = mask.new_zeros(*mask.shape[:-1], -(-length // ALIGNMENT) * ALIGNMENT)
    room[..., :length] = mask
    return room[..., :length]


def _widened(mask: Tensor, count: int, traffic: Traffic) -> Tensor:
    """For a generated token, which sees `count` slots that its window's first token came with; layers with as many
    share it."""
    key = id(mask), count
    if key not in traffic.widened:
        wide = _widen(mask, count, traffic.live, traffic.seen_slots)
        traffic.widened[key] = mask, wide if wide.dtype == torch.bool else aligned(wide)
    return traffic.widened[key][1]


def _widen(mask: Tensor, count: int, live: Tensor | None, seen: Tensor | None = None) -> Tensor:
    """Let every query see `count` more keys in front, or those of them that are `seen` (rows, count), except in rows
    that are not live."""
    allowed, forbidden = _marks(mask)
    rows = len(mask) if live is None else len(live)
    mask = mask.expand(rows, *mask.shape[1:])
    front = mask.new_full((*mask.shape[:-1], count), allowed)
    if live is not None:
        front = front.masked_fill(~live[:, None, None, None], forbidden)
    if seen is not None:
        front = front.masked_fill(~seen[:, None, None], forbidden)
    return torch.cat([front, mask], dim=-1)


def _add_queries(mask: Tensor, count: int, causal: bool) -> Tensor:
    """Let the `count` inputs in front see too: in a causal model themselves and those before them, as they do where
    there is no mask; in others what the first position sees. In rows that are not live nobody sees them."""
    if causal:
        allowed, forbidden = _marks(mask)
        top = mask.new_full((*mask.shape[:-2], count, mask.shape[-1]), forbidden)
        seen = torch.ones(count, mask.shape[-1], dtype=torch.bool, device=mask.device).tril()
        return torch.cat([top.masked_fill(seen, allowed), mask], dim=-2)
    if mask.shape[-2] == 1:  # all queries share it
        return mask
    return torch.cat([mask[..., :1, :].expand(*mask.shape[:-2], count, -1), mask], dim=-2)


def _add_behind(mask: Tensor, count: int, queries: int, causal: bool) -> Tensor:
    """Let `count` inputs behind see what the last query sees and each other, in a causal model those before them;
    none of the `queries` sees them."""
    allowed, forbidden = _marks(mask)
    mask = mask.expand(*mask.shape[:-2], queries, -1)  # where all queries share one
    right = mask.new_full((*mask.shape[:-1], count), forbidden)
    below = mask[..., -1:, :].expand(*mask.shape[:-2], count, -1)
    seen = torch.ones(count, count, dtype=torch.bool, device=mask.device)
    corner = mask.new_full((*mask.shape[:-2], count, count), forbidden)
    corner = corner.masked_fill(seen.tril() if causal else seen, allowed)
    return torch.cat([torch.cat([mask, right], dim=-1), torch.cat([below, corner], dim=-1)], dim=-2)


def _marks(mask: Tensor) -> tuple[float, float]:
    """What stands for allowed and forbidden in a boolean mask and in one that is added."""
    return (True, False) if mask.dtype == torch.bool else (0.0, torch.finfo(mask.dtype).min)
