"""Builds the compiled wheel, if ``VELARAY_COMPILED`` is 1; all else is in pyproject.toml.

mypyc compiles the modules below from the same source. The wheel has them in both forms, and Python
imports the compiled one (`docs/decisions/0055-compiled-modules.md`).
"""

import os

from setuptools import setup

COMPILED = (
    "velaray/events/codec.py",
    "velaray/journal/checksums.py",
    "velaray/journal/frames.py",
    "velaray/wire/commands.py",
    "velaray/wire/frames.py",
    "velaray/wire/send_runs.py",
    "velaray/wire/varint.py",
)
"""Pure functions that run for every entry."""


def _extensions() -> list:
    if os.environ.get("VELARAY_COMPILED") != "1":
        return []
    from mypyc.build import mypycify

    # The cache of `make lint` has errors of generated code, which its configuration ignores.
    options = ["--config-file=", "--cache-dir=build/mypyc"]
    options += ["--ignore-missing-imports", "--follow-imports=silent"]
    return mypycify([*options, *COMPILED], opt_level="3", debug_level="0")


setup(ext_modules=_extensions())
