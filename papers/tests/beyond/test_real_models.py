"""Rows, rivals, texts and comparisons of `real_models`, on a random model of two layers."""

from pathlib import Path

import numpy as np
import pytest
from transformers import LlamaConfig, LlamaForCausalLM

from recurrify.data import TokenizedDocument
from recurrify.evaluate import full_flops_per_token
from recurrify_papers.beyond.real_models import (
    FOUR_ROWS,
    TIMED,
    TRAINED,
    UNTRAINED,
    flops_of,
    kv,
    load_texts,
    plain,
    rivals,
    sample_books,
    save_texts,
    score_corpus,
)


@pytest.fixture(scope="module")
def base() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=128,
    )
    return LlamaForCausalLM(config).eval()


def documents(count: int, length: int) -> list[TokenizedDocument]:
    random = np.random.default_rng(0)
    return [
        TokenizedDocument(
            f"book {index}", random.integers(0, 64, length, dtype=np.int32), length, 4 * length, 4 * length
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("rows", [UNTRAINED, FOUR_ROWS, TIMED, TRAINED])
def test_names_are_unique(rows):
    assert len({row.name for row in rows}) == len(rows)


def test_rivals_cost_no_less_than_the_memory_and_hardly_more(base):
    memory = kv(32, 24)
    overlap, longer = rivals(base, memory)
    cost = flops_of(base, memory)
    assert flops_of(base, overlap) >= cost > full_flops_per_token(base, 32, overlap.recurrence.overlap - 1)
    assert flops_of(base, longer) >= cost > full_flops_per_token(base, longer.recurrence.window - 1, 0)


def test_texts_come_back_as_saved(tmp_path: Path):
    texts = documents(3, 20)
    save_texts(tmp_path / "texts.npz", {"novels": texts}, {"novels": "abc"})
    loaded, checksums = load_texts(tmp_path / "texts.npz")
    assert checksums == {"novels": "abc"}
    for one, other in zip(texts, loaded["novels"], strict=True):
        assert one.name == other.name
        assert one.characters == other.characters
        np.testing.assert_array_equal(one.ids, other.ids)


def test_a_sample_of_books_is_the_same_each_time_and_fits():
    texts = documents(9, 10)
    chosen = sample_books(texts, 45)
    assert [one.name for one in chosen] == [one.name for one in sample_books(texts, 45)]
    assert len(chosen) == 4


def test_every_memory_is_compared_with_four_rivals(base):
    found = score_corpus(base, [plain(32), kv(32, 24)], documents(2, 100), say=lambda text: None)
    memory = next(row for row in found if row["name"].startswith("kv"))
    assert set(memory["gains"]) == {"same_window", "full_context", "equal_cost_overlap", "equal_cost_window"}
    assert memory["gains"]["full_context"]["than"] == "plain 128"
