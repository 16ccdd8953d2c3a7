"""Saved models in tools that do not import recurrify, and on a local copy of the hub."""

import base64
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from transformers import AutoConfig, AutoModelForCausalLM

from recurrify.train.run_folder import save_run
from support.checks import recurrent
from support.models import text
from support.tools import MEMORIES, remembering, saved
from support.words import word_tokenizer

STRANGER = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
import torch
sys.modules["recurrify"] = None
try:
    AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
except ImportError as error:
    print(error)
del sys.modules["recurrify"]
for folder in sys.argv[1:]:
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    assert AutoTokenizer.from_pretrained(folder, trust_remote_code=True)("w5").input_ids == [5]
    model.save_pretrained(folder + "/again")
    print(type(model).__name__, model(torch.arange(4, 30)[None]).logits.sum().item())
"""


def test_tools_that_do_not_import_recurrify(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    models = {tmp_path / mechanism: saved(mechanism, tmp_path / mechanism) for mechanism in MEMORIES}
    command = [sys.executable, "-c", STRANGER, *map(str, models)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sentence, *lines = done.stdout.splitlines()
    assert "pip install recurrify" in sentence
    for (folder, model), line in zip(models.items(), lines, strict=True):
        name, total = line.split()
        assert name == "RecurrentForCausalLM"
        assert float(total) == pytest.approx(model(torch.arange(4, 30)[None]).logits.sum().item(), rel=1e-4)
        files = {file.name for file in (folder / "again").iterdir()}
        assert files == {file.name for file in folder.glob("*.*") if "token" not in file.name}
        assert AutoConfig.from_pretrained(folder / "again").auto_map == model.config.to_dict()["auto_map"]


def test_the_page_beside_the_weights(tmp_path: Path) -> None:
    model = remembering("lookback")
    model.config.base_name_or_path = "openai-community/gpt2"
    history = [{"loss": 1.0, "step": 2}, {"eval_loss": 3.25, "step": 2}]
    result = {"history": history, "provenance": {"config": {"data": "/home/somebody/books"}}}
    save_run(model, word_tokenizer(), result, tmp_path)
    page = (tmp_path / "model" / "README.md").read_text()
    for part in ("base_model: openai-community/gpt2", "lookback (", "8 tokens", "books", "eval_loss 3.25", "keep=3"):
        assert part in page
    assert "somebody" not in page
    code = re.findall(r"```python\n(.*?)```", page, re.DOTALL)[0]
    exec(code.replace('"model"', repr(str(tmp_path / "model"))), {})
    (tmp_path / "model" / "README.md").write_text("mine")
    model.save_pretrained(tmp_path / "model")
    assert (tmp_path / "model" / "README.md").read_text() == "mine"
    recurrent("bert", "tags").save_pretrained(tmp_path / "tags")
    assert "AutoModelForTokenClassification" in (tmp_path / "tags" / "README.md").read_text()


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as an upload needs; every file comes with the commit."""

    files: dict[str, bytes]

    def do_HEAD(self) -> None:
        self.send_response(200 if self.path.rpartition("/")[2] in self.files else 404)
        self.send_header("ETag", '"0"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("X-Error-Code", "EntryNotFound")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_GET(self) -> None:
        self.answer({"id": "me/model", "sha": "0" * 40, "siblings": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if "/preupload/" in self.path:
            files = json.loads(body)["files"]
            self.answer({"files": [{**file, "uploadMode": "regular", "shouldIgnore": False} for file in files]})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer(
                {"commitUrl": f"{constants.ENDPOINT}/me/model/commit/0", "commitOid": "0" * 40, "success": True}
            )
        else:
            self.answer({"url": f"{constants.ENDPOINT}/me/model", "id": "me/model", "name": "me/model"})

    def answer(self, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    Hub.files = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield Hub.files
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("mechanism", MEMORIES)
def test_push_to_hub(mechanism: str, hub: dict[str, bytes], tmp_path: Path) -> None:
    model, ids = remembering(mechanism), text(1, 20)
    model.push_to_hub("me/model", token="none")
    assert b'from_pretrained("me/model")' in hub["README.md"]
    hub["README.md"] = b"mine"
    model.save_pretrained(tmp_path / "local", push_to_hub=True, repo_id="me/model", token="none")
    assert hub["README.md"] == b"mine"
    needed = {"config.json", "generation_config.json", "model.safetensors", "modeling_recurrify.py", "README.md"}
    assert set(hub) == needed
    for name, content in hub.items():
        (tmp_path / name).write_bytes(content)
    assert torch.equal(AutoModelForCausalLM.from_pretrained(tmp_path)(ids).logits, model(ids).logits)
