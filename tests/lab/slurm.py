"""A real Slurm cluster for tests: munged, slurmctld and a slurmd per node, on machines of the lab.

Each node is a machine with a network, a host name, processes and a /tmp of its own, and so is the
login node; clusters run side by side and end with their machines. Homes are on one file system.
There is no accounting, as on small clusters: no `sacct`, no associations.

slurmctld runs on the login node: Slurm 22.05 reports a lost node to the port of its `srun`, but at
the address 0.0.0.0. An `srun` beside slurmctld hears that and ends; any other waits for ever.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .dockerd import remove_cgroups
from .machine import HANG_S, LabError, Machine, command, completed, kill, until
from .machines import Lab
from .slurm_files import LOGIN, USERS, cgroup_conf, etc_files, slurm_conf

__all__ = ["LabError", "SlurmCluster", "missing_tools"]

ROOT = Path(__file__).parents[2]
TOOLS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "ip", "unshare", "nsenter", "setpriv")
PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"
FINAL = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL")


def missing_tools() -> list[str]:
    """Return the tools that this machine lacks; `.ci/packages` knows their packages."""
    lacking = [tool for tool in TOOLS if not shutil.which(tool, path=PATH)]
    return lacking if os.getuid() == 0 else ["root", *lacking]


@dataclass
class SlurmCluster:
    """A Slurm cluster with the nodes n1, n2, …. Use it as a context manager; it needs root."""

    folder: Path
    """Seen by all machines; removed at the end."""
    cpus: Sequence[int] = (4, 4, 4)
    """The CPUs that Slurm gives out on each node."""
    cred_expire: int = 5
    """Seconds for which a requeued job waits before it starts again; Slurm's default is 120."""
    slurmd_timeout: int = 10
    """Seconds of silence after which a node is down, within as many again."""
    proctrack: str = "linuxproc"
    """How slurmd finds the processes of a step: linuxproc or cgroup."""
    lab: Lab = field(init=False)
    _marks: list[str] = field(init=False, default_factory=list)
    """Jobs that never start, which `kill_controller` has submitted."""

    def __enter__(self) -> SlurmCluster:
        self._make_folders()
        self.lab = Lab(self.folder / "machines")
        try:
            self.lab.__enter__()
            self._add("login", LOGIN)
            for number, name in enumerate(self.names, 1):
                self._add(name, number)
            self._start_munged()
            self.start_controller()
            self._start_slurmd(*self.names)
            self.wait_for_nodes("idle")
        except BaseException as error:
            with contextlib.suppress(LabError):
                self._explain(error)
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every process of the cluster and remove its folder."""
        self.lab.close()
        if self.proctrack == "cgroup":
            for name in self.names:
                remove_cgroups(f"slurm_{name}")
        shutil.rmtree(self.folder, ignore_errors=True)

    # -- machines and users

    @property
    def names(self) -> list[str]:
        # slurmd names control groups by node, which other clusters on this machine have, too.
        prefix = f"n{os.getpid()}-" if self.proctrack == "cgroup" else "n"
        return [f"{prefix}{number}" for number in range(1, len(self.cpus) + 1)]

    @property
    def login(self) -> Machine:
        """The machine where users type commands."""
        return self.lab.machines["login"]

    def home(self, user: str) -> Path:
        """Return a user's home folder: the same path on this machine and on all of the cluster."""
        return self.folder / "home" / user

    def start(
        self,
        argv: Sequence[str],
        *,
        user: str = "ann",
        at: str = "login",
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        **how: object,
    ) -> subprocess.Popen[str]:
        """Start a command of a user (or root) as after a login; `how`: options of Popen."""
        home = self.home(user)
        number = str(USERS.get(user, 0))
        become = ["setpriv", "--reuid", number, "--regid", number, "--clear-groups", "--"]
        become += ["env", f"--chdir={cwd or home}", *argv]
        known = {"HOME": str(home), "USER": user, "LOGNAME": user, "SHELL": "/bin/sh"}
        known |= {"PATH": PATH, "LANG": "C.UTF-8", "SLURM_CONF": str(self.config), **(env or {})}
        argv = self.lab.machines[at].inside(become)
        how = {"stdin": subprocess.DEVNULL, "text": True, **how}
        return subprocess.Popen(argv, env=known, **how)  # type: ignore[call-overload, no-any-return]

    def run(
        self, argv: Sequence[str], *, timeout: float = HANG_S, **where: object
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end, with its output captured; `where`: as for `start`."""
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = self.start(argv, **pipes, **where)  # type: ignore[arg-type]
        return completed(process, timeout=timeout)

    def __call__(self, *argv: str, user: str = "ann") -> str:
        """Return a command's stdout, stripped. Raises LabError with its stderr if it fails."""
        done = self.run(argv, user=user)
        if done.returncode != 0:
            raise LabError(f"{' '.join(argv)}: {done.stderr.strip()}")
        return done.stdout.strip()

    def processes(self, name: str) -> dict[int, str]:
        """Return this machine's pid → command line of a node's processes but its slurmd."""
        found = self.lab.machines[name].processes()
        return {pid: words for pid, words in found.items() if not _is(words, "slurmd")}

    def pids(self, program: str, at: str = "login") -> list[int]:
        """Return this machine's pids of a program on a machine of the cluster, oldest first."""
        found = self.lab.machines[at].processes()
        return sorted(pid for pid, words in found.items() if _is(words, program))

    # -- jobs and nodes, as Slurm sees them

    def submit(self, script: str, *options: str, user: str = "ann") -> str:
        """Submit a script of sh and return the job's id; its output goes to the user's home."""
        return self("sbatch", "--parsable", *options, "--wrap", script, user=user)

    def fill(self, nodes: int, *options: str, user: str = "ben") -> str:
        """Submit a job that takes whole nodes until it is cancelled; return its id."""
        return self.submit("sleep 3600", "--exclusive", f"-N{nodes}", *options, user=user)

    def job(self, job: str) -> dict[str, str]:
        """Return what `scontrol show job` says of a job; words are split at spaces."""
        said = self("scontrol", "show", "job", "--oneliner", job)
        return dict(word.partition("=")[::2] for word in said.split(" ") if "=" in word)

    def wait_for_job(self, job: str, *states: str, hang_s: float = HANG_S) -> str:
        """Wait until the job has one of `states` (or a final one if none is named)."""
        state = ""

        def is_there() -> bool:
            nonlocal state
            state = self.job(job)["JobState"]
            return state in (states or FINAL)

        until(is_there, f"job {job} in {states or 'a final state'}", hang_s)
        return state

    def node_states(self) -> dict[str, str]:
        """Return node → state, such as idle, mixed, allocated, completing, down."""
        # With `-n NODE`, slurmctld answers with outdated states.
        said = self("sinfo", "-h", "-N", "-p", "main", "-o", "%N %T")
        return {words.split()[0]: words.split()[1].rstrip("*$~#%+-") for words in said.splitlines()}

    def wait_for_nodes(self, state: str, *names: str, hang_s: float = HANG_S) -> None:
        """Wait until nodes have a state; all nodes if none is named."""
        nodes = set(names or self.names)
        try:
            until(
                lambda: all(
                    is_now == state for name, is_now in self.node_states().items() if name in nodes
                ),
                f"{nodes} {state}",
                hang_s,
            )
        except LabError as error:
            error.add_note(self("sinfo", "-N", "-o", "%N %T %E"))
            raise

    def expire(self, job: str, seconds: float) -> None:
        """Let a running job's time limit end in `seconds`, which is checked every 30 s."""
        self("scontrol", "update", f"JobId={job}", f"EndTime=now+{seconds:.0f}", user="root")

    # -- faults

    def freeze(self, name: str) -> None:
        """Stop every process of a node, slurmd included, as if its kernel hung."""
        self._signal(name, signal.SIGSTOP)

    def thaw(self, name: str) -> None:
        """Undo `freeze`."""
        self._signal(name, signal.SIGCONT)

    def kill(self, name: str) -> None:
        """Kill every process of a node; its machine goes on, without a slurmd."""
        kill(self._signal(name, signal.SIGKILL))

    def power_off(self, name: str) -> None:
        """Cut a node's network, then end its machine: no connection is closed."""
        self.lab.machines[name].power_off()
        self.lab.remove(self.lab.machines[name])

    def boot(self, name: str) -> None:
        """Start a node anew: its slurmd, and its machine after `power_off`."""
        if name in self.lab.machines:
            self.kill(name)
        else:
            self._add(name, self.names.index(name) + 1)
        self._start_slurmd(name)

    def cut(self, name: str) -> None:
        """Unplug a machine's cable."""
        self.lab.cut(self.lab.machines[name])

    def repair(self, name: str) -> None:
        """Undo `cut`."""
        self.lab.repair(self.lab.machines[name])

    def hide_homes(self, name: str) -> None:
        """Let a node have homes of its own, as if /home were not on a shared file system."""
        machine = self.lab.machines[name]
        for user, number in USERS.items():
            own = machine.folder / "homes" / user
            own.mkdir(parents=True)
            os.chown(own, number, number)
        inside = ["nsenter", "--target", str(machine.pid), "--mount", "--"]
        command(*inside, "mount", "--bind", str(own.parent), str(self.folder / "home"))

    def kill_controller(self) -> None:
        """Kill slurmctld once it has saved its state, which takes up to 5 s.

        Without that, jobs and job ids of the last 5 s would be lost, and the ids used again. What
        is saved has all that was before a new job if it has that job.
        """
        mark = f"mark-{time.monotonic_ns()}"
        self._marks.append(self.submit("true", "--hold", f"--job-name={mark}"))
        saved = self.folder / "state" / "job_state"

        def has_mark() -> bool:
            with contextlib.suppress(FileNotFoundError):  # slurmctld is just replacing it
                return mark.encode() in saved.read_bytes()
            return False

        until(has_mark, "the saved state")
        kill(self.pids("slurmctld"))

    def start_controller(self) -> None:
        """Start slurmctld with the state that an earlier one has saved."""
        self._serve("login", ["slurmctld"])
        while self._marks:
            self("scancel", self._marks.pop())

    def restore(self) -> None:
        """Undo all faults but `hide_homes`, cancel all jobs and wait until all nodes are idle."""
        for pid in self.pids("slurmctld"):
            os.kill(pid, signal.SIGCONT)
        if not self.pids("slurmctld"):
            self.start_controller()
        for user in USERS:
            self("scancel", "--user", user, user="root")
        for name, state in self.node_states().items():
            if name in self.lab.machines:
                self.repair(name)
                self.thaw(name)
            if state.startswith(("down", "drain", "fail", "unk")):
                self.boot(name)  # else slurmctld may wait for 30 s before it asks the node
            if state.startswith("drain"):
                self("scontrol", "update", f"NodeName={name}", "State=RESUME", user="root")
        self.wait_for_nodes("idle")

    # -- how it is made

    @property
    def config(self) -> Path:
        return self.folder / "slurm.conf"

    def _make_folders(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)  # users read slurm.conf and their homes
        for name in ("state", "spool", "run", "log", "home/root"):
            (self.folder / name).mkdir(parents=True)
        for user, number in USERS.items():
            self.home(user).mkdir(mode=0o700)
            os.chown(self.home(user), number, number)
        self.config.write_text(
            slurm_conf(
                self.folder,
                dict(zip(self.names, self.cpus, strict=True)),
                cred_expire=self.cred_expire,
                slurmd_timeout=self.slurmd_timeout,
                proctrack=self.proctrack,
            )
        )
        (self.folder / "cgroup.conf").write_text(cgroup_conf())

    def _add(self, name: str, number: int) -> None:
        machine = self.lab.add(
            name, number=number, sshd=False, etc=etc_files(self.folder, self.names)
        )
        machine.root.chmod(0o755)  # users need the Python that may be in root's home
        _open_way(machine)

    def _start_munged(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = {name: f"{self.folder}/munge.{name}" for name in ("socket", "log", "seed", "pid")}
        options = ["--force", f"--key-file={key}", f"--socket={files['socket']}"]
        options += [f"--log-file={files['log']}", f"--seed-file={files['seed']}"]
        self._serve("login", ["munged", *options, f"--pid-file={files['pid']}"])

    def _start_slurmd(self, *names: str) -> None:
        starting = [self.start(["slurmd"], user="root", at=name) for name in names]
        for process in starting:
            if process.wait(HANG_S) != 0:
                raise LabError("slurmd did not start")

    def _serve(self, name: str, argv: Sequence[str]) -> None:
        """Start a daemon, which returns when it serves."""
        done = self.run(argv, user="root", at=name)
        if done.returncode != 0:
            raise LabError(f"{argv[0]}: {done.stderr.strip()}")

    def _signal(self, name: str, number: signal.Signals) -> set[int]:
        """Signal every process of a machine but its first, and those forked meanwhile."""
        done: set[int] = set()
        while more := self.lab.machines[name].processes().keys() - done:
            for pid in sorted(more):  # an agent before its tasks, whose end it would report
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            done |= more
        return done

    def _explain(self, error: BaseException) -> None:
        """Add the ends of the daemons' logs to an error."""
        for log in sorted((self.folder / "log").glob("*")):
            error.add_note(f"{log.name}: {log.read_text()[-1500:]}")


def _open_way(machine: Machine) -> None:
    """Let users read the checkout where a folder above it is for its owner only.

    The machine sees that folder with nothing but the checkout in it.
    """
    above = [path for path in ROOT.parents if path != Path.home()]
    closed = [path for path in above if not path.stat().st_mode & stat.S_IXOTH]
    if not closed:
        return
    kept = machine.folder / "checkout"
    kept.mkdir()
    inside = ["nsenter", "--target", str(machine.pid), "--mount", "--"]
    command(*inside, "mount", "--bind", str(ROOT), str(kept))
    command(*inside, "mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", str(closed[-1]))
    command(*inside, "mkdir", "-p", str(ROOT))
    command(*inside, "mount", "--bind", str(kept), str(ROOT))


def _is(words: str, program: str) -> bool:
    return os.path.basename(words.split(" ")[0]).rstrip(":") == program
