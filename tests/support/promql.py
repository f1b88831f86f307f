"""The rules and dashboards of ``deploy/`` as tests read them, and the names that a PromQL expression asks for."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
PROMETHEUS = DEPLOY / "prometheus"
DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
OF_OTHERS = {"up", "haproxy_backend_active_servers"}  # Prometheus' own, and the proxy's (`tests/deploy/test_proxy.py`)
_TEXT = re.compile(r"\"[^\"]*\"|'[^']*'")
_BRACES = re.compile(r"\{[^}]*\}|\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)")
_NAME = re.compile(r"\b(up|(?:stateroom|process|haproxy)[a-z0-9_]*(?::[a-z0-9_:]+)?)\b(?!\s*\()")


def groups() -> list[dict[str, Any]]:
    """All groups of rules, in the order of the files."""
    files = sorted((PROMETHEUS / "rules").glob("*.yml"))
    return [group for file in files for group in yaml.safe_load(file.read_text())["groups"]]


def rules(kind: str) -> list[dict[str, Any]]:
    """Rules of a kind, ``alert`` or ``record``."""
    return [rule for group in groups() for rule in group["rules"] if kind in rule]


def names_in(expression: str) -> set[str]:
    """The metrics and recorded names that an expression asks for."""
    return set(_NAME.findall(_BRACES.sub("", _TEXT.sub('""', expression))))


def families(exposition: str) -> set[str]:
    """The names under which samples of an exposition can be asked for."""
    found = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\S+)", exposition, re.MULTILINE):
        found |= {f"{name}_bucket", f"{name}_count", f"{name}_sum"} if kind == "histogram" else {name}
    return found


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The panels of a dashboard that ask something."""
    for panel in dashboard["panels"]:
        if panel["type"] != "row":
            yield panel


def dashboard_of(file: Path) -> dict[str, Any]:
    """A dashboard as its file has it."""
    loaded: dict[str, Any] = json.loads(file.read_text())
    return loaded
