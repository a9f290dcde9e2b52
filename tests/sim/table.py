"""The table of mutants, as `docs/testing.md` has it."""

from __future__ import annotations

import re

from tests.sim.campaign import Hunt
from tests.sim.mutants import MUTANTS

HEAD = "| Mutant | What it does | Seed | Found by | Seeds allowed |\n|---|---|---|---|---|"

_SHORT = (
    (r"(\w+_\w+): .*", lambda found: found[1].replace("_", " ")),
    (r".*InvariantViolation: ([^:]*).*", r"invariant: \1"),
    (r".*a snapshot restores.*", "a checkpoint restores its state"),
    (r".*(K\d): .* takes an ack.*", r"no acknowledgement is taken back (\1)"),
    (r".*(K\d): (.*)", r"\2 (\1)"),
    (r".* needs \d+, \d+ is the oldest near", "no checkpoint needs old ledgers"),
    (r"backlogs at the end.*", "everything is drained"),
    (r"OutOfSteps.*", "the run doesn't end"),
    (r".* is stored, and there is no such actor", "deleted data is not stored"),
    (r".* is deleted, and .* needs it", "needed objects are not deleted"),
    (r".* is deleted, which must stay for ever", "SEALs and floors are not deleted"),
    (r".*: the past after event .*", "the past is what was live then"),
    (r".* is trimmed; .*", "needed entries are not trimmed"),
    (r".* is trimmed within its retention", "retained entries are not trimmed"),
    (r".* expires too early", "nothing expires too early"),
    (r".* ledger \d+: .*", "every ledger is whole"),
    (r".* replay gives .*", "replay gives the live state"),
    (r".* consumers \[.*\] are active", "the right consumer is active"),
    (r".*Exception in callback [^:]*: (\w+).*", r"a callback fails: \1"),
    (r"\S* ended: (\w+).*", r"an actor ends: \1"),
    (r"(\w+): .*", r"the run fails: \1"),
)


def found_by(problem: str) -> str:
    """A problem in few words."""
    for pattern, words in _SHORT:
        short, matches = re.subn(pattern, words, problem, count=1, flags=re.DOTALL)
        if matches and re.fullmatch(pattern, problem, flags=re.DOTALL):
            return short
    return problem


def row(hunt: Hunt) -> str:
    """A mutant's line."""
    mutant = MUTANTS[hunt.mutant]
    seed = "not found" if hunt.seed is None else hunt.seed
    problem = found_by(hunt.problem).replace("|", "/")
    return f"| {hunt.mutant} | {mutant.what} | {seed} | {problem} | {mutant.within} |"
