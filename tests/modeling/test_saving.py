"""Saved models load unchanged, and damaged ones raise one sentence."""

import errno
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PreTrainedModel

from recurrify import NoRecurrence, RecurrentConfig, RecurrentForCausalLM, UserError, add_recurrence
from recurrify.modeling.loading import reason
from recurrify.modeling.saving import is_recurrent
from support.checks import WINDOW, answer, config, recurrent
from support.models import KINDS, TASKS, text, tiny

IDS = text(2, 20)
WEIGHTS = "model.safetensors"


def check_same(ours: Any, theirs: Any) -> None:
    assert type(ours) is type(theirs)
    assert ours.recurrence == theirs.recurrence
    assert ours.dtype == theirs.dtype
    assert not ours.training
    state, other = ours.state_dict(), theirs.state_dict()
    assert state.keys() == other.keys()
    for name, value in state.items():
        assert value.dtype == other[name].dtype, name
        assert torch.equal(value, other[name]), name
    theirs.base.set_attn_implementation(ours.base.config._attn_implementation)  # which transformers does not save
    with torch.no_grad():
        assert torch.equal(answer(ours(IDS)), answer(theirs(IDS)))


@pytest.mark.parametrize("kind", KINDS, ids="-".join)
def test_round_trip(kind: tuple[str, str], tmp_path: Path) -> None:
    model = recurrent(*kind, overlap=3)
    model.save_pretrained(tmp_path)
    check_same(TASKS[kind[1]].from_pretrained(tmp_path), model)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(loaded, RecurrentConfig)
    assert loaded.recurrence_config == model.recurrence
    assert loaded.base_config.model_type == kind[0]
    assert is_recurrent(tmp_path)


def test_round_trip_of_plain_windows(tmp_path: Path) -> None:
    model = add_recurrence(tiny("gpt2"), NoRecurrence(window=WINDOW, overlap=2))
    model.save_pretrained(tmp_path)
    check_same(AutoModelForCausalLM.from_pretrained(tmp_path), model)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_tied_and_untied_embeddings(family: str, tied: bool, tmp_path: Path) -> None:
    model = recurrent(family, base={"tie_word_embeddings": tied})
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    check_same(loaded, model)
    same = loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight
    assert same is tied


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_half_precision_is_kept(family: str, tmp_path: Path) -> None:
    model = recurrent(family, base={"dtype": torch.bfloat16})
    assert {value.dtype for value in model.parameters()} == {torch.bfloat16}
    model.save_pretrained(tmp_path / "first")
    loaded = type(model).from_pretrained(tmp_path / "first")
    for name, value in model.named_parameters():
        assert torch.equal(loaded.get_parameter(name), value), name
    loaded.save_pretrained(tmp_path)
    check_same(type(model).from_pretrained(tmp_path), loaded)
    wide = type(model).from_pretrained(tmp_path, dtype=torch.float32)
    assert {value.dtype for value in wide.parameters()} == {torch.float32}


def test_attention_can_be_chosen_when_loading(tmp_path: Path) -> None:
    model = recurrent("gpt2")
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    assert loaded.base.config._attn_implementation == "eager"
    with torch.no_grad():
        torch.testing.assert_close(loaded(IDS).logits, model(IDS).logits, rtol=1e-5, atol=1e-5)


def test_changed_settings_are_saved(tmp_path: Path) -> None:
    model = recurrent("gpt2")
    model.set_recurrence(window=10, overlap=4, bptt_windows=2)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (loaded.recurrence.window, loaded.recurrence.overlap, loaded.recurrence.bptt_windows) == (10, 4, 2)


