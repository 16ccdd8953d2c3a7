"""Models for tagging, classification and question answering."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoConfig, DataCollatorWithPadding, Trainer, TrainingArguments, pipeline

from recurrify import NoRecurrence, UserError, add_recurrence
from support.checks import WINDOW, assert_same_gradients, config, recurrent
from support.models import ENCODERS, PAD, TASKS, text, tiny
from support.tokenizers import like_bert

LABELS = 3
ENCODER_TASKS = [(family, task) for task in ("tags", "label", "answers") for family in ENCODERS]
ALL_TASKS = [*ENCODER_TASKS, ("gpt2", "label"), ("opt", "label"), ("llama", "label"), ("gemma2", "label")]
SOME_TASKS = [("bert", "answers"), ("roberta", "label"), ("distilbert", "tags"), ("gpt2", "label"), ("llama", "label")]
PAPER = {"pooled_layers": "last", "hidden_layers": 2, "hidden_size": 12, "insert_layer": 2}


def base_of(kind: tuple[str, str], **more: Any) -> Any:
    return tiny(*kind, num_labels=2 if kind[1] == "answers" else LABELS, **more)


def made(kind: tuple[str, str], **settings: Any) -> Any:
    dtype = settings.pop("dtype", torch.float32)
    labels = 2 if kind[1] == "answers" else LABELS
    return recurrent(*kind, base={"num_labels": labels, "dtype": dtype}, **settings)


def scores(output: Any) -> Tensor:
    """All scores of an output in one tensor."""
    if "logits" in output:
        return output.logits
    return torch.cat([output.start_logits.flatten(1), output.end_logits.flatten(1)], 1)


def windows(examples: int, count: int, last: list[int] | None = None) -> tuple[Tensor, Tensor]:
    """`count` windows of each example; `last` says how many tokens of all are real."""
    ids = text(examples, count * WINDOW)
    lengths = torch.tensor(last or [count * WINDOW] * examples)
    mask = (torch.arange(count * WINDOW)[None] < lengths[:, None]).long()
    return ids.masked_fill(mask == 0, PAD).view(examples, count, WINDOW), mask.view(examples, count, WINDOW)


@torch.no_grad()
@pytest.mark.parametrize("kind", ALL_TASKS, ids="-".join)
def test_one_window_equals_the_base(kind: tuple[str, str]) -> None:
    base = base_of(kind)
    ids = text(2, WINDOW)
    expected = scores(base(ids))
    for settings in (NoRecurrence(window=WINDOW), config("carry"), config("tail")):
        torch.testing.assert_close(scores(add_recurrence(base, settings)(ids)), expected, rtol=1e-6, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("kind", ALL_TASKS, ids="-".join)
def test_padding_changes_nothing(kind: tuple[str, str]) -> None:
    model = made(kind, **({} if kind[1] == "answers" else {"overlap": 3}))
    rows = [text(1, length, seed=length) for length in (5, 8 if kind[1] == "answers" else 21, 7)]
    width = max(row.shape[1] for row in rows)
    ids, mask = torch.full((3, width), PAD), torch.zeros(3, width).long()
    for index, row in enumerate(rows):
        # Question answering expects padding behind, the others take it on either side.
        start = 0 if kind[1] == "answers" else (width - row.shape[1]) * (index % 2)
        ids[index, start : start + row.shape[1]], mask[index, start : start + row.shape[1]] = row[0], 1
    found = model(ids, attention_mask=mask)
    for index, row in enumerate(rows):
        alone, together = model(row), found
        if kind[1] == "label":
            torch.testing.assert_close(together.logits[index], alone.logits[0], rtol=1e-5, atol=1e-5)
        elif kind[1] == "tags":
            torch.testing.assert_close(
                together.logits[index][mask[index].bool()], alone.logits[0], rtol=1e-5, atol=1e-5
            )
        else:
            torch.testing.assert_close(together.kind_logits[index], alone.kind_logits[0], rtol=1e-5, atol=1e-5)
            real = together.start_logits[index][mask[index].bool()]
            torch.testing.assert_close(real, alone.start_logits[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mechanism", ["carry", "memory_tokens"])
@pytest.mark.parametrize("kind", SOME_TASKS, ids="-".join)
def test_gradients_reach_everything(kind: tuple[str, str], mechanism: str) -> None:
    model = add_recurrence(base_of(kind, dtype=torch.double), config(mechanism)).train()
    ids, mask = windows(2, 3, last=[24, 20])
    if kind[1] == "answers":
        where = {"start_positions": torch.tensor([20, -100]), "end_positions": torch.tensor([22, -100])}
        loss = model(ids, mask, kinds=torch.tensor([0, 2]), **where).loss
    elif kind[1] == "tags":
        loss = model(ids.flatten(1), labels=torch.randint(LABELS, (2, 24))).loss
    else:
        loss = model(ids, mask, labels=torch.tensor([0, 2])).loss
    loss.backward()
    for name, value in model.named_parameters():
        assert value.grad is not None, f"{name} has no gradient"
        assert value.grad.abs().max() > 0, f"{name} has a gradient of zero"


@pytest.mark.parametrize("kind", SOME_TASKS, ids="-".join)
def test_round_trip(kind: tuple[str, str], tmp_path: Path) -> None:
    model = made(kind)
    model.save_pretrained(tmp_path)
    ids, _ = windows(2, 3)
    if kind[1] == "tags":
        ids = ids.flatten(1)
    for loaded in (TASKS[kind[1]].from_pretrained(tmp_path), type(model).from_pretrained(tmp_path)):
        assert type(loaded) is type(model)
        assert loaded.recurrence == model.recurrence
        with torch.no_grad():
            ours, theirs = loaded(ids), model(ids)
        assert torch.equal(scores(ours), scores(theirs))
        if kind[1] == "answers":
            assert torch.equal(ours.kind_logits, theirs.kind_logits)
    if kind[1] != "answers":
        assert AutoConfig.from_pretrained(tmp_path).num_labels == LABELS


def test_saving_only_the_memory_raises(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="save the whole model"):
        made(("bert", "label")).save_pretrained(tmp_path, added_only=True)


@pytest.mark.parametrize("kind", [("bert", "answers"), ("gpt2", "label")], ids="-".join)
def test_checkpointing_gives_the_same_gradients(kind: tuple[str, str]) -> None:
    found = []
    for checkpoint in (False, True):
        model = made(kind, checkpoint=checkpoint, dtype=torch.double).train()
        ids, mask = windows(2, 3, last=[24, 20])
        if kind[1] == "answers":
            ends = {"start_positions": torch.tensor([20, 3]), "end_positions": torch.tensor([22, 9])}
            model(ids, mask, **ends, kinds=torch.tensor([0, 0])).loss.backward()
        else:
            more = {"language_weight": 0.5} if kind[0] == "gpt2" else {}
            model(ids, mask, labels=torch.tensor([0, 2]), **more).loss.backward()
        found.append({name: value.grad for name, value in model.named_parameters()})
    assert_same_gradients(*found, tolerance=1e-9)


class TestSequenceClassification:
    @torch.no_grad()
    def test_encoders_pool_the_first_tokens_by_their_maximum(self) -> None:
        model = add_recurrence(base_of(("roberta", "label")), NoRecurrence(window=WINDOW))
        ids, mask = windows(2, 3, last=[24, 12])
        first = [model.base.roberta(ids[:, i], attention_mask=mask[:, i]).last_hidden_state[:, 0] for i in range(3)]
        expected = torch.stack([torch.stack(first).amax(0)[0], torch.stack(first[:2]).amax(0)[1]])
        logits = model.base.classifier(expected[:, None])
        torch.testing.assert_close(model(ids, mask).logits, logits, rtol=1e-5, atol=1e-5)
        # A text in one row is cut at the same places.
        flat = model(ids.flatten(1), mask.flatten(1)).logits
        torch.testing.assert_close(flat, logits, rtol=1e-5, atol=1e-5)

    @torch.no_grad()
    def test_decoders_classify_by_the_last_token(self) -> None:
        model = made(("gpt2", "label"))
        ids = text(1, 2 * WINDOW)
        hidden, memory, _ = model.run_one_window(
            {"input_ids": ids[:, :WINDOW], "use_cache": False}, None, torch.tensor([False]), writes=True
        )
        hidden, _, _ = model.run_one_window(
            {"input_ids": ids[:, WINDOW:], "use_cache": False}, memory, torch.tensor([True])
        )
        torch.testing.assert_close(model(ids).logits, model.base.score(hidden[:, -1]), rtol=1e-5, atol=1e-5)

    def test_the_language_loss_is_added_with_its_weight(self) -> None:
        model = made(("gpt2", "label"))
        ids, mask = text(2, 20), (torch.arange(20)[None] < torch.tensor([20, 13])[:, None]).long()
        labels = torch.tensor([0, 2])
        plain = model(ids, mask, labels=labels)
        assert plain.loss.item() == pytest.approx(functional.cross_entropy(plain.logits, labels).item(), rel=1e-5)
        twin = tiny("gpt2")
        twin.transformer.load_state_dict(model.base.transformer.state_dict())
        twin.lm_head.weight = twin.transformer.wte.weight
        twin = add_recurrence(twin, model.recurrence)
        twin.mechanism.load_state_dict(model.mechanism.state_dict())
        language = twin(ids, mask, labels=ids.masked_fill(mask == 0, -100)).loss
        both = model(ids, mask, labels=labels, language_weight=0.25).loss
        assert both.item() == pytest.approx((plain.loss + 0.25 * language).item(), rel=1e-5)
        model.config.language_weight = 0.25
        assert model(ids, mask, labels=labels).loss.item() == pytest.approx(both.item(), rel=1e-6)

    def test_the_weight_of_the_language_loss_is_saved(self, tmp_path: Path) -> None:
        model = made(("gpt2", "label"))
        model.config.language_weight = 0.5
        model.save_pretrained(tmp_path)
        assert TASKS["label"].from_pretrained(tmp_path).config.language_weight == 0.5

    def test_encoders_have_no_language_loss(self) -> None:
        with pytest.raises(UserError, match="only decoders"):
            made(("bert", "label"))(text(1, 9), labels=torch.tensor([0]), language_weight=0.5)

    def test_regression_and_several_labels(self) -> None:
        model = add_recurrence(tiny("bert", "label", num_labels=1), config())
        logits = model(text(2, 20)).logits
        wanted = torch.tensor([0.5, -1.0])
        expected = (logits[:, 0] - wanted).square().mean().item()
        assert model(text(2, 20), labels=wanted).loss.item() == pytest.approx(expected, rel=1e-5)


class TestQuestionAnswering:
    @torch.no_grad()
    def test_windows_are_read_in_order_with_a_memory(self) -> None:
        model = made(("bert", "answers"), **PAPER)
        ids, mask = windows(2, 3, last=[24, 12])
        types = (torch.arange(WINDOW) >= 3).long().expand_as(ids)
        found = model(ids, mask, token_type_ids=types)
        # Row 1 ends in the middle of its second window, alone and by hand:
        hidden, memory, live = [], None, torch.tensor([False])
        for index, length in enumerate((WINDOW, 4)):
            inputs = {"input_ids": ids[1:, index, :length], "token_type_ids": types[1:, index, :length]}
            out, memory, _ = model.run_one_window(inputs, memory, live, writes=True)
            hidden.append(out)
            live = torch.tensor([True])
        scores = model.base.qa_outputs(torch.cat(hidden, 1))[0]
        torch.testing.assert_close(found.start_logits[1].flatten()[:12], scores[:, 0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.end_logits[1].flatten()[:12], scores[:, 1], rtol=1e-5, atol=1e-5)
        kinds = model.answer_kind(torch.stack([part[0, 0] for part in hidden]).amax(0))
        torch.testing.assert_close(found.kind_logits[1], kinds, rtol=1e-5, atol=1e-5)
        assert (found.start_logits[1].flatten()[12:] == torch.finfo(torch.float32).min).all()

    @torch.no_grad()
    def test_earlier_windows_reach_later_ones_and_only_with_a_memory(self) -> None:
        ids, _ = windows(1, 3)
        other = ids.clone()
        other[0, 0] = text(1, WINDOW, seed=9)[0]
        model = made(("roberta", "answers"), **PAPER)
        assert not torch.allclose(model(ids).start_logits[:, 1:], model(other).start_logits[:, 1:], atol=1e-4)
        plain = add_recurrence(model.base, NoRecurrence(window=WINDOW))
        assert torch.equal(plain(ids).start_logits[:, 1:], plain(other).start_logits[:, 1:])

    def test_the_loss_is_over_all_windows_and_the_allowed_tokens(self) -> None:
        model = made(("distilbert", "answers"), **PAPER)
        ids, mask = windows(2, 3, last=[24, 20])
        allowed = mask.clone()
        allowed[:, :, :3] = 0
        starts, ends, kinds = torch.tensor([11, -100]), torch.tensor([21, -100]), torch.tensor([0, 1])
        found = model(ids, mask, starts, ends, kinds, span_mask=allowed)
        start = found.start_logits[0][allowed[0].bool()]
        end = found.end_logits[0][allowed[0].bool()]
        # Tokens 3-7 of each window are allowed: flat token 11 is number 5 of them and 21 number 12, from 0.
        expected = -(start.log_softmax(0)[5] + end.log_softmax(0)[12]) / 2
        expected = expected + functional.cross_entropy(found.kind_logits, kinds)
        assert found.loss.item() == pytest.approx(expected.item(), rel=1e-5)

    def test_a_batch_without_spans_has_a_loss(self) -> None:
        model = made(("bert", "answers"))
        none = torch.tensor([-100])
        found = model(windows(1, 2)[0], start_positions=none, end_positions=none, kinds=torch.tensor([1]))
        assert found.loss.item() == pytest.approx(-found.kind_logits[0].log_softmax(0)[1].item(), rel=1e-5)

    @pytest.mark.parametrize(
        ("ids", "mask", "words"),
        [
            (torch.ones(1, 2, 5).long(), None, "window=8"),
            (torch.ones(1, 9).long(), None, "window=8"),
            (torch.ones(0, 2, 8).long(), None, "at least one"),
            (torch.ones(1, 1, 4).long(), torch.tensor([[[1, 0, 1, 1]]]), "padding in front"),
            (torch.ones(1, 1, 4).long(), torch.ones(1, 1, 3).long(), "shape of `input_ids`"),
        ],
        ids=["short windows", "long window", "nothing", "holes", "other mask"],
    )
    def test_invalid_windows(self, ids: Tensor, mask: Tensor | None, words: str) -> None:
        with pytest.raises(UserError, match=words):
            made(("bert", "answers"))(ids, mask)

    def test_given_windows_do_not_overlap(self) -> None:
        with pytest.raises(UserError, match="overlap=3"):
            made(("bert", "answers"), overlap=3)(windows(1, 2)[0])


def test_answer_head_has_the_type_of_the_base() -> None:
    model = add_recurrence(base_of(("bert", "answers"), dtype=torch.bfloat16), config())
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}


def test_trainer_and_pipeline(tmp_path: Path) -> None:
    texts = ["good " * 30, "bad " * 30]
    tokenizer = like_bert(texts)
    base = tiny("distilbert", "label", vocab_size=len(tokenizer), pad_token_id=0, id2label={0: "fine", 1: "poor"})
    model = add_recurrence(base, config(window=12))
    rows = [{**tokenizer(text), "label": label} for label, text in enumerate(texts)] * 4
    args = TrainingArguments(
        str(tmp_path), max_steps=8, learning_rate=1e-2, per_device_train_batch_size=4, use_cpu=True, report_to=[],
        save_strategy="no", logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
    )  # fmt: skip
    Trainer(model, args, train_dataset=rows, data_collator=DataCollatorWithPadding(tokenizer)).train()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    ask = pipeline("text-classification", str(tmp_path / "model"), device="cpu")
    assert [answer["label"] for answer in ask(texts)] == ["fine", "poor"]
