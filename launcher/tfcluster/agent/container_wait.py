"""What a container runs first, as `python3 -c SOURCE NAME`: it waits for its agent, then is it.

Standing alone on purpose: its source is sent before any other file of ours is there. A relay
connects to the socket called NAME, and sends the folder of the agent's code in a line, then what
`agent.main` reads from stdin; what that writes to stdout is the answer. As the container's own
process, below its init, the agent ends the container with itself.

Written so that older Pythons read it, too: it is what tells of them.
"""

import os
import socket
import sys

PATIENCE_S = 120.0
OLDEST_PYTHON = (3, 9)
TOO_OLD = "Python 3.9 or newer is needed"


def main(name: str) -> None:
    """Returns with the agent's end; exits with 1 where nobody came."""
    if sys.version_info < OLDEST_PYTHON:
        sys.exit(f"{TOO_OLD}, and {sys.executable} is {sys.version.split()[0]}")
    folder = f"/tmp/tfcluster-{os.getuid()}"
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, name)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(1)
        listener.settimeout(PATIENCE_S)
        try:
            relay, _ = listener.accept()
        except socket.timeout:
            sys.exit(f"no agent came for {PATIENCE_S:.0f} s")
        os.unlink(path)
    relay.settimeout(None)
    code = b""
    while not code.endswith(b"\n"):
        byte = relay.recv(1)
        if not byte:
            sys.exit("the relay left")
        code += byte
    for number in (0, 1):
        os.dup2(relay.fileno(), number)
    relay.close()
    sys.path.append(os.fsdecode(code.rstrip(b"\n")))
    from tfcluster.agent.entry import main as agent

    agent()


if __name__ == "__main__":
    main(sys.argv[1])
