"""Ids outside a vocabulary: told where they can be seen, and nowhere else."""

import pytest
import torch
from torch import Tensor, nn

from recurrify.errors import UserError
from recurrify.vocabulary import check_ids, embed

KNOWN = nn.Embedding(5, 2)


@pytest.mark.parametrize(
    ("ids", "wrong"), [([0, 5, 9], 9), ([0, -1, 9], -1), ([-2, 4, -7], -7)], ids=["above", "both", "below"]
)
def test_wrong_ids_are_told(ids: list[int], wrong: int) -> None:
    for refuse in (lambda tokens: check_ids(tokens, KNOWN), lambda tokens: embed(KNOWN, tokens)):
        with pytest.raises(UserError, match=f"^Id {wrong} is not in the model's vocabulary of 5, .* ids 0 to 4: "):
            refuse(torch.tensor([ids]))


def test_the_first_the_last_and_no_ids_are_right() -> None:
    for ids in ([0, 4], []):
        tokens = torch.tensor([ids], dtype=torch.long)
        check_ids(tokens, KNOWN)
        assert torch.equal(embed(KNOWN, tokens), KNOWN(tokens))


def test_what_is_wrong_elsewhere_is_not_told_as_this() -> None:
    class Broken(nn.Embedding):
        def forward(self, input: Tensor) -> Tensor:
            raise IndexError("of another kind")

    with pytest.raises(IndexError, match="of another kind"):
        embed(Broken(5, 2), torch.tensor([4]))


def test_nothing_is_checked_where_it_would_wait_or_cannot_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = torch.tensor([5])
    check_ids(wrong, nn.Linear(2, 2))
    check_ids(wrong.to("meta"), KNOWN)
    for module, name in ((torch.compiler, "is_compiling"), (torch.jit, "is_tracing")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda: True)
            check_ids(wrong, KNOWN)
