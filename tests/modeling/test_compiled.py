"""Compiled training windows compute what eager ones do, and only what training repeats is compiled.

Inductor takes half a minute here; which windows are compiled, and their graphs, can be tested with any back end.
"""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_cache
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import GPT2Config, GPT2LMHeadModel

from recurrify import CarryConfig, TailConfig, add_recurrence, families
from recurrify.mechanisms import NoRecurrence
from recurrify.mechanisms.compress import CompressConfig
from recurrify.mechanisms.far import FarConfig
from recurrify.mechanisms.kv import KVConfig
from recurrify.mechanisms.lookback import LookbackConfig
from recurrify.mechanisms.memory_tokens import MemoryTokensConfig
from recurrify.mechanisms.rsa import RSARecurrenceConfig
from recurrify.mechanisms.summary import SummaryConfig
from recurrify.modeling import window_loop
from recurrify.speed import backends, compiled
from recurrify.speed.compiled import compile_windows
from support.graphs import check_half_precision, trained
from support.models import text, tiny

# The tracer reads the memory's gradient; torch hides this warning unless warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")

CONFIGS = {
    "carry": CarryConfig(window=8, overlap=3, standardize=True),
    "tail": TailConfig(window=8, tail=4, pooled_slots=1, gated=True),
    "compress": CompressConfig(window=8, tokens=2, size=4, checkpoint=True),
    "kv": KVConfig(window=8, keep=3, sinks=1),
    "far": FarConfig(window=8, keep=3, sinks=1, reach=9, layers=(1, 2)),
    "lookback": LookbackConfig(window=8, keep=4),
    "rsa": RSARecurrenceConfig(window=8, counts=(1, 0, 0, 1, 0, 0), dilations=(2,)),
}
RUNS = [
    ("gpt2", "carry"),
    ("gpt2", "lookback"),
    ("llama", "tail"),
    ("llama", "compress"),
    ("llama", "rsa"),
    ("llama", "far"),
]
"""Tracing takes seconds: one memory for each way to change a window."""


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every graph that the compiler gets; a window that is not one graph raises."""
    real, found = torch.compile, []

    def keep(graph: Any, inputs: Any) -> Any:
        found.append(graph)
        return graph

    def compile(function: Callable[..., Any], **options: Any) -> Any:
        return real(function, backend=keep, fullgraph=True, dynamic=options["dynamic"])

    monkeypatch.setattr(compiled.torch, "compile", compile)
    torch._dynamo.reset()
    return found


def two_layers(family: str, layers: int = 2) -> Any:
    """Tracing takes longer with more layers; with two, one is above the layer that receives the memory."""
    return tiny(family, **{"n_layer" if family == "gpt2" else "num_hidden_layers": layers})


def assert_no_mask(graphs: list[Any]) -> None:
    """All compiled attention is without a mask, so that fused kernels can be used."""
    calls = [node for graph in graphs for node in graph.graph.nodes if "scaled_dot_product" in str(node.target)]
    assert calls
    for node in calls:
        assert node.kwargs["attn_mask"] is None
        assert node.kwargs["is_causal"]


@pytest.mark.parametrize(("family", "name"), RUNS)
def test_losses_and_gradients_are_the_same(graphs: list[Any], family: str, name: str) -> None:
    every_layer_alike = name in ("compress", "lookback", "rsa")
    model = add_recurrence(two_layers(family, 1 if every_layer_alike else 2), CONFIGS[name]).train()
    twin = copy.deepcopy(model)
    compile_windows(twin)
    for length in (32, 30) if name == "carry" else (24,):  # the second ends in a short window
        ids = text(2, length)
        (ours, our_gradients), (theirs, their_gradients) = trained(twin, ids), trained(model, ids)
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
        for key, value in their_gradients.items():
            torch.testing.assert_close(our_gradients[key], value, rtol=1e-4, atol=1e-6, msg=key)
    assert graphs
    if name == "carry":
        assert_no_mask(graphs)


def test_only_what_training_repeats_is_compiled(graphs: list[Any]) -> None:
    model = add_recurrence(two_layers("gpt2"), CarryConfig(window=8)).train()
    compile_windows(model)
    trained(model, text(2, 24))
    once = len(graphs)
    assert once == 2  # with a memory and without
    trained(model, text(2, 32))
    assert len(graphs) == once
    trained(model, text(2, 21))
    once += 1  # a short last window leaves no memory
    trained(model, text(2, 28))
    trained(model, text(1, 24))
    mask = torch.ones(2, 24, dtype=torch.long)
    mask[0, 12:] = 0
    model(text(2, 24), attention_mask=mask, labels=text(2, 24)).loss.backward()
    model.eval()
    with torch.no_grad():
        model(text(2, 24), labels=text(2, 24))
    model.generate(text(2, 9), max_new_tokens=3, do_sample=False)
    assert len(graphs) == once


def test_rows_that_begin_a_document_do_not_read_the_memory(graphs: list[Any]) -> None:
    model = add_recurrence(two_layers("gpt2"), CarryConfig(window=8)).train()
    twin = copy.deepcopy(model)
    compile_windows(twin)
    state = model(text(2, 8)).state.reset([0])
    ids = text(2, 8, seed=1)
    torch.testing.assert_close(*[one(ids, labels=ids, state=state).loss for one in (model, twin)])


@pytest.mark.parametrize(
    ("family", "recurrence", "masked"),
    [
        ("gpt2", CONFIGS["lookback"], False),
        ("llama", CONFIGS["kv"], False),
        ("llama", KVConfig(window=8, keep=7, sinks=0, sliding=True), True),
    ],
    ids=["lookback", "kv", "band"],
)
def test_kept_keys_need_no_mask(family: str, recurrence: Any, masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled or not; except in sliding windows, if only some rows have a memory, and in eager attention."""
    seen: list[tuple[int, int]] = []
    real = families.attend_to_earlier

    def watched(query: torch.Tensor, key: torch.Tensor, *more: Any) -> torch.Tensor:
        seen.append((query.shape[2], key.shape[2]))
        return real(query, key, *more)

    monkeypatch.setattr(families, "attend_to_earlier", watched)
    model = add_recurrence(two_layers(family), recurrence).train()
    kept = model.mechanism.slots()[0]
    expected = [] if masked else [(8, 8 + kept)] * 2  # two layers; the last two windows are read in parallel
    for run_window in (None, compiled.run_full_window):
        if run_window is not None:
            compile_windows(model)
            model.compiled_window.compiled = dict.fromkeys((False, True), run_window)
        trained(model, text(2, 24))
        assert seen == expected
        seen.clear()
    state = model(text(2, 8)).state.reset([0])
    model(text(2, 8, seed=1), state=state)
    model.base.set_attn_implementation("eager")
    model(text(2, 24))
    assert not seen


