"""Replacements for CUDA graphs on a CPU, and updates and gradients that must be equal."""

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

from recurrify import add_recurrence
from recurrify.speed import graphed, graphed_windows
from recurrify.speed.compiled import run_full_window
from recurrify.speed.graphed import GraphedSteps
from recurrify.state import State


def without_graphs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Graphs need a GPU: a replay runs the captured step again. Returns a list of the names of replayed steps."""
    done: list[str] = []

    def capture(step: Any, pool: Any) -> Callable[[], None]:
        def replay() -> None:
            done.append(step.__name__)
            with step.__self__.weights.in_place():  # as during the capture
                step()

        step()
        return replay

    @contextmanager
    def capturing(model: Any, tokens: torch.Tensor, *_: Any) -> Iterator[None]:
        with graphed_windows.unmoved(graphed_windows.generator_of(tokens)):
            yield

    for module in (graphed, graphed_windows):
        monkeypatch.setattr(module, "capture", capture)
    monkeypatch.setattr(graphed, "capturing", capturing)
    return done


def with_recorded_graphs(monkeypatch: pytest.MonkeyPatch) -> list["Recorded"]:
    """As on a GPU, a replay runs the operations of the capture on its tensors, and no Python, so that stale tensors
    give wrong results."""
    without_graphs(monkeypatch)
    found: list[Recorded] = []

    def capture(step: Callable[[], None], pool: Any) -> Callable[[], None]:
        recorded = Recorded()
        with recorded:
            step()
        found.append(recorded)
        return recorded.replay

    for module in (graphed, graphed_windows):
        monkeypatch.setattr(module, "capture", capture)
    return found


class Recorded(TorchDispatchMode):
    """Operations, their inputs, and the outputs that have memory of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, Any, Any, list[torch.Tensor | None]]] = []
        self.replays = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = function(*args, **(kwargs or {}))
        known = {one.untyped_storage()._cdata for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)}
        own = [
            one if isinstance(one, torch.Tensor) and one.untyped_storage()._cdata not in known else None
            for one in tree_leaves(found)
        ]
        self.operations.append((function, args, kwargs or {}, own))
        return found

    @torch.no_grad()
    def replay(self) -> None:
        self.replays += 1
        for function, args, kwargs, own in self.operations:
            for then, now in zip(own, tree_leaves(function(*args, **kwargs)), strict=True):
                if then is not None:
                    then.copy_(now)


class OneWindow:
    """Replaces a compiled window by the eager one."""

    rows = 2

    def __init__(self, model: Any) -> None:
        self.model = model

    def takes(self, *_: Any) -> bool:
        return False

    def __call__(self, job: Any, *before: Any) -> Any:
        return run_full_window(self.model, *before, *job)


class AnyDevice(GraphedSteps):
    """Takes steps on the CPU too."""

    def takes(self, packed: Any, state: State, summed: bool = False) -> bool:
        return super().takes(packed._replace(tokens=_OnCuda(packed.tokens)), state, summed)


class _OnCuda:
    is_cuda = True

    def __init__(self, tokens: torch.Tensor) -> None:
        self.shape, self.device = tokens.shape, tokens.device


def update_alike(model: torch.nn.Module, twin: torch.nn.Module, optimizers: list[torch.optim.Optimizer]) -> None:
    """One update of each, from equal gradients."""
    for (name, mine), theirs in zip(model.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(theirs.grad, mine.grad, rtol=1e-3, atol=1e-5, msg=name)
    for optimizer in optimizers:
        optimizer.step()
        optimizer.zero_grad()


def trained(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """The loss, and the gradients of all parameters that have one."""
    model.zero_grad()
    loss = model(ids, labels=ids).loss
    loss.backward()
    return loss.detach(), {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


def check_half_precision(config: Any, speed_up: Callable[[Any], object], updates: int, heads: int | None = None) -> Any:
    """Gradients of bf16, with the width of real models, are close to those of eager float32; returns the model.

    `heads` of keys make the base a Llama; without them it is a GPT-2.
    """
    torch.manual_seed(0)
    if heads is None:
        base: Any = GPT2LMHeadModel(GPT2Config(n_layer=2, vocab_size=512, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0))
    else:
        sizes = {"hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 2, "num_attention_heads": 12}
        positions = {"max_position_embeddings": 1024, "num_key_value_heads": heads}
        base = LlamaForCausalLM(LlamaConfig(vocab_size=512, **positions, **sizes))
    model = add_recurrence(base, config).cuda().train()
    ids = torch.randint(512, (16, 3 * config.window), device="cuda")
    before = copy.deepcopy(model.state_dict())
    exact = trained(model, ids)[1]
    torch._dynamo.reset()
    speed_up(model)
    for _ in range(updates):
        model.load_state_dict(before)  # running statistics
        with torch.autocast("cuda", torch.bfloat16):
            found = trained(model, ids)[1]
        assert found.keys() == exact.keys()
        for which in {key.split(".")[0] for key in exact}:  # kv has no weights of its own
            wanted, got = (
                torch.cat([value.flatten() for key, value in one.items() if key.startswith(which)])
                for one in (exact, found)
            )
            assert float((got - wanted).norm() / wanted.norm()) < (0.02 if which == "base" else 0.05), which
    return model
