"""The only file that knows the insides of Hugging Face models.

A base model runs its own forward pass: embeddings, masks, rotary positions and layers stay its own. Hooks on its layers
do three things, and only in calls by `run_backbone`: they add extra inputs in front of a layer's hidden states and
behind them and remove their outputs again, to drop them or to pass them to the next layer; they let a mechanism change
a layer's inputs; and they show each layer's output to the recorder. A mechanism can also open attention itself
(`open_attention`): then it can change a layer's attention output before the output projection, and keys that outnumber
the queries need no mask. With extra inputs in front and behind, a causal mask over the longer input is already right,
so fused attention stays on.

To add a family, register what this file lists for the others:

    register_family(Family("MyModel", ("my_model_type",), layers="layers", causal=True))

`layers` is the path from the backbone (`model.base_model`) to its list of layers. The backbone must pass unknown
keyword arguments to its layers, as transformers' models do.
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from recurrify.context import WindowContext
from recurrify.errors import UserError
from recurrify.masks import add_behind, add_queries, aligned, as_mask, widen
from recurrify.speed.backends import attend_to_earlier
from recurrify.speed.gelu import WRITTEN_OUT, QuickInTraining

CALL = "recurrify_call"
"""The keyword argument by which `run_backbone` reaches the hooks."""
CHANGE = "recurrify_change"
"""The keyword argument by which a layer's attention gets its own `WindowContext.change_attention`: code that knows the
number of its layer would be compiled for each layer."""
ATTENTION = ("eager", "sdpa")
MIXING = "recurrify_mixing"
OPENED = "recurrify_opened"


@dataclass
class _Call:
    """A window's context, and the facts about masks that the hooks need during one call of the base."""

    context: WindowContext
    causal: bool
    """Whether attention without a mask is causal."""
    additive: bool
    """Whether masks are added to the scores (eager attention) rather than boolean."""
    maskless: bool
    """Remove the masks that the base makes, because attention without a mask is the same. Under torch.compile
    transformers always makes them, and fused attention is slower with a mask."""
    cached_slots: Mapping[int, int]
    """{layer: count} of extra inputs that are already in the cache: only their masks are widened."""
    widened: dict[tuple[int, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Masks before and after widening, by the first one's identity and the count."""


def _output_embeddings(base: PreTrainedModel, hidden: Tensor) -> Tensor:
    logits = base.get_output_embeddings()(hidden)
    softcap = getattr(base.config, "final_logit_softcapping", None)
    return logits if softcap is None else torch.tanh(logits / softcap) * softcap


def plain_head(base: PreTrainedModel, family: "Family") -> Tensor | None:
    """The weights (vocabulary, width) of a head that is only a linear map; None for any other, such as one with
    hooks or with computed weights, as in pruning."""
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
    """A classifier has no head for the next token: its input embeddings are used, as in models with tied embeddings."""
    return functional.linear(hidden, base.get_input_embeddings().weight)


def _max_positions(config: PretrainedConfig) -> int | None:
    return getattr(config, "max_position_embeddings", None)


def _roberta_positions(config: PretrainedConfig) -> int:
    # RoBERTa's positions begin after the padding index.
    return config.max_position_embeddings - config.pad_token_id - 1


@dataclass(frozen=True)
class Family:
    """How to reach the parts of one architecture."""

    name: str
    model_types: tuple[str, ...]
    layers: str
    causal: bool
    rotary: bool = False
    """Whether the backbone's `rotary_emb` rotates the first against the second half of each key, as in Llama: such keys
    can be moved to other positions."""
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

    def __reduce__(self) -> tuple[Any, ...]:
        return _registered, (self.model_types[0],)  # functions without a name cannot be pickled


_FAMILIES: dict[str, Family] = {}


def register_family(family: Family) -> None:
    for model_type in family.model_types:
        _FAMILIES[model_type] = family


def _registered(model_type: str) -> Family:
    return _FAMILIES[model_type]


def known_model_types() -> list[str]:
    return list(_FAMILIES)


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
    """Raise UserError for a window that the base model cannot run in one piece, from position `first` on."""
    check_attention(config)
    positions = family_of(config).positions(config)
    if positions is not None and first + window > positions:
        behind = f" behind {first} positions for kept keys" if first else ""
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
    """Whether this is a decoder without rotary positions, also if its family was registered without `rotary`."""
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


def checkpoints_layers(base: PreTrainedModel) -> bool:
    """Whether transformers' own gradient checkpointing is on."""
    return any(getattr(module, "gradient_checkpointing", False) for module in base.modules())


def attach(base: PreTrainedModel) -> None:
    """Put the hooks on a base model's layers, once; outside of `run_backbone` they do nothing."""
    for index, layer in enumerate(family_of(base.config).layers_of(base)):
        if any(getattr(hook, "func", None) is _enter for hook in layer._forward_pre_hooks.values()):
            continue
        parameters = tuple(inspect.signature(type(layer).forward).parameters)[1:]
        layer.register_forward_pre_hook(partial(_enter, index=index, names=parameters), with_kwargs=True)
        layer.register_forward_hook(partial(_leave, index=index), with_kwargs=True)
        _fuse_activations(layer)


def _fuse_activations(layer: nn.Module) -> None:
    for module in list(layer.modules()):  # a copy: the loop replaces some
        for name, child in module.named_children():
            if isinstance(child, WRITTEN_OUT):
                setattr(module, name, QuickInTraining(child))


def open_attention(base: PreTrainedModel) -> None:
    """Let `WindowContext.change_attention` reach the base's attention, and let windows with kept keys run without a
    mask. Otherwise attention stays the same."""
    for layer in family_of(base.config).layers_of(base):
        for module in layer.modules():
            config: Any = getattr(module, "config", None)
            if not hasattr(module, "is_causal") or config._attn_implementation == MIXING:
                continue
            # Only attention reads this copy: masks still depend on the base's own config.
            opened = copy.copy(config)
            opened._attn_implementation = MIXING
            opened.recurrify_unopened = config
            opened.recurrify_eager = import_module(type(module).__module__).eager_attention_forward
            module.config = opened
    setattr(base, OPENED, True)


def _attend_and_mix(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, Tensor | None]:
    """The attention that the base is set to, changed by `WindowContext.change_attention`."""
    chosen = module.config.recurrify_unopened._attn_implementation
    attend = ALL_ATTENTION_FUNCTIONS.get_interface(chosen, module.config.recurrify_eager)
    call: _Call | None = kwargs.get(CALL)
    change = kwargs.pop(CHANGE, None)
    if call is None or change is None:
        return _attend(attend, call, module, query, key, value, attention_mask, **kwargs)

    def attend_to(keys: Tensor, values: Tensor, seen: Tensor | None = None) -> Tensor:
        mask = attention_mask
        if seen is not None:
            mask = _front_mask(query, keys, mask, call, seen)
        return _attend(attend, call, module, query, keys, values, mask, **kwargs)[0].transpose(1, 2)

    return change(attend_to, key, value).transpose(1, 2).contiguous(), None


def _attend(
    attend: Callable[..., tuple[Tensor, Tensor | None]],
    call: _Call | None,
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """(rows, positions, heads, size), and the weights if the base gives them. Kept keys need no mask."""
    if mask is None and call is not None and call.maskless and key.shape[2] > query.shape[2]:
        attended = attend_to_earlier(query, key, value, kwargs.get("scaling"), kwargs.get("dropout", 0.0))
        return attended.transpose(1, 2).contiguous(), None
    return attend(module, query, key, value, mask, **kwargs)


def _front_mask(query: Tensor, keys: Tensor, mask: Tensor | None, call: _Call, seen: Tensor) -> Tensor:
    """The mask of a layer whose keys begin with some that only rows that have `seen` them see."""
    if mask is None:
        mask = _open_mask(query, query.shape[2], keys.shape[2] - seen.shape[1], call)
    mask = widen(mask, seen.shape[1], call.context.past.live, seen)
    return mask if mask.dtype == torch.bool else aligned(mask)


AttentionInterface.register(MIXING, _attend_and_mix)


def run_backbone(
    base: PreTrainedModel,
    context: WindowContext,
    inputs: dict[str, Any],
    causal: bool,
    cached_slots: Mapping[int, int] | None = None,
) -> Tensor:
    """The base model's own backbone over one window; returns the hidden states that its head expects.

    `causal` is the family's; `cached_slots` are extra inputs that the cache in `inputs` begins with, by layer.
    """
    additive = base.config._attn_implementation == "eager"
    # Attention that was not opened needs a mask, or queries would not see all kept keys.
    hidden_keys = context.past.memory is not None and "past_key_values" in inputs and not getattr(base, OPENED, False)
    unmasked = inputs.get("attention_mask") is None and context.past.live is None
    maskless = causal and not additive and unmasked and not hidden_keys
    call = _Call(context, causal, additive, maskless, cached_slots or {})
    return base.base_model(**inputs, **{CALL: call}).last_hidden_state


def head_size(config: PretrainedConfig) -> int:
    """The size of one head's queries, keys and values."""
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def key_width(config: PretrainedConfig) -> int:
    """The size of all heads' keys of one position in a layer; heads may share them."""
    return head_size(config) * (getattr(config, "num_key_value_heads", None) or config.num_attention_heads)


def turn_keys(base: PreTrainedModel, layers: Sequence[int], keys: Tensor, by: int) -> Tensor:
    """Keys (rows, layers, heads, positions, size) of these layers of a rotary model, moved by so many positions."""
    return turn(keys, *key_angles(base, layers, keys, by))


def key_angles(base: PreTrainedModel, layers: Sequence[int], like: Tensor, by: int | Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines (layers, moves, 1, size) that `turn` keys of these layers by one or several (moves,) moves."""
    moves = by if isinstance(by, Tensor) else torch.full((1,), by, device=like.device)
    kinds = [_rotation(base, layer) for layer in layers]
    angles = {kind: _angles(base, *kind, like.new_empty(0), moves) for kind in dict.fromkeys(kinds)}
    cos, sin = (torch.stack(parts)[:, :, None] for parts in zip(*(angles[kind] for kind in kinds), strict=True))
    return cos, sin


def turn(keys: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Keys (…, heads, positions, size), turned by angles of the same number of layers."""
    # At least in float32: the angle is the same for all keys, and so would be its error.
    turned, still = keys.to(torch.promote_types(keys.dtype, torch.float32)).tensor_split([cos.shape[-1]], dim=-1)
    front, back = turned.chunk(2, dim=-1)
    turned = turned * cos + torch.cat([-back, front], dim=-1) * sin
    return torch.cat([turned, still], dim=-1).to(keys.dtype)


def _rotation(base: PreTrainedModel, layer: int) -> tuple[bool, str | None]:
    """Whether a layer has positions, and the name of its rotation in models with several."""
    attention = getattr(family_of(base.config).layers_of(base)[layer], "self_attn", None)
    several = "layer_type" in inspect.signature(type(base.base_model.rotary_emb).forward).parameters
    return getattr(attention, "use_rope", True), base.config.layer_types[layer] if several else None


def _angles(base: PreTrainedModel, turns: bool, kind: str | None, like: Tensor, by: Tensor) -> tuple[Tensor, Tensor]:
    """Cosines and sines (moves, size) of moves by so many positions."""
    types = {} if kind is None else {"layer_type": kind}
    cos, sin = (part[0] for part in base.base_model.rotary_emb(like.float(), (by * turns)[None], **types))
    scale = (cos.square() + sin.square()).rsqrt()
    return cos * scale, sin * scale


def _enter(
    layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], index: int, names: tuple[str, ...]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    call: _Call | None = kwargs.get(CALL)
    if call is None:
        return None
    front, behind = call.context.front.get(index), call.context.behind
    cached = call.cached_slots.get(index)
    mixes = call.context.change_attention.get(index)
    changes = (front, behind, cached, mixes, call.context.change_inputs)
    if not call.maskless and all(change is None for change in changes):
        return None
    # Not `or`: torch 2.10 cannot compile the truth value of a function.
    change = _unchanged if call.context.change_inputs is None else call.context.change_inputs
    named = dict(zip(names, args, strict=False)) | kwargs
    hidden = named.pop("hidden_states")
    if mixes is not None:
        named[CHANGE] = mixes
    if call.maskless:
        named["attention_mask"] = None
    if cached is not None and named.get("attention_mask") is not None:
        named["attention_mask"] = _widened(named["attention_mask"], cached, call)
    if front is None and behind is None:
        return (change(index, hidden),), named
    counts = tuple(0 if part is None else part.shape[1] for part in (front, behind))
    named["attention_mask"] = _longer_mask(named.get("attention_mask"), hidden, call, *counts)
    # Extra inputs in front have the position of the window's first token, those behind that of its last.
    if named.get("position_embeddings") is not None:
        named["position_embeddings"] = tuple(_longer(part, *counts) for part in named["position_embeddings"])
    if isinstance(named.get("position_ids"), Tensor):
        named["position_ids"] = _longer(named["position_ids"], *counts)
    parts = [part.to(hidden.dtype) for part in (front, hidden, behind) if part is not None]
    return (change(index, torch.cat(parts, dim=1)),), named


def _unchanged(index: int, inputs: Tensor) -> Tensor:
    return inputs


def _leave(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any, index: int) -> Any:
    call: _Call | None = kwargs.get(CALL)
    if call is None:
        return None
    context = call.context
    hidden = output[0] if isinstance(output, tuple) else output
    front = context.front.pop(index, None)
    if front is not None:
        count = front.shape[1]
        slots, hidden = hidden.split([count, hidden.shape[1] - count], dim=1)
        if index + 1 in context.front and context.front[index + 1] is None:
            context.front[index + 1] = slots
    if context.behind is not None:
        count = context.behind.shape[1]
        hidden, context.behind = hidden.split([hidden.shape[1] - count, count], dim=1)
        if context.recorder is not None:
            context.recorder.see_behind(index, context.behind)
    if context.recorder is not None:
        context.recorder.see(index, hidden)
    return (hidden, *output[1:]) if isinstance(output, tuple) else hidden


def _longer(positions: Tensor, front: int, behind: int) -> Tensor:
    """Positions (rows, N, …) with the first and the last repeated for extra inputs in front and behind."""
    rest = positions.shape[2:]
    first, last = (positions[:, at].unsqueeze(1) for at in (0, -1))
    return torch.cat([first.expand(-1, front, *rest), positions, last.expand(-1, behind, *rest)], dim=1)


def _longer_mask(mask: Tensor | None, hidden: Tensor, call: _Call, front: int, behind: int) -> Tensor | None:
    """The mask of a window with `front` and `behind` extra inputs; None where attention needs none."""
    live = call.context.past.live
    if mask is None and ((front and live is not None) or (behind and not call.causal)):
        mask = _open_mask(hidden, hidden.shape[1], hidden.shape[1], call)
    if mask is None:
        return None
    if front:
        mask = add_queries(widen(mask, front, live), front, call.causal)
    return add_behind(mask, behind, front + hidden.shape[1], call.causal) if behind else mask


def _open_mask(like: Tensor, queries: int, keys: int, call: _Call) -> Tensor:
    """A mask that does not change attention; the last key is the last query's own."""
    allowed = torch.ones(queries, keys, dtype=torch.bool, device=like.device)
    return as_mask(allowed.tril(keys - queries) if call.causal else allowed, call.additive, like.dtype)[None, None]


def _widened(mask: Tensor, count: int, call: _Call) -> Tensor:
    """For a generated token, which sees `count` slots at the start of its cache; layers with as many share it."""
    key = id(mask), count
    if key not in call.widened:
        wide = widen(mask, count, call.context.past.live, call.context.seen_slots)
        call.widened[key] = mask, wide if wide.dtype == torch.bool else aligned(wide)
    return call.widened[key][1]
