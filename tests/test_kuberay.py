"""The manifests for KubeRay are well formed and fit velaray's options."""

from __future__ import annotations

import json
import shlex
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import click
import yaml
from packaging.requirements import Requirement

from velaray.cli.app import main
from velaray.topology.ray_nodes import DATA_RESOURCE

FOLDER = Path(__file__).parents[1] / "deploy" / "kuberay"
JOB, SERVICE = yaml.safe_load_all((FOLDER / "velaray.yaml").read_text(encoding="utf-8"))


def groups() -> list[dict[str, Any]]:
    """The groups of pods."""
    cluster = JOB["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]


def test_the_driver_gets_options_that_there_are() -> None:
    program, command, *options = shlex.split(JOB["spec"]["entrypoint"])
    assert (program, command) == ("velaray", "start")
    start = main.commands["start"]
    known = {name for each in start.get_params(click.Context(start)) for name in each.opts}
    assert {option for option in options if option.startswith("--")} <= known


def test_every_node_runs_actors_and_has_what_they_need() -> None:
    for group in groups():
        assert DATA_RESOURCE in json.loads(json.loads(group["rayStartParams"]["resources"]))
        (container,) = group["template"]["spec"]["containers"]
        assert {"secretRef": {"name": "velaray-store"}} in container["envFrom"]
        (mount,) = container["volumeMounts"]
        assert f"{mount['mountPath']}/token-key" in JOB["spec"]["entrypoint"]


def test_the_service_reaches_the_proxies_of_all_nodes() -> None:
    ports = {port["targetPort"]: port["port"] for port in SERVICE["spec"]["ports"]}
    for group in groups():
        labels = group["template"]["metadata"]["labels"]
        assert SERVICE["spec"]["selector"].items() <= labels.items()
        (container,) = group["template"]["spec"]["containers"]
        assert {port["name"]: port["containerPort"] for port in container["ports"]} == ports
    for name in ("service", "admin"):
        assert f"--{name}-port {ports[name]}" in JOB["spec"]["entrypoint"]


def test_the_image_has_a_version_of_ray_that_velaray_works_with() -> None:
    version = JOB["spec"]["rayClusterSpec"]["rayVersion"]
    first = (FOLDER / "Dockerfile").read_text(encoding="utf-8").splitlines()
    assert f"FROM rayproject/ray:{version}-py311" in first
    needed = [each for each in map(Requirement, requires("velaray") or []) if each.name == "ray"]
    assert needed and all(version in each.specifier for each in needed)
