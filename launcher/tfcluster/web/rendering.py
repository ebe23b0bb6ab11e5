"""The pages: with styles and scripts that a server serves, or as one file with everything inside.

A browser loads no module from a file, so there all modules of a page are one script, in which each
is a function that returns what the module exports.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from tfcluster import __version__
from tfcluster.web.run_data import to_json_bytes

_FOLDER: Final = Path(__file__).parent
STATIC: Final = _FOLDER / "static"
_PLOTS: Final = "vendor/uplot/uPlot.iife.min.js"
_SHARED: Final = ("vendor/uplot/uPlot.min.css", "style.css", "theme.js")
_SCRIPTS: Final = {
    "runs": ("runs.js",),
    "run": (_PLOTS, "run.js"),
    "compare": (_PLOTS, "compare.js"),
    "study": (_PLOTS, "study.js"),
    "message": (),
}
"""Page → its scripts; the one that is called like the page is a module."""
_IMPORT: Final = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT: Final = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)


def render(page: str, **context: Any) -> str:
    """Return a page of the server."""
    assets = [_link(page, name) for name in (*_SHARED, *_SCRIPTS[page])]
    return str(_template(page).render(assets=assets, data=None, policy=None, **context))


def render_file(page: str, data: Any, **context: Any) -> str:
    """Return a page that loads nothing, with `data` as the JSON in its element `data`.

    Its Content Security Policy names the hash of each script, so that no other one can run.
    """
    texts = {name: _read(page, name) for name in (*_SHARED, *_SCRIPTS[page])}
    hashes = {kind: " ".join(_hashes(texts, f".{kind}")) for kind in ("css", "js")}
    policy = (
        f"default-src 'none'; style-src {hashes['css']}; script-src {hashes['js']};"
        " img-src data:; base-uri 'none'; form-action 'none'"
    )
    # In ASCII and without "<" no string can end the element.
    json = Markup(to_json_bytes(data).decode().replace("<", "\\u003c"))
    assets = [_element(page, name, text) for name, text in texts.items()]
    made = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    shared = {"assets": assets, "data": json, "policy": policy, "made": made, "read_only": True}
    return str(_template(page).render(**shared, **context))


def bundle(entry: str) -> str:
    """Return the module `entry` (``run``) with all modules that it imports as one script."""
    scripts: dict[str, str] = {}

    def add(name: str) -> None:
        if name in scripts:
            return
        source = (STATIC / f"{name}.js").read_text()
        for _, imported in _IMPORT.findall(source):
            add(imported)
        exports = ", ".join(_EXPORT.findall(source))
        body = _EXPORT.sub("", _IMPORT.sub(r"const \1 = module_\2;", source))
        scripts[name] = f"const module_{name} = (() => {{\n{body}return {{ {exports} }};\n}})();\n"

    add(entry)
    return "".join(scripts.values())


@functools.cache
def _environment() -> Environment:
    loader = FileSystemLoader(_FOLDER / "templates")
    environment = Environment(loader=loader, autoescape=True, undefined=StrictUndefined)
    environment.globals["version"] = __version__
    return environment


def _template(page: str) -> Any:
    return _environment().get_template(f"{page}.html")


def _is_module(page: str, name: str) -> bool:
    return name == f"{page}.js"


def _read(page: str, name: str) -> str:
    return bundle(page) if _is_module(page, name) else (STATIC / name).read_text()


def _link(page: str, name: str) -> Markup:
    if name.endswith(".css"):
        return Markup('<link rel="stylesheet" href="/static/{}">').format(name)
    kind = Markup(' type="module"') if _is_module(page, name) else ""
    return Markup('<script{} src="/static/{}"></script>').format(kind, name)


def _element(page: str, name: str, text: str) -> Markup:
    if name.endswith(".css"):
        return Markup(f"<style>{text}</style>")
    kind = ' type="module"' if _is_module(page, name) else ""  # it waits for the whole page
    return Markup(f"<script{kind}>{text}</script>")


def _hashes(texts: dict[str, str], suffix: str) -> Iterator[str]:
    for name, text in texts.items():
        if name.endswith(suffix):
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            yield f"'sha256-{digest}'"
