"""The first process of a lab machine: sets up its files and name, may start sshd, reaps children.

python init.py NAME FOLDER HOME PYTHON_HOME SHOWN…

SHOWN: folders below /tmp, such as the checkout, that the machine's own /tmp must not hide.
"""

import ctypes
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid

MS_BIND = 4096


def main(name: str, folder: str, home: str, python_home: str, *shown: str) -> None:
    socket.sethostname(name)
    machine_home = os.path.join(folder, "home")
    if python_home:
        kept = os.path.join(machine_home, os.path.basename(python_home))
        os.makedirs(kept, exist_ok=True)
        mount(python_home, kept)
    mount(machine_home, home)
    if os.listdir(os.path.join(folder, "etc")):
        cover_etc(os.path.join(folder, "etc"))
    boot(name, folder)
    if not folder.startswith("/tmp/"):
        for kept in shown:
            there = os.path.join(folder, kept.lstrip("/"))
            os.makedirs(there, exist_ok=True)
            mount(kept, there)
        mount(os.path.join(folder, "tmp"), "/tmp")
    sys.stdout.write("up\n")
    sys.stdout.flush()
    while not os.path.exists(os.path.join(folder, "plugged")):
        time.sleep(0.01)
    if os.path.exists(os.path.join(folder, "sshd_config")):
        start_sshd(folder)
    # Blocked, a signal that comes before the wait for it is kept.
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        try:
            os.wait()
        except ChildProcessError:
            signal.sigwait([signal.SIGCHLD])


def start_sshd(folder: str) -> None:
    os.makedirs("/run/sshd", exist_ok=True)
    argv = ["/usr/sbin/sshd", "-D", "-f", os.path.join(folder, "sshd_config")]
    subprocess.Popen([*argv, "-E", os.path.join(folder, "sshd.log")], start_new_session=True)


def boot(name: str, folder: str) -> None:
    """Set boot id and machine id; a machine added again under its name seems to have rebooted."""
    known_by = {
        "/proc/sys/kernel/random/boot_id": str(uuid.uuid4()),
        "/etc/machine-id": hashlib.md5(name.encode()).hexdigest(),
    }
    for path, text in known_by.items():
        if os.path.exists(path):
            replacement = os.path.join(folder, os.path.basename(path))
            with open(replacement, "w") as file:
                file.write(text + "\n")
            mount(replacement, path)


def cover_etc(folder: str) -> None:
    """Lay the files of `folder` over /etc.

    A file mounted on /etc/passwd would vanish when the system's own is replaced, as by useradd.
    """
    mount("overlay", "/etc", kind="overlay", options=f"lowerdir={folder}:/etc")


def mount(what: str, where: str, *, kind: str = "", options: str = "") -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    flags = 0 if kind else MS_BIND | 16384
    if libc.mount(what.encode(), where.encode(), kind.encode(), flags, options.encode()):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), where)


if __name__ == "__main__":
    main(*sys.argv[1:])
