"""The files for process managers: they parse, their commands are ours, their times fit."""

import configparser
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from millpond.cli import health, worker
from millpond.cli.main import COMMANDS
from millpond.telemetry.prometheus import Collector

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "docs/examples/deploy"
PAGE = (ROOT / "docs/how-to/deploy-workers.md").read_text("utf-8")
MARGIN = 10
"""Seconds that a process manager must wait beyond the grace period."""


def text_of(name: str) -> str:
    return (DEPLOY / name).read_text("utf-8")


def unit() -> configparser.ConfigParser:
    """The unit of systemd."""
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(text_of("mail-worker.service"))
    return found


def container() -> dict[str, Any]:
    """The pod of the deployment."""
    spec = yaml.safe_load(text_of("kubernetes.yaml"))["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def dockerfile(word: str) -> list[str]:
    """A command of the image."""
    (found,) = re.findall(rf"^{word}\b.*?(\[.*\])$", text_of("Dockerfile"), re.MULTILINE)
    return [str(part) for part in json.loads(found)]


def commands() -> dict[str, list[str]]:
    """Every command that a file runs."""
    compose = yaml.safe_load(text_of("compose.yaml"))["services"]
    pod = container()["containers"][0]
    return {
        "systemd": shlex.split(unit()["Service"]["ExecStart"]),
        "docker": dockerfile("CMD"),
        "docker health": dockerfile("HEALTHCHECK"),
        "compose worker": compose["worker"]["command"],
        "compose migrate": compose["migrate"]["command"],
        "kubernetes": pod["command"] + pod["args"],
    }


@pytest.mark.parametrize("name", commands())
def test_the_commands_exist_and_their_options_parse(name: str) -> None:
    """Each is `millpond` and a command of ours."""
    program, command, *arguments = commands()[name]
    assert "millpond" == Path(program).name
    assert command in COMMANDS
    parsers = {"worker": worker.parser, "health": health.parser}
    if command in parsers:
        parsers[command]().parse_args(arguments)


def test_process_managers_wait_longer_than_the_grace_period() -> None:
    """Otherwise they kill a worker while it drains."""
    compose = yaml.safe_load(text_of("compose.yaml"))["services"]["worker"]
    waits = {
        "systemd": int(unit()["Service"]["TimeoutStopSec"]),
        "compose worker": int(compose["stop_grace_period"].removesuffix("s")),
        "kubernetes": container()["terminationGracePeriodSeconds"],
    }
    for name, seconds in waits.items():
        grace = worker.parser().parse_args(commands()[name][2:]).grace
        assert seconds >= grace + MARGIN, name


def test_probes_ask_paths_that_exist_on_an_address_that_they_reach() -> None:
    """A probe of the kubelet does not come from 127.0.0.1."""
    pod = container()["containers"][0]
    address = worker.parser().parse_args(commands()["kubernetes"][2:]).health_port
    assert ("0.0.0.0", pod["ports"][0]["containerPort"]) == (address.host, address.port)  # noqa: S104
    probes = {name: pod[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    assert {"/live", "/ready"} == {probe["path"] for probe in probes.values()}
    assert "/live" == probes["liveness"]["path"]
    assert {"health"} == {probe["port"] for probe in probes.values()}


def test_the_autoscaler_asks_for_a_metric_that_exists() -> None:
    """And by a label that it has."""
    from millpond import Millpond

    (trigger,) = yaml.safe_load(text_of("keda.yaml"))["spec"]["triggers"]
    (metric,) = re.findall(r"millpond_\w+", trigger["metadata"]["query"])
    labels = {one.name: one._labelnames for one in Collector(Millpond()).describe()}  # type: ignore[attr-defined]
    assert ("pool",) == tuple(labels[metric])


@pytest.mark.parametrize(
    "name", ["mail-worker.service", "Dockerfile", "kubernetes.yaml", "keda.yaml"]
)
def test_the_page_shows_the_files(name: str) -> None:
    """Line for line."""
    assert f"\n{text_of(name)}```" in PAGE
