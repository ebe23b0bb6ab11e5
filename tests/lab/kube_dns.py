"""The name server of the lab's cluster: answers for Services from what the API server says of them.

python kube_dns.py ADDRESS API TOKEN

Standard library only. A headless Service has the addresses of its Endpoints (ready or not, if it
publishes those), another Service its own address. All other names do not exist.
"""

import http.client
import json
import socket
import ssl
import struct
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

DOMAIN = "svc.cluster.local"
PAUSE_S = 0.2
A, AAAA, OK, NO_SUCH_NAME = 1, 28, 0, 3


class Names:
    """The addresses of names, kept up to date by one thread per kind of object."""

    def __init__(self, api: str, token: str) -> None:
        self._where = urlsplit(api)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._known: dict[str, dict[str, dict[str, list[str]]]] = {"services": {}, "endpoints": {}}

    def watch(self, kind: str) -> None:
        while True:
            try:
                self._follow(kind)
            except (OSError, ValueError, http.client.HTTPException):
                time.sleep(PAUSE_S)  # the API server is down: what was known stays

    def find(self, name: str) -> "list[str] | None":
        """Return the addresses of a name, or None if there is no such name."""
        for kind in self._known.values():
            for names in list(kind.values()):
                if name in names:
                    return names[name]
        return None

    def _follow(self, kind: str) -> None:
        read = self._get(f"/api/v1/{kind}")
        with read:
            listed = json.load(read)
        self._known[kind] = {_key(item): _names(kind, item) for item in listed["items"]}
        version = listed["metadata"]["resourceVersion"]
        with self._get(f"/api/v1/{kind}?watch=1&resourceVersion={version}") as events:
            for line in events:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    return
                item = event["object"]
                if event["type"] == "DELETED":
                    self._known[kind].pop(_key(item), None)
                else:
                    self._known[kind][_key(item)] = _names(kind, item)

    def _get(self, path: str) -> http.client.HTTPResponse:
        context = ssl._create_unverified_context()
        link = http.client.HTTPSConnection(self._where.netloc, timeout=600, context=context)
        link.request("GET", path, headers=self._headers)
        answer = link.getresponse()
        if answer.status != 200:
            raise OSError(answer.status)
        return answer


def _key(item: dict[str, Any]) -> str:
    return f"{item['metadata']['name']}.{item['metadata']['namespace']}.{DOMAIN}"


def _names(kind: str, item: dict[str, Any]) -> "dict[str, list[str]]":
    service = _key(item)
    found: dict[str, list[str]] = {}
    if kind == "services":
        address = item["spec"].get("clusterIP", "None")
        return {} if address in ("None", "") else {service: [address]}
    for subset in item.get("subsets") or []:
        for place in subset.get("addresses") or []:
            found.setdefault(service, []).append(place["ip"])
            if place.get("hostname"):
                found.setdefault(f"{place['hostname']}.{service}", []).append(place["ip"])
    return found


def answer(query: bytes, names: Names) -> bytes:
    """Return the answer to a query of one name."""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii", "replace").lower())
        at += 1 + query[at]
    asked = query[12 : at + 5]
    (kind,) = struct.unpack(">H", query[at + 1 : at + 3])
    found = names.find(".".join(labels))
    places = list(dict.fromkeys(found or [])) if kind == A else []
    flags = 0x8580 | (NO_SUCH_NAME if found is None else OK)
    head = query[:2] + struct.pack(">HHHHH", flags, 1, len(places), 0, 0)
    record = b"\xc0\x0c" + struct.pack(">HHIH", A, 1, 1, 4)
    return head + asked + b"".join(record + socket.inet_aton(place) for place in places)


def main(address: str, api: str, token: str) -> None:
    names = Names(api, token)
    for kind in ("services", "endpoints"):
        threading.Thread(target=names.watch, args=(kind,), daemon=True).start()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((address, 53))
        while True:
            query, client = server.recvfrom(4096)
            try:
                server.sendto(answer(query, names), client)
            except (IndexError, struct.error, OSError):
                continue


if __name__ == "__main__":
    main(*sys.argv[1:])
