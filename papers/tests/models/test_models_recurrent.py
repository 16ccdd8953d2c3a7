"""LSTM and GRU language models: equal to the textbook's equations, one position at a time."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recurrify.errors import UserError
from recurrify_papers.models.language import count_parameters
from recurrify_papers.models.recurrent import RecurrentLanguageConfig, RecurrentLanguageModel, RecurrentLanguageState

LSTM = RecurrentLanguageConfig(vocabulary=11, layers=2, width=6, dropout=0.0)
GRU = replace(LSTM, cell="gru")
BOTH = pytest.mark.parametrize("config", [LSTM, GRU], ids=["lstm", "gru"])


def make(config: RecurrentLanguageConfig) -> RecurrentLanguageModel:
    torch.manual_seed(1)
    model = RecurrentLanguageModel(config).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.5 * torch.randn_like(parameter))
    return model


def ids(length: int, batch: int = 2) -> Tensor:
    return torch.randint(0, 11, (batch, length), generator=torch.Generator().manual_seed(length))


def step(model: RecurrentLanguageModel, layer: int, inputs: Tensor, hidden: Tensor, cell: Tensor | None):
    """One layer at one position."""
    weights = model.cell
    by_input = inputs @ getattr(weights, f"weight_ih_l{layer}").T + getattr(weights, f"bias_ih_l{layer}")
    by_hidden = hidden @ getattr(weights, f"weight_hh_l{layer}").T + getattr(weights, f"bias_hh_l{layer}")
    if cell is None:
        reset, update = torch.sigmoid(by_input + by_hidden)[:, :12].chunk(2, dim=1)
        new = torch.tanh(by_input[:, 12:] + reset * by_hidden[:, 12:])
        return (1 - update) * new + update * hidden, None
    let_in, keep, candidate, let_out = (by_input + by_hidden).chunk(4, dim=1)
    cell = torch.sigmoid(keep) * cell + torch.sigmoid(let_in) * torch.tanh(candidate)
    return torch.sigmoid(let_out) * torch.tanh(cell), cell


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@BOTH
def test_logits_and_state_equal_the_equations(config, tied):
    model = make(replace(config, tied=tied))
    tokens = ids(7)
    state = model(ids(3)).state
    output = model(tokens, state)
    hidden = list(state.hidden)
    cells = list(state.cell) if config.cell == "lstm" else [None, None]
    logits = []
    for place in range(7):
        inputs = model.embedding.weight[tokens[:, place]]
        for layer in range(2):
            hidden[layer], cells[layer] = step(model, layer, inputs, hidden[layer], cells[layer])
            inputs = hidden[layer]
        weight = model.embedding.weight if tied else model.output.weight
        logits.append(inputs @ weight.T + model.output_bias)
    torch.testing.assert_close(output.logits, torch.stack(logits, dim=1))
    torch.testing.assert_close(output.state.hidden, torch.stack(hidden).detach())
    if config.cell == "lstm":
        torch.testing.assert_close(output.state.cell, torch.stack(cells).detach())
    else:
        assert output.state.cell.shape == (0, 2, 6)


@BOTH
def test_any_division_into_segments_equals_the_whole(config):
    model = make(config)
    tokens = ids(9)
    state, logits = model.first_state(2), []
    for segment in torch.tensor_split(tokens, (1, 4), dim=1):
        output = model(segment, state)
        logits.append(output.logits)
        state = output.state
    torch.testing.assert_close(torch.cat(logits, dim=1), model(tokens).logits)


@BOTH
def test_state_carries_no_gradient_and_every_parameter_gets_one(config):
    model = make(replace(config, tied=False))
    state = model(ids(6)).state
    assert not any(part.requires_grad for part in state)
    leaves = RecurrentLanguageState(*(part.clone().requires_grad_() for part in state))
    model(ids(5), leaves).logits.square().sum().backward()
    assert all(part.grad is None for part in leaves)
    for name, parameter in model.named_parameters():
        assert (parameter.grad != 0).any(), name


def test_the_sizes_are_about_that_of_transformer_xl():
    for changes in ({}, {"cell": "gru", "width": 1624}):
        with torch.device("meta"):
            model = RecurrentLanguageModel(RecurrentLanguageConfig(vocabulary=204, **changes))
        assert count_parameters(model) == pytest.approx(47_880_396, rel=0.002)


@pytest.mark.parametrize(
    ("changes", "words"), [({"width": 0}, "`width`"), ({"dropout": 1.0}, "`dropout`"), ({"cell": "rnn"}, "lstm or gru")]
)
def test_bad_settings_are_refused_with_a_sentence(changes, words):
    with pytest.raises(UserError, match=words):
        replace(LSTM, **changes)


def test_a_state_of_another_batch_is_refused_with_a_sentence():
    model = make(LSTM)
    with pytest.raises(UserError, match="batch of 3"):
        model(ids(4, batch=3), model(ids(4)).state)
