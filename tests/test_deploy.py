"""The files for containers, systemd and Kubernetes pass the linters and fit velaray's settings.

Nothing builds the image or applies the manifests: there is no daemon and no cluster.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from tests.support.local_cluster import LocalCluster
from velaray.cli.app import main
from velaray.settings_sources import resolve
from velaray.topology.config import AuthSettings

DEPLOY = Path(__file__).parents[1] / "deploy"
DOCKERFILE = DEPLOY / "docker" / "Dockerfile"
BIN = Path(sys.executable).parent


def passes(*command: str | Path) -> None:
    """Run a linter."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def environment() -> dict[str, str]:
    """The variables of velaray in the image."""
    text = DOCKERFILE.read_text(encoding="utf-8")
    return dict(re.findall(r"\b(VELARAY_\w+)=(\S+)", text))


def manifests(name: str) -> list[dict[str, Any]]:
    """The resources in a file of deploy/kustomize."""
    return list(yaml.safe_load_all((DEPLOY / "kustomize" / name).read_text(encoding="utf-8")))


@pytest.mark.parametrize("name", ["docker", "kuberay"])
def test_the_dockerfiles_pass_hadolint(name: str) -> None:
    passes(BIN / "hadolint", "--no-color", DEPLOY / name / "Dockerfile")


def test_the_compose_file_follows_its_specification() -> None:
    schema = "--builtin-schema", "vendor.compose-spec"
    passes(BIN / "check-jsonschema", *schema, DEPLOY / "compose" / "compose.yaml")


def test_the_manifests_follow_the_schemas_of_kubernetes() -> None:
    files = [DEPLOY / "kustomize" / f"{name}.yaml" for name in ("statefulset", "service")]
    passes(BIN / "kubernetes-validate", "--strict", *files)


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="there is no kubectl")
def test_the_kustomization_is_built() -> None:
    passes("kubectl", "kustomize", DEPLOY / "kustomize")


def test_the_kustomization_names_its_resources_and_the_image() -> None:
    (found,) = manifests("kustomization.yaml")
    assert sorted([*found["resources"], "kustomization.yaml"]) == sorted(
        path.name for path in (DEPLOY / "kustomize").iterdir()
    )
    (container,) = manifests("statefulset.yaml")[0]["spec"]["template"]["spec"]["containers"]
    assert [each["name"] for each in found["images"]] == [container["image"]]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_the_unit_passes_systemd_analyze(tmp_path: Path) -> None:
    text = (DEPLOY / "systemd" / "velaray.service").read_text(encoding="utf-8")
    unit = tmp_path / "velaray.service"
    unit.write_text(text.replace("/opt/velaray/bin/velaray", shutil.which("true") or ""))
    passes("systemd-analyze", "verify", unit)


def test_the_unit_starts_velaray_with_options_that_there_are() -> None:
    text = (DEPLOY / "systemd" / "velaray.service").read_text(encoding="utf-8")
    (line,) = re.findall(r"^ExecStart=(.*)$", text, re.MULTILINE)
    _, command, *options = shlex.split(line)
    start = main.commands["start"]
    known = {name for each in start.get_params(click.Context(start)) for name in each.opts}
    assert command == "start" and {each for each in options if each.startswith("--")} <= known


def test_the_image_has_the_ports_and_the_user_of_the_manifests() -> None:
    text, given = DOCKERFILE.read_text(encoding="utf-8"), environment()
    ports = [int(given["VELARAY_SERVICE_PORT"]), int(given["VELARAY_ADMIN_PORT"])]
    assert f"EXPOSE {ports[0]} {ports[1]}" in text
    pod = manifests("statefulset.yaml")[0]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert [each["containerPort"] for each in container["ports"]] == ports
    assert f"USER {pod['securityContext']['runAsUser']}\n" in text
    (service,) = manifests("service.yaml")
    assert [each["port"] for each in service["spec"]["ports"]] == ports
    mounts = [each["mountPath"] for each in container["volumeMounts"]]
    assert str(Path(given["VELARAY_TOKEN_SECRET"]).parent) in mounts
    compose = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text(encoding="utf-8"))
    published = compose["services"]["velaray"]["ports"]
    assert [int(each.rpartition(":")[2]) for each in published] == ports


def test_the_settings_of_the_image_start_a_cluster(tmp_path: Path) -> None:
    key = tmp_path / "token-key"
    key.write_bytes(b"s" * 32)
    places = {"VELARAY_DATA": str(tmp_path / "data"), "VELARAY_TOKEN_SECRET": str(key)}
    settings = resolve({}, environment() | places).settings
    assert settings.local and settings.tunnel and settings.host == "0.0.0.0"


def test_the_health_check_fails_only_without_a_cluster(tmp_path: Path) -> None:
    def checked(port: int) -> int:
        program = [sys.executable, str(DEPLOY / "docker" / "healthcheck.py")]
        variables = {"VELARAY_ADMIN_PORT": str(port)}
        return subprocess.run(program, env=variables, capture_output=True, check=False).returncode

    with LocalCluster(tmp_path, auth=AuthSettings(secret=b"s" * 32)) as cluster:
        port = int(cluster.admin_url.rpartition(":")[2])
        assert checked(port) == 0
    assert checked(port) != 0
