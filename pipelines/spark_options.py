"""The options of Spark's ``format("velaray")``, parsed and validated."""

from __future__ import annotations

from collections.abc import Mapping, Set

from velaray.client.exceptions import InvalidConfiguration

_SPARKS_OWN = {"checkpointlocation", "path", "queryname"}
"""Spark's own entries among the options of its readers and writers."""


class Options:
    """Options by name; names are case-insensitive.

    Raises `InvalidConfiguration` for an option that isn't ``known``.
    """

    def __init__(self, given: Mapping[str, str], known: Set[str], what: str) -> None:
        self._what = what
        self._given = {name.lower(): value for name, value in given.items()}
        strange = sorted(set(self._given) - known - _SPARKS_OWN)
        if strange:
            raise InvalidConfiguration(
                f"{what} has no option {', '.join(strange)}; it has {', '.join(sorted(known))}"
            )

    def text(self, name: str) -> str | None:
        """The option's value; None if it is missing or empty."""
        return self._given.get(name) or None

    def required(self, name: str) -> str:
        """The option's value. Raises `InvalidConfiguration` if it is missing."""
        value = self.text(name)
        if value is None:
            raise InvalidConfiguration(f'{self._what} needs .option("{name}", …)')
        return value

    def one_of(self, *names: str) -> list[str | None]:
        """The values of these options, exactly one of which must be set.

        Raises `InvalidConfiguration` otherwise.
        """
        values = [self.text(name) for name in names]
        if sum(value is not None for value in values) != 1:
            raise InvalidConfiguration(
                f"{self._what} needs one of the options {', '.join(names)}, and only one"
            )
        return values

    def count(self, name: str) -> int:
        """A whole number above 0; 0 if the option is missing. Raises `InvalidConfiguration`."""
        value = self.text(name)
        if value is None:
            return 0
        found = int(value) if value.isascii() and value.isdigit() else 0
        if not 0 < found < 1 << 63:
            raise InvalidConfiguration(f"{name}={value!r}: give a whole number above 0")
        return found

    def seconds(self, name: str, default: float) -> float:
        """A number of seconds above 0. Raises `InvalidConfiguration` for anything else."""
        value = self.text(name)
        try:
            found = default if value is None else float(value)
        except ValueError:
            found = -1.0
        if not 0 < found < float("inf"):
            raise InvalidConfiguration(f"{name}={value!r}: give seconds, above 0")
        return found

    def choice(self, name: str, *known: str) -> str:
        """One of the ``known``, the first by default. Raises `InvalidConfiguration`."""
        value = self.text(name) or known[0]
        if value not in known:
            raise InvalidConfiguration(f"{name}={value!r}: give {' or '.join(known)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false. Raises `InvalidConfiguration` for anything else."""
        value = (self.text(name) or str(default)).lower()
        if value not in ("true", "false"):
            raise InvalidConfiguration(f"{name}={value!r}: give true or false")
        return value == "true"
