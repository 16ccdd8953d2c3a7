"""Windows of which each layer is compiled: one compilation for all layers alike, and the results of before."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo import lookup_backend

from recurrify import CarryConfig, TailConfig, add_recurrence
from recurrify.mechanisms import NoRecurrence
from recurrify.mechanisms.far import FarConfig
from recurrify.mechanisms.kv import KVConfig
from recurrify.mechanisms.lookback import LookbackConfig
from recurrify.mechanisms.memory_tokens import MemoryTokensConfig
from recurrify.mechanisms.rsa import RSARecurrenceConfig
from recurrify.speed import compiled
from recurrify.speed.backends import attend_to_earlier, with_padded_queries
from recurrify.speed.compiled import Choices, attends_plainly, compile_windows
from recurrify.speed.graphed import graph_steps
from support.graphs import AnyDevice, check_half_precision, trained, without_graphs
from support.models import text, tiny

# The tracer reads the memory's gradient; torch hides this warning unless warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")

LAYERS = 3
RUNS = {
    # The layer that gets the carried vector has one position more, and its output is cut, which changes its strides.
    "carry": ("gpt2", CarryConfig(window=8, insert_layer=2), 3),
    "tail": ("llama", TailConfig(window=8, tail=4, pooled_slots=1, checkpoint=True), 2),
    "none": ("llama", NoRecurrence(window=8), 1),
    "kv": ("llama", KVConfig(window=8, keep=3, sinks=1), 2),
    "far": ("llama", FarConfig(window=8, keep=3, sinks=1, reach=9, layers=(1, 3)), 3),
    "lookback": ("gpt2", LookbackConfig(window=8, keep=4), 2),
    "memory tokens": ("opt", MemoryTokensConfig(window=8, tokens=2), 2),
}
"""Family, memory, and how many kinds of window or layer are compiled."""


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every graph that the compiler gets."""
    real, found = torch.compile, []

    def backend(graph: Any, inputs: Any) -> Any:
        found.append(graph)
        return lookup_backend("aot_eager")(graph, inputs)

    def compile(function: Callable[..., Any], **options: Any) -> Any:
        return real(function, backend=backend, fullgraph=True, dynamic=options["dynamic"])

    monkeypatch.setattr(compiled.torch, "compile", compile)
    torch._dynamo.reset()
    return found


@pytest.mark.parametrize(("name", "padded"), [*((name, False) for name in RUNS), ("kv", True)])
def test_losses_and_gradients_are_the_same(graphs: list[Any], name: str, padded: bool) -> None:
    family, recurrence, kinds = RUNS[name]
    model = add_recurrence(tiny(family), recurrence).train()
    assert len(model.family.layers_of(model.base)) == LAYERS
    twin = copy.deepcopy(model)
    compile_windows(twin, choices=Choices(by_layer=True, padded=padded))
    ids = text(2, 24)
    (ours, our_gradients), (theirs, their_gradients) = (trained(one, ids) for one in (twin, model))
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert our_gradients.keys() == their_gradients.keys()
    for key, value in their_gradients.items():
        torch.testing.assert_close(our_gradients[key], value, rtol=1e-4, atol=1e-6, msg=key)
    assert len(graphs) == kinds


def test_layers_are_their_own_again_afterwards(graphs: list[Any]) -> None:
    model = add_recurrence(tiny("llama"), KVConfig(window=8, keep=3, sinks=1)).train()
    layer = model.family.layers_of(model.base)[1]
    own = layer.forward = lambda *inputs, **named: type(layer).forward(layer, *inputs, **named)
    compile_windows(model, choices=Choices(by_layer=True))
    trained(model, text(2, 24))
    assert graphs
    assert layer.forward is own
    assert "forward" not in vars(model.family.layers_of(model.base)[0])


@pytest.mark.parametrize("heads", [4, 2])
def test_padded_queries_attend_as_before(heads: int) -> None:
    torch.manual_seed(0)
    query, outgoing = torch.randn(2, 4, 5, 8), torch.randn(2, 4, 5, 8)
    key, value = (torch.randn(2, heads, 11, 8) for _ in range(2))
    found = []
    for padded in (False, True):
        inputs = [one.clone().requires_grad_() for one in (query, key, value)]
        with with_padded_queries(padded):
            attended = attend_to_earlier(*inputs, 0.3, 0.0)
        attended.backward(outgoing)
        found.append([attended, *(one.grad for one in inputs)])
    for expected, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize(
    ("recurrence", "remembers", "padded", "plain"),
    [
        (KVConfig(window=8, keep=3, sinks=1), False, False, True),
        (KVConfig(window=8, keep=3, sinks=1), True, False, False),
        (KVConfig(window=8, keep=3, sinks=1), True, True, True),
        (KVConfig(window=8, keep=7, sinks=0, sliding=True), True, True, False),
        (KVConfig(window=8, keep=7, sinks=0, sliding=True), False, True, True),
        (RSARecurrenceConfig(window=8, counts=(1, 0, 0, 1, 0, 0), dilations=(2,)), False, True, False),
    ],
)
def test_which_windows_attend_plainly(recurrence: Any, remembers: bool, padded: bool, plain: bool) -> None:
    """A document's first window has no kept keys; a mask is never right for cuDNN."""
    assert attends_plainly(add_recurrence(tiny("llama"), recurrence), remembers, padded) == plain


@pytest.mark.parametrize("checkpoint", [False, True])
def test_captured_steps_are_the_same(graphs: list[Any], checkpoint: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers read aliases of their weights there."""
    replayed = without_graphs(monkeypatch)
    recurrence = KVConfig(window=8, keep=3, sinks=1, checkpoint=checkpoint)
    model = add_recurrence(tiny("llama"), recurrence).train()
    twin = copy.deepcopy(model)
    compile_windows(twin, choices=Choices(by_layer=True))
    twin.graphed_steps = AnyDevice(twin)
    for seed in (0, 1):
        ids = text(2, 24, seed=seed)
        (ours, our_gradients), (theirs, their_gradients) = (trained(one, ids) for one in (twin, model))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        for key, value in their_gradients.items():
            torch.testing.assert_close(our_gradients[key], value, rtol=1e-4, atol=1e-6, msg=key)
    assert replayed
    assert 2 <= len(graphs) <= 4  # with gradients of a memory, and without


WIDE = {
    "carry": CarryConfig(window=300),
    "lookback": LookbackConfig(window=300, keep=256),
    "kv": KVConfig(window=300, keep=256),
}


@pytest.mark.gpu
@pytest.mark.parametrize("choices", [Choices(by_layer=True), Choices(padded=True), Choices(by_layer=True, padded=True)])
@pytest.mark.parametrize("name", WIDE)
def test_gradients_in_half_precision_are_right(name: str, choices: Choices) -> None:
    """Captured, with heads that share their keys, and the width of real models."""
    heads = None if name == "lookback" else 4
    model = check_half_precision(WIDE[name], lambda model: graph_steps(model, choices=choices), 3, heads)
    assert model.graphed_steps.steps
