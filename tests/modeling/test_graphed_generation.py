"""Generation by CUDA graphs: which steps are replayed, and that the tokens stay the same.

Without a GPU, the functions that graphs hold run as they are.
"""

from collections import Counter
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LogitsProcessorList, StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from recurrify import NoRecurrence, add_recurrence
from recurrify.modeling import sampling
from recurrify.speed import graphed_generation
from recurrify.speed.graphed_generation import graph_generation
from support.checks import EVERYWHERE, READ, VARIANTS, WINDOW, recurrent, variants_of
from support.models import DECODERS, LAYERS, PAD, text, tiny

NEW = 3 * WINDOW + 1
"""Into a fourth window, so that two windows with a memory are replayed."""


def logits(model: torch.nn.Module, ids: Tensor, **more: object) -> tuple[Tensor, Tensor]:
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": PAD, "output_logits": True, **more}
    found = model.generate(ids, max_new_tokens=NEW, return_dict_in_generate=True, **settings)
    return found.sequences, torch.stack(found.logits, 1)


def tokens(model: torch.nn.Module, ids: Tensor, seed: int = 7, **more: Any) -> list[list[int]]:
    torch.manual_seed(seed)
    settings: dict[str, Any] = {"do_sample": False, "eos_token_id": None, "pad_token_id": PAD, **more}
    return model.generate(ids, max_new_tokens=NEW, **settings).tolist()


def ragged() -> tuple[Tensor, Tensor]:
    """Prompts of three lengths, padded on the left."""
    ids, mask = text(3, WINDOW + 5), torch.ones(3, WINDOW + 5, dtype=torch.long)
    mask[0, : WINDOW + 3] = mask[2, :3] = 0
    return ids.masked_fill(mask == 0, PAD), mask


class Captures(list[Callable[[], Tensor]]):
    """Replaces graphs, which need a GPU: runs what would be captured, on the same tensors."""

    def __call__(self, function: Callable[[], Tensor], device: torch.device) -> Callable[[], Tensor]:
        self.append(function)
        return function

    def choose_tokens(self) -> bool:
        """Whether the choice of the next token is captured, too."""
        (chooses,) = {function().dtype == torch.long for function in self}
        return chooses


@pytest.fixture
def captures(monkeypatch: pytest.MonkeyPatch) -> Captures:
    found = Captures()
    monkeypatch.setattr(graphed_generation, "captured", found)
    monkeypatch.setattr(graphed_generation, "can_capture", lambda model, tokens: model.graphs_generation)
    monkeypatch.setattr(graphed_generation, "STEPS_BEFORE", 2)
    return found


@pytest.mark.parametrize(
    ("variant", "family"), [*READ.items(), ("summary", "gpt2"), ("compress", "llama"), ("kv", "llama")]
)
def test_every_variant_generates_the_same(captures: Captures, variant: str, family: str) -> None:
    model, ids = recurrent(family, **VARIANTS[variant]), text(2, 1)
    expected = logits(model, ids)
    assert not captures
    graph_generation(model)
    found = logits(model, ids)
    assert found[0].tolist() == expected[0].tolist()
    torch.testing.assert_close(found[1], expected[1])
    assert len(captures) == 2  # without and with a memory
    assert not captures.choose_tokens()
    captures.clear()
    assert tokens(model, ids) == expected[0].tolist()
    assert len(captures) == 2
    assert captures.choose_tokens()


@pytest.mark.parametrize("overlap", [0, 3])
def test_plain_windows_generate_the_same(captures: Captures, overlap: int) -> None:
    model, (ids, mask) = add_recurrence(tiny("gpt2"), NoRecurrence(window=WINDOW, overlap=overlap)), ragged()
    expected = tokens(model, ids, attention_mask=mask)
    graph_generation(model)
    assert tokens(model, ids, attention_mask=mask) == expected
    assert captures.choose_tokens()


SAMPLINGS: list[dict[str, Any]] = [
    {"top_k": 0},
    {"top_k": 7},
    {"top_k": 0, "top_p": 0.6},
    {"top_k": 0, "min_p": 0.2},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.9, "num_return_sequences": 2},
]


@pytest.mark.parametrize("variant", ["kv", "memory_tokens", "overlap"])
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_seed_samples_what_transformers_samples(captures: Captures, variant: str, sampling: dict[str, Any]) -> None:
    model, (ids, mask) = recurrent("llama", **VARIANTS[variant]), ragged()
    settings = {"attention_mask": mask, "do_sample": True, **sampling}
    expected = tokens(model, ids, **settings)
    graph_generation(model)
    assert tokens(model, ids, **settings) == expected != tokens(model, ids, seed=8, **settings)
    assert captures.choose_tokens()


class Stream(BaseStreamer):
    def __init__(self) -> None:
        self.found: list[Any] = []

    def put(self, value: Tensor) -> None:
        self.found.append(value.tolist())

    def end(self) -> None:
        self.found.append("end")


