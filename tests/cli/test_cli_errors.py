"""Invalid input gives one sentence and exit code 2, never a traceback."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError
from safetensors.torch import load_file, save_file
from transformers import BertConfig, BloomConfig, BloomForCausalLM, T5Config

from recurrify import model_names, run_lock
from recurrify.cli import main as cli
from recurrify.mechanisms import NoRecurrence
from recurrify.modeling import loading
from recurrify.modeling.loading import load_model
from support.commands import TRAINING, Command
from support.runs import model_folder
from support.words import word_tokenizer

Refused = Callable[..., str]


@pytest.fixture
def train(refused: Refused, base: Path, texts: Path, tmp_path: Path) -> Refused:
    """`recurrify train` with these options in addition to valid ones; leaves no result."""

    def run(*options: object, **replaced: object) -> str:
        given = {"model": base, "data": texts, "out": tmp_path / "run"} | replaced
        named = [part for name, value in given.items() for part in (f"--{name}", value)]
        sentence = refused("train", *named, *TRAINING, *options)
        assert not (tmp_path / "run" / "result.json").exists()
        return sentence

    return run


class TestText:
    def test_a_run_in_the_folder_that_it_reads(self, train: Refused, texts: Path) -> None:
        before = sorted(texts.rglob("*"))
        for out in (texts, texts / "run"):
            sentence = train(out=out)
            assert f"--out is '{out}', which is inside the training data '{texts}'" in sentence
        assert sorted(texts.rglob("*")) == before

    def test_one_token_of_everything(self, refused: Refused, base: Path, tmp_path: Path) -> None:
        (tmp_path / "short.txt").write_text("w9")
        sentence = refused("evaluate", base, "--data", tmp_path / "short.txt", "--split", "all")
        assert "gives 2 tokens or more" in sentence

    def test_no_such_validation_text(self, train: Refused, tmp_path: Path) -> None:
        assert "nothing.txt does not exist" in train("--valid", tmp_path / "nothing.txt")


class TestModel:
    @pytest.fixture
    def load(self, refused: Refused) -> Refused:
        return lambda model: refused("generate", model, "--prompt", "w5 w6")

    @staticmethod
    def truncate(path: Path) -> None:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    def test_no_such_folder(self, load: Refused, train: Refused, refused: Refused, texts: Path, tmp_path: Path) -> None:
        model = tmp_path / "nothing"
        for sentence in (load(model), train(model=model), refused("evaluate", model, "--data", texts)):
            assert str(model) in sentence

    def test_folder_without_a_model(self, load: Refused, tmp_path: Path) -> None:
        (tmp_path / "folder").mkdir()
        assert "holds no model" in load(tmp_path / "folder")

    def test_folder_without_a_tokenizer(self, load: Refused, base: Path, tmp_path: Path) -> None:
        (tmp_path / "bare").mkdir()
        for name in ("config.json", "model.safetensors"):
            (tmp_path / "bare" / name).write_bytes((base / name).read_bytes())
        assert "tokenizer" in load(tmp_path / "bare")

    def test_unsupported_type(self, load: Refused, tmp_path: Path) -> None:
        model = BloomForCausalLM(BloomConfig(vocab_size=60, hidden_size=16, n_layer=2, n_head=2))
        model.save_pretrained(tmp_path / "bloom")
        word_tokenizer().save_pretrained(tmp_path / "bloom")
        sentence = load(tmp_path / "bloom")
        assert "'bloom' are not supported" in sentence
        assert "GPT-2" in sentence

    def test_unknown_type(self, load: Refused, base: Path, tmp_path: Path) -> None:
        folder = model_folder(tmp_path / "odd")
        config = json.loads((folder / "config.json").read_text()) | {"model_type": "telepathy"}
        (folder / "config.json").write_text(json.dumps(config))
        assert "telepathy" in load(folder)

    def test_an_encoder(self, load: Refused, tmp_path: Path) -> None:
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        config = BertConfig(vocab_size=60, architectures=["BertForMaskedLM"], **sizes)
        config.save_pretrained(tmp_path / "bert")  # without weights: they need not be read
        word_tokenizer().save_pretrained(tmp_path / "bert")
        sentence = load(tmp_path / "bert")
        assert "is a BERT (a masked language model), but a causal language model is needed" in sentence
        assert "`recurrify qa train`" in sentence

    def test_an_encoder_with_a_decoder(self, load: Refused, tmp_path: Path) -> None:
        T5Config(vocab_size=60).save_pretrained(tmp_path / "t5")
        word_tokenizer().save_pretrained(tmp_path / "t5")
        assert "is a T5 (an encoder with a decoder), to which recurrify adds no recurrence" in load(tmp_path / "t5")

    def test_a_recurrent_model_for_another_task(self, load: Refused, trained: Path) -> None:
        config = json.loads((trained / "config.json").read_text()) | {"architectures": ["RecurrentForMaskedLM"]}
        (trained / "config.json").write_text(json.dumps(config))
        assert "is a RecurrentForMaskedLM, but a causal language model is needed" in load(trained)

    @pytest.mark.parametrize("name", ["./nowhere", "run one", "a/b/c", "nowhere/"])
    def test_the_hub_is_not_asked_for_a_folder(
        self, name: str, refused: Refused, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(loading.AutoTokenizer, "from_pretrained", lambda *_, **__: pytest.fail("asked"))
        assert f"There is no folder {name!r}" in refused("generate", name, "--prompt", "w5")

    def test_without_a_network(self, refused: Refused, monkeypatch: pytest.MonkeyPatch) -> None:
        """As transformers puts it."""

        def unreached(*_: Any, **__: Any) -> None:
            raise OSError("We couldn't connect, and couldn't find them.\nCheck.") from LocalEntryNotFoundError("no")

        monkeypatch.setattr(loading.AutoTokenizer, "from_pretrained", unreached)
        monkeypatch.setattr(model_names, "hub_is_reachable", lambda: True)
        assert "from 'smolm2' (did you mean 'smollm2'?): " in refused("generate", "smolm2", "--prompt", "w5")
        sentence = refused("generate", "nowhere", "--prompt", "w5")
        assert sentence.endswith("couldn't find them; the small decoder shipped:base needs no network.")

    def test_nor_for_anything_offline_that_was_not_downloaded(
        self, refused: Refused, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        asked = []
        monkeypatch.setattr(loading, "tokenizer_of", lambda name, *_: asked.append(name))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        assert "before (did you mean 'smollm2'?): check" in refused("generate", "smolm2", "--prompt", "w5")
        sentence = refused("generate", "nowhere", "--prompt", "w5")
        assert "did you mean" not in sentence
        assert "unset HF_HUB_OFFLINE" in sentence
        assert "shipped:base needs no network" in sentence
        monkeypatch.setattr(model_names, "is_downloaded", lambda name: True)
        loading.model_tokenizer("downloaded")
        assert asked == ["downloaded"]

    def test_truncated_weights_of_a_base(self, load: Refused, tmp_path: Path) -> None:
        folder = model_folder(tmp_path / "cut")
        self.truncate(folder / "model.safetensors")
        sentence = load(folder)
        assert str(folder) in sentence
        assert "damaged" in sentence

    def test_a_run_that_has_not_finished(self, load: Refused, tmp_path: Path) -> None:
        (tmp_path / "unfinished").mkdir()
        (tmp_path / "unfinished" / "run.json").write_text("{}")
        (tmp_path / "unfinished" / "checkpoint-3").mkdir()
        said = "is not finished and has no model yet: run its command again to resume it"
        assert f"{said}." in load(tmp_path / "unfinished")
        (tmp_path / "unfinished" / "checkpoint-3" / "config.json").write_text("{}")
        assert f"{said}, or use its last checkpoint, '{tmp_path / 'unfinished' / 'checkpoint-3'}'." in load(
            tmp_path / "unfinished"
        )

    @pytest.fixture
    def trained(self, runs: dict[str, Path], tmp_path: Path) -> Path:
        folder = tmp_path / "trained"
        folder.mkdir()
        for path in (runs["recurrent"] / "model").iterdir():
            (folder / path.name).write_bytes(path.read_bytes())
        return folder

    def test_truncated_weights(self, load: Refused, trained: Path) -> None:
        self.truncate(trained / "model.safetensors")
        sentence = load(trained)
        assert str(trained) in sentence
        assert "damaged" in sentence

    def test_newer_format(self, load: Refused, trained: Path) -> None:
        config = json.loads((trained / "config.json").read_text()) | {"format": 99}
        (trained / "config.json").write_text(json.dumps(config))
        sentence = load(trained)
        assert "format 99" in sentence
        assert "pip install -U recurrify" in sentence
        assert "tokenizer" not in sentence

    def test_config_cut_short(self, load: Refused, trained: Path) -> None:
        self.truncate(trained / "config.json")
        assert str(trained) in load(trained)

    def test_config_of_an_unknown_base(self, refused: Refused, trained: Path, texts: Path) -> None:
        config = json.loads((trained / "config.json").read_text())
        config["text_config"]["model_type"] = "g0t2"
        (trained / "config.json").write_text(json.dumps(config))
        assert "Unrecognized model identifier: g0t2" in refused("evaluate", trained, "--data", texts)

    def test_config_with_a_word_for_a_number(self, refused: Refused, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text('{"model_type": "gpt2", "n_layer": "x"}')
        (tmp_path / "rows.csv").write_text("text,label\na b,0\nc d,1\n" * 9)
        given = ["classify", "train", "--model", tmp_path, "--data", tmp_path / "rows.csv", "--out", tmp_path / "run"]
        assert str(tmp_path) in refused(*given)

    def test_unknown_shipped_model(self, load: Refused) -> None:
        assert "'shipped:telepathy'" in load("shipped:telepathy")

    def test_no_such_gguf(self, load: Refused, tmp_path: Path) -> None:
        assert "nothing.gguf" in load(tmp_path / "nothing.gguf")

    def test_another_mechanism_than_the_model_has(self, train: Refused, runs: dict[str, Path]) -> None:
        sentence = train("--mechanism", "none", model=runs["recurrent"])
        assert "recurrent already, with mechanism='carry', not 'none'" in sentence

    def test_another_make_up_than_the_model_has(self, train: Refused, runs: dict[str, Path]) -> None:
        sentence = train("--set", "slots=4", model=runs["recurrent"])
        assert "recurrent already, with slots=1, not 4" in sentence

    def test_a_base_with_missing_weights(self, load: Refused, tmp_path: Path) -> None:
        folder = model_folder(tmp_path / "gap")
        weights = load_file(folder / "model.safetensors")
        gone = next(name for name in weights if "mlp" in name)
        save_file({name: value for name, value in weights.items() if name != gone}, folder / "model.safetensors")
        assert gone in load(folder)


class TestRecurrence:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["--window", 33], ("`window` is 33", "32 positions")),
            (["--mechanism", "carry", "--set", "insert_layer=99"], ("`insert_layer` is 99", "only 3 layers")),
            (["--set", "tail=3", "--set", "tail=4"], ("setting 'tail' is given 2 times",)),
            (["--mechanism", "telepathy"], ("'telepathy'", "carry", "memory_tokens")),
            (["--mechanism", "kv", "--set", "keep=2", "--set", "sinks=1"], ("kv", "absolute")),
            (["--mechanism", "kv", "--set", "keep=2", "--set", "sinks=1", "--freeze-base"], ("`freeze_base`", "'kv'")),
            (
                ["--set", "tail=3"],
                (
                    "'lookback', which was chosen for this base, has no setting 'tail'",
                    "with `mechanism` 'tail' there",
                    "keep",
                ),
            ),
            pytest.param(
                ["--compile", "graphs"],
                ("`compile` is graphs", "no usable CUDA GPU"),
                marks=pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device"),
            ),
            (["--mechanism", "carry", "--set", "bptt_windows=1"], ("no gradient reaches an earlier window",)),
        ],
    )
    def test_train(self, options: list[Any], words: tuple[str, ...], train: Refused) -> None:
        sentence = train(*options)
        for word in words:
            assert word in sentence

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["--window", 8, "--overlap", 8], ("`overlap`", "8", "window")),
            (["--overlap", -1], ("`overlap`", "-1")),
            (["--window", 33], ("`window` is 33", "32 positions")),
            (["--window", 0], ("`window`", "0")),
        ],
    )
    def test_evaluate(
        self, options: list[Any], words: tuple[str, ...], refused: Refused, base: Path, texts: Path
    ) -> None:
        sentence = refused("evaluate", base, "--data", texts, *options)
        for word in words:
            assert word in sentence


class TestTraining:
    def test_a_folder_with_another_run(self, refused: Refused, runs: dict[str, Path], base: Path, texts: Path) -> None:
        out = runs["recurrent"]
        sentence = refused("train", "--model", base, "--data", texts, "--out", out, *TRAINING, "--seed", 3)
        assert "seed=0 there, 3 now" in sentence
        assert str(out) in sentence


class TestDevice:
    @pytest.mark.parametrize("device", ["telepathy", "meta"])
    def test_unknown(self, device: str, refused: Refused, base: Path, texts: Path) -> None:
        for command in (["evaluate", base, "--data", texts], ["generate", base, "--prompt", "w5 w6"]):
            sentence = refused(*command, "--device", device)
            assert repr(device) in sentence
            assert "cpu" in sentence

    def test_no_gpu(self, refused: Refused, base: Path, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        assert "no usable CUDA GPU" in refused("evaluate", base, "--data", texts, "--device", "cuda")

    def test_no_gpu_for_graphs(self, refused: Refused, base: Path) -> None:
        sentence = refused("generate", base, "--prompt", "w5", "--graphs", "--device", "cpu")
        assert "--graphs needs a CUDA GPU" in sentence


class TestPrompt:
    def test_neither(self, refused: Refused, base: Path) -> None:
        assert "either --prompt or --prompt-file" in refused("generate", base)

    def test_both(self, refused: Refused, base: Path, texts: Path) -> None:
        sentence = refused("generate", base, "--prompt", "w5", "--prompt-file", texts / "0.txt")
        assert "either --prompt or --prompt-file" in sentence

    def test_empty(self, refused: Refused, base: Path, tmp_path: Path) -> None:
        (tmp_path / "empty.txt").write_text("")
        for prompt in (["--prompt", ""], ["--prompt", "  "], ["--prompt-file", tmp_path / "empty.txt"]):
            assert "no token" in refused("generate", base, *prompt)

    def test_unreadable(self, refused: Refused, base: Path, tmp_path: Path) -> None:
        (tmp_path / "some.bin").write_bytes(b"\xff\xfe\x00")
        for path in (tmp_path / "nothing.txt", tmp_path / "some.bin", tmp_path):
            assert str(path) in refused("generate", base, "--prompt-file", path)


class TestOutput:
    def test_the_result_file_is_a_folder(self, refused: Refused, base: Path, texts: Path, tmp_path: Path) -> None:
        assert str(tmp_path) in refused("evaluate", base, "--data", texts, "--out", tmp_path)


class TestInterrupted:
    def test_what_was_saved_is_kept(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], base: Path, texts: Path
    ) -> None:
        def interrupted(*_: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("recurrify.cli.evaluate.load_model", interrupted)
        monkeypatch.setattr("sys.argv", ["recurrify", "evaluate", str(base), "--data", str(texts)])
        with pytest.raises(SystemExit) as caught:
            cli.main()
        assert caught.value.code == 130
        said = " ".join(capsys.readouterr().err.split())
        assert said == "Stopped. If it was training, run the same command again to resume."


def test_the_memory_of_the_gpu_runs_out(
    refused: Refused, monkeypatch: pytest.MonkeyPatch, base: Path, texts: Path
) -> None:
    def too_large(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nAnd much more.")

    monkeypatch.setattr("recurrify.cli.evaluate.load_model", too_large)
    sentence = refused("evaluate", base, "--data", texts)
    assert "Out of memory (CUDA out of memory.): use a smaller --batch" in sentence


class TestComparison:
    def test_models_made_for_other_windows(self, refused: Refused, base: Path, texts: Path, tmp_path: Path) -> None:
        """Perplexities at different windows cannot be compared unnoticed."""
        for name, window, overlap in (("a", 8, 0), ("b", 4, 0), ("c", 8, 2)):
            model, tokenizer = load_model(str(base), NoRecurrence(window=window, overlap=overlap))
            model.save_pretrained(tmp_path / name)
            tokenizer.save_pretrained(tmp_path / name)
        sentence = refused("evaluate", tmp_path / "a", tmp_path / "b", "--data", texts)
        assert "windows of 4 and 8: choose one with --window; 4, the shortest, works for all." in sentence
        sentence = refused("evaluate", tmp_path / "a", tmp_path / "c", "--data", texts)
        assert "overlaps of 0 and 2: choose one with --overlap" in sentence


def test_data_named_twice_is_not_half_lost(refused: Command, base: Path) -> None:
    sentence = refused("evaluate", base, "--data", "one", "--data=two")
    assert "`--data` takes one value here, but was given 2 times" in sentence
    twice = ("--data", "a=one.txt", "--data", "b=two.txt")
    assert "a=one.txt does not exist" in refused("pretrain", *twice, "--out", base / "new")


@pytest.mark.parametrize(
    "command",
    [
        ("demo",),
        ("train", "--model", "shipped:base", "--data", "stdlib"),
        ("classify", "train", "--model", "shipped:base", "--data", "some.csv"),
        ("qa", "train", "--model", "shipped:base", "--data", "some.json"),
        ("pretrain", "--data", "stdlib"),
        ("scratch", "train", "--arch", "lstm", "--data", "stdlib"),
        ("forecast", "train", "--data", "some.csv"),
    ],
    ids=lambda command: "-".join(command[:2]),
)
def test_commands_that_train_take_the_run_lock(
    command: tuple[str, ...], refused: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_lock, "WAIT_SECONDS", 0.0)
    monkeypatch.chdir(tmp_path)
    for name in ("some.csv", "some.json"):
        (tmp_path / name).touch()
    with run_lock.run_lock(tmp_path / "run"):
        assert "Another process is training in" in refused(*command, "--out", tmp_path / "run")


def test_remote_code_is_not_trusted(tmp_path: Path, refused: Command) -> None:
    folder = model_folder(tmp_path / "odd")
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "telepathy", "auto_map": {"AutoConfig": "code.Odd", "AutoModelForCausalLM": "code.Odd"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    assert "if you trust it, use `recurrify --trust-remote-code" in refused("generate", folder, "--prompt", "w5")
    assert not (tmp_path / "ran").exists()
