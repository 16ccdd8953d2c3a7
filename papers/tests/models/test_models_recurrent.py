"""LSTM and GRU language models compared with the textbook equations."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from recurrify_papers.models.recurrent import RecurrentLanguageConfig, RecurrentLanguageModel
from support.language import ids, stirred

LSTM = RecurrentLanguageConfig(vocabulary=11, layers=2, width=6, dropout=0.0)
GRU = replace(LSTM, cell="gru")
BOTH = pytest.mark.parametrize("config", [LSTM, GRU], ids=["lstm", "gru"])


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


@BOTH
def test_logits_and_state_equal_the_equations(config):
    model = stirred(RecurrentLanguageModel, config)
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
        logits.append(inputs @ model.embedding.weight.T + model.output_bias)
    torch.testing.assert_close(output.logits, torch.stack(logits, dim=1))
    torch.testing.assert_close(output.state.hidden, torch.stack(hidden).detach())
    if config.cell == "lstm":
        torch.testing.assert_close(output.state.cell, torch.stack(cells).detach())
    else:
        assert output.state.cell.shape == (0, 2, 6)
