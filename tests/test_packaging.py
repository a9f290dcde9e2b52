"""velaray installs as one package, from a wheel, from an sdist and editable.

Nothing is downloaded: the builds use the setuptools of the environment that runs the tests,
and the fresh environments borrow its libraries (but not its velaray).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

import pytest

from tools.layers import LAYERS

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent
LIBRARIES = Path(sysconfig.get_path("purelib"))
PACKAGED = {".py", ".pyi", ".proto", ".typed", ".html", ".js", ".css", ".svg", ".txt"}
BUILD_TOOLS = ("setuptools", "_distutils_hack", "pkg_resources")

RAY_SCRIPT = """
import importlib, sys, ray

def where(modules):
    return [importlib.import_module(name).__file__ for name in modules]

ray.init("local", num_cpus=1, include_dashboard=False, log_to_driver=False,
         _temp_dir=sys.argv[1])
print(*ray.get(ray.remote(where).remote(sys.argv[2:])), sep="\\n")
ray.shutdown()
"""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    """What ``command`` prints. Fails the test, with all output, if the command fails."""
    inherited = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def installed_files(root: Path) -> dict[str, bytes]:
    """What an install of the tree at ``root`` consists of: name in site-packages, content."""
    found = {}
    for layer in LAYERS:
        prefix = "" if layer == "velaray" else "velaray/"
        for folder, folders, files in os.walk(root / layer):
            folders[:] = [name for name in folders if not (Path(folder) / name).is_symlink()]
            for file in files:
                path = Path(folder) / file
                if path.suffix in PACKAGED or file == "py.typed":
                    found[prefix + path.relative_to(root).as_posix()] = path.read_bytes()
    return found


def modules_of(files: dict[str, bytes]) -> list[str]:
    """The modules among ``files`` that need no optional library: every layer's package."""
    return sorted(
        name.removesuffix("/__init__.py").replace("/", ".")
        for name in files
        if name.count("/") <= 2 and name.endswith("/__init__.py")
    )


def wheel_files(wheel: Path) -> dict[str, bytes]:
    """The content of ``wheel``, its metadata left out."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: archive.read(name)
            for name in archive.namelist()
            if not name.endswith("/") and ".dist-info/" not in name
        }


def fresh_environment(folder: Path) -> Path:
    """The Python of a new environment without pip."""
    venv.create(folder, with_pip=False, symlinks=True)
    return folder / "bin" / "python"


def borrow_libraries(python: Path) -> None:
    """Let ``python`` import the libraries of this environment; its .pth files aren't read."""
    (site,) = python.parent.parent.glob("lib/python*/site-packages")
    (site / "borrowed.pth").write_text(f"{LIBRARIES}\n")


def pip_install(python: Path, *arguments: str | Path, cwd: Path, **environment: str) -> None:
    """Install into the environment of ``python`` with this environment's pip, offline."""
    run(
        *(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index"),
        *("--no-deps", *arguments),
        cwd=cwd,
        **environment,
    )


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tree with its symbolic links, in which builds may write."""
    copy = tmp_path_factory.mktemp("tree") / "velaray"
    unwanted = shutil.ignore_patterns(
        ".*", "build", "dist", "*.egg-info", "__pycache__", "tests", "docs", "data", "out"
    )
    shutil.copytree(ROOT, copy, symlinks=True, ignore=unwanted)
    return copy


@pytest.fixture(scope="module")
def built(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist that the tree builds."""
    out = tmp_path_factory.mktemp("built")
    for kind in ("--wheel", "--sdist"):
        run(
            *(sys.executable, "-m", "build", "--no-isolation", kind, "--outdir", out, "."),
            cwd=tree,
        )
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (wheel,) = built.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment into which the wheel is installed."""
    folder = tmp_path_factory.mktemp("installed")
    python = fresh_environment(folder / "venv")
    pip_install(python, wheel, cwd=folder)
    borrow_libraries(python)
    return python


def test_the_wheel_holds_exactly_the_tree(tree: Path, wheel: Path) -> None:
    expected, found = installed_files(tree), wheel_files(wheel)
    assert sorted(found) == sorted(expected)
    assert found == expected
    assert {"velaray/__init__.py", "velaray/events/events.proto", "velaray/wire/py.typed"} < set(
        found
    )


def test_the_wheel_puts_one_name_into_site_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
        (info,) = [top for top in tops if top.endswith(".dist-info")]
        names = archive.namelist()
        entry_points = archive.read(f"{info}/entry_points.txt").decode()
    assert tops == {"velaray", info}
    assert f"{info}/licenses/LICENSE" in names
    assert "velaray = velaray.cli.app:main" in entry_points


def test_the_sdist_builds_the_same_wheel(built: Path, wheel: Path, tmp_path: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    run(
        *(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", "out", "."),
        cwd=source,
    )
    (rebuilt,) = (source / "out").glob("*.whl")
    assert wheel_files(rebuilt) == wheel_files(wheel)
    assert (source / "LICENSE").is_file() and (source / "README.md").is_file()


def test_an_installed_wheel_is_imported_from_anywhere(
    tree: Path, installed: Path, tmp_path: Path
) -> None:
    modules = modules_of(installed_files(tree))
    assert "velaray.events" in modules and "velaray" in modules
    script = "import importlib, sys; [print(importlib.import_module(m).__file__)" + (
        " for m in sys.argv[1:]]"
    )
    places = run(installed, "-c", script, *modules, cwd=tmp_path).splitlines()
    assert all(Path(place).is_relative_to(installed.parent.parent) for place in places)
    assert len(places) == len(modules)


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer != "velaray"])
def test_no_bare_layer_is_importable(installed: Path, tmp_path: Path, layer: str) -> None:
    script = (
        "import importlib.util, sys; sys.exit(importlib.util.find_spec(sys.argv[1]) is not None)"
    )
    run(installed, "-c", script, layer, cwd=tmp_path)


def test_an_editable_install_sees_a_new_module_at_once(tree: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(tree, copy, symlinks=True, ignore=shutil.ignore_patterns("build"))
    python = fresh_environment(tmp_path / "venv")
    tools = tmp_path / "tools"
    tools.mkdir()
    for path in LIBRARIES.iterdir():
        if path.name.split("-")[0] in BUILD_TOOLS:
            (tools / path.name).symlink_to(path)
    pip_install(
        *(python, "--no-build-isolation", "--editable", copy),
        cwd=tmp_path,
        PYTHONPATH=str(tools),
    )
    borrow_libraries(python)
    (copy / "events" / "brand_new.py").write_text("WORD = 'seen'\n")
    (copy / "velaray" / "just_made.py").write_text("WORD = 'at once'\n")
    script = (
        "from velaray.events.brand_new import WORD; from velaray import just_made;"
        "print(WORD, just_made.WORD)"
    )
    assert run(python, "-c", script, cwd=tmp_path) == "seen at once\n"


@pytest.mark.ray
@pytest.mark.parametrize("install", ["wheel", "editable"])
def test_a_ray_worker_imports_every_layer(
    request: pytest.FixtureRequest, tree: Path, tmp_path: Path, install: str
) -> None:
    if install == "wheel":
        python = request.getfixturevalue("installed")
        home = python.parent.parent
    else:
        python, home = Path(sys.executable), ROOT
    modules = modules_of(installed_files(tree))
    # Ray's sockets need a short path.
    with tempfile.TemporaryDirectory(prefix="vr-") as ray_files:
        output = run(python, "-c", RAY_SCRIPT, ray_files, *modules, cwd=tmp_path)
    places = output.splitlines()
    assert len(places) == len(modules)
    assert all(Path(place).is_relative_to(home) for place in places)
