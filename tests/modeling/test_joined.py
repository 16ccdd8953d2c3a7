"""Linear layers of the same input become one product in compiled windows, with the values and gradients of before."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo import lookup_backend

from recurrify import CarryConfig, add_recurrence
from recurrify.mechanisms import NoRecurrence
from recurrify.speed import compiled
from recurrify.speed.compiled import Choices, compile_windows
from recurrify.speed.compiling import compiler_options
from recurrify.speed.joined import join_products
from support.models import text, tiny

# The tracer reads the memory's gradient; torch hides this warning unless warnings are errors.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


class Products(list[int]):
    """A back end that joins products, and then derives gradients; one number of saved products for each graph."""

    def __call__(self, module: Any, inputs: Any) -> Any:
        self.append(join_products(module.graph))
        module.graph.lint()
        module.recompile()
        return lookup_backend("aot_eager")(module, inputs)

    def compile(self, function: Callable[..., Any]) -> Callable[..., Any]:
        torch._dynamo.reset()
        compiled_function: Callable[..., Any] = torch.compile(function, backend=self, dynamic=False)
        return compiled_function


def gradients(model: nn.Module, loss: Tensor) -> dict[str, Tensor | None]:
    model.zero_grad()
    loss.backward()
    return {name: None if one.grad is None else one.grad.clone() for name, one in model.named_parameters()}


@pytest.mark.parametrize(
    ("family", "recurrence", "saved"),
    # Of queries, keys and values, and of the gate.
    [("llama", NoRecurrence(window=8), 3), ("opt", CarryConfig(window=8), 2), ("gpt2", NoRecurrence(window=8), 0)],
    ids=["llama", "opt", "gpt2"],
)
def test_windows_have_the_same_losses_and_gradients(
    family: str, recurrence: Any, saved: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    products, real = Products(), torch.compile
    asked: list[bool] = []

    def compile(function: Callable[..., Any], options: dict[str, Any], dynamic: bool) -> Any:
        asked.append("pre_grad_custom_pass" in options)
        return real(function, backend=products, dynamic=dynamic)

    monkeypatch.setattr(compiled.torch, "compile", compile)
    torch._dynamo.reset()
    layers = "num_hidden_layers" if family != "gpt2" else "n_layer"
    model = add_recurrence(tiny(family, **{layers: 2}), recurrence).train()
    twin = copy.deepcopy(model)
    compile_windows(twin)
    ids = text(2, 16)
    ours, theirs = (one(ids, labels=ids).loss for one in (twin, model))
    torch.testing.assert_close(ours, theirs)
    expected, found = gradients(model, theirs), gradients(twin, ours)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-4, atol=1e-6, msg=name)
    assert set(products) == {2 * saved}
    assert all(asked)
    asked.clear()
    compile_windows(twin, choices=Choices(joined=False))
    assert not any(asked)


class Layers(nn.Module):
    def __init__(self, biases: tuple[bool, ...] = (False, False, False)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(4, 3 + number, bias) for number, bias in enumerate(biases))

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.cat([layer(inputs) for layer in self.layers], dim=-1)


@pytest.mark.parametrize(
    ("biases", "frozen", "saved"),
    [
        ((False, False, False), (), 2),
        ((True, True, True), (), 2),
        ((True, False, True), (), 1),
        ((False, False, False), (1,), 1),  # joined with trained ones, it would get a gradient
    ],
)
def test_layers_that_differ_are_not_joined(biases: tuple[bool, ...], frozen: tuple[int, ...], saved: int) -> None:
    model, products = Layers(biases), Products()
    for number in frozen:
        model.layers[number].requires_grad_(False)
    inputs = torch.randn(2, 5, 4)
    expected = model(inputs)
    found = products.compile(model)(inputs)
    torch.testing.assert_close(found, expected)
    wanted = gradients(model, expected.square().sum())
    torch.testing.assert_close(gradients(model, found.square().sum()), wanted)
    assert products == [saved]


def changed_input(model: Layers, inputs: Tensor) -> Tensor:
    inputs = inputs * 2
    first = model.layers[0](inputs)
    inputs.add_(1)
    return first.sum() + model.layers[1](inputs).sum()


def changed_weight(model: Layers, inputs: Tensor) -> Tensor:
    weight = model.layers[1].weight.clone()
    first = model.layers[0](inputs)
    weight.mul_(3)
    return first.sum() + nn.functional.linear(inputs, weight).sum()


def changed_view_of_an_output(model: Layers, inputs: Tensor) -> Tensor:
    first = model.layers[0](inputs)
    first.view(2, 1, -1).mul_(0.5)
    return first.sum() + model.layers[1](inputs).sum()


def activation_in_place(model: Layers, inputs: Tensor) -> Tensor:
    return nn.functional.relu(model.layers[0](inputs), inplace=True).sum() + model.layers[1](inputs).sum()


def layout_of_an_output(model: Layers, inputs: Tensor) -> Tensor:
    first = model.layers[0](inputs)
    return first.as_strided((2, 2), (3, 1)).square().sum() + model.layers[1](inputs).sum()


def other_precision(model: Layers, inputs: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        first = model.layers[0](inputs)
    return first.float().sum() + model.layers[1](inputs).sum()


@pytest.mark.parametrize(
    "run",
    [
        changed_input,
        changed_weight,
        changed_view_of_an_output,
        activation_in_place,
        layout_of_an_output,
        other_precision,
    ],
)
def test_what_may_not_be_joined_is_left_alone(run: Callable[[Layers, Tensor], Tensor]) -> None:
    model, products = Layers().requires_grad_(False), Products()
    inputs = torch.randn(2, 4)
    torch.testing.assert_close(products.compile(lambda inputs: run(model, inputs))(inputs), run(model, inputs))
    assert products == [0]


def test_weights_that_come_later_are_left_alone() -> None:
    model, products = Layers(), Products()

    def run(inputs: Tensor) -> Tensor:
        first = model.layers[0](inputs)
        return nn.functional.linear(inputs, first.t() @ inputs).sum() + first.sum()

    inputs = torch.randn(2, 4)
    torch.testing.assert_close(products.compile(run)(inputs), run(inputs))
    assert products == [0]


def test_outputs_can_have_any_shape() -> None:
    """A part of rows cannot be viewed as one row of numbers."""
    model, products = Layers(), Products()

    def run(inputs: Tensor) -> Tensor:
        return model.layers[0](inputs).view(-1).sum() + model.layers[1](inputs).view(-1).sum()

    inputs = torch.randn(2, 4)
    torch.testing.assert_close(products.compile(run)(inputs), run(inputs))
    assert products == [1]


def test_the_pass_is_part_of_the_caches_key() -> None:
    """Torch 2.11 pickles it, and does not cache what it cannot pickle; later versions ask for its name."""
    join = compiler_options(joins=True)["pre_grad_custom_pass"]
    assert pickle.loads(pickle.dumps(join)) is join
    assert join.uuid()
    assert "pre_grad_custom_pass" not in compiler_options()
