"""Several processes that train one model together, started by torchrun."""

import json
import subprocess
import sys
from pathlib import Path

from recurrify.train.checkpoints import last_whole_checkpoint

PROGRAM = """
import os, signal
from recurrify.cli.main import main
from recurrify.train.loop import RecurrentTrainer

real = RecurrentTrainer.training_step

def disturbed(self, *args, **kwargs):
    if self.state.global_step == 1 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGTERM)
    return real(self, *args, **kwargs)

RecurrentTrainer.training_step = disturbed
main()
"""


def test_signal_to_one_process_stops_all_at_the_same_step(base: Path, texts: Path, tmp_path: Path) -> None:
    """The others would wait for it without end."""
    (tmp_path / "program.py").write_text(PROGRAM)
    options = ["--model", base, "--data", texts, "--out", tmp_path / "run", "--window", 8, "--windows", 3, "--batch", 2]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(tmp_path / "program.py")]
    done = subprocess.run(
        [*launcher, "train", *map(str, options), "--mechanism", "carry"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "stopped and saved" in done.stderr, done.stderr
    assert not (tmp_path / "run" / "result.json").exists()
    saved = last_whole_checkpoint(tmp_path / "run")
    assert saved is not None
    assert json.loads((saved / "trainer_state.json").read_text())["global_step"] == 2
