"""Ids outside a vocabulary raise one sentence, unless a check would cost time or cannot be traced."""

import pytest
import torch
from torch import nn

from recurrify.errors import UserError
from recurrify.vocabulary import check_ids

KNOWN = nn.Embedding(5, 2)


@pytest.mark.parametrize(
    ("ids", "wrong"), [([0, 5, 9], 9), ([0, -1, 9], -1), ([-2, 4, -7], -7)], ids=["above", "both", "below"]
)
def test_unknown_ids_raise(ids: list[int], wrong: int) -> None:
    with pytest.raises(UserError, match=f"^Id {wrong} is not in the model's vocabulary of 5, .* ids 0 to 4: "):
        check_ids(torch.tensor([ids]), KNOWN)


def test_first_last_and_no_ids() -> None:
    for ids in ([0, 4], []):
        check_ids(torch.tensor([ids], dtype=torch.long), KNOWN)


def test_no_check_on_other_devices_or_while_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = torch.tensor([5])
    check_ids(wrong, nn.Linear(2, 2))
    check_ids(wrong.to("meta"), KNOWN)
    for module, name in ((torch.compiler, "is_compiling"), (torch.jit, "is_tracing")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, lambda: True)
            check_ids(wrong, KNOWN)