@pytest.mark.parametrize("keys_only", [True, False])
def test_kept_keys_without_opened_attention_have_a_mask(keys_only: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mechanism of another package may use the cache without opened attention: causal attention needs the mask."""
    twin, ids = add_recurrence(two_layers("gpt2"), CONFIGS["lookback"]).train(), text(2, 24)
    model = copy.deepcopy(twin)
    expected = trained(twin, ids)
    monkeypatch.setattr(model.mechanism, "keys_only", keys_only)
    for module in model.base.modules():
        if hasattr(getattr(module, "config", None), "recurrify_unopened"):
            module.config = module.config.recurrify_unopened
    delattr(model.base, families.OPENED)
    for compiles in (False, True):
        if compiles:
            compile_windows(model)
            model.compiled_window.compiled = dict.fromkeys((False, True), compiled.run_full_window)
        loss, gradients = trained(model, ids)
        torch.testing.assert_close(loss, expected[0])
        torch.testing.assert_close(gradients, expected[1])


def test_encoders_are_not_compiled() -> None:
    model = add_recurrence(tiny("bert"), CarryConfig(window=8))
    compile_windows(model)
    assert model.compiled_window is None


def test_changed_gradients_are_compiled_again() -> None:
    """The code of our own backward passes is part of torch's cache key. Products of matrices need no C++ compiler."""
    matrix = 2 * torch.eye(3)

    def product(times: int) -> Callable[[torch.Tensor], torch.Tensor]:
        class Product(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, value: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
                ctx.save_for_backward(other)
                return value @ other

            @staticmethod
            def backward(ctx: Any, *incoming: torch.Tensor) -> tuple[torch.Tensor, None]:
                gradient = incoming[0]
                for _ in range(times):
                    gradient = gradient @ ctx.saved_tensors[0]
                return gradient, None

        return lambda value: Product.apply(value, matrix)

    found = []
    with fresh_cache(), compiled.functorch_config.patch(compiled.KEPT_FOR_LATER):
        for times in (1, 1, 2):
            torch._dynamo.reset()
            counters["aot_autograd"].clear()
            value = torch.ones(3, 3, requires_grad=True)
            torch.compile(product(times))(value).backward(torch.ones(3, 3))
            torch.testing.assert_close(value.grad, torch.full((3, 3), 2.0**times))
            found.append(counters["aot_autograd"]["autograd_cache_hit"])
    assert found == [0, 1, 0]


class TestAttentionKernels:
    """cuDNN's kernels are used only for causal attention without a mask, at lengths that are safe from its faults."""

    @pytest.mark.parametrize(
        ("config", "family", "safe"),
        [
            (NoRecurrence(window=300), "gpt2", True),
            (NoRecurrence(window=320), "gpt2", False),
            (TailConfig(window=256, tail=64), "gpt2", False),
            (TailConfig(window=256, tail=32), "gpt2", True),
            (MemoryTokensConfig(window=300, tokens=10), "gpt2", False),  # 300 + 10 + 10
            (KVConfig(window=300, keep=64), "llama", False),
            (RSARecurrenceConfig(window=300, layers=(2,), counts=(1, 0, 0, 1, 0, 0), dilations=(2,)), "llama", False),
        ],
    )
    def test_where_they_are_used(self, config: Any, family: str, safe: bool) -> None:
        places = {"n_positions": 512} if family == "gpt2" else {"max_position_embeddings": 512}
        model = add_recurrence(tiny(family, **places), config)
        plain = compiled.attends_plainly(model) and backends.cudnn_is_safe(compiled.attended_lengths(model))
        assert plain == safe

    def test_not_with_dropout_nor_with_eager_attention(self) -> None:
        for base in (tiny("gpt2", attn_pdrop=0.1), tiny("llama", attention_dropout=0.1)):
            assert not compiled.attends_plainly(add_recurrence(base, CarryConfig(window=8)))
        eager = tiny("gpt2")
        eager.set_attn_implementation("eager")
        assert not compiled.attends_plainly(add_recurrence(eager, CarryConfig(window=8)))

    def test_the_choice_ends_with_the_window(self, graphs: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        torch.backends.cuda.enable_cudnn_sdp(False)
        allowed: list[bool] = []
        run = window_loop.run_backbone

        def watched(*inputs: Any, **more: Any) -> Any:
            allowed.append(torch.backends.cuda.cudnn_sdp_enabled())
            return run(*inputs, **more)

        monkeypatch.setattr(window_loop, "run_backbone", watched)
        try:
            model = add_recurrence(tiny("gpt2"), CarryConfig(window=8)).train()
            model.compiled_window = compiled.CompiledWindow(model)
            model.compiled_window.compiled = {True: compiled.run_full_window}
            model(text(2, 16), labels=text(2, 16)).loss.backward()
            assert allowed == [True] * 2
            assert not torch.backends.cuda.cudnn_sdp_enabled()
        finally:
            torch.backends.cuda.enable_cudnn_sdp(True)


@pytest.mark.gpu
@pytest.mark.parametrize("length", [128, 300, 301, 364, 513, 1024])
def test_cudnn_causal_attention_is_right_with_very_low_scores(length: int) -> None:
    """With a mask, the gradients would be NaN at lengths of half a tile."""
    generator = torch.Generator("cuda").manual_seed(0)
    query, key, value = (0.1 * torch.randn(2, 4, length, 64, device="cuda", generator=generator) for _ in range(3))
    query[..., 0], key[..., 0] = 1.0, -120 * 8.0
    outgoing = torch.randn(2, 4, length, 64, device="cuda", generator=generator)
    found = []
    for backend, dtype in ((SDPBackend.MATH, torch.float64), (SDPBackend.CUDNN_ATTENTION, torch.bfloat16)):
        inputs = [one.bfloat16().to(dtype).requires_grad_() for one in (query, key, value)]
        with sdpa_kernel(backend):
            out = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True)
        out.backward(outgoing.to(dtype))
        found.append([out.detach().double(), inputs[0].grad[..., 1:].double(), inputs[2].grad.double()])
    for exact, ours in zip(*found, strict=True):
        assert bool(ours.isfinite().all())
        assert float((exact - ours).norm() / exact.norm()) < 0.05


@pytest.mark.gpu
def test_gradients_of_many_rows_are_right() -> None:
    """From 5 · 2^20 numbers on, torch's compiler used another kind of kernels for sums, which were wrong."""
    torch.manual_seed(0)
    sizes = {"n_layer": 3, "n_embd": 768, "n_head": 12, "n_positions": 300, "vocab_size": 512}
    no_dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    base = GPT2LMHeadModel(GPT2Config(**sizes, **no_dropout))
    model = add_recurrence(base, CarryConfig(window=300, neutral_start=False)).cuda().train()
    ids = torch.randint(512, (32, 900), device="cuda")
    expected = trained(model, ids)[1]
    torch._dynamo.reset()
    compile_windows(model)
    spoilt = torch.full((2**31,), 1e4, device="cuda")  # makes unwritten results visible: fresh memory is zero
    del spoilt
    found = trained(model, ids)[1]
    for name, value in expected.items():
        assert float((found[name] - value).norm()) <= 2e-3 * float(value.norm()) + 1e-6, name


HALF = {
    "carry": CarryConfig(window=300),
    "tail": TailConfig(window=300, tail=64, pooled_slots=1),
    "memory_tokens": MemoryTokensConfig(window=300, tokens=16),
    "summary": SummaryConfig(window=300, tokens=8),
    "compress": CompressConfig(window=300, tokens=16, size=32),
    "lookback": LookbackConfig(window=300, keep=256),
    "longer lookback": LookbackConfig(window=600, keep=256),
    "kv": KVConfig(window=300, keep=256),
}


@pytest.mark.gpu
@pytest.mark.parametrize("name", HALF)
def test_gradients_in_half_precision_are_right(name: str) -> None:
    """With the width of real models: kernels that read before a write had finished were right for smaller ones."""
    check_half_precision(HALF[name], compile_windows, 5, heads=12 if name == "kv" else None)
