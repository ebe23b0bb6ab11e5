"""The spec's `runtime.network`: the host's, a private one, or a simulated one with slow links."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag, WithJsonSchema

from tfcluster.errors import UsageError, join_first
from tfcluster.spec import JOBS, shorten
from tfcluster.spec.cluster import Jobs, task_names
from tfcluster.spec.fields import (
    Listed,
    Mistake,
    Seconds,
    Section,
    documented,
    field_error,
    matching,
)

_RATE = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s?([kmgt]?)bit(?:/s|ps)?", re.ASCII | re.IGNORECASE)
_PERCENT = re.compile(r"(\d{1,3}(?:\.\d{1,6})?)\s?%", re.ASCII)
_FACTORS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
LEAST_RATE, MOST_RATE = 8e3, 1e12
_RATE_FIX: Final = 'write for example "100mbit", "1gbit" or "25gbit"'


def parse_rate(value: Any) -> Any:
    """Return the bits per second in ``"100mbit"``, ``"1gbit"``, ``"2.5gbit"`` or a number.

    The units are tc's (tc(8)), where ``mbit`` is 10^6 bits. Raises PydanticCustomError.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise field_error("expected a rate", _RATE_FIX)
    if isinstance(value, str):
        match = _RATE.fullmatch(value.strip())
        if match is None:
            raise field_error(f"{shorten(value)} is not a rate", _RATE_FIX)
        value = float(match[1]) * _FACTORS[match[2].lower()]
    if not LEAST_RATE <= value <= MOST_RATE:
        raise field_error("a rate must be between 8 kbit and 1 tbit per second", _RATE_FIX)
    return float(value)


def read_rate(text: str | float, *, option: str = "") -> float:
    """Return the bits per second in `text`; raises UsageError, which quotes `option`."""
    try:
        return float(parse_rate(text))
    except ValueError as error:
        where = f"{option}: " if option else ""
        raise UsageError(f"{where}{str(error).partition(' (')[0]}", fix=_RATE_FIX) from None


def _parse_loss(value: Any) -> Any:
    """Return the percentage in ``"0.1%"`` or a number."""
    fix = 'write a percentage, for example "0.1%"'
    if isinstance(value, str):
        match = _PERCENT.fullmatch(value.strip())
        if match is None:
            raise field_error(f"{shorten(value)} is not a percentage", fix)
        value = float(match[1])
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 100:
        raise field_error("expected a percentage between 0 and 100", fix)
    return float(value)


def _as_json(pattern: str, **limits: float) -> WithJsonSchema:
    text, number = {"type": "string", "pattern": pattern}, {"type": "number", **limits}
    return WithJsonSchema({"anyOf": [text, number]})


Rate = Annotated[
    float,
    BeforeValidator(parse_rate),
    _as_json(
        r"^\s*\d{1,9}(\.\d{1,6})?\s?[kmgtKMGT]?[bB][iI][tT](/s|ps)?\s*$",
        minimum=LEAST_RATE,
        maximum=MOST_RATE,
    ),
]
"""Bits per second; the user may write a unit."""
Loss = Annotated[
    float,
    BeforeValidator(_parse_loss),
    _as_json(r"^\s*\d{1,3}(\.\d{1,6})?\s?%\s*$", minimum=0, maximum=100),
]
"""The share of packets that are lost, in percent."""


class Shape(Section):
    """A link does this to what is sent over it; null: nothing."""

    rate: Rate | None = documented(None, "Bits per second in each direction.", "1gbit")
    delay: Seconds | None = documented(
        None, "Time that each packet takes from one node to another.", "2ms"
    )
    jitter: Seconds | None = documented(
        None, "The delay varies by this, at random; needs `delay`.", "500ms"
    )
    loss: Loss | None = documented(None, "Share of packets that are lost.", "0.1%")

    def to_json(self) -> dict[str, float]:
        """Return what is set: bits per second, seconds, percent."""
        fields = {name: getattr(self, name) for name in Shape.model_fields}
        return {name: value for name, value in fields.items() if value is not None}


_Task = Annotated[
    str,
    matching(re.compile(rf"({'|'.join(JOBS)}):\d+"), "a task", 'write for example "worker:0"'),
]


class Cable(Shape):
    """A link of two nodes with a shape of its own."""

    between: Annotated[Listed[_Task], Field(min_length=2, max_length=2)] = Field(
        description="Required. The two tasks whose nodes it connects.",
        examples=[["worker:0", "worker:1"]],
        json_schema_extra={"default": ["worker:0", "worker:1"]},
    )


class Network(Shape):
    """A simulated network: each task has a node with a network card of its own."""

    mode: Literal["private"] = documented(
        "private", "The nodes reach each other and nothing else.", "private"
    )
    links: Listed[Cable] = documented(
        (), "Pairs of nodes with another link.", [{"between": ["worker:0", "worker:1"]}]
    )

    def find_mistakes(self, cluster: Jobs) -> Iterator[Mistake]:
        """Yield the mistakes that show only with the whole spec."""
        tasks = task_names(cluster)
        for place, shape in [((), self), *((("links", n), c) for n, c in enumerate(self.links))]:
            if shape.jitter and not shape.delay:
                yield Mistake((*place, "jitter"), "jitter needs a delay", 'add "delay": "2ms"')
        for number, link in enumerate(self.links):
            for end, task in enumerate(link.between):
                if task not in tasks:
                    fix = f"it has {join_first(tasks)}"
                    yield Mistake(("links", number, "between", end), f"no task {task}", fix)
            if link.between[0] == link.between[1]:
                fix = "name two tasks"
                yield Mistake(("links", number, "between"), "a link of a task with itself", fix)


NetworkChoice = Annotated[
    Annotated[Literal["host", "private"], Tag("<word>")] | Annotated[Network, Tag("<network>")],
    Discriminator(lambda value: "<word>" if isinstance(value, str) else "<network>"),
]
"""A word, or an object for a simulated network."""
