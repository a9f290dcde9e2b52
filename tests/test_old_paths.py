"""Old import paths of public names work for one version, with a warning."""

from __future__ import annotations

import importlib
import sys
import warnings

import pytest
from click.testing import CliRunner

import velaray
from velaray.cli.app import main
from velaray.moved import MOVED


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_path_imports_the_module_at_the_new_one(old: str, new: str) -> None:
    sys.modules.pop(old, None)
    with pytest.warns(DeprecationWarning, match=f"{old} moved to {new}"):
        module = importlib.import_module(old)
    assert module is importlib.import_module(new)
    assert module.__name__ == new and module.__spec__.name == new


@pytest.mark.parametrize(("package", "name"), [("client", "Client"), ("admin", "Admin")])
def test_a_name_moved_out_of_a_package_is_still_found_there(package: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"import {name} from velaray"):
        found = getattr(importlib.import_module(f"velaray.{package}"), name)
    assert found is getattr(velaray, name)


def test_public_paths_give_no_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in ("aio", "exceptions", "schema", "pipelines"):
            importlib.import_module(f"velaray.{name}")


def test_an_unknown_module_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("velaray.nothing")


@pytest.mark.parametrize(
    ("old", "more"),
    [
        (["why"], ["t", "s", "1:1", "--data", "."]),
        (["ledgers", "census"], ["--admin-url", "http://127.0.0.1:1"]),
    ],
)
def test_an_old_command_is_hidden_and_works_with_a_warning(old: list[str], more: list[str]) -> None:
    runner = CliRunner()
    assert f"  {old[-1]} " not in runner.invoke(main, [*old[:-1], "--help"]).output
    assert f"command {old[-1]!r} is deprecated" in runner.invoke(main, [*old, *more]).output
