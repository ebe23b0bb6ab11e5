"""The first program in a container, run as `python3 -c SOURCE NAME`: waits for its agent's code.

It imports nothing of tfcluster, because its source arrives before any other file. A relay connects
to the socket called NAME and sends one line with the folder of the agent's code, then what
`entry.main` reads from stdin; the agent's stdout goes back to the relay. The agent then runs in
this process, the only one below the container's init: the container ends with the agent.

The syntax is that of older Pythons too, so that it can report them.
"""

import os
import socket
import sys

TIMEOUT_S = 120.0
OLDEST_PYTHON = (3, 9)
TOO_OLD = "Python 3.9 or newer is needed"


def main(name: str) -> None:
    """Wait for a relay and run the agent; exit with 1 if no relay comes."""
    if sys.version_info < OLDEST_PYTHON:
        sys.exit(f"{TOO_OLD}, and {sys.executable} is {sys.version.split()[0]}")
    folder = f"/tmp/tfcluster-{os.getuid()}"
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        listener.settimeout(TIMEOUT_S)
        try:
            relay, _ = listener.accept()
        except socket.timeout:
            sys.exit(f"no relay connected within {TIMEOUT_S:.0f} s")
        os.unlink(path)
    relay.settimeout(None)
    code = b""
    while not code.endswith(b"\n"):
        byte = relay.recv(1)
        if not byte:
            sys.exit("the relay closed the connection")
        code += byte
    for number in (0, 1):
        os.dup2(relay.fileno(), number)
    relay.close()
    sys.path.append(os.fsdecode(code.rstrip(b"\n")))
    from tfcluster.agent.entry import main as agent

    agent()


if __name__ == "__main__":
    main(sys.argv[1])
