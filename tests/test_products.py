"""oneDNN is switched off where it is slow, only while a training step runs."""

import pytest
import torch

from recurrify.speed import products
from recurrify.speed.products import quick_products


@pytest.mark.parametrize("arm", [True, False])
def test_only_on_arm_and_only_until_the_end(arm: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "ON_ARM", arm)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", True)
    left, right = torch.randn(7, 5), torch.randn(3, 5)
    expected = left.double() @ right.double().t()
    with quick_products():
        assert torch.backends.mkldnn.enabled is not arm
        torch.testing.assert_close(left @ right.t(), expected.float())
    assert torch.backends.mkldnn.enabled is True


def test_it_stays_off_if_it_was_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    with quick_products():
        assert torch.backends.mkldnn.enabled is False
    assert torch.backends.mkldnn.enabled is False
