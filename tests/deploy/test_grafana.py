"""Dashboards: files that Grafana reads, about metrics there are, each panel with something to show."""

import asyncio
import re

import pytest
import yaml

from tests.support.promql import DASHBOARDS, DEPLOY, dashboard_of, names_in, panels, rules
from tests.support.watched import job_that_waits, used

GRAFANA = DEPLOY / "grafana"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
TARGETS = [
    (file.stem, panel["title"], target["expr"])
    for file in DASHBOARDS
    for panel in panels(dashboard_of(file))
    for target in panel["targets"]
]
# What a deployment that is well has nothing of: counters that appear when something is refused or fails, state schemas.
RIGHTLY_EMPTY = {
    ("service", "Failures by route"),
    ("saturation", "Refused"),
    ("background", "States read, by version"),
    ("trust", "Refused"),
    ("trust", "Failed rounds"),
    ("trust", "Keys tried"),
}
FIRST_COUNT_SECONDS_MAX = 60.0


def test_there_are_dashboards_and_grafana_is_told_where():
    names = {file.name for file in DASHBOARDS}
    assert len(names) == 5
    readme = (GRAFANA / "README.md").read_text()
    assert {name for name in names if f"| `{name}` |" not in readme} == set()
    provider = yaml.safe_load((GRAFANA / "provisioning" / "dashboards" / "stateroom.yml").read_text())["providers"][0]
    assert f"| `dashboards/` | `{provider['options']['path']}` |" in readme
    [source] = yaml.safe_load((GRAFANA / "provisioning" / "datasources" / "prometheus.yml").read_text())["datasources"]
    assert (source["type"], source["isDefault"]) == ("prometheus", True)
    assert len({dashboard_of(file)["uid"] for file in DASHBOARDS}) == len(names)


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_a_dashboard_has_the_shape_that_grafana_reads(file):
    dashboard = dashboard_of(file)
    assert dashboard["uid"] == f"stateroom-{file.stem}"
    assert dashboard["title"].startswith("Stateroom: ")
    assert dashboard["schemaVersion"] == 38
    assert [each["name"] for each in dashboard["templating"]["list"]] == ["datasource"]
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    taken = set()
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        rows, columns = range(place["y"], place["y"] + place["h"]), range(place["x"], place["x"] + place["w"])
        cells = {(row, column) for row in rows for column in columns}
        assert not cells & taken, panel["title"]
        taken |= cells
    shown = list(panels(dashboard))
    assert len({panel["title"] for panel in shown}) == len(shown)
    for panel in shown:
        assert panel["type"] in {"timeseries", "stat"}
        assert panel["description"].endswith("."), panel["title"]
        assert panel["datasource"] == DATASOURCE
        references = [target["refId"] for target in panel["targets"]]
        assert sorted(set(references)) == references
        for target in panel["targets"]:
            assert target["datasource"] == DATASOURCE
            assert target["legendFormat"], panel["title"]


def test_dashboards_ask_for_names_that_rules_know_or_processes_have():
    known = (DEPLOY.parent / "docs" / "operations" / "observability.md").read_text()
    recorded = {rule["record"] for rule in rules("record")}
    for dashboard, title, expression in TARGETS:
        names = names_in(expression)
        assert names, (dashboard, title)
        for name in names - recorded:
            documented = re.sub("_(bucket|count|sum)$", "", name)
            assert f"`{documented}`" in known or documented.startswith("process_"), (dashboard, title, name)


def test_every_metric_of_a_process_is_on_a_dashboard():
    page = (DEPLOY.parent / "docs" / "operations" / "observability.md").read_text()
    listed = set(re.findall(r"^\| `(stateroom_\w+)`", page, re.MULTILINE))
    asked = {re.sub("_(bucket|count|sum)$", "", name) for *_, query in TARGETS for name in names_in(query)}
    through_rules = {name for rule in rules("record") if rule["record"] in asked for name in names_in(rule["expr"])}
    assert listed - asked - through_rules == set()


async def answered(prometheus, expression):
    """Whether a query of a dashboard has a number, now or before long."""
    asked = expression.replace("$__rate_interval", "1m")
    try:
        await prometheus.until(f"({asked}) == ({asked})", seconds=FIRST_COUNT_SECONDS_MAX)  # nothing that is NaN is
    except TimeoutError:
        return False
    return True


@pytest.mark.deployed
async def test_every_query_is_answered_and_no_panel_is_empty_that_should_not_be(watched, prometheus):
    await prometheus.ready()
    for _ in range(2):  # what only grew before it was scraped has no rate
        await used(watched)
        await prometheus.until('stateroom_request_seconds_count{status="201"}')
    async with job_that_waits(watched):
        answers = await asyncio.gather(*(answered(prometheus, expression) for *_, expression in TARGETS))
    empty = {(dashboard, title) for dashboard, title, _ in TARGETS}
    empty -= {(dashboard, title) for (dashboard, title, _), filled in zip(TARGETS, answers, strict=True) if filled}
    assert empty == RIGHTLY_EMPTY
