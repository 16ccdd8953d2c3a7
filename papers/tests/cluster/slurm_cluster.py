"""A Slurm cluster on this machine: munged, a controller and two nodes of one CPU each, on the loopback interface."""

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

PACKAGES = ("slurm-wlm", "munge")
NODES = {"n1": 26821, "n2": 26822}
SLURM_CONF = """
ClusterName=recurrify
SlurmctldHost=localhost
SlurmUser=root
SlurmctldPort=26820
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=10
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log
SlurmdTimeout=10
KillWait=10
MinJobAge=10
ReturnToService=2
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{nodes}
PartitionName=main Nodes=ALL Default=YES PriorityTier=1 GraceTime=20
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""


def install() -> str | None:
    """Install Slurm and munge; returns why that is not possible."""
    if os.geteuid() != 0:
        return "installing Slurm needs root"
    if all(map(shutil.which, ("slurmctld", "slurmd", "sbatch", "munged"))):
        return None
    if shutil.which("apt-get") is None:
        return "there is no apt-get: this test is for Debian"
    quiet = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], env=quiet, check=False)
    command = ["apt-get", "install", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300", *PACKAGES]
    if subprocess.run(command, env=quiet, check=False).returncode:
        return f"`{' '.join(command)}` failed"
    return None


def versions() -> str:
    """The versions of what is tested."""
    slurm, munge = (output(name, "--version") for name in ("sbatch", "munged"))
    return f"{slurm.strip()}, {munge.split(' (')[0].strip()}, Debian {Path('/etc/debian_version').read_text().strip()}"


def output(*command: str) -> str:
    """What a command prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def wait_for(what: str, is_so: Callable[[], object], seconds: float = 600) -> None:
    """Wait until something is so; raises an error after so many seconds."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            raise TimeoutError(f"{what}: not within {seconds:.0f} s")
        time.sleep(0.5)


class SlurmCluster:
    """Daemons with their files in one folder; ends all of them at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.conf = folder, folder / "slurm.conf"

    def __enter__(self) -> "SlurmCluster":
        for name in ("state", *NODES):
            (self.folder / name).mkdir(parents=True)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o600)
        node = "NodeName={} NodeHostname=localhost NodeAddr=127.0.0.1 Port={} CPUs=1"
        nodes = "\n".join(node.format(*one) for one in NODES.items())
        self.conf.write_text(SLURM_CONF.format(folder=self.folder, nodes=nodes))
        os.environ["SLURM_CONF"] = str(self.conf)
        files = [f"--{one}-file={self.folder}/munge.{one}" for one in ("key", "pid", "log", "seed")]
        try:
            output("munged", "--force", "--num-threads=1", f"--socket={self.folder}/munge.socket", *files)
            output("slurmctld", "-c")
            for node in NODES:
                self.start(node)
            wait_for("idle nodes", lambda: output("sinfo", "-h", "-o", "%D %t").strip() == f"{len(NODES)} idle")
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, node: str) -> None:
        """Start the daemon of a node."""
        output("slurmd", "-N", node)

    def kill(self, node: str) -> None:
        """The node dies: its daemon and the processes of its jobs, without a warning."""
        daemon = int((self.folder / f"{node}.pid").read_text())
        jobs = [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._is_of(pid, node)]
        steps = {parent for pid in jobs if _name(parent := _parent(pid)) == "slurmstepd"}
        for pid in (daemon, *steps, *jobs):
            _signal(pid, signal.SIGKILL)

    def _is_of(self, pid: int, node: str) -> bool:
        with suppress(OSError):
            found = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            return {f"SLURMD_NODENAME={node}".encode(), f"SLURM_CONF={self.conf}".encode()} <= set(found)
        return False

    def __exit__(self, *_: object) -> None:
        for node in NODES:
            if (self.folder / f"{node}.pid").is_file():
                self.kill(node)
        for daemon in ("slurmctld", "munge"):
            if (self.folder / f"{daemon}.pid").is_file():
                _signal(int((self.folder / f"{daemon}.pid").read_text()), signal.SIGTERM)


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _name(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def _signal(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
