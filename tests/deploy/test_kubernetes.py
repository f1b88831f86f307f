"""What is below ``deploy/kubernetes``: it builds, fits the schemas of three versions, and its pods are hardened.

No cluster was asked: what an API server says beyond its schemas, and how pods fare, is not shown here.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.settings import PREFIX, SECRETS, VARIABLES
from tests.deploy.conftest import DEPLOY, installed
from tests.deploy.prometheus_rule import prometheus_rule

FOLDER = DEPLOY / "kubernetes"
TARGETS = ["base", "overlays/production", "overlays/pgbouncer"]
VERSIONS = ["1.33", "1.35", "1.37"]
OWN_KINDS = {"ServiceMonitor", "PrometheusRule", "ExternalSecret"}  # of operators, so in no schema of Kubernetes' own
FINISH_SECONDS = 40  # what a gateway may need after its drain: docs/operations/install.md
REQUIRED = {"DATABASE_URL", "ROOT_KEY", "API_KEY_PEPPER", "DEPLOYMENT_ID", "S3_URL"}


def test_the_rules_are_those_of_prometheus():
    assert (FOLDER / "base" / "prometheus-rule.yaml").read_text() == prometheus_rule(), (
        "see tests/deploy/prometheus_rule.py"
    )


def test_pgbouncer_is_configured_as_everywhere():
    ours = FOLDER / "overlays" / "pgbouncer" / "pgbouncer.ini"
    assert ours.read_text() == (DEPLOY / "postgres" / "pgbouncer.ini").read_text()


@pytest.fixture(scope="module", params=TARGETS)
def built(request, tool) -> list[dict[str, Any]]:
    done = subprocess.run([tool("kubectl"), "kustomize", FOLDER / request.param], check=True, capture_output=True)
    return list(yaml.safe_load_all(done.stdout))


def pods(built: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The pods of what makes some, by the names of their makers."""
    found = {}
    for each in built:
        name = f"{each['kind']}/{each['metadata']['name']}"
        if each["kind"] in {"Deployment", "Job"}:
            found[name] = each["spec"]["template"]["spec"]
        elif each["kind"] == "CronJob":
            found[name] = each["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    return found


def of_kind(built: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in built if each["kind"] == kind]


def validated(resources: list[dict[str, Any]], version: str, folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "built.yaml"
    file.write_text(yaml.safe_dump_all(resources))
    return subprocess.run(
        [sys.executable, "-m", "kubernetes_validate", "--strict", "-k", version, file],
        check=False, capture_output=True, text=True,
        env=os.environ | {"PYTHONPATH": str(installed("kubernetes-validate"))},
    )  # fmt: skip


@pytest.mark.deployed
@pytest.mark.parametrize("version", VERSIONS)
def test_what_is_built_fits_the_schemas(built, version, tmp_path):
    own = [each for each in built if each["kind"] not in OWN_KINDS]
    done = validated(own, version, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    of_kind(own, "Deployment")[0]["spec"]["template"]["spec"]["terminationGraceSeconds"] = 75
    refused = validated(own, version, tmp_path)
    of_kind(own, "Deployment")[0]["spec"]["template"]["spec"].pop("terminationGraceSeconds")
    assert refused.returncode
    assert "terminationGraceSeconds" in refused.stdout + refused.stderr


@pytest.mark.deployed
def test_every_pod_is_one_that_the_restricted_standard_admits(built):
    (namespace,) = of_kind(built, "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    assert len(pods(built)) >= 5
    for name, pod in pods(built).items():
        assert pod["securityContext"] == {
            "runAsNonRoot": True, "runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001,
            "seccompProfile": {"type": "RuntimeDefault"},
        }, name  # fmt: skip
        assert pod["automountServiceAccountToken"] is False, name
        assert pod["enableServiceLinks"] is False, name
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys(), name
        assert all(volume.keys() & {"secret", "configMap", "emptyDir"} for volume in pod["volumes"]), name
        for container in pod["containers"] + pod.get("initContainers", []):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
            }, name  # fmt: skip
            assert container["resources"]["limits"]["memory"], name
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}, name
            tag = container["image"].rpartition(":")[2]
            assert "@sha256:" in container["image"] or tag not in {"latest", container["image"]}, name


@pytest.mark.deployed
def test_what_serves_is_probed_where_probes_have_connections_of_their_own_and_may_finish_what_it_began(built):
    settings = settings_of(built)
    for each in of_kind(built, "Deployment"):
        pod = each["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
        needed = float(settings["STATEROOM_DRAIN_SECONDS"]) + FINISH_SECONDS
        assert pod["terminationGracePeriodSeconds"] > needed
        if container["image"].startswith("stateroom-gateway") or "/stateroom-gateway" in container["image"]:
            assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "metrics"}
            assert container["livenessProbe"]["httpGet"] == {"path": "/livez", "port": "metrics"}
            readiness = container["readinessProbe"]
            noticed = readiness["periodSeconds"] * readiness["failureThreshold"] + readiness["timeoutSeconds"]
            assert noticed < float(settings["STATEROOM_DRAIN_SECONDS"])
            assert readiness["timeoutSeconds"] > 3  # within which /readyz answers whatever hangs
    budgets = {each["metadata"]["name"] for each in of_kind(built, "PodDisruptionBudget")}
    many = {each["metadata"]["name"] for each in of_kind(built, "Deployment") if each["spec"]["replicas"] > 1}
    assert many == budgets
    for each in of_kind(built, "Deployment"):
        if each["metadata"]["name"] in many:
            assert each["spec"]["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
            assert each["spec"]["template"]["spec"]["topologySpreadConstraints"]


def settings_of(built: list[dict[str, Any]]) -> dict[str, str]:
    (found,) = [each for each in of_kind(built, "ConfigMap") if "stateroom-settings" in each["metadata"]["name"]]
    return found["data"]


@pytest.mark.deployed
def test_settings_are_ones_that_the_gateway_knows_and_secrets_are_files(built, request):
    settings = settings_of(built)
    for name in settings:
        assert name.removesuffix("_FILE") in VARIABLES
    for name in SECRETS:
        assert PREFIX + name.upper() not in settings
    if request.node.callspec.params["built"] != "base":
        given = {name.removeprefix(PREFIX).removesuffix("_FILE") for name in settings}
        assert given >= REQUIRED
    # Each file is one that a secret of the pod brings: in an overlay the external secrets say which there are.
    brought = {
        each["spec"]["target"]["name"]: {item["secretKey"] for item in each["spec"]["data"]}
        for each in of_kind(built, "ExternalSecret")
    }
    for name, pod in pods(built).items():
        (container,) = pod["containers"]
        variables = {each["name"]: each["value"] for each in container.get("env", ())}
        if "envFrom" in container:
            variables |= settings
        files = {Path(text) for variable, text in variables.items() if variable.endswith("_FILE")}
        mounts = {Path(each["mountPath"]) for each in container["volumeMounts"]}
        assert all(file.parent in mounts for file in files), name
        secrets = {each["secret"]["secretName"] for each in pod["volumes"] if "secret" in each}
        if brought and files:
            assert {file.name for file in files} <= set().union(*(brought[secret] for secret in secrets)), name


@pytest.mark.deployed
def test_only_what_migrates_sees_the_owner_and_only_what_verifies_an_operators_key(built):
    for secret, maker in (
        ("stateroom-owner", "Job/stateroom-migrate"),
        ("stateroom-operator", "CronJob/stateroom-verify"),
    ):
        holders = [name for name, pod in pods(built).items() if secret in str(pod["volumes"])]
        assert holders == [maker]


@pytest.mark.deployed
def test_nothing_is_reached_that_no_policy_names(built):
    policies = {each["metadata"]["name"]: each["spec"] for each in of_kind(built, "NetworkPolicy")}
    assert set(policies["stateroom-default"]["policyTypes"]) == {"Ingress", "Egress"}
    assert "ingress" not in policies["stateroom-default"]
    for name, policy in policies.items():
        for rule in policy.get("ingress", ()):
            assert rule["from"], name
            assert rule["ports"], name
    # A selector that fits no pod protects nothing.
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in built if each["kind"] in {"Deployment", "Job"}]
    labels += [
        each["spec"]["jobTemplate"]["spec"]["template"]["metadata"]["labels"] for each in of_kind(built, "CronJob")
    ]
    for kind in ("Service", "PodDisruptionBudget"):
        for each in of_kind(built, kind):
            selector = each["spec"].get("selector", {})
            selector = selector.get("matchLabels", selector)
            fitting = [each for each in labels if selector.items() <= each.items()]
            assert not selector or len(fitting) == 1, each["metadata"]["name"]
