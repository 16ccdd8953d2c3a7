"""The width of a head: left to the model's width, given as a number, saved as a number."""

import json

import pytest
import torch

from recurrify.errors import UserError
from recurrify_papers.models.language import (
    ARCHITECTURES,
    language_model,
    load_language_model,
    parse_settings,
    save_language_model,
)

WITH_HEADS = [name for name, architecture in ARCHITECTURES.items() if "head_width" in architecture.settings()]
SHAPE = {"layers": 1, "width": 24, "heads": 4, "inner": 8}
ALL = pytest.mark.parametrize("arch", WITH_HEADS)


def widths(model: torch.nn.Module) -> tuple[int, int]:
    """Of one head as the configuration tells it, and of all heads as the weights have it."""
    rows = {name: len(value) for name, value in model.state_dict().items()}
    queries = [number for name, number in rows.items() if name.endswith("attention.query.weight")]
    # Where queries, keys and values are made at once.
    queries += [number // 3 for name, number in rows.items() if name.endswith("attention.projection.weight")]
    return model.config.head_width, queries[0]


def test_all_but_the_classics_have_heads():
    assert set(ARCHITECTURES) - set(WITH_HEADS) == {"lstm", "gru"}


@ALL
def test_heads_share_the_width(arch):
    with torch.device("meta"):
        assert language_model(arch, 7).config.head_width == 64
        assert widths(language_model(arch, 7, **SHAPE)) == (6, 24)
        assert widths(language_model(arch, 7, **SHAPE, **parse_settings(arch, ["head_width=none"]))) == (6, 24)
        assert widths(language_model(arch, 7, **SHAPE, head_width=5)) == (5, 20)


@ALL
def test_heads_that_do_not_divide_are_refused_with_both_ways_out(arch):
    shape = SHAPE | {"width": 64, "heads": 5}
    with pytest.raises(UserError, match=r"got width=64, heads=5; .* such as heads=4, .* such as head_width=12"):
        language_model(arch, 7, **shape)
    with torch.device("meta"):
        assert widths(language_model(arch, 7, **shape, head_width=12)) == (12, 60)
        language_model(arch, 7, **shape | {"heads": 4})


@ALL
def test_more_heads_than_width_and_none_at_all(arch):
    with pytest.raises(UserError, match=r"such as heads=4, .* such as head_width=1\."):
        language_model(arch, 7, **SHAPE | {"width": 4, "heads": 5})
    with pytest.raises(UserError, match="at least 1, or None for width / heads: got 0"):
        language_model(arch, 7, **SHAPE, head_width=0)


@ALL
def test_the_number_is_saved(arch, tmp_path):
    own = {"window": 8, "block": 4, "states": 2, "target_length": 8} if arch.endswith("brt") else {}
    save_language_model(language_model(arch, 7, **SHAPE, **own), tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["config"]["head_width"] == 6
    assert widths(load_language_model(tmp_path)) == (6, 24)


def test_a_model_saved_with_another_number_keeps_it(tmp_path):
    """Heads were 64 wide by default, whatever the width."""
    save_language_model(language_model("xl", 7, **SHAPE, head_width=64), tmp_path)
    assert widths(load_language_model(tmp_path)) == (64, 256)
