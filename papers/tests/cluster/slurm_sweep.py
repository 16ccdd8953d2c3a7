"""A sweep on a real Slurm through faults: every run finishes once, with the weights of an undisturbed local run.

`make test-cluster` runs it; `make test` does not: it installs Slurm and takes minutes.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import slurm_cluster
from safetensors.torch import load_file
from slurm_cluster import SlurmCluster, output, wait_for

from recurrify.results import load_result
from recurrify_papers.clusters import LOGS, job_of
from support.runs import assert_same_weights, model_folder, text_folder

PLAIN, CARRY, BEST = TRAINED = [f"wiki-{kind}-w32-o0-s0-lr0.001" for kind in ("plain", "carry", "best")]
RUNS = ["base", *TRAINED, *(f"{name}-valid-o0" for name in TRAINED)]
SLURM = ["--cluster", "slurm", "--partition", "main", "--slurm", '{"slurm_signal_delay_s": 30}']


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    why_not = slurm_cluster.install()
    if why_not is not None:
        pytest.skip(why_not)
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as found:
        yield found


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return text_folder(tmp_path_factory.mktemp("data") / "texts", documents=40)


class Experiment:
    """`recurrify experiment` with one root."""

    def __init__(self, root: Path, texts: Path) -> None:
        self.root, self.runs = root, root / "cluster" / "runs"
        self.options = ["--size", "cluster", "--root", root, "--books", texts, "--wiki", texts]

    def start(self, verb: str, *options: object) -> "subprocess.Popen[str]":
        program = [sys.executable, str(Path(__file__).with_name("small_sweep.py"))]
        command = [*program, "experiment", verb, "learning-rates", *options, *self.options]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        return subprocess.Popen(
            [str(part) for part in command], text=True, env=os.environ | {"OMP_NUM_THREADS": "1"}, **pipes
        )

    def end(self, process: "subprocess.Popen[str]") -> str:
        said, _ = process.communicate(timeout=1800)
        print(said)
        return said

    def call(self, verb: str, *options: object) -> str:
        return self.end(self.start(verb, *options))

    def is_training(self, name: str) -> bool:
        """Whether a run has a checkpoint and is not finished."""
        return any((self.runs / name).glob("train/checkpoint-*")) and not (self.runs / name / "result.json").is_file()

    def log(self, name: str) -> str:
        return Path(job_of(self.runs / name)["log"]).read_text()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory, texts: Path) -> Experiment:
    """The undisturbed sweep, in two processes of this machine."""
    found = Experiment(tmp_path_factory.mktemp("local"), texts)
    found.call("run", "--cluster", "local", "--jobs", 2)
    return found


def node(job: str) -> str:
    return output("squeue", "-h", "-o", "%N", "-j", job).strip()


def test_sweep_survives(cluster: SlurmCluster, local: Experiment, texts: Path, tmp_path: Path) -> None:
    print(slurm_cluster.versions())
    sweep = Experiment(tmp_path, texts)
    small = sweep.runs / BEST
    small.mkdir(parents=True)
    output("mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(small))
    process = sweep.start("run", *SLURM)
    try:
        wait_for("base trains", lambda: sweep.is_training("base"))
        # A partition that goes first takes both nodes.
        urgent = ["sbatch", "--parsable", "--partition=urgent", "--nodes=2", "--output=/dev/null", "--wrap=sleep 5"]
        output(*urgent)
        wait_for("carry trains", lambda: sweep.is_training(CARRY))
        died = node(job_of(sweep.runs / CARRY)["id"])
        cluster.kill(died)
        wait_for("the controller notices", lambda: "down" in output("sinfo", "-h", "-n", died, "-o", "%t"))
        cluster.start(died)
        said = sweep.end(process)
        assert process.returncode == 2
        assert f"{BEST} failed: " in said
        assert "No space left on device" in said
        output("mount", "-o", "remount,size=100m", str(small))
        sweep.call("run", *SLURM)
        assert "7 of 7 runs are finished" in sweep.call("status")
        for name in ("base", *TRAINED):
            ours, theirs = (load_file(one.runs / name / "train/model/model.safetensors") for one in (sweep, local))
            assert_same_weights(ours, theirs)
        for name in RUNS:
            assert sweep.log(name).count("Job completed successfully") == 1
            ours, theirs = (load_result(one.runs / name / "result.json") for one in (sweep, local))
            assert ours.keys() == theirs.keys()
            assert ours.get("loss") == theirs.get("loss")  # of scores
        logs = [path.read_text() for path in (sweep.runs / LOGS).glob("*.out")]
        assert sum(log.count("Job completed successfully") for log in logs) == len(RUNS)
        assert "stopping after this step" in sweep.log("base")
    finally:
        process.kill()
        process.communicate()
        subprocess.run(["umount", "--lazy", str(small)], check=False)


def test_script_of_the_guide_resumes(cluster: SlurmCluster, texts: Path, tmp_path: Path) -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/clusters.md").read_text()
    script = "#!/bin/bash" + guide.split("#!/bin/bash")[1].split("```")[0]
    model, out = model_folder(tmp_path / "model"), tmp_path / "out"
    own = f"--data {texts} --out {out} --window 8 --batch 2 --epochs 1000 --max-tokens 40000 --valid-every 4000"
    script = script.replace("--gpus=1", f"--output={tmp_path}/log")
    script = script.replace("recurrify train", f"{sys.executable} -m recurrify train")
    script = script.replace("--model gpt2 --data books/ --out runs/memory", f"--model {model} {own}")
    (tmp_path / "script").write_text(script)
    job = output("sbatch", "--parsable", str(tmp_path / "script")).strip()
    wait_for("training", lambda: any(out.glob("checkpoint-*")))
    output("scancel", "--signal=USR1", job)
    wait_for("the end", lambda: not output("squeue", "-h", "-o", "%i").strip())
    assert "resuming the run in" in (tmp_path / "log").read_text()  # a requeued job writes its log again
    assert load_result(out / "result.json")["finished"]
