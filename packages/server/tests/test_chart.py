"""The chart, the compose file, the dashboard and the alerts: valid, safe, and true to the program."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import click
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from toolscout.learn.drift_report import DriftReport
from toolscout_server import Limits
from toolscout_server.metrics import Metrics

DEPLOY = Path(__file__).parents[3] / "deploy"


def find_helm() -> str | None:
    """The program that `scripts/get_helm.py` wrote, beside the sources or into the environment."""
    places = DEPLOY.parent / ".helm", Path(sys.executable).parent
    return next((found for place in places if (found := shutil.which("helm", path=str(place)))), None)


HELM = os.environ.get("TOOLSCOUT_HELM") or shutil.which("helm") or find_helm()
needs_helm = pytest.mark.skipif(HELM is None, reason="needs helm: python scripts/get_helm.py .helm")
CASES = {
    "the defaults": {"policy": "x"},
    "a folder as home": {"policy": "x", "home.address": "", "replicas": "1", "home.storageClass": "fast"},
    "the gateway": {"policySecret": "mine", "command": "gateway", "settings.LOG_FORMAT": "json"},
    "an ingress": {"policy": "x", "ingress.enabled": "true", "ingress.className": "nginx", "ingress.tlsSecret": "tls"},
}


def run_helm(*words: str, **values: str) -> subprocess.CompletedProcess[str]:
    options = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
    assert HELM is not None
    return subprocess.run([HELM, *words, *options], capture_output=True, text=True, check=False)


def render(values: dict[str, str]) -> list[dict[str, Any]]:
    done = run_helm("template", "tools", str(DEPLOY / "chart"), **values)
    assert done.returncode == 0, done.stderr
    return [part for part in yaml.safe_load_all(done.stdout) if part]


def check_command(words: list[str]) -> None:
    """Check that the program would understand a command line."""
    from toolscout.cli.main import program

    assert words[0] == "toolscout"
    root = click.Context(program, info_name="toolscout", **program.context_settings)
    command = program.get_command(root, words[1])
    assert command is not None
    if not any(name.startswith("/etc/") for name in words):  # a file that is only there in the container
        command.make_context(words[1], words[2:], root)


@needs_helm
def test_the_chart_passes_the_linter() -> None:
    done = run_helm("lint", "--strict", str(DEPLOY / "chart"), policy="x")
    assert done.returncode == 0, done.stdout


@needs_helm
@pytest.mark.parametrize("case", CASES)
def test_what_the_chart_renders_is_valid_and_runs_the_program_without_rights(case: str) -> None:
    validate = pytest.importorskip("kubernetes_validate").validate
    parts = render(CASES[case])
    for part in parts:
        validate(part, "1.31", strict=True)
    pods = [part["spec"]["template"]["spec"] for part in parts if part["kind"] == "Deployment"]
    pods += [part["spec"]["jobTemplate"]["spec"]["template"]["spec"] for part in parts if part["kind"] == "CronJob"]
    assert len(pods) == (1 if case == "a folder as home" else 2)
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"] and pod["automountServiceAccountToken"] is False
        for container in [*pod["containers"], *pod.get("initContainers", [])]:
            rights = container["securityContext"]
            assert rights["readOnlyRootFilesystem"] and rights["allowPrivilegeEscalation"] is False
            assert rights["capabilities"] == {"drop": ["ALL"]}
            check_command(container["command"])
    assert ("PersistentVolumeClaim" in {part["kind"] for part in parts}) == (case == "a folder as home")


@needs_helm
@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "set policy or policySecret"),
        ({"policy": "x", "home.address": ""}, "a folder serves one replica"),
        ({"policy": "x", "home.address": "postgresql://me:secret@db/x"}, "home/address"),
        ({"policy": "x", "command": "bash"}, "command"),
    ],
)
def test_values_that_cannot_work_are_refused(values: dict[str, str], says: str) -> None:
    done = run_helm("template", "tools", str(DEPLOY / "chart"), **values)
    assert done.returncode != 0 and says in done.stderr


@needs_helm
def test_a_pod_has_time_to_drain_and_to_answer() -> None:
    [deployment] = [part for part in render({"policy": "x", "drainSeconds": "7"}) if part["kind"] == "Deployment"]
    pod = deployment["spec"]["template"]["spec"]
    environment = {entry["name"]: entry.get("value") for entry in pod["containers"][0]["env"]}
    assert environment["TOOLSCOUT_DRAIN_SECONDS"] == "7"
    assert pod["terminationGracePeriodSeconds"] > 7 + Limits().patience


def test_the_compose_file_is_valid_and_its_containers_have_no_rights() -> None:
    text = (DEPLOY / "compose.yaml").read_text()
    compose = pytest.importorskip("compose_spec")
    compose.PyCompose.from_yaml(yaml.safe_dump(yaml.safe_load(text))).validate()  # the binding merges no `<<`
    services = yaml.safe_load(text)["services"]
    for name in ("policy", "service", "learn"):
        assert services[name]["read_only"] and services[name]["cap_drop"] == ["ALL"]
        check_command(services[name]["command"])
    drain = float(services["service"]["environment"]["TOOLSCOUT_DRAIN_SECONDS"])
    assert int(services["service"]["stop_grace_period"].removesuffix("s")) >= drain + Limits().patience


def list_exposed_metrics() -> set[str]:
    """The names of all samples that the service and the gateway expose."""
    metrics = Metrics(lambda: 0, lambda: 0, lambda: 0)
    metrics.count_request("GET", "/", 200, 0.1)
    metrics.count_batch(1)
    metrics.count_search("tools")
    metrics.count_event("call")
    metrics.show_drift(DriftReport(state="quiet", champion="scout"))
    health = pytest.importorskip("toolscout_gateway.health")
    server = health.ServerState(
        name="a", transport="http", state="ok", message="", calls=1, failed_calls=0, failures_in_a_row=0, in_flight=0,
        starts=1,
    )  # fmt: skip
    state = SimpleNamespace(processes=1, max_processes=2, servers=[server])
    gateway = health.Health.render_metrics(cast(Any, SimpleNamespace(describe=lambda: state)))
    return {
        sample.name
        for text in (metrics.render(), gateway)
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }


def list_named_metrics(expressions: list[str]) -> set[str]:
    return {name for text in expressions for name in re.findall(r"\b(?:toolscout|process)_[a-z_]+", text)}


def test_the_dashboard_reads_metrics_that_the_program_exposes() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    named, exposed = list_named_metrics(expressions), list_exposed_metrics()
    assert named and sorted(named - exposed) == []
    numbers = [panel["id"] for panel in board["panels"]]
    assert len(numbers) == len(set(numbers)) and board["schemaVersion"] >= 39
    shown = {"toolscout_events_total", "toolscout_request_seconds_bucket", "toolscout_drift_alarms"}
    assert shown <= named


def test_the_alerts_read_metrics_that_the_program_exposes() -> None:
    groups = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    assert sorted(list_named_metrics([rule["expr"] for rule in rules]) - list_exposed_metrics()) == []
    assert all(rule["annotations"]["summary"] and rule["labels"]["severity"] for rule in rules)