class TestAddedOnly:
    @pytest.fixture
    def saved(self, tmp_path: Path) -> tuple[Any, Path, Path]:
        tiny("llama").save_pretrained(tmp_path / "base")
        model = add_recurrence(
            AutoModelForCausalLM.from_pretrained(tmp_path / "base"), config(overlap=3, standardize=True)
        )
        model.save_pretrained(tmp_path / "added", added_only=True)
        return model, tmp_path / "base", tmp_path / "added"

    def test_loads_on_top_of_the_base(self, saved: tuple[Any, Path, Path]) -> None:
        model, _, added = saved
        names = set(load_file(added / WEIGHTS))
        assert names == {name for name in model.state_dict() if name.startswith("mechanism.")}
        check_same(AutoModelForCausalLM.from_pretrained(added), model)
        check_same(RecurrentForCausalLM.from_pretrained(added), model)
        narrow = AutoModelForCausalLM.from_pretrained(added, dtype=torch.bfloat16)
        assert {value.dtype for value in narrow.parameters()} == {torch.bfloat16}

    def test_changed_base_raises(self, saved: tuple[Any, Path, Path], tmp_path: Path) -> None:
        model, _, added = saved
        for trained in (False, True):
            model.base.requires_grad_(trained)
            optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=0.1)
            model(IDS, labels=IDS).loss.backward()
            optimizer.step()
            if not trained:
                model.to(torch.float64).to(torch.float32).save_pretrained(added, added_only=True)
                check_same(AutoModelForCausalLM.from_pretrained(added), model)
        with pytest.raises(UserError, match="weights have changed since it got a memory"):
            model.save_pretrained(tmp_path / "lost", added_only=True)
        assert not (tmp_path / "lost").exists()

    def test_number_type_is_kept(self, tmp_path: Path) -> None:
        tiny("llama").to(torch.bfloat16).save_pretrained(tmp_path / "base")
        model = add_recurrence(AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32), config())
        model.save_pretrained(tmp_path / "added", added_only=True)
        check_same(AutoModelForCausalLM.from_pretrained(tmp_path / "added"), model)

    def test_the_whole_model_can_be_saved_afterwards(self, saved: tuple[Any, Path, Path], tmp_path: Path) -> None:
        model, _, added = saved
        AutoModelForCausalLM.from_pretrained(added).save_pretrained(tmp_path / "whole")
        check_same(AutoModelForCausalLM.from_pretrained(tmp_path / "whole"), model)

    def test_base_without_a_name_raises(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="base_name_or_path"):
            recurrent("gpt2").save_pretrained(tmp_path / "out", added_only=True)
        assert not (tmp_path / "out").exists()

    def test_no_weights(self, saved: tuple[Any, Path, Path]) -> None:
        _, _, added = saved
        (added / WEIGHTS).unlink()
        check_raises(added, "safetensors")

    def test_missing_base(self, saved: tuple[Any, Path, Path]) -> None:
        _, base, added = saved
        base.rename(base.with_name("elsewhere"))
        check_raises(added, str(base))


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def check_sentence(folder: Path, *words: str) -> None:
    """Loading raises one sentence for the user, with these words."""
    with pytest.raises(UserError) as caught:
        AutoModelForCausalLM.from_pretrained(folder)
    message = str(caught.value)
    for word in words:
        assert word in message
    assert message.endswith("."), message
    assert "\n" not in message, message


def check_raises(folder: Path, *words: str) -> None:
    """Loading raises an error with these words, which may be transformers' own."""
    with pytest.raises((UserError, OSError)) as caught:
        AutoModelForCausalLM.from_pretrained(folder)
    for word in words:
        assert word in str(caught.value)


