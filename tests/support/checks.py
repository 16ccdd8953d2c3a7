"""Tiny recurrent models for tests, and how their results are compared."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from recurrify import State, add_recurrence
from recurrify.mechanisms import MechanismConfig, mechanism_config, recurrence_config
from support.models import DECODERS, ENCODERS, tiny

WINDOW = 8

CARRIES: dict[str, dict[str, Any]] = {
    "paper": {},
    "overlap": {"overlap": 3},
    "max": {"pooling": "max", "overlap": 3},
    "attention": {"pooling": "attention", "slots": 3},
    "last_layer": {"pooled_layers": "last", "hidden_layers": 2, "insert_layer": 1},
    "top": {"insert_layer": 3, "pooling": "attention", "overlap": 3},
    "everywhere": {"insert_layer": "all", "slots": 3, "overlap": 3},
    "standardized": {"standardize": True, "pooling": "max", "insert_layer": "all"},
    "standardized_overlap": {"standardize": True, "overlap": 3, "slots": 3},
}
"""Settings in which each value of each setting occurs."""
TAILS: dict[str, dict[str, Any]] = {
    "tail": {"mechanism": "tail"},
    "tail_one_layer": {"mechanism": "tail", "overlap": 3, "until_layer": 2, "pooled_slots": 1},
    "tail_pooled": {"mechanism": "tail", "overlap": 3, "pooled_slots": 2},
    "tail_gated": {"mechanism": "tail", "overlap": 3, "pooled_slots": 1, "gated": True},
    "tail_whole": {"mechanism": "tail", "tail": WINDOW, "insert_layer": 3, "until_layer": 3},
}
MEMORIES: dict[str, dict[str, Any]] = {
    "memory_tokens": {"mechanism": "memory_tokens", "overlap": 3},
    "memory_tokens_gated": {"mechanism": "memory_tokens", "gated": True},
    "summary": {"mechanism": "summary"},
    "compress": {"mechanism": "compress", "overlap": 3},
}
KEPT: dict[str, dict[str, Any]] = {
    "kv": {"mechanism": "kv", "overlap": 3},
    "kv_whole": {"mechanism": "kv", "keep": WINDOW, "sinks": 0},
    "kv_sliding": {"mechanism": "kv", "keep": WINDOW - 1, "sinks": 1, "sliding": True},
}
FAR: dict[str, dict[str, Any]] = {
    "far": {"mechanism": "far", "overlap": 3, "reach": 11, "layers": (1, 3)},
    "far_upper": {"mechanism": "far", "keep": 2, "sinks": 1, "reach": 4},
}
LOOKBACKS: dict[str, dict[str, Any]] = {
    "lookback": {"mechanism": "lookback", "overlap": 3},
    "lookback_whole": {"mechanism": "lookback", "keep": WINDOW, "room": 5},
    "lookback_no_room": {"mechanism": "lookback", "room": 0, "sink": False},
}
RSA: dict[str, dict[str, Any]] = {
    "rsa": {"mechanism": "rsa", "overlap": 3, "counts": (0, 0, 0, 0, 1, 1), "dilations": (2, 3), "sharing": "pair"},
}
VARIANTS = CARRIES | TAILS | MEMORIES | KEPT | FAR | LOOKBACKS | RSA
EVERYWHERE: dict[str, dict[str, Any]] = {"disjoint": {}, "overlap": {"overlap": 3}, "tail": TAILS["tail_pooled"]}
"""For slow tests."""
MECHANISMS: dict[str, dict[str, Any]] = {
    "carry": {"hidden_layers": 1, "hidden_size": 12},
    "tail": {"tail": 4, "hidden_size": 12},
    "memory_tokens": {"tokens": 3},
    "summary": {"tokens": 2, "limit": 3},
    "compress": {"tokens": 2, "size": 3},
    "kv": {"keep": 3, "sinks": 1},
    "far": {"keep": 3, "sinks": 1, "reach": 7, "layers": (2,)},
    "lookback": {"keep": 3},
    # With an open gate, so that the recurrence has a visible effect.
    "rsa": {"counts": (1, 0, 0, 0, 0, 1), "dilations": (3,), "sharing": "none", "gate_start": 0.0},
}
"""With settings that make each of them small."""
CLOSED: dict[str, dict[str, Any]] = {"rsa": {"gate_start": -1000.0}}
"""Settings with which a mechanism changes no window without a memory."""
VARIED = ("gpt2", "llama")
ABSOLUTE = ("gpt2", "opt")
ROTARY = [family for family in DECODERS if family not in ABSOLUTE]


def fits(family: str, mechanism: str) -> bool:
    """Whether the mechanism works with such models."""
    kind = mechanism_config(mechanism)
    if family in ENCODERS:
        return not kind.decoders_only
    return kind.positions in ("any", "absolute" if family in ABSOLUTE else "rotary")


def variants_of(*families: str) -> list[tuple[str, str]]:
    """Each family with each variant that works with it."""
    pairs = [(family, name) for name in VARIANTS for family in families]
    return [(family, name) for family, name in pairs if fits(family, VARIANTS[name].get("mechanism", "carry"))]


READ = {
    "overlap": "gpt2",
    "everywhere": "llama",
    "standardized_overlap": "gpt2",
    "tail_one_layer": "llama",
    "tail_gated": "gpt2",
    "memory_tokens_gated": "llama",
    "kv_sliding": "llama",
    "lookback_whole": "gpt2",
    "lookback_no_room": "gpt2",
}
"""Variants whose memory is read in another way than by default, each with a family. The other variants differ in what
is written, which tests against the descriptions cover."""


def config(mechanism: str = "carry", **settings: Any) -> MechanismConfig:
    return recurrence_config({"mechanism": mechanism, "window": WINDOW, **MECHANISMS[mechanism], **settings})


def recurrent(family: str, task: str | None = None, base: dict[str, Any] | None = None, **settings: Any) -> Any:
    """A tiny recurrent model in eval mode, with random values instead of initial ones."""
    model = add_recurrence(tiny(family, task, **(base or {})), config(**settings))
    stir(model)
    return model


@torch.no_grad()
def stir(model: Any) -> None:
    """Give parameters that start at zero, and running statistics, values with a visible effect."""
    if model.mechanism is None:
        return
    torch.manual_seed(1)
    for name, value in (*model.mechanism.named_parameters(), *model.mechanism.named_buffers()):
        name = name.rpartition(".")[2]
        if name in ("layer_scores", "running_mean"):
            value.copy_(torch.randn_like(value))
        elif name == "running_variance":
            value.copy_(torch.rand_like(value) + 0.5)
        elif value.ndim > 1:
            value.normal_(std=0.5)


def answer(output: Any) -> Tensor:
    """Logits, or hidden states of a model without a head."""
    return output.last_hidden_state if output.logits is None else output.logits


def assert_close(ours: Tensor | None, theirs: Tensor | None, tolerance: float = 1e-5) -> None:
    assert (ours is None) == (theirs is None)
    if ours is not None and theirs is not None:
        torch.testing.assert_close(ours, theirs, rtol=tolerance, atol=tolerance)


def tokens_held(state: State) -> list[list[int]]:
    return [row[:length].tolist() for row, length in zip(state.tokens, state.lengths.tolist(), strict=True)]


def assert_same_state(ours: State, theirs: State, tolerance: float = 1e-5) -> None:
    """The same memory of live rows, and the same real tokens of open windows."""
    assert ours.live.tolist() == theirs.live.tolist()
    assert tokens_held(ours) == tokens_held(theirs)
    if ours.live.any():
        assert ours.memory is not None
        assert theirs.memory is not None
        assert_close(ours.memory[ours.live], theirs.memory[theirs.live], tolerance)


def gradients(model: Any) -> dict[str, Tensor]:
    """The gradient of every parameter by name; sets them to None afterwards."""
    found = {name: value.grad for name, value in model.named_parameters()}
    missing = [name for name, value in found.items() if value is None]
    assert not missing, f"no gradient reached {missing}"
    model.zero_grad()
    return found


def assert_same_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor], tolerance: float) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        torch.testing.assert_close(
            ours[name],
            theirs[name],
            rtol=tolerance,
            atol=tolerance,
            msg=lambda text, name=name: f"{name}: {text}",
        )


def assert_equals_reference(model: Any, ids: Tensor, logits: Tensor, memory: Tensor) -> None:
    """Logits, memory, loss and every gradient equal those of a reference's `logits` and `memory`, which were computed
    from the model's own weights."""
    loss = cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten())
    probe = torch.randn_like(memory)
    (loss + (memory * probe).sum()).backward()
    expected = gradients(model)

    ours = model(ids, labels=ids, return_logits=True)
    (ours.loss + (ours.state.memory * probe).sum()).backward()
    assert_close(ours.logits, logits, 1e-9)
    assert_close(ours.state.memory, memory, 1e-9)
    assert_close(ours.loss, loss, 1e-9)
    assert_same_gradients(gradients(model), expected, 1e-9)
