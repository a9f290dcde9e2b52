"""The description of an operation of the REST interface, for its server, its clients and documents.

An operation that the client of this package calls is defined beside the client's method. One that
only Pulsar's tools call is defined beside its handler, in the layer ``admin``. Bodies and answers
are described by types: `TypedDict`, lists, dictionaries, numbers and texts.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Generic, Literal, TypeVar, get_args, get_origin
from urllib.parse import quote

from annotated_types import Ge, Le
from typing_extensions import TypedDict, is_typeddict

from velaray.events.ids import INT64_MAX

V2 = "/admin/v2"
V3 = "/admin/v3"

JSON = "application/json"
TEXT = "text/plain"
BYTES = "application/octet-stream"

Whole = Annotated[int, Ge(0), Le(INT64_MAX)]
"""A whole number, 0 or more."""
AnyObject = dict[str, Any]
"""A JSON object whose fields aren't described."""
Texts = dict[str, str]
"""Texts by name, such as the properties of a topic."""

ValueT = TypeVar("ValueT")


class Problem(TypedDict):
    """Why a request was refused or failed."""

    reason: str


@dataclass(frozen=True, slots=True)
class Parameter(Generic[ValueT]):
    """A query parameter: its name, the type of its values, and the value if it is absent."""

    name: str
    type: Any
    default: ValueT
    about: str

    def text(self, value: ValueT) -> str | None:
        """``value`` as it is written into a URL; None leaves the parameter out."""
        if value == self.default:
            return None
        return str(value).lower() if isinstance(value, bool) else str(value)


Query = Mapping[Parameter[Any], Any]
"""The values of query parameters."""


def flag(name: str, about: str) -> Parameter[bool]:
    """A query parameter that is true or false, by default false."""
    return Parameter(name, bool, False, about)


FORCE = flag("force", "Delete it even if clients are connected, or if it isn't empty.")
APPLIED = flag("applied", "Answer the value in effect, whichever level sets it.")

# The variables of paths, and their types.
_VARIABLES: Mapping[str, tuple[str, Any]] = {
    "actor": ("The key of an actor, with its slashes quoted.", str),
    "broker": ("The address of a proxy.", str),
    "bundle": ("The range of a namespace's only bundle.", str),
    "coordinator": ("The number of a transaction coordinator.", Whole),
    "count": ("A number of entries.", Whole),
    "domain": ("The kind of the topic.", Literal["persistent", "non-persistent"]),
    "entry": ("The number of an entry in its ledger.", Whole),
    "key": ("The name of a property.", str),
    "least": ("The sequence number of a transaction.", Whole),
    "ledger": ("The id of a ledger.", Whole),
    "message": ("A message id: ledger:entry[:partition[:index in the batch]].", str),
    "most": ("The coordinator of a transaction.", Whole),
    "namespace": ("The name of a namespace of the tenant.", str),
    "position": ("Which unacknowledged entry, from 1.", Whole),
    "seconds": ("An age in seconds.", Whole),
    "timeout": ("An age in milliseconds.", Whole),
    "timestamp": ("Milliseconds since 1970.", Whole),
    "topic": ("The name of a topic, or of a partition of it.", str),
    "version": ("The number of a schema's version.", Whole),
}


def variable(name: str) -> tuple[str, Any]:
    """What a variable of a path is, and its type; by default a text."""
    return _VARIABLES.get(name, (f"The {name}.", str))


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation: method, path, parameters, body and answers.

    ``body`` is the type of the JSON body; None: the operation takes none. ``answers`` has the type
    of the answer by status, None for an answer without content. Every other status is an error, and
    its answer is a `Problem`.
    """

    method: str
    path: str
    query: tuple[Parameter[Any], ...] = ()
    body: Any = None
    answers: Mapping[int, Any] = field(default_factory=lambda: {204: None})
    content: str = JSON
    """The content type of an answer with content."""

    @property
    def name(self) -> str:
        """``METHOD path``, which no two operations share."""
        return f"{self.method} {self.path}"

    @property
    def variables(self) -> list[str]:
        """The variables of the path, in order."""
        return [name for _, name, _, _ in string.Formatter().parse(self.path) if name]

    @property
    def takes_object(self) -> bool:
        """Whether the body is a JSON object. An absent body is then an empty object."""
        return is_typeddict(self.body) or get_origin(self.body) is dict

    @property
    def needs_body(self) -> bool:
        """Whether a request without a body is refused."""
        if self.takes_object:
            return bool(getattr(self.body, "__required_keys__", ()))
        unchecked = self.body is Any or get_args(self.body)[:1] == (Any,)
        return self.body is not None and not unchecked

    def target(self, variables: Mapping[str, Any]) -> str:
        """The path with these values of its variables, quoted."""
        quoted = {name: quote(str(value), safe="") for name, value in variables.items()}
        return self.path.format_map(quoted)


def reads(path: str, answer: Any, *query: Parameter[Any]) -> Operation:
    """An operation that answers without changing anything."""
    return Operation("GET", path, query, answers={200: answer})
