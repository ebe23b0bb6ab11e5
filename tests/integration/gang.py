"""Stub jobs whose tasks depend on each other over the network, as TensorFlow's workers do."""

from __future__ import annotations

MEET = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
addresses, me = config["cluster"]["worker"], config["task"]["index"]
my_port = int(addresses[me].rpartition(":")[2])
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
listener.bind(("0.0.0.0", my_port))
listener.listen()
for address in addresses:
    host, _, port = address.rpartition(":")
    while True:
        try:
            socket.create_connection((host, int(port)), 5).close()
            break
        except OSError:
            time.sleep(0.1)
"""
"""How a job begins that listens where TensorFlow would, and connects to all its peers."""

GREET = """
import json, os, socket, threading, time
config = json.loads(os.environ["TF_CONFIG"])
addresses, me = config["cluster"]["worker"], config["task"]["index"]
listener = socket.socket()
for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):  # as gRPC sets both
    listener.setsockopt(socket.SOL_SOCKET, option, 1)
listener.bind(("0.0.0.0", int(addresses[me].rpartition(":")[2])))
listener.listen()
heard = set()

def answer():
    while True:
        peer = listener.accept()[0]
        if greeting := peer.recv(1):
            peer.sendall(b"!")
            heard.update(greeting)

threading.Thread(target=answer, daemon=True).start()
for address in addresses:
    host, _, port = address.rpartition(":")
    answered = b""
    while not answered:
        try:
            with socket.create_connection((host, int(port)), 5) as greeting:
                greeting.sendall(bytes([me]))
                answered = greeting.recv(1)
        except OSError:
            pass
        time.sleep(0 if answered else 0.1)
while heard != {*range(len(addresses))}:
    time.sleep(0.02)
"""
"""How a job begins that goes on, and may end, once each task has heard of all others.

What listens before a task does, for the checks of an agent, gives no answer. Without SO_REUSEADDR,
closed connections would keep a fixed port from the next test for a minute.
"""

GANG = '''
"""Emulates what TensorFlow's workers do with a lost TCP connection, and its words for it."""
import itertools, json, os, socket, sys, threading, time

cluster = json.loads(os.environ["TF_CONFIG"])
addresses = cluster["cluster"]["worker"]
me, heartbeat_s = cluster["task"]["index"], 6.0
is_first = os.environ["TFCLUSTER_ATTEMPT"] == "1"
heard = {}

def listen():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    listener.bind(("0.0.0.0", int(addresses[me].rpartition(":")[2])))
    listener.listen()
    while True:
        peer, _ = listener.accept()
        threading.Thread(target=hear, args=(peer,), daemon=True).start()

def hear(peer):
    while data := peer.recv(1):
        heard[data[0]] = time.monotonic()

def beat(number):
    host, port = addresses[number].split(":")
    while True:
        try:
            line = socket.create_connection((host, int(port)), 1)
            line.settimeout(None)
            while True:
                line.sendall(bytes([me]))
                time.sleep(0.1)
        except OSError:
            time.sleep(0.1)

others = [number for number in range(len(addresses)) if number != me]
threading.Thread(target=listen, daemon=True).start()
for number in others:
    threading.Thread(target=beat, args=(number,), daemon=True).start()
while set(heard) != set(others):
    time.sleep(0.05)
print("joined", flush=True)
for step in itertools.count() if is_first else range(int(os.environ["COUNT"])):
    os.write(1, f"step {step}\\n".encode())
    time.sleep(0.1)
    for number in others:
        if is_first and time.monotonic() > heard[number] + heartbeat_s:
            task = f"/job:worker/replica:0/task:{number}"
            print(f"UNAVAILABLE: Task {task} heartbeat timeout. This indicates that the remote task"
                  " has failed, got preempted, or crashed unexpectedly.", file=sys.stderr)
            sys.exit(1)
'''
