"""The kind, dilation and parameters of each head, and invalid settings."""

import math

import pytest
import torch

from recurrify.attention.config import RSAConfig
from recurrify.attention.encoding import RecurrenceEncoding
from recurrify.errors import UserError
from recurrify.mechanisms.rsa import SavedEncoding


def test_heads_come_in_the_order_of_the_counts_and_pairs_share_parameters():
    plan = RSAConfig(heads=9, counts=(1, 2, 2, 2, 1, 1), dilations=(2, 3, 5, 7)).plan()
    assert [tuple(head) for head in plan] == [
        ("regular", 1, 0),
        ("cosine", 1, 0),
        ("cosine", 1, 1),
        ("sine", 1, 0),
        ("sine", 1, 1),
        ("regular", 2, 1),
        ("regular", 3, 2),
        ("cosine", 5, 2),
        ("sine", 7, 2),
    ]


def test_without_sharing_every_head_has_its_own_parameters():
    plan = RSAConfig(heads=6, counts=(0, 1, 2, 0, 0, 2), dilations=(4, 2), sharing="none").plan()
    assert [tuple(head) for head in plan] == [
        ("cosine", 1, 0),
        ("sine", 1, 1),
        ("sine", 1, 2),
        ("sine", 4, 3),
        ("sine", 2, 4),
    ]


@pytest.mark.parametrize("counts", [(0, 0, 0, 0, 2, 2), (1, 1, 1, 2, 1, 1)])
def test_shared_pairs_have_the_published_number_of_parameters(counts):
    dilations = tuple(range(1, 1 + sum(counts[3:])))
    encoding = RecurrenceEncoding(RSAConfig(heads=8, counts=counts, dilations=dilations))
    expected = 1 + counts[0] + counts[3] + 2 * counts[1] + 2 * counts[4]
    assert sum(parameter.numel() for parameter in encoding.parameters()) == expected


def test_parameters_start_as_published():
    encoding = RecurrenceEncoding(RSAConfig(heads=400, counts=(200, 100, 100, 0, 0, 0)))
    assert -3 <= encoding.mu.item() <= 3
    assert 1 <= encoding.eta.abs().min() <= encoding.eta.abs().max() <= 2
    assert 0 < (encoding.eta < 0).sum() < 200
    assert 1 <= encoding.nu.min() <= encoding.nu.max() <= 2
    assert len(set(encoding.theta.tolist())) == 100
    assert encoding.theta.mean().item() == pytest.approx(math.pi / 4, abs=1e-5)
    single = RecurrenceEncoding(RSAConfig(heads=2, counts=(0, 1, 1, 0, 0, 0), gate_start=-3.0))
    assert single.theta.item() == pytest.approx(math.pi / 4)
    assert single.mu.item() == -3.0


def test_initialisation_does_not_advance_the_global_generator():
    config = RSAConfig(heads=4, counts=(2, 1, 1, 0, 0, 0))
    drawn = []
    for _ in range(2):
        torch.manual_seed(5)
        before = torch.get_rng_state()
        drawn.append(RecurrenceEncoding(config))
        assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    other = RecurrenceEncoding(config)
    assert torch.equal(drawn[0].eta, drawn[1].eta)
    assert not torch.equal(drawn[0].eta, other.eta)
    # Nor are they the numbers that the global generator gives next.
    torch.manual_seed(5)
    assert drawn[0].mu.item() != torch.empty(1).uniform_(-3, 3).item()


def test_encodings_of_layers_differ():
    made = [SavedEncoding(RSAConfig(heads=4, counts=(2, 1, 1, 0, 0, 0))) for _ in range(3)]
    assert len({one.mu.item() for one in made}) == 3


def test_lists_from_json_make_the_same_config():
    from_json = RSAConfig(heads=4, counts=[0, 0, 0, 0, 1, 1], dilations=[2, 3])
    assert from_json == RSAConfig(heads=4, counts=(0, 0, 0, 0, 1, 1), dilations=(2, 3))
    assert hash(from_json) is not None


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"counts": (1, 0, 0)}, "six numbers"),
        ({"counts": (1, -1, 0, 0, 0, 0)}, "none negative"),
        ({"counts": (3, 1, 1, 0, 0, 0)}, "heads=4"),
        ({"counts": (0, 0, 0, 0, 0, 0)}, "at least one head"),
        ({"counts": (0, 0, 0, 2, 0, 0), "dilations": (3,)}, "each of the 2 dilated heads"),
        ({"counts": (2, 0, 0, 0, 0, 0), "dilations": (3,)}, "each of the 0 dilated heads"),
        ({"counts": (0, 0, 0, 1, 0, 0), "dilations": (0,)}, "at least 1"),
        ({"counts": (0, 2, 1, 0, 0, 0)}, "sharing='none'"),
        ({"counts": (0, 1, 1, 0, 2, 0), "dilations": (1, 1)}, "sharing='none'"),
        ({"counts": (1, 0, 0, 0, 0, 0), "sharing": "all"}, "'all'"),
        ({"counts": (1, 0, 0, 0, 0, 0), "truncation": 0}, "got 0"),
        ({"counts": (1, 0, 0, 0, 0, 0), "truncation": math.nan}, "`truncation` must be finite"),
        ({"counts": (1, 0, 0, 0, 0, 0), "truncation": math.inf}, "`truncation` must be finite"),
        ({"counts": (1, 0, 0, 0, 0, 0), "gate_start": math.nan}, "`gate_start` must be finite: got nan"),
        ({"counts": (1, 0, 0, 0, 0, 0), "gate_start": -math.inf}, "`gate_start` must be finite: got -inf"),
        ({"counts": (math.nan, 0, 0, 0, 0, 0)}, "`counts` must be finite"),
        ({"counts": (0, 0, 0, 1, 0, 0), "dilations": (math.nan,)}, "`dilations` must be finite"),
    ],
)
def test_invalid_settings_raise(settings, words):
    with pytest.raises(UserError, match=words):
        RSAConfig(heads=4, **settings)


def test_powers_are_computed_in_32_bits():
    encoding = RecurrenceEncoding(RSAConfig(heads=2, counts=(1, 0, 0, 0, 0, 0))).to(torch.bfloat16)
    assert encoding.kernel().decay.dtype == torch.float32
