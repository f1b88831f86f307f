"""Writes the PrometheusRule of ``deploy/kubernetes/base`` from the rules of ``deploy/prometheus``; JSON is YAML.

python -m tests.deploy.prometheus_rule > deploy/kubernetes/base/prometheus-rule.yaml
"""

import json
import sys

import yaml

from tests.deploy.conftest import DEPLOY


def prometheus_rule() -> str:
    """The resource as text, its groups in the order of the files' names."""
    files = sorted((DEPLOY / "prometheus" / "rules").glob("*.yml"))
    resource = {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "stateroom"},
        "spec": {"groups": [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]},
    }
    return f"# Written by tests/deploy/prometheus_rule.py.\n{json.dumps(resource, indent=1)}\n"


if __name__ == "__main__":
    sys.stdout.write(prometheus_rule())
