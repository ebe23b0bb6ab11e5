"""A worker that listens on its port of TF_CONFIG as TensorFlow's server does.

It listens on all interfaces, and shares a port in use if TF_GRPC_REUSE_PORT says so.
"""

import json
import os
import socket
import time


def write(name: str, text: str) -> None:
    with open(name + ".new", "w") as file:
        file.write(text)
    os.rename(name + ".new", name)


def main() -> None:
    config = json.loads(os.environ["TF_CONFIG"])
    index = config["task"]["index"]
    port = int(config["cluster"]["worker"][index].rpartition(":")[2])
    write(f"told-{index}", str(port))
    while not os.path.exists("go"):
        time.sleep(0.005)
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if os.environ.get("TF_GRPC_REUSE_PORT") == "1":
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            server.bind(("0.0.0.0", port))
            server.listen()
        except OSError as error:
            write(f"robbed-{index}", str(error))


if __name__ == "__main__":
    main()
