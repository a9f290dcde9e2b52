"""The rules of this tree, each a function from a tree's root to the list of its faults.

A fault is a line of text that starts with ``path:line``. `tests/test_tidy.py` applies every
rule to this tree, and shows each rule failing on a tree that breaks it.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tools.layers import (
    FACE,
    LAYERS,
    Source,
    imports,
    layer_of,
    module_name,
    own_sources,
    sources,
    walk,
)

# Files of actors/ that run machines instead of being one.
HOSTS: dict[str, str] = {
    "actors/runtime.py": "hosts a machine on asyncio",
}

_IMPURE = {
    "asyncio",
    "concurrent",
    "datetime",
    "io",
    "multiprocessing",
    "os",
    "pathlib",
    "random",
    "ray",
    "secrets",
    "select",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "ssl",
    "subprocess",
    "tempfile",
    "threading",
    "time",
    "uuid",
}

_TEXT = {
    ".py",
    ".pyi",
    ".proto",
    ".md",
    ".toml",
    ".txt",
    ".json",
    ".yaml",
    ".yml",
    ".sh",
    ".go",
    ".java",
    "",
}


def imports_follow_the_table(root: Path) -> list[str]:
    """A folder imports the standard library and what the table allows it, nothing else."""
    faults = []
    for source in sources(root):
        allowed = LAYERS[source.layer]
        for node, dotted in imports(source):
            top = dotted.split(".")[0]
            if top == FACE:
                layer = layer_of(dotted)
                if layer not in (source.layer, *allowed.layers):
                    faults.append(f"{source.at(node)}: {source.layer} may not import {layer}")
            elif top not in sys.stdlib_module_names and top not in allowed.libraries:
                faults.append(f"{source.at(node)}: {source.layer} may not import {top}")
    return faults


def imports_are_absolute(root: Path) -> list[str]:
    """No relative import; and a layer is imported by its installed name."""
    faults = []
    for source in own_sources(root):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.ImportFrom) and node.level > 0:
                faults.append(f"{source.at(node)}: relative import")
        for node, dotted in imports(source):
            top = dotted.split(".")[0]
            if top in LAYERS and top != FACE:
                faults.append(f"{source.at(node)}: import {top} as {FACE}.{top}")
    return faults


def _for_types_only(source: Source) -> set[ast.AST]:
    """The statements that only a type checker runs."""
    return {
        inner
        for node in ast.walk(source.tree)
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")
        for statement in node.body
        for inner in ast.walk(statement)
    }


def modules_import_without_cycles(root: Path) -> list[str]:
    """No module imports itself through others. Imports inside functions count.

    Imports under ``if TYPE_CHECKING`` don't count: they never run.
    """
    cycles = _cycles(_import_graph(sources(root), for_types=False))
    return [
        f"{module}:1: in an import cycle with {', '.join(others)}"
        for module, others in cycles.items()
    ]


MODULES_IN_TYPE_CYCLES = 3
"""How many modules are in import cycles, imports for type checkers included. Lower it whenever a
change removes modules from them, until it is 0; never raise it."""


def modules_in_type_cycles(root: Path, bound: int = MODULES_IN_TYPE_CYCLES) -> list[str]:
    """As many modules as ``bound`` says, and no others, are in import cycles if imports under
    ``if TYPE_CHECKING`` count."""
    cycles = _cycles(_import_graph(sources(root), for_types=True))
    if len(cycles) == bound:
        return []
    if len(cycles) < bound:
        why = f"{len(cycles)} modules are in cycles: lower the bound of {bound} to that"
        return [f"tests/tidy_rules.py:1: {why}"]
    return [
        f"{module}:1: one of {len(cycles)} modules in cycles, at most {bound} may be; "
        f"with {', '.join(others)}"
        for module, others in cycles.items()
    ]


def _import_graph(found: Sequence[Source], *, for_types: bool) -> dict[str, set[str]]:
    """By module, the modules that it imports; ``for_types``: for type checkers too."""
    graph: dict[str, set[str]] = {source.module: set() for source in found}
    for source in found:
        never_run = set() if for_types else _for_types_only(source)
        for node, dotted in imports(source):
            if node in never_run:
                continue
            target = dotted if dotted in graph else dotted.rpartition(".")[0]
            if target in graph and target != source.module:
                graph[source.module].add(target)
    return graph


def _cycles(graph: Mapping[str, set[str]]) -> dict[str, list[str]]:
    """The modules that import themselves by way of others; the imports that bring them there."""
    reached = {module: _reachable(graph, module) for module in graph}
    return {
        module: sorted(target for target in graph[module] if module in reached[target])
        for module in sorted(graph)
        if module in reached[module]
    }


def _reachable(graph: Mapping[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    left = list(graph[start])
    while left:
        module = left.pop()
        if module not in found:
            found.add(module)
            left += graph[module]
    return found


# Calls that read a file, on any object.
_READS = {"fetch", "load", "pread", "read", "read_bytes", "read_now", "read_text", "readline"}
_DECODERS = {"json", "msgpack"}

# Callables that machines may hold and reads that they may make: ``path::place`` and the reason.
PURE_EXCEPTIONS: dict[str, str] = {
    "actors/catalog/policy_types.py::Record.check": "a pure function in a constant table",
}


def machines_are_pure(
    root: Path,
    hosts: Mapping[str, str] = HOSTS,
    allowed: Mapping[str, str] = PURE_EXCEPTIONS,
) -> list[str]:
    """A machine's file has no clock, no randomness, no input or output, and no host.

    Nor do machines, states and what these are made of (events/) hold callables, such as loaders
    and listeners, and machines have no attributes. ``allowed`` lists the exceptions; one that
    nothing needs is a fault.
    """
    aliases = _callable_aliases(root)
    found = [
        (place, fault)
        for source in sources(root, ["actors"])
        if source.path not in hosts
        for place, fault in (*_held_callables(source, aliases), *_reads(source))
    ]
    found += [
        each for source in sources(root, ["events"]) for each in _held_callables(source, aliases)
    ]
    faults = [fault for place, fault in found if place not in allowed]
    faults += _stale(allowed, {place for place, _ in found})
    return faults + _impure_imports_and_calls(root, hosts) + _machines_with_attributes(root)


def _held_callables(source: Source, aliases: set[str]) -> Iterator[tuple[str, str]]:
    """Attributes of classes that are annotated, or assigned from a parameter, as callables."""

    def is_callable(annotation: ast.expr | None) -> bool:
        words = set(re.findall(r"\w+", ast.unparse(annotation))) if annotation else set()
        return bool(words & ({"Callable", "Awaitable", "Coroutine"} | aliases))

    for node in ast.walk(source.tree):
        if not isinstance(node, ast.ClassDef):
            continue
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and is_callable(field.annotation):
                name = f"{node.name}.{ast.unparse(field.target)}"
                yield f"{source.path}::{name}", f"{source.at(field)}: {name} is a callable"
        for method in node.body:
            if not isinstance(method, _METHODS):
                continue
            arguments = (*method.args.args, *method.args.kwonlyargs)
            given = {each.arg for each in arguments if is_callable(each.annotation)}
            for statement in ast.walk(method):
                if isinstance(statement, ast.Assign):
                    targets, annotation = statement.targets, None
                elif isinstance(statement, ast.AnnAssign):
                    targets, annotation = [statement.target], statement.annotation
                else:
                    continue
                kept = [each for each in targets if ast.unparse(each).startswith("self.")]
                if kept and (is_callable(annotation) or _names_kept(statement) & given):
                    name = f"{node.name}.{ast.unparse(kept[0]).removeprefix('self.')}"
                    yield f"{source.path}::{name}", f"{source.at(statement)}: {name} is a callable"


def _names_kept(statement: ast.stmt) -> set[str]:
    """Names in a statement, those that it only calls left out."""
    called = {node.func for node in ast.walk(statement) if isinstance(node, ast.Call)}
    return {
        node.id for node in ast.walk(statement) if isinstance(node, ast.Name) and node not in called
    }


def _callable_aliases(root: Path) -> set[str]:
    """Names of actors/ that stand for types of callables."""
    return {
        ast.unparse(node.targets[0])
        for source in sources(root, ["actors"])
        for node in source.tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("Callable[")
    }


def _reads(source: Source) -> Iterator[tuple[str, str]]:
    """Calls that read, by the function around them."""
    for function in ast.walk(source.tree):
        if isinstance(function, _METHODS):
            for node in ast.walk(function):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr in _READS
                    and ast.unparse(node.func.value) not in _DECODERS
                ):
                    what = f"a machine may not call {ast.unparse(node.func)}()"
                    yield f"{source.path}::{function.name}", f"{source.at(node)}: {what}"


def _machines_with_attributes(root: Path) -> list[str]:
    """Machines of any layer that hold something: a machine is functions of a state."""
    classes, faults = _classes(root), []
    for source, node in _classes_of(root, LAYERS):
        if not {"decide", "evolve"} <= _members(node, classes, _METHODS):
            continue
        held = [each for each in node.body if isinstance(each, ast.AnnAssign)] + [
            each
            for each in ast.walk(node)
            if isinstance(each, ast.Attribute)
            and isinstance(each.ctx, ast.Store)
            and ast.unparse(each.value) == "self"
        ]
        faults += [f"{source.at(each)}: the machine {node.name} has an attribute" for each in held]
    return faults


def _impure_imports_and_calls(root: Path, hosts: Mapping[str, str]) -> list[str]:
    faults = []
    host_modules = {module_name(path) for path in hosts}
    machines = [source for source in sources(root, ["actors"]) if source.path not in hosts]
    for source in machines:
        for node, dotted in imports(source):
            top = dotted.split(".")[0]
            if top in _IMPURE:
                faults.append(f"{source.at(node)}: a machine may not import {top}")
            elif dotted in host_modules or dotted.rpartition(".")[0] in host_modules:
                faults.append(f"{source.at(node)}: a machine may not import its host {dotted}")
            elif top == FACE and layer_of(dotted) == "journal":
                faults.append(f"{source.at(node)}: a machine may not import the journal")
        for node in ast.walk(source.tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("open", "print", "input")
            ):
                faults.append(f"{source.at(node)}: a machine may not call {node.func.id}()")
    gone = [path for path in hosts if not (root / path).exists()]
    return faults + [f"{path}:1: listed as a host, but isn't there" for path in gone]


def functions_are_short(root: Path, limit: int = 70) -> list[str]:
    """Every function, decorators left out, has fewer than ``limit`` lines."""
    faults = []
    for source in own_sources(root):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines >= limit:
                    faults.append(f"{source.at(node)}: {node.name} has {lines} lines")
    return faults


MAX_CLASS_LINES = 400
MAX_METHODS = 30
MAX_PROTOCOL_MEMBERS = 10


def classes_are_small(
    root: Path, allowed: Mapping[str, tuple[int, int]], layers: Iterable[str] = LAYERS
) -> list[str]:
    """Classes of ``layers`` have at most 400 lines and 30 methods, inherited ones included.

    ``allowed`` bounds the lines and methods of classes that are still larger, by name. An entry
    that a class doesn't need any more is a fault.
    """
    classes = _classes(root)
    faults, used = [], set()
    for source, node in _classes_of(root, layers):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        methods = len(_members(node, classes, _METHODS))
        if lines > MAX_CLASS_LINES or methods > MAX_METHODS:
            used.add(node.name)
            at_most = allowed.get(node.name, (MAX_CLASS_LINES, MAX_METHODS))
            if lines > at_most[0] or methods > at_most[1]:
                what = f"{node.name} has {lines} lines and {methods} methods"
                faults.append(f"{source.at(node)}: {what}, at most {at_most} may be")
    return faults + _stale(allowed, used)


def protocols_are_small(
    root: Path, allowed: Mapping[str, int], layers: Iterable[str] = LAYERS
) -> list[str]:
    """Protocols of ``layers`` have at most 10 members, inherited ones included.

    ``allowed`` bounds the members of protocols that are still larger, by name. An entry that a
    protocol doesn't need any more is a fault.
    """
    classes = _classes(root)
    faults, used = [], set()
    for source, node in _classes_of(root, layers):
        if "Protocol" not in _base_names(node):
            continue
        members = len(_members(node, classes, (*_METHODS, ast.AnnAssign)))
        if members > MAX_PROTOCOL_MEMBERS:
            used.add(node.name)
            if members > allowed.get(node.name, MAX_PROTOCOL_MEMBERS):
                faults.append(f"{source.at(node)}: {node.name} has {members} members")
    return faults + _stale(allowed, used)


_METHODS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _classes_of(root: Path, layers: Iterable[str]) -> Iterator[tuple[Source, ast.ClassDef]]:
    for source in sources(root, layers):
        if not source.generated:
            for node in ast.walk(source.tree):
                if isinstance(node, ast.ClassDef):
                    yield source, node


def _classes(root: Path) -> dict[str, ast.ClassDef]:
    """Every class of the installed layers by name."""
    return {node.name: node for _, node in _classes_of(root, LAYERS)}


def _base_names(node: ast.ClassDef) -> list[str]:
    return [ast.unparse(base).split("[")[0].split(".")[-1] for base in node.bases]


def _members(
    node: ast.ClassDef, classes: Mapping[str, ast.ClassDef], kinds: tuple[type[ast.stmt], ...]
) -> set[str]:
    """The names that a class and its bases define by statements of these kinds."""
    found = set()
    for statement in node.body:
        if isinstance(statement, kinds):
            name = statement.target if isinstance(statement, ast.AnnAssign) else statement
            found.add(name.id if isinstance(name, ast.Name) else getattr(name, "name", ""))
    for base in _base_names(node):
        if base in classes and classes[base] is not node:
            found |= _members(classes[base], classes, kinds)
    return found


def public_names_are_documented(root: Path) -> list[str]:
    """Every installed module and its public classes, functions and methods have a docstring.

    A method needs none if a base class, named in the class statement, documents it.
    """
    faults = []
    found = [source for source in sources(root) if not source.generated]
    inherited = _documented_methods(found)
    for source in found:
        if not ast.get_docstring(source.tree):
            faults.append(f"{source.path}:1: the module has no docstring")
        faults += [
            f"{source.at(node)}: {name} has no docstring"
            for name, node in _public(source.tree, "")
            if not ast.get_docstring(node) and name not in inherited.get(source.path, ())
        ]
    return faults


def _documented_methods(found: Iterable[Source]) -> dict[str, set[str]]:
    """Per path, the methods (``Class.method``) that a base class documents."""
    classes = [
        (source.path, node)
        for source in found
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
    ]
    own: dict[str, set[str]] = {}
    for _, node in classes:
        own.setdefault(node.name, set()).update(
            method.name
            for method in node.body
            if isinstance(method, _Documented) and ast.get_docstring(method)
        )
    inherited: dict[str, set[str]] = {}
    for path, node in classes:
        for base in node.bases:
            name = ast.unparse(base).split("[")[0].split(".")[-1]
            inherited.setdefault(path, set()).update(
                f"{node.name}.{method}" for method in own.get(name, ())
            )
    return inherited


_Documented = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _public(scope: ast.AST, prefix: str) -> Iterator[tuple[str, _Documented]]:
    """Public definitions in ``scope``, those inside functions left out."""
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, _Documented):
            if node.name.startswith("_") or _is_stub(node):
                continue
            yield f"{prefix}{node.name}", node
            if isinstance(node, ast.ClassDef):
                yield from _public(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If | ast.Try):
            yield from _public(node, prefix)


def _is_stub(node: _Documented) -> bool:
    """An overload, or the setter of a property: documented elsewhere."""
    for decorator in node.decorator_list:
        if isinstance(decorator, ast.Name) and decorator.id == "overload":
            return True
        if isinstance(decorator, ast.Attribute) and decorator.attr in ("overload", "setter"):
            return True
    return False


def excepts_are_specific(root: Path, allowed: Mapping[str, str]) -> list[str]:
    """Nothing catches everything, except functions that ``allowed`` gives a reason for.

    Its keys are ``path::function``; an entry that nothing needs is a fault too.
    """
    faults, used = [], set()
    for source in sources(root):
        for function, node in _catch_alls(source.tree, "<module>"):
            entry = f"{source.path}::{function}"
            used.add(entry)
            if entry not in allowed:
                faults.append(f"{source.at(node)}: catches everything in {function}")
    return faults + _stale(allowed, used)


def _catch_alls(scope: ast.AST, function: str) -> Iterator[tuple[str, ast.AST]]:
    for node in ast.iter_child_nodes(scope):
        if isinstance(node, ast.ExceptHandler) and (node.type is None or _is_broad(node.type)):
            yield function, node
        if (
            isinstance(node, ast.Call)
            and ast.unparse(node.func) in ("suppress", "contextlib.suppress")
            and any(_is_broad(argument) for argument in node.args)
        ):
            yield function, node
        inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _catch_alls(node, node.name if inside else function)


def _is_broad(node: ast.expr) -> bool:
    if isinstance(node, ast.Tuple):
        return any(_is_broad(element) for element in node.elts)
    return isinstance(node, ast.Name) and node.id in ("Exception", "BaseException")


def _stale(allowed: Mapping[str, str], used: set[str]) -> list[str]:
    return [
        f"{entry}:1: listed as an exception, but isn't one"
        for entry in sorted(allowed.keys() - used)
    ]


def nothing_sleeps(root: Path, allowed: Mapping[str, str]) -> list[str]:
    """Neither product code nor tests wait by time.sleep, except the files in ``allowed``."""
    faults, used = [], set()
    for source in sources(root, [*LAYERS, "tests", "tools"]):
        clocks = {"time"} | {
            alias.asname
            for node in ast.walk(source.tree)
            if isinstance(node, ast.Import)
            for alias in node.names
            if alias.name == "time" and alias.asname
        }
        sleeps = {f"{clock}.sleep" for clock in clocks}
        for node in ast.walk(source.tree):
            imported = isinstance(node, ast.ImportFrom) and node.module == "time"
            if (isinstance(node, ast.Attribute) and ast.unparse(node) in sleeps) or (
                imported and any(alias.name == "sleep" for alias in node.names)
            ):
                used.add(source.path)
                if source.path not in allowed:
                    faults.append(f"{source.at(node)}: time.sleep; wait for a condition")
    return faults + _stale(allowed, used)


def nothing_prints(root: Path, allowed: Mapping[str, str]) -> list[str]:
    """Product code logs; only the files in ``allowed`` print for their users."""
    faults, used = [], set()
    for source in sources(root):
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "pprint.pprint"):
                used.add(source.path)
                if source.path not in allowed:
                    faults.append(f"{source.at(node)}: print; use the logger")
    return faults + _stale(allowed, used)


RETRIES = "events/backoff.py"


def back_off_is_in_one_module(root: Path, home: str = RETRIES) -> list[str]:
    """Loops wait between attempts by `Backoff.wait`; only its module sleeps for that.

    A loop waits between attempts if it sleeps in an ``except``, sleeps for a variable that it
    changes, or ends on success and sleeps otherwise.
    """
    faults = []
    for source in sources(root):
        if source.path == home:
            continue
        for loop in ast.walk(source.tree):
            if isinstance(loop, ast.While | ast.For | ast.AsyncFor):
                faults += [
                    f"{source.at(sleep)}: back-off by hand; use Backoff.wait of {home}"
                    for sleep in _sleeps_between_attempts(loop)
                ]
    return sorted(set(faults))


def jitter_comes_from_the_actor_system(root: Path) -> list[str]:
    """Actors make a `Backoff` by `ActorSystem.backoff`, whose jitter a simulation repeats."""
    return [
        f"{source.at(call)}: jitter from the global random; use ActorSystem.backoff"
        for source in sources(root, ["broker", "geo"])
        for call in ast.walk(source.tree)
        if isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "Backoff"
    ]


def actors_send_typed_requests(root: Path, allowed: Iterable[str] = ("topology/",)) -> list[str]:
    """Calls of actors by name are for surveys, which `topology` passes on."""
    return [
        f"{source.at(call)}: an actor is called by name; send a request of its messages.py"
        for source in sources(root)
        for call in ast.walk(source.tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "call"
        and any(map(_is_name, call.args[:2]))
        and not source.path.startswith(tuple(allowed))
    ]


def _is_name(argument: ast.expr) -> bool:
    """Whether it is a text, or what a variable named ``method`` holds."""
    if isinstance(argument, ast.Name):
        return argument.id == "method"
    return isinstance(argument, ast.Constant) and isinstance(argument.value, str)


def _sleeps_between_attempts(loop: ast.While | ast.For | ast.AsyncFor) -> Iterator[ast.Call]:
    handlers = [node for node in ast.walk(loop) if isinstance(node, ast.ExceptHandler)]
    in_handlers = {inner for handler in handlers for inner in ast.walk(handler)}
    changed = {
        node.id
        for node in ast.walk(loop)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    directly = {
        node.value.value
        for node in loop.body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Await)
    }
    for call in ast.walk(loop):
        if not (isinstance(call, ast.Call) and ast.unparse(call.func).split(".")[-1] == "sleep"):
            continue
        argument = call.args[0] if call.args else None
        yields = isinstance(argument, ast.Constant) and argument.value == 0
        varies = isinstance(argument, ast.Name) and argument.id in changed
        after_failure = call in directly and _ends_on_success(loop)
        if not yields and (varies or call in in_handlers or after_failure):
            yield call


def _ends_on_success(loop: ast.While | ast.For | ast.AsyncFor) -> bool:
    """Whether a ``try`` of the loop leaves it, and one of its handlers goes on."""
    for attempt in loop.body:
        if isinstance(attempt, ast.Try):
            leaves = any(map(_leaves, [*attempt.body, *attempt.orelse]))
            if leaves and not all(_leaves(handler.body[-1]) for handler in attempt.handlers):
                return True
    return False


def _leaves(statement: ast.stmt) -> bool:
    return any(isinstance(node, ast.Return | ast.Break | ast.Raise) for node in ast.walk(statement))


# Paths of one machine, hosts of package registries, names of workplace tools. The words are
# cut in two here, so that this file doesn't hold them.
_FORBIDDEN = re.compile(
    "|".join(
        [
            r"/wo" r"rk/",
            r"/ro" r"ot/",
            r"/tm" r"p/contracts",
            r"\bpy" r"pi\.org",
            r"pythonhost" r"ed\.org",
            r"repo1?\.ma" r"ven",
            r"registry\.np" r"mjs",
            r"proxy\.gol" r"ang",
            r"ind" r"ex-url",
            r"\b(?:ai|coding|llm)[- ]ag" r"ent",
            r"\bsubag" r"ent",
            r"\biss" r"ue #?\d\b",
        ]
    ),
    re.IGNORECASE,
)


def no_word_of_the_workplace(root: Path) -> list[str]:
    """No text file names a path of some machine, a registry's host or a workplace's tools."""
    faults = []
    for path in walk(root):
        if path.suffix in _TEXT:
            lines = path.read_text(encoding="utf-8").splitlines()
            faults += [
                f"{path.relative_to(root).as_posix()}:{number}: {found.group()!r}"
                for number, line in enumerate(lines, 1)
                if (found := _FORBIDDEN.search(line))
            ]
    return faults


def layers_are_typed_packages(root: Path) -> list[str]:
    """Every layer is a package with types, and is linked into the installed one."""
    faults = []
    for layer in LAYERS:
        faults += [
            f"{layer}/{name}:1: is missing"
            for name in ("__init__.py", "py.typed")
            if not (root / layer / name).is_file()
        ]
        link = root / FACE / layer
        if layer != FACE and not (link.is_symlink() and link.readlink() == Path("..") / layer):
            faults.append(f"{FACE}/{layer}:1: is no link to ../{layer}")
    for folder in {source.path.rpartition("/")[0] for source in sources(root)}:
        if not (root / folder / "__init__.py").is_file() and "/" in folder:
            faults.append(f"{folder}/__init__.py:1: is missing")
    return faults


_LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)\s]*)?\)")
_TEST_FILE = re.compile(r"`(tests/[\w/]+\.py)`")


def documents_point_at_files(root: Path) -> list[str]:
    """Relative links in documents lead somewhere, and the test files they name exist."""
    faults = []
    for path in walk(root):
        if path.suffix != ".md":
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            targets = [path.parent / link for link in _LINK.findall(line)]
            targets += [root / name for name in _TEST_FILE.findall(line)]
            faults += [
                f"{path.relative_to(root).as_posix()}:{number}: no {target.name} there"
                for target in targets
                if not target.exists()
            ]
    return faults
