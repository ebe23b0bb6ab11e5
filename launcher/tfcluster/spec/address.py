"""``host:port`` as TensorFlow reads it in TF_CONFIG, and nothing that it would hang on.

IPv6, measured on Linux with TensorFlow 2.15.1 and 2.21.0, `MultiWorkerMirroredStrategy`, two
workers that all-reduce one number: ``[::1]:port`` works with both (8 s from start to result, as
against 5 s with 127.0.0.1); without brackets, ``::1:port``, both workers hang without a word
until killed (60 s). So brackets are accepted, and an address without them is refused.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from tfcluster.spec.fields import shorten, wrong

_HOST = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_])?", re.ASCII)
_PORT = re.compile(r"\d{1,5}", re.ASCII)
_FORM = 'write "host:port", for example "10.0.0.1:2222" (port 0 = choose one)'


@dataclass(frozen=True, slots=True)
class Address:
    """One task's place; `host` of an IPv6 address keeps its brackets, `port` 0 is to be chosen."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def key(self) -> tuple[str, int]:
        """Equal for two spellings of the same address (``[::1]`` and ``[0:0::1]``)."""
        try:
            return str(ipaddress.ip_address(self.host.strip("[]"))), self.port
        except ValueError:
            return self.host.lower(), self.port

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


def parse(text: str) -> Address:
    """Raises an error with its cure for all that is not plain ``host:port``."""
    shown = shorten(text)
    if "://" in text:
        raise wrong(f"{shown} has a scheme", f'leave "{text.partition("://")[0]}://" out; {_FORM}')
    if "@" in text:
        cure = 'write the address alone; the user goes to runtime.hosts: {"HOST": {"ssh": "U@H"}}'
        raise wrong(f"{shown} has a user name", cure)
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        raise wrong(f"{shown} has no port", _FORM)
    _check_host(host, shown)
    if not _PORT.fullmatch(port):
        raise wrong(f"{shown}: {shorten(port)} is not a port", _FORM)
    if int(port) > 65535:
        raise wrong(f"{shown}: port {port} is above 65535", "write 1 to 65535, or 0 to choose one")
    return Address(host, int(port))


def _check_host(host: str, shown: str) -> None:
    if host.startswith("[") and host.endswith("]"):
        try:
            ipaddress.IPv6Address(host[1:-1])
        except ValueError:
            cure = 'write it as "[2001:db8::5]:2222"'
            raise wrong(f"{shown}: {host} is not an IPv6 address", cure) from None
    elif ":" in host:
        cure = 'write IPv6 addresses in brackets: "[2001:db8::5]:2222"'
        raise wrong(f"{shown} has more than one colon", cure)
    elif not host:
        raise wrong(f"{shown} has no host", _FORM)
    elif not _HOST.fullmatch(host):
        raise wrong(f"{shown}: {shorten(host)} is not a host name", _FORM)
    elif re.fullmatch(r"[\d.]+", host, re.ASCII):
        _check_ipv4(host, shown)


def _check_ipv4(host: str, shown: str) -> None:
    try:
        address = ipaddress.IPv4Address(host)
    except ValueError:
        cure = "write four numbers from 0 to 255"
        raise wrong(f"{shown}: {host} is not an IPv4 address", cure) from None
    if address.is_unspecified:
        cure = "write the address by which the other tasks reach this one"
        raise wrong(f"{shown}: 0.0.0.0 is no address that can be reached", cure)
