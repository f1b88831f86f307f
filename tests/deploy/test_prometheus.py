"""The rules: complete, each tested, and about metrics that there are; by Prometheus' own tools in `make deployed`."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml
from prometheus_client import generate_latest

from gateway.telemetry import Metrics
from tests.support.metrics import exposition as exposition_of
from tests.support.promql import (
    DASHBOARDS,
    OF_OTHERS,
    PROMETHEUS,
    dashboard_of,
    families,
    groups,
    names_in,
    panels,
    rules,
)

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations"
ALERTS = {rule["alert"]: rule for rule in rules("alert")}
RECORDED = {rule["record"]: rule["expr"] for rule in rules("record")}
CASES = sorted((PROMETHEUS / "tests").glob("*.yml"))
WINDOWS = {"5m", "30m", "1h", "2h", "6h", "1d", "3d"}


@pytest.fixture(scope="module")
def exposition():
    return generate_latest(Metrics().registry).decode()


def test_every_alert_says_how_urgent_it_is_and_what_to_do():
    assert len(ALERTS) == len(rules("alert"))
    for name, rule in ALERTS.items():
        assert re.fullmatch(r"Stateroom([A-Z][a-z]+)+", name), name
        assert rule["labels"] == {"severity": rule["labels"]["severity"]}, name
        assert rule["labels"]["severity"] in {"page", "ticket"}, name
        assert rule["annotations"].keys() == {"summary", "runbook"}, name
        assert rule["annotations"]["runbook"] == f"deploy/runbooks/{name}.md"


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent():
    fires, silent = set(), set()
    for file in CASES:
        suite = yaml.safe_load(file.read_text())
        assert suite["group_eval_order"] == [group["name"] for group in groups_by_need()], file.name
        for case in suite["tests"]:
            for check in case["alert_rule_test"]:
                (fires if check["exp_alerts"] else silent).add(check["alertname"])
    assert fires == ALERTS.keys()
    assert silent == ALERTS.keys()


def groups_by_need():
    """What records before what is alerted by it."""
    return sorted(groups(), key=lambda group: "alert" in group["rules"][0])


def test_every_alert_is_in_a_row_of_the_pages_that_say_what_to_look_at():
    named = set()
    for page in ("observability", "blobs", "quotas"):
        rows = [line for line in (OPERATIONS / f"{page}.md").read_text().splitlines() if line.startswith("|")]
        named |= set(re.findall(r"/runbooks/(Stateroom\w+)\.md\)", "".join(rows)))
        if page == "observability":
            assert named == ALERTS.keys()
    assert named == ALERTS.keys()


def test_rules_ask_for_metrics_that_a_process_has(exposition):
    known = families(exposition) | OF_OTHERS | RECORDED.keys()
    for what, expression in [*RECORDED.items(), *((name, rule["expr"]) for name, rule in ALERTS.items())]:
        assert names_in(expression), what
        assert names_in(expression) <= known, what
    assert set().union(*(names_in(rule["expr"]) for rule in ALERTS.values())) >= RECORDED.keys()


def test_labels_that_rules_choose_by_are_labels_of_those_metrics():
    source = (Path(__file__).parents[2] / "gateway" / "telemetry.py").read_text()
    for name, expression in [*RECORDED.items(), *((name, rule["expr"]) for name, rule in ALERTS.items())]:
        for metric, chosen in re.findall(r"(stateroom_[a-z_]+)\{([^}]*)\}", expression):
            declared = re.search(rf'"{re.sub("_(bucket|count)$", "", metric)}".*?\)\n', source, re.DOTALL)
            assert declared, (name, metric)
            for label in set(re.findall(r"(\w+)(?:=|!)", chosen)) - {"job", "instance", "le"}:
                assert f'"{label}"' in declared[0], (name, metric, label)


def test_the_objective_of_latency_is_a_boundary_of_the_histogram():
    metrics = Metrics()
    metrics.request("/v1/threads/{thread_id}/checkpoints", "POST", 201, 0.1)
    text = generate_latest(metrics.registry).decode()
    boundaries = set(re.findall(r'^stateroom_request_seconds_bucket\{le="([^"]+)"', text, re.MULTILINE))
    asked = {bound for expression in RECORDED.values() for bound in re.findall(r'le="([^"]+)"', expression)}
    assert asked == {"0.5"}
    assert asked <= boundaries


@pytest.mark.parametrize("what", ["failed", "slow"])
def test_ratios_are_recorded_over_each_window_that_an_alert_asks_for(what):
    name = f"stateroom:requests_{what}:ratio_rate"
    recorded = {record.removeprefix(name): expression for record, expression in RECORDED.items() if name in record}
    assert recorded.keys() == WINDOWS
    for window, expression in recorded.items():
        assert set(re.findall(r"\[(\w+)\]", expression)) == {window}
    asked = re.findall(rf"{name}(\w+)", "".join(rule["expr"] for rule in ALERTS.values()))
    assert set(asked) == WINDOWS


def test_rules_go_by_the_jobs_that_are_scraped():
    config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    jobs = {job["job_name"] for job in config["scrape_configs"]}
    assert jobs == {"stateroom-gateway", "stateroom-worker", "stateroom-proxy"}
    named = re.findall(r'job=~?"([^"]+)"', "".join(rule["expr"] for rule in ALERTS.values()))
    assert {job for job in jobs for pattern in named if re.fullmatch(pattern, job)} == jobs
    for pattern in named:
        assert [job for job in jobs if re.fullmatch(pattern, job)], pattern


def test_alertmanager_routes_by_the_severities_there_are_and_holds_no_secret():
    text = (PROMETHEUS / "alertmanager.yml").read_text()
    config = yaml.safe_load(text)
    receivers = {receiver["name"] for receiver in config["receivers"]}
    assert {config["route"]["receiver"], *(route["receiver"] for route in config["route"]["routes"])} == receivers
    assert config["route"]["routes"][0]["matchers"] == ['severity="page"']
    assert not re.search(r"(password|_key|token|secret): ", text)


@pytest.mark.deployed
@pytest.mark.parametrize(
    "command",
    [
        ("promtool", "check", "rules", "rules/recording.yml", "rules/alerts.yml"),
        ("promtool", "check", "config", "prometheus.yml"),
        ("amtool", "check-config", "alertmanager.yml"),
    ],
    ids=lambda command: " ".join(command[:3]),
)
def test_its_own_tools_find_no_fault(tool, command):
    program, *arguments = command
    done = subprocess.run([tool(program), *arguments], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.deployed
@pytest.mark.parametrize("file", CASES, ids=lambda file: file.stem)
def test_alerts_fire_and_are_silent_as_their_cases_say(tool, file):
    command = [tool("promtool"), "test", "rules", str(file)]
    done = subprocess.run(command, cwd=PROMETHEUS, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.deployed
async def test_every_name_that_a_rule_or_a_dashboard_asks_for_is_in_a_real_scrape(watched):
    expressions = [rule["expr"] for rule in (*rules("alert"), *rules("record"))]
    for file in DASHBOARDS:
        expressions += [target["expr"] for panel in panels(dashboard_of(file)) for target in panel["targets"]]
    wanted = set().union(*map(names_in, expressions)) - OF_OTHERS - RECORDED.keys()
    for addresses in watched.metrics.values():  # each kind has all: what it does not do is 0 or NaN
        assert wanted <= families(await exposition_of(int(addresses[0].rpartition(":")[2])))
