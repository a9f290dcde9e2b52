"""The tree keeps its own rules, and each rule is seen to fail on a tree that breaks it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests import tidy_rules
from tools import generate_protobuf, import_diagram, layers

ROOT = Path(__file__).resolve().parent.parent

# Where catching everything is right: ``path::function`` and the reason.
CATCH_ALLS: dict[str, str] = {
    "client/encryption.py::_asking": "a key reader is the user's code and may raise anything",
    "client/auth.py::_called": "a token function is the user's code and may raise anything",
    "pipelines/transform_function.py::_blaming_the_user": "the user's code may raise anything",
}

# Files that may wait by the clock, and the reason.
SLEEPERS: dict[str, str] = {}

# Files that print for the user of a terminal, and the reason.
PRINTERS: dict[str, str] = {
    "topology/progress.py": "the user of a command waits",
    "topology/ray_connection.py": "the user of a command has a setting that doesn't apply",
    "topology/ray_probe.py": "a script whose output its parent process reads",
    "velaray/cluster.py": "the user who starts or stops a cluster reads it",
}

# Classes that still have more than 400 lines or 30 methods: how many of each they may have.
# Lower a bound whenever a class shrinks, and remove the entry once the class keeps the limits.
LARGE_CLASSES: dict[str, tuple[int, int]] = {}

# Protocols that still have more than 10 members.
LARGE_PROTOCOLS: dict[str, int] = {}

# The consumer has one method for each of Pulsar's consumer.
FACES: dict[str, tuple[int, int]] = {"Consumer": (400, 38)}

Rule = Callable[[Path], list[str]]

RULES: dict[str, Rule] = {
    "imports follow the table": tidy_rules.imports_follow_the_table,
    "imports are absolute": tidy_rules.imports_are_absolute,
    "modules import without cycles": tidy_rules.modules_import_without_cycles,
    "cycles of imports for types only get fewer": tidy_rules.modules_in_type_cycles,
    "machines are pure": tidy_rules.machines_are_pure,
    "functions are short": tidy_rules.functions_are_short,
    "classes are small": lambda root: tidy_rules.classes_are_small(
        root, LARGE_CLASSES | FACES, ["broker", "client", "geo"]
    ),
    "protocols are small": lambda root: tidy_rules.protocols_are_small(
        root, LARGE_PROTOCOLS, ["broker", "geo"]
    ),
    "public names are documented": tidy_rules.public_names_are_documented,
    "excepts are specific": lambda root: tidy_rules.excepts_are_specific(root, CATCH_ALLS),
    "nothing sleeps": lambda root: tidy_rules.nothing_sleeps(root, SLEEPERS),
    "nothing prints": lambda root: tidy_rules.nothing_prints(root, PRINTERS),
    "back-off is in one module": tidy_rules.back_off_is_in_one_module,
    "jitter comes from the actor system": tidy_rules.jitter_comes_from_the_actor_system,
    "actors send typed requests": tidy_rules.actors_send_typed_requests,
    "no word of the workplace": tidy_rules.no_word_of_the_workplace,
    "layers are typed packages": tidy_rules.layers_are_typed_packages,
    "documents point at files": tidy_rules.documents_point_at_files,
    "generated code is up to date": generate_protobuf.out_of_date,
    "the import diagram is up to date": import_diagram.out_of_date,
}


@pytest.fixture(scope="module", autouse=True)
def syntax_trees() -> Iterator[None]:
    """The trees of all files take some 400 MiB: they are dropped after this module."""
    yield
    layers.parsed.cache_clear()


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_the_tree_keeps_the_rule(rule: Rule) -> None:
    faults = rule(ROOT)
    assert not faults, "\n" + "\n".join(faults)


def tree(root: Path, **files: str) -> Path:
    """A tree with the given files; ``actors__m_py`` stands for ``actors/m.py``."""
    for name, text in files.items():
        path = root / (name.replace("__", "/").replace("_py", ".py").replace("_md", ".md"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("events__m_py", "import velaray.journal.store", "events may not import journal"),
        ("events__m_py", "from velaray import wire", "events may not import wire"),
        ("journal__m_py", "from velaray.actors.machine import x", "may not import actors"),
        ("actors__m_py", "import ray", "actors may not import ray"),
        ("wire__m_py", "from velaray.journal import x", "wire may not import journal"),
        ("wire__m_py", "from velaray import Client", "wire may not import velaray"),
        ("topology__m_py", "def f():\n    import velaray.cli.app", "may not import velaray"),
        ("client__m_py", "import velaray.topology.rpc", "client may not import topology"),
        ("broker__m_py", "import velaray.geo.m", "broker may not import geo"),
        ("geo__m_py", "from velaray import admin", "geo may not import admin"),
        ("velaray__m_py", "import velaray.pipelines", "velaray may not import pipelines"),
        ("velaray__m_py", "import pulsar", "velaray may not import pulsar"),
        ("pipelines__m_py", "import velaray.topology.rpc", "may not import topology"),
    ],
)
def test_an_import_across_the_table_is_caught(
    tmp_path: Path, file: str, text: str, fault: str
) -> None:
    (found,) = tidy_rules.imports_follow_the_table(tree(tmp_path, **{file: text}))
    assert fault in found


def test_imports_within_the_table_are_not_faults(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        events__m_py="import os\nfrom google.protobuf.message import Message",
        journal__m_py="import crc32c\nfrom velaray.events import ids\nimport velaray.journal.k",
        topology__m_py="import ray\nfrom velaray.wire.frames import x",
        velaray__m_py="import click\nfrom velaray import Client\nimport velaray.topology.m",
    )
    assert tidy_rules.imports_follow_the_table(root) == []


def test_relative_and_bare_imports_are_caught(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        events__m_py="from . import ids",
        tests__m_py="from events.ids import MessageId\nfrom velaray.events import ids",
    )
    relative, bare = tidy_rules.imports_are_absolute(root)
    assert "events/m.py:1: relative import" in relative
    assert "tests/m.py:1: import events as velaray.events" in bare


def test_an_import_cycle_is_caught_wherever_its_imports_stand(tmp_path: Path) -> None:
    root = tree(
        tmp_path,
        wire__a_py="import velaray.wire.b",
        wire__b_py="def f():\n    from velaray.wire.c import x",
        wire__c_py="from velaray.wire import a",
        wire__d_py="import velaray.wire.a",
    )
    found = [fault.split(":")[0] for fault in tidy_rules.modules_import_without_cycles(root)]
    assert found == ["velaray.wire.a", "velaray.wire.b", "velaray.wire.c"]


def test_an_import_for_types_only_makes_no_cycle(tmp_path: Path) -> None:
    never_run = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import velaray.wire.b"
    root = tree(tmp_path, wire__a_py=never_run, wire__b_py="import velaray.wire.a")
    assert tidy_rules.modules_import_without_cycles(root) == []


def test_a_cycle_through_imports_for_types_is_caught(tmp_path: Path) -> None:
    for_types = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import velaray.wire.b"
    root = tree(
        tmp_path,
        wire__a_py=for_types,
        wire__b_py="import velaray.wire.c",
        wire__c_py="from velaray.wire import a",
        wire__d_py="import velaray.wire.a",
    )
    found = [fault.split(":")[0] for fault in tidy_rules.modules_in_type_cycles(root, 0)]
    assert found == ["velaray.wire.a", "velaray.wire.b", "velaray.wire.c"]
    assert tidy_rules.modules_in_type_cycles(root, 3) == []


def test_the_bound_of_modules_in_cycles_must_fall_with_them(tmp_path: Path) -> None:
    (fault,) = tidy_rules.modules_in_type_cycles(tree(tmp_path, wire__a_py="import os"), 2)
    assert "0 modules are in cycles: lower the bound of 2" in fault


@pytest.mark.parametrize(
    "text",
    [
        *(f"import {name}" for name in ("ray", "asyncio", "time", "random", "uuid", "os")),
        *(f"from {name} import x" for name in ("threading", "socket", "datetime", "secrets")),
        "from concurrent.futures import ThreadPoolExecutor",
        "def f():\n    import time as t",
        "def f(path):\n    return open(path)",
        "from velaray.actors.runtime import Runtime",
        "from velaray.actors import runtime",
        "from velaray.journal.journal import Journal",
    ],
)
def test_an_impure_machine_is_caught(tmp_path: Path, text: str) -> None:
    root = tree(tmp_path, actors__m_py=text, actors__runtime_py="import asyncio, time, os")
    (found,) = tidy_rules.machines_are_pure(root, allowed={})
    assert found.startswith("actors/m.py:")


HELD_LOADER = """
class Segments:
    def __init__(self, load: Callable[[int], bytes]) -> None:
        self._load = load
