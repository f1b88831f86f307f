"""Runbooks: a page an alert, links that lead somewhere, and commands that work as they stand."""

import re

import pytest

from tests.support.promql import DEPLOY, rules

PAGES = sorted((DEPLOY / "runbooks").glob("*.md"))
SEVERITIES = {rule["alert"]: rule["labels"]["severity"] for rule in rules("alert")}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NOT_RUN = "# Not run by a test: "


def without_code(text):
    return re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)


def anchors(page):
    titles = re.findall(r"^#+ (.*)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_alert_has_a_page_and_every_such_page_an_alert():
    assert {page.stem for page in PAGES if page.stem.startswith("Stateroom")} == SEVERITIES.keys()


@pytest.mark.parametrize("alert", SEVERITIES)
def test_a_page_says_how_urgent_it_is_where_to_look_what_to_decide_and_when_it_is_over(alert):
    text = (DEPLOY / "runbooks" / f"{alert}.md").read_text()
    assert text.startswith(f"# {alert}\n\n**{SEVERITIES[alert].capitalize()}.** ")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["First look", "Decide", "Over when"]
    assert BLOCK.search(text.split("## Decide")[0])
    assert text.split("## Decide")[1].count("\n| ") >= 2


def test_the_index_lists_every_page_and_how_urgent_it_is():
    text = (DEPLOY / "runbooks" / "README.md").read_text()
    listed = dict(re.findall(r"^\| \[(Stateroom\w+)\]\(\1\.md\) \| (\w+) \|$", text, re.MULTILINE))
    assert listed == SEVERITIES
    for page in PAGES:
        assert page.stem == "README" or f"({page.name})" in text, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page):
    for link in LINK.findall(without_code(page.read_text())):
        target, _, anchor = link.partition("#")
        if re.fullmatch(r"\.\./(compose|postgres|proxy|systemd)/README\.md", target):
            continue
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), link
        assert not anchor or anchor in anchors(file), link
