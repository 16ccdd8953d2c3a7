"""Parts that the language models share."""

import pytest
import torch
from torch import Tensor, nn

from recurrify.errors import UserError
from recurrify_papers.models.parts import embed

KNOWN = nn.Embedding(5, 2)


def test_unknown_ids_raise() -> None:
    tokens = torch.tensor([[0, 4]])
    assert torch.equal(embed(KNOWN, tokens), KNOWN(tokens))
    with pytest.raises(UserError, match="Id 9 is not in the model's vocabulary of 5"):
        embed(KNOWN, torch.tensor([[0, 9]]))


def test_other_errors_are_not_changed() -> None:
    class Broken(nn.Embedding):
        def forward(self, input: Tensor) -> Tensor:
            raise IndexError("of another kind")

    with pytest.raises(IndexError, match="of another kind"):
        embed(Broken(5, 2), torch.tensor([4]))