"""
HELD_LOADER_IN_A_STATE = """
Loader = Callable[[int], bytes]
class State:
    load: Loader | None = None
"""
HELD_LOADER_IN_A_PLACE = """
class StoredSegment:
    read: Callable[[], bytes]
"""
HELD_STORE = """
def decide(state, command, now_ms):
    return state.segments[command.number].stored.read()
"""
STORED_LISTENER = """
class WatchedSubscription(SubscriptionMachine):
    def __init__(self):
        self.watch = None
    def evolve(self, state, event):
        if self.watch is not None:
            self.watch(state, event)
        super().evolve(state, event)
"""
MACHINE = """
class SubscriptionMachine:
    def decide(self, state, command, now_ms): ...
    def evolve(self, state, event): ...
"""


@pytest.mark.parametrize(
    ("file", "text", "fault"),
    [
        ("actors__m_py", HELD_LOADER, "Segments._load is a callable"),
        ("actors__m_py", HELD_LOADER_IN_A_STATE, "State.load is a callable"),
        ("events__m_py", HELD_LOADER_IN_A_PLACE, "StoredSegment.read is a callable"),
        ("actors__m_py", HELD_STORE, "may not call state.segments[command.number].stored.read()"),
        ("broker__m_py", STORED_LISTENER, "machine WatchedSubscription has an attribute"),
        ("actors__m_py", STORED_LISTENER, "machine WatchedSubscription has an attribute"),
    ],
)
def test_a_machine_that_reads_or_calls_a_listener_is_caught(
    tmp_path: Path, file: str, text: str, fault: str
) -> None:
    root = tree(tmp_path, **{file: text}, actors__machine_py=MACHINE, actors__runtime_py="")
    (found,) = tidy_rules.machines_are_pure(root, allowed={})
    assert found.startswith(file[:6]) and fault in found


def test_an_exception_to_purity_that_nothing_needs_is_caught(tmp_path: Path) -> None:
    root = tree(tmp_path, actors__m_py="import enum")
    (found,) = tidy_rules.machines_are_pure(root, {}, {"actors/m.py::State.load": "why"})
    assert "isn't one" in found


def test_a_host_that_is_gone_is_caught(tmp_path: Path) -> None:
    assert tidy_rules.machines_are_pure(tree(tmp_path, actors__m_py="import enum"), {}, {}) == []
    (found,) = tidy_rules.machines_are_pure(tmp_path, {"actors/old.py": "was a host"}, {})
    assert "actors/old.py" in found


def test_a_long_function_is_caught(tmp_path: Path) -> None:
    long = "class A:\n    async def f(self):\n" + "        pass\n" * 69
    root = tree(tmp_path, tests__m_py=long, wire__m_py="def g():\n" + "    pass\n" * 68)
    (found,) = tidy_rules.functions_are_short(root)
    assert found == "tests/m.py:2: f has 70 lines"


def _class(name: str, methods: int) -> str:
    return f"class {name}:\n" + "".join(f"    def m{i}(self): ...\n" for i in range(methods))


@pytest.mark.parametrize(
    "text",
    [
        "class A:\n" + "    x = 1\n" * 400,
        _class("A", 31),
        _class("B", 30) + "class A(B):\n    def more(self): ...",
        _class("B", 30) + "class A(m.B[int]):\n    async def more(self): ...",
    ],
)
def test_a_large_class_is_caught(tmp_path: Path, text: str) -> None:
    root = tree(tmp_path, broker__m_py=text, actors__m_py=_class("C", 31))
    (found,) = tidy_rules.classes_are_small(root, {}, ["broker"])
    assert found.startswith("broker/m.py:") and ": A has" in found
    assert tidy_rules.classes_are_small(root, {"A": (401, 31)}, ["broker"]) == []
    assert tidy_rules.classes_are_small(root, {"A": (400, 30)}, ["broker"]) != []


def test_a_class_within_the_limits_is_accepted(tmp_path: Path) -> None:
    text = _class("A", 30) + "class B(A):\n    def m1(self): ...\n    x: int\n"
    root = tree(tmp_path, broker__m_py=text)
    assert tidy_rules.classes_are_small(root, {}) == []
    assert "isn't one" in tidy_rules.classes_are_small(root, {"A": (400, 31)})[0]


def test_a_large_protocol_is_caught(tmp_path: Path) -> None:
    small = _class("A", 9).replace("A", "A(Protocol)") + "    x: int\n"
    root = tree(tmp_path, broker__m_py=small + "class B(A, Protocol[T]):\n    y: int")
    (found,) = tidy_rules.protocols_are_small(root, {})
    assert found == "broker/m.py:12: B has 11 members"
    assert tidy_rules.protocols_are_small(root, {"B": 11}) == []
    assert "isn't one" in tidy_rules.protocols_are_small(root, {"A": 11, "B": 11})[0]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("x = 1", "the module has no docstring"),
        ('"""M."""\ndef f(): ...', "f has no docstring"),
        ('"""M."""\nclass A:\n    x = 1', "A has no docstring"),
        ('"""M."""\nclass A:\n    """A."""\n    async def f(self): ...', "A.f has no docstring"),
        ('"""M."""\nif True:\n    def f(): ...', "f has no docstring"),
    ],
)
def test_a_missing_docstring_is_caught(tmp_path: Path, text: str, fault: str) -> None:
    (found,) = tidy_rules.public_names_are_documented(tree(tmp_path, wire__m_py=text))
    assert fault in found


def test_private_things_need_no_docstring(tmp_path: Path) -> None:
    text = '''"""M."""
class A:
    """A."""
    def __init__(self): ...
    def _f(self): ...
    @p.setter
    def p(self, value): ...
class _B:
    def f(self): ...
def g():
    """G."""
    def inner(): ...
class Base(Protocol[T]):
    """B."""
    def f(self):
        """F."""
class Sub(m.Base[int]):
    """S."""
    def f(self): ...
'''
    assert tidy_rules.public_names_are_documented(tree(tmp_path, wire__m_py=text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "try:\n    pass\nexcept:\n    pass",
        "try:\n    pass\nexcept Exception as error:\n    raise",
        "try:\n    pass\nexcept (OSError, BaseException):\n    pass",
        "import contextlib\nwith contextlib.suppress(Exception):\n    pass",
        "from contextlib import suppress\nwith suppress(OSError, Exception):\n    pass",
    ],
)
def test_catching_everything_is_caught(tmp_path: Path, text: str) -> None:
    body = "def f():\n" + "".join(f"    {line}\n" for line in text.splitlines())
    root = tree(tmp_path, topology__m_py=body)
    (found,) = tidy_rules.excepts_are_specific(root, {})
    assert found.startswith("topology/m.py:") and "in f" in found
    assert tidy_rules.excepts_are_specific(root, {"topology/m.py::f": "why"}) == []


def test_an_exception_to_a_rule_that_nothing_needs_is_caught(tmp_path: Path) -> None:
    root = tree(tmp_path, topology__m_py="try:\n    pass\nexcept OSError:\n    pass")
    assert "isn't one" in tidy_rules.excepts_are_specific(root, {"topology/m.py::f": "why"})[0]
    assert "isn't one" in tidy_rules.nothing_sleeps(root, {"topology/m.py": "why"})[0]
    assert "isn't one" in tidy_rules.nothing_prints(root, {"topology/m.py": "why"})[0]


def test_a_print_is_caught(tmp_path: Path) -> None:
    root = tree(tmp_path, broker__m_py="def f():\n    print('x')", tests__m_py="print('y')")
    (found,) = tidy_rules.nothing_prints(root, {})
    assert found.startswith("broker/m.py:2: print")
    assert tidy_rules.nothing_prints(root, {"broker/m.py": "why"}) == []


@pytest.mark.parametrize(
    "text",
    ["import time\ntime.sleep(1)", "from time import sleep", "import time as t\nwait = t.sleep"],
)
@pytest.mark.parametrize("folder", ["journal", "tests"])
def test_sleeping_is_caught(tmp_path: Path, folder: str, text: str) -> None:
    root = tree(tmp_path, **{f"{folder}__m_py": text})
    (found,) = tidy_rules.nothing_sleeps(root, {})
    assert found.startswith(f"{folder}/m.py:")
    assert tidy_rules.nothing_sleeps(root, {f"{folder}/m.py": "why"}) == []


@pytest.mark.parametrize(
    "words",
    [
        ("see /wo", "rk/notes"),
        ("from https://py", "pi.org/simple"),
        ("--extra-ind", "ex-url x"),
        ("written by a coding ag", "ent"),
        ("closes iss", "ue 2"),
    ],
)
def test_a_forbidden_word_is_caught(tmp_path: Path, words: tuple[str, str]) -> None:
    root = tree(tmp_path, docs__m_md="# Title\n\n" + "".join(words), README_md="network/work")
    (found,) = tidy_rules.no_word_of_the_workplace(root)
    assert found.startswith("docs/m.md:3:")


@pytest.mark.parametrize("missing", ["wire/py.typed", "wire/__init__.py", "velaray/wire"])
def test_an_incomplete_layer_is_caught(tmp_path: Path, missing: str) -> None:
    (tmp_path / "velaray").mkdir()
    for layer in layers.LAYERS:
        (tmp_path / layer).mkdir(exist_ok=True)
        (tmp_path / layer / "__init__.py").touch()
        (tmp_path / layer / "py.typed").touch()
        if layer != "velaray":
            (tmp_path / "velaray" / layer).symlink_to(f"../{layer}")
    assert tidy_rules.layers_are_typed_packages(tmp_path) == []
    (tmp_path / missing).unlink()
    (found,) = tidy_rules.layers_are_typed_packages(tmp_path)
    assert found.startswith(missing)


def test_a_subfolder_that_is_no_package_is_caught(tmp_path: Path) -> None:
    root = tree(tmp_path, wire__deep__m_py="")
    assert "wire/deep/__init__.py:1: is missing" in tidy_rules.layers_are_typed_packages(root)


@pytest.mark.parametrize("text", ["[a](gone.md)", "[a](../gone.md#part)", "`tests/test_gone.py`"])
def test_a_dangling_pointer_in_a_document_is_caught(tmp_path: Path, text: str) -> None:
    root = tree(tmp_path, docs__m_md=f"[self](m.md) [web](https://ray.io)\n{text}\n")
    (found,) = tidy_rules.documents_point_at_files(root)
    assert found.startswith("docs/m.md:2:")


@pytest.mark.parametrize("how", ["field added", "module edited", "module missing", "left over"])
def test_stale_generated_code_is_caught(tmp_path: Path, how: str) -> None:
    for layer in ("events", "wire"):
        (tmp_path / "velaray").mkdir(exist_ok=True)
        shutil.copytree(ROOT / layer, tmp_path / layer)
        (tmp_path / "velaray" / layer).symlink_to(f"../{layer}")
    generate_protobuf.generate(tmp_path, tmp_path)
    assert generate_protobuf.out_of_date(tmp_path) == []
    if how == "field added":
        proto = tmp_path / "events" / "ids.proto"
        text = proto.read_text().replace(
            "message MessageIdData {", "message MessageIdData {\noptional int32 extra = 99;"
        )
        proto.write_text(text)
        expected = ["events/ids_pb2.py", "events/ids_pb2.pyi"]
    elif how == "module edited":
        (tmp_path / "events" / "ids_pb2.py").write_text("# edited\n")
        expected = ["events/ids_pb2.py"]
    elif how == "module missing":
        (tmp_path / "events" / "ids_pb2.pyi").unlink()
        expected = ["events/ids_pb2.pyi"]
    else:
        (tmp_path / "wire" / "old_pb2.py").touch()
        expected = ["wire/old_pb2.py"]
    assert generate_protobuf.out_of_date(tmp_path) == expected


@pytest.mark.parametrize(
    "loop",
    [
        "while True:\n  try:\n    await f()\n  except OSError:\n    await asyncio.sleep(1)",
        "while busy():\n  await asyncio.sleep(pause)\n  pause = min(2 * pause, 5)",
        "while True:\n  try:\n    return await f()\n  except OSError:\n    pass\n"
        "  await asyncio.sleep(PAUSE_S)",
        "for _ in range(3):\n  try:\n    await f()\n  except OSError:\n    await sleep(1)\n"
        "  else:\n    break",
    ],
)
def test_back_off_by_hand_is_caught(tmp_path: Path, loop: str) -> None:
    text = "async def f():\n" + "\n".join(f"  {line}" for line in loop.splitlines())
    (found,) = tidy_rules.back_off_is_in_one_module(tree(tmp_path, broker__m_py=text))
    assert "broker/m.py:" in found
    assert "back-off by hand" in found
    assert tidy_rules.back_off_is_in_one_module(tree(tmp_path), "broker/m.py") == []


@pytest.mark.parametrize(
    "loop",
    [
        "while True:\n  await asyncio.sleep(PERIOD_S)\n  await look()",
        "while True:\n  try:\n    await f()\n  except OSError:\n    await backoff.wait()",
        "while left:\n  try:\n    left.pop()\n  except KeyError:\n    await asyncio.sleep(0)",
    ],
)
def test_rounds_and_back_off_by_the_module_are_not_faults(tmp_path: Path, loop: str) -> None:
    text = "async def f():\n" + "\n".join(f"  {line}" for line in loop.splitlines())
    assert tidy_rules.back_off_is_in_one_module(tree(tmp_path, broker__m_py=text)) == []


@pytest.mark.parametrize(
    "call",
    [
        'self._partition.call("stats", {})',
        'actor_system.call(key, "seek", {"name": "s"})',
        "actor_system.call(key, method, args)",
    ],
)
def test_calling_an_actor_by_name_is_caught(tmp_path: Path, call: str) -> None:
    typed = 'actor_system.request(key, Stats()), handle.call.remote("stats"), loop.call(fed)'
    root = tree(tmp_path, broker__m_py=call, admin__m_py=typed, topology__m_py=call)
    (found,) = tidy_rules.actors_send_typed_requests(root)
    assert "broker/m.py:1: an actor is called by name" in found


@pytest.mark.parametrize("call", ["Backoff()", "retry.Backoff(0.1, 30.0)"])
def test_jitter_from_elsewhere_is_caught(tmp_path: Path, call: str) -> None:
    ours = "backoff = self.actor_system.backoff()"
    root = tree(tmp_path, geo__m_py=call, broker__m_py=ours, client__m_py=call)
    (found,) = tidy_rules.jitter_comes_from_the_actor_system(root)
    assert "geo/m.py:1: jitter" in found
