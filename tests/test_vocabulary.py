"""Ids outside a vocabulary raise one sentence, unless a check would cost time or cannot be traced."""

import pytest
import torch
from torch import Tensor, nn

from recurrify.errors import UserError
from recurrify.vocabulary import check_ids, embed

KNOWN = nn.Embedding(5, 2)


@pytest.mark.parametrize(
    ("ids", "wrong"), [([0, 5, 9], 9), ([0, -1, 9], -1), ([-2, 4, -7], -7)], ids=["above", "both", "below"]
)
def test_unknown_ids_raise(ids: list[int], wrong: int) -> None:
    for check in (lambda tokens: check_ids(tokens, KNOWN), lambda tokens: embed(KNOWN, tokens)):
        with pytest.raises(UserError, match=f"^Id {wrong} is not in the model's vocabulary of 5, .* ids 0 to 4: "):
            check(torch.tensor([ids]))


def test_first_last_and_no_ids() -> None:
    for ids in ([0, 4], []):
        tokens = torch.tensor([ids], dtype=torch.long)
        check_ids(tokens, KNOWN)
        assert torch.equal(embed(KNOWN, tokens), KNOWN(tokens))


def test_other_errors_are_not_changed() -> None:
    class Broken(nn.Embedding):
        def forward(self, input: Tensor) -> Tensor:
            raise IndexError("of another kind")

    with pytest.raises(IndexError, match="of another kind"):
        embed(Broken(5, 2), torch.tensor([4]))


def test_no_check_on_other_devices_or_while_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = torch.tensor([5])
    check_ids(wrong, nn.Linear(2, 2))
    check_ids(wrong.to("meta"), KNOWN)
    for module, name in ((torch.compiler, "is_compiling"), (torch.jit, "is_tracing")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda: True)
            check_ids(wrong, KNOWN)