class TestBroken:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        recurrent("gpt2", standardize=True).save_pretrained(tmp_path)
        return tmp_path

    @staticmethod
    def edit(folder: Path, **changes: Any) -> None:
        path = folder / "config.json"
        content = json.loads(path.read_text())
        content["recurrence"] |= changes.pop("recurrence", {})
        path.write_text(json.dumps(content | changes))

    def test_truncated_weights(self, folder: Path) -> None:
        truncate(folder / WEIGHTS)
        check_sentence(folder, "damaged", str(folder))

    def test_weights_of_another_class(self, folder: Path) -> None:
        with pytest.raises(
            UserError, match=r"holds a RecurrentForCausalLM, which has not all weights of a RecurrentModel: load"
        ):
            AutoModel.from_pretrained(folder)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"format": 99}, ["99", "newer", "pip install -U recurrify"]),
            ({"recurrence": {"mechanism": "telepathy"}}, ["'telepathy'", "carry", "none"]),
            ({"recurrence": {"depth": 4}}, ["'depth'", "hidden_size"]),
            ({"recurrence": {"hidden_size": 13}}, ["mechanism.network"]),
        ],
        ids=str,
    )
    def test_changed_config(self, changes: dict[str, Any], words: list[str], folder: Path) -> None:
        self.edit(folder, **changes)
        check_sentence(folder, *words)

    def test_no_recurrence_part(self, folder: Path) -> None:
        path = folder / "config.json"
        content = json.loads(path.read_text())
        del content["recurrence"]
        path.write_text(json.dumps(content))
        check_sentence(folder, "add_recurrence")

    @pytest.mark.parametrize("name", ["mechanism.running_mean", "base.transformer.ln_f.bias"])
    def test_missing_tensors(self, folder: Path, name: str) -> None:
        weights = load_file(folder / WEIGHTS)
        del weights[name]
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
        check_sentence(folder, name)

    def test_config_that_is_not_json(self, folder: Path) -> None:
        (folder / "config.json").write_text('{"model_type": "recur')
        with pytest.raises(UserError, match="not valid JSON"):
            is_recurrent(folder)
        with pytest.raises((UserError, OSError), match="JSON"):
            RecurrentForCausalLM.from_pretrained(folder)

    def test_a_folder_without_a_model(self, tmp_path: Path) -> None:
        assert not is_recurrent(tmp_path / "nothing")

    def test_a_long_path_stays_in_the_reason(self) -> None:
        said = reason(OSError("/folder" * 100))
        assert said.startswith("/folder/folder")
        assert len(said) < 310

    def test_pickle_is_not_opened(self, folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        torch.save({}, folder / "pytorch_model.bin")
        check_raises(folder, "safetensors")


class TestFailedSave:
    @pytest.mark.parametrize("added_only", [False, True])
    @pytest.mark.parametrize("late", [False, True], ids=["before_writing", "after_writing"])
    def test_leaves_the_old_files_whole(
        self, added_only: bool, late: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = recurrent("gpt2")
        model.config.base_name_or_path = "somewhere"
        model.save_pretrained(tmp_path)
        before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
        real = PreTrainedModel.save_pretrained

        def full(self: Any, folder: Any, **kwargs: Any) -> None:
            if late:
                real(self, folder, **kwargs)
            raise OSError(errno.ENOSPC, "No space left on device")

        changed = next(model.mechanism.parameters()) if added_only else model.get_input_embeddings().weight
        with torch.no_grad():
            changed.add_(1.0)
        monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
        with pytest.raises(UserError, match="No space left on device") as caught:
            model.save_pretrained(tmp_path, added_only=added_only)
        assert str(tmp_path) in str(caught.value)
        assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
        assert model.config.added_only is False

    def test_target_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "taken").write_text("mine")
        with pytest.raises(UserError, match="taken"):
            recurrent("gpt2").save_pretrained(tmp_path / "taken")
        assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.parametrize("added_only", [False, True])
def test_revision_of_the_hub(added_only: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Config and weights are both those of the revision."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)  # transformers looks for adapters, else
    base = tiny("gpt2")
    base.save_pretrained(tmp_path / "base")
    cached = tmp_path / "hub" / "models--me--mine"
    (cached / "refs").mkdir(parents=True)
    models = {}
    for number, name in enumerate(("main", "older")):
        commit = str(number) * 40
        (cached / "refs" / name).write_text(commit)
        own = AutoModelForCausalLM.from_pretrained(tmp_path / "base") if added_only else tiny("gpt2", seed=number)
        models[name] = add_recurrence(own, config("carry", window=WINDOW + number, neutral_start=False))
        models[name].save_pretrained(cached / "snapshots" / commit, added_only=added_only)
    place = {"cache_dir": tmp_path / "hub", "local_files_only": True}
    for kind in (RecurrentForCausalLM, AutoModelForCausalLM):
        check_same(kind.from_pretrained("me/mine", revision="older", **place), models["older"].eval())
    check_same(RecurrentForCausalLM.from_pretrained("me/mine", **place), models["main"].eval())