@pytest.mark.parametrize("at_once", [1, 5, 16])
def test_texts_end_and_are_streamed_as_by_transformers(
    captures: Captures, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(sampling, "STEPS_AT_ONCE", at_once)
    model, (ids, mask) = recurrent("gpt2", overlap=3), ragged()
    fast = recurrent("gpt2", overlap=3)
    graph_generation(fast)
    settings: dict[str, Any] = {"attention_mask": mask, "do_sample": True, "top_k": 3}
    free = [row[ids.shape[1] :] for row in tokens(model, ids, **settings)]
    # Texts that end at their first token, in between, at different tokens, and some that never do.
    ends = [[row[0] for row in free], [row[9] for row in free], [free[0][20]], [row[-1] for row in free]]
    lengths = set()
    for end in ends:
        expected, found = Stream(), Stream()
        sequences = tokens(model, ids, **settings, eos_token_id=end, streamer=expected)
        assert tokens(fast, ids, **settings, eos_token_id=end) == sequences
        assert tokens(fast, ids, **settings, eos_token_id=end, streamer=found) == sequences
        assert found.found == expected.found
        lengths.add(len(sequences[0]))
    assert len(lengths) > 2
    assert captures.choose_tokens()


class Never(StoppingCriteria):
    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.3},
        {"stopping_criteria": StoppingCriteriaList([Never()])},
        {"logits_processor": LogitsProcessorList([lambda ids, scores: scores.roll(1, -1)])},
        {"use_cache": False},
        {"eos_token_id": 5, "min_new_tokens": 4},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_other_requests_take_the_loop_of_transformers(captures: Captures, settings: dict[str, Any]) -> None:
    model, ids = recurrent("gpt2"), text(2, 1)
    expected = tokens(model, ids, **settings)
    graph_generation(model)
    assert tokens(model, ids, **settings) == expected
    assert not captures or not captures.choose_tokens()


def test_a_cache_that_was_passed_holds_no_dropped_tokens(captures: Captures) -> None:
    model, ids = recurrent("gpt2"), text(1, 6)
    graph_generation(model)
    with torch.no_grad():
        cache = model(ids, use_cache=True).past_key_values
    found = tokens(model, torch.cat([ids, text(1, 1)], 1), past_key_values=cache)
    assert not captures.choose_tokens()
    assert cache.seen == len(found[0]) - 1


def test_generates_on_from_a_state(captures: Captures) -> None:
    model, ids = recurrent("gpt2", overlap=3), text(2, 2 * WINDOW + 3)
    expected = tokens(model, ids)
    graph_generation(model)
    for split in (len(ids[0]) - 1, WINDOW):
        with torch.no_grad():
            state = model(ids[:, :split]).state
        found = tokens(model, ids[:, split:], state=state)
        assert [row[ids.shape[1] - split :] for row in found] == [row[ids.shape[1] :] for row in expected]
    assert captures


def test_padded_rows_share_a_graph_and_beams_use_none(captures: Captures) -> None:
    model = recurrent("gpt2")
    ids, mask = text(2, 6), torch.ones(2, 6, dtype=torch.long)
    mask[0, :3] = 0
    expected = logits(model, ids, attention_mask=mask)
    beams = logits(model, ids, num_beams=2)
    graph_generation(model)
    found = logits(model, ids, attention_mask=mask)
    assert captures
    torch.testing.assert_close(found[1], expected[1])
    captures.clear()
    assert logits(model, ids, num_beams=2)[0].tolist() == beams[0].tolist()
    assert not captures


class Operations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names[str(function)] += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("settings", [{}, EVERYWHERE["tail"]], ids=["carry", "tail"])
def test_layers_make_no_masks_and_use_fused_gelu(captures: Captures, settings: dict[str, object]) -> None:
    """Each would be several launches per layer and token."""
    model = recurrent("gpt2", **settings)
    graph_generation(model)
    logits(model, text(1, 1))
    assert len(captures) == 2
    for step in captures:
        with Operations() as seen:
            step()
        of_masks = ("aten.where.self", "aten.masked_fill.Scalar", "aten.cat.default", "aten.new_full.default")
        assert all(seen.names[name] < LAYERS for name in of_masks), seen.names
        assert not seen.names["aten.tanh.default"]


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        *((family, EVERYWHERE[name]) for family in DECODERS for name in ("overlap", "tail")),
        *((family, VARIANTS[variant]) for family, variant in variants_of("llama")),
    ],
    ids=str,
)
def test_graphs_generate_the_same(family: str, settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_generation, "STEPS_BEFORE", 2)
    model, ids = recurrent(family, **settings).cuda(), text(2, 1).cuda()
    expected = logits(model, ids)
    graph_generation(model)
    found = logits(model, ids)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-4)
    assert found[0].tolist() == expected[0].tolist()
    assert tokens(model, ids) == expected[0].tolist()


@pytest.mark.gpu
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_graphs_sample_what_transformers_samples(sampling: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphed_generation, "STEPS_BEFORE", 2)
    model, (ids, mask) = recurrent("llama", **VARIANTS["kv"]).cuda(), ragged()
    settings = {"attention_mask": mask.cuda(), "do_sample": True, **sampling}
    expected = tokens(model, ids.cuda(), **settings)
    graph_generation(model)
    assert tokens(model, ids.cuda(), **settings) == expected != tokens(model, ids.cuda(), seed=8, **settings)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
@pytest.mark.parametrize("lengths", [(4, 4), (4, 6)], ids=["together", "ragged"])
def test_no_step_inside_a_window_waits_for_the_device(lengths: tuple[int, int]) -> None:
    model = recurrent("llama", base={"max_position_embeddings": 128}, mechanism="kv", window=64).cuda()
    graph_generation(model)
    ids, mask = text(2, 6).cuda(), torch.ones(2, 6, dtype=torch.long, device="cuda")
    for row, length in enumerate(lengths):
        mask[row, : 6 - length] = 0
    with torch.no_grad():
        written = sampling.written(
            model, ids, LogitsProcessorList(), True, {"attention_mask": mask, "use_cache": True, "logits_to_keep": 1}
        )
        list(islice(written, graphed_generation.STEPS_BEFORE + 3))
        torch.cuda.set_sync_debug_mode("error")
        try:
            assert len(list(islice(written, 20))) == 20
        finally:
            torch.cuda.set_sync_debug_mode("default")
