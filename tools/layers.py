"""The layers of the tree, their allowed imports, and functions that read the imports."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

FACE = "velaray"
"""The folder that holds the links to the others."""


@dataclass(frozen=True, slots=True)
class Layer:
    """The allowed imports of a folder: other folders, and libraries by import name."""

    layers: tuple[str, ...]
    libraries: tuple[str, ...]


# From the lowest up. `velaray` and `pipelines` are above all of them.
_ORDER = (
    *("events", "journal", "schemas", "wire", "actors", "client"),
    *("topology", "broker", "geo", "admin", "console"),
)


def _below(layer: str) -> tuple[str, ...]:
    return _ORDER[: _ORDER.index(layer)]


LAYERS: dict[str, Layer] = {
    "events": Layer((), ("google", "msgpack")),
    "journal": Layer(("events",), ("crc32c", "cryptography", "msgpack", "obstore")),
    "schemas": Layer((), ("google",)),
    "wire": Layer(("events", "schemas"), ("crc32c", "cramjam", "google", "mmh3")),
    "actors": Layer(
        ("events", "journal", "schemas"),
        ("google", "mmh3", "msgpack", "msgspec", "pyroaring", "sortedcontainers"),
    ),
    # annotated_types and typing_extensions come with pydantic, which the client doesn't load.
    "client": Layer(
        ("events", "schemas", "wire"),
        (
            *("aiohttp", "annotated_types", "cryptography", "fastavro", "google", "numpy"),
            *("opentelemetry", "pyarrow", "typing_extensions", "urllib3"),
        ),
    ),
    "topology": Layer(
        _below("topology"),
        ("cryptography", "jwt", "msgpack", "msgspec", "opentelemetry", "ray", "structlog"),
    ),
    "broker": Layer(_below("broker"), ("google",)),
    "geo": Layer(_below("geo"), ("aiohttp", "google")),
    "admin": Layer(
        _below("admin"),
        (
            *("aiohttp", "msgspec", "opentelemetry", "prometheus_client", "pydantic"),
            *("pydantic_core", "ray", "typing_extensions"),
        ),
    ),
    # multidict and yarl come with aiohttp: its requests consist of their types.
    "console": Layer(_below("console"), ("aiohttp", "fastavro", "jinja2", "multidict", "yarl")),
    FACE: Layer(
        _ORDER,
        # pytest is for `velaray.testing`, whose users have it.
        (
            "annotated_types",
            "click",
            "cryptography",
            "fastavro",
            "google",
            "jwt",
            "msgspec",
            "pydantic",
            "pydantic_core",
            "pytest",
            "ray",
            "rich",
        ),
    ),
    "pipelines": Layer(
        ("events", "journal", "schemas", "client", FACE),
        ("google", "numpy", "pandas", "py4j", "pyarrow", "pyspark", "ray", "rich"),
    ),
}

# Folders of generated files, and hidden folders of hand-written files.
SKIPPED = {".git", "build", "dist", "data", "out", "__pycache__", "node_modules"}
_HIDDEN = {".ci", ".devcontainer", ".github"}


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file: its path, its module name, its layer and its syntax tree."""

    path: str
    module: str
    layer: str
    tree: ast.Module

    @property
    def generated(self) -> bool:
        """Whether protoc generates the file."""
        return self.path.endswith("_pb2.py")

    def at(self, node: ast.AST) -> str:
        """``path:line`` of ``node``."""
        return f"{self.path}:{getattr(node, 'lineno', 1)}"


def walk(folder: Path) -> Iterator[Path]:
    """Files below ``folder``, in order, without links and generated folders."""
    for path in sorted(folder.iterdir()):
        if path.is_symlink() or path.name in SKIPPED or path.name.endswith(".egg-info"):
            continue
        if path.is_dir():
            if not path.name.startswith(".") or path.name in _HIDDEN:
                yield from walk(path)
        else:
            yield path


def module_name(path: str) -> str:
    """The module name of the file at ``path``."""
    parts = path.removesuffix(".py").split("/")
    if parts[-1] == "__init__":
        parts.pop()
    return ".".join(parts if parts[0] == FACE else [FACE, *parts])


@functools.cache
def parsed(name: str, text: str) -> ast.Module:
    """The syntax tree of ``text``. It is cached, since every rule of the tree reads every file."""
    return ast.parse(text, name)


def sources(root: Path, folders: Iterable[str] = LAYERS) -> list[Source]:
    """The Python files of ``folders``; by default those that are installed."""
    found = []
    for folder in folders:
        if not (root / folder).is_dir():
            continue
        for path in walk(root / folder):
            if path.suffix == ".py":
                name = path.relative_to(root).as_posix()
                tree = parsed(name, path.read_text(encoding="utf-8"))
                found.append(Source(name, module_name(name), folder, tree))
    return found


def own_sources(root: Path) -> list[Source]:
    """Every hand-written Python file, installed or not."""
    folders = [path.name for path in sorted(root.iterdir()) if path.is_dir()]
    visible = [name for name in folders if not name.startswith(".") and name not in SKIPPED]
    return [source for source in sources(root, visible) if not source.generated]


def imports(source: Source) -> Iterator[tuple[ast.stmt, str]]:
    """The full dotted name of every import in ``source``, at any depth."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            for alias in node.names:
                yield node, f"{node.module}.{alias.name}"


def layer_of(dotted: str) -> str:
    """The layer that holds the module or name ``dotted`` of velaray."""
    parts = dotted.split(".")
    return parts[1] if len(parts) > 1 and parts[1] in LAYERS else FACE
