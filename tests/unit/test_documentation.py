import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import click
import pytest

from gateway.authentication import api_keys
from gateway.cli.commands import commands
from gateway.problems import KINDS
from gateway.settings import PREFIX, VARIABLES
from storage.format.manifest import CheckpointColumns, WriteColumns
from storage.keys.key_seals import Pepper, Peppers

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for folder in ("benchmarks", "deploy", "docs") for page in (ROOT / folder).rglob("*.md")),
        *(ROOT / "sdk" / "python").glob("*.md"),
    ]
)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
NAMED = re.compile(
    r"`((?:tests|sdk|gateway|storage|crypto|migrations|examples|docs)/[A-Za-z0-9_/.-]+\.(?:py|md|sql|sh))`"
)


def without_code(text):
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(page):
    titles = re.findall(r"^#+ (.*)$", without_code(page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for link in LINK.findall(without_code(page.read_text())):
        if "://" in link or link == "M-title.md":
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        assert file.exists(), link
        assert not anchor or anchor in anchors(file), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_is_named_exists(page):
    assert [name for name in NAMED.findall(page.read_text()) if not (ROOT / name).exists()] == []


def test_the_front_page_lists_every_setting_and_no_other():
    section = (ROOT / "README.md").read_text().split("## Settings")[1].split("##")[0]
    listed = [PREFIX + name for name in re.findall(r"^\| `([A-Z0-9_]+)`", section, re.MULTILINE)]
    assert sorted(listed) == sorted(VARIABLES)


def test_every_decision_and_format_is_in_its_index():
    for folder in ("adr", "formats"):
        index = (ROOT / "docs" / folder / "README.md").read_text()
        pages = {page.name for page in (ROOT / "docs" / folder).glob("*.md")} - {"README.md"}
        assert [name for name in sorted(pages) if f"({name})" not in index] == []


@pytest.mark.parametrize(("page", "columns"), [("manifest", CheckpointColumns), ("pending-write", WriteColumns)])
def test_a_format_page_lists_the_bound_columns_in_their_order(page, columns):
    section = (ROOT / "docs" / "formats" / f"{page}.md").read_text().split("## Location")[1].split("##")[0]
    listed = sorted((int(number), name) for number, name in re.findall(r"\| (\d+) \| ([a-z_]+)", section))
    assert [name for _, name in listed] == list(columns.__struct_fields__)


def test_troubleshooting_names_codes_metrics_and_commands_that_there_are():
    page = (ROOT / "docs" / "operations" / "troubleshooting.md").read_text()
    codes = re.findall(r"\b[45]\d\d `([a-z-]+)`", page)
    assert len(codes) > 20
    assert sorted(set(codes) - KINDS.keys()) == []
    known = (ROOT / "docs" / "operations" / "observability.md").read_text()
    assert [name for name in re.findall(r"stateroom_[a-z_]+", page) if f"`{name}" not in known] == []
    named = [line.split(" --")[0].split() for line in re.findall(r"\bstateroom ([a-z][a-z -]*[a-z])", page)]
    assert len(named) > 20
    for words in named:
        command = commands
        for word in words:
            found = command.get_command(click.Context(command), word)
            assert found is not None, words
            command = found


def test_observability_names_every_limit_and_round_that_metrics_show():
    page = (ROOT / "docs" / "operations" / "observability.md").read_text()
    source = "".join(path.read_text() for path in (ROOT / "gateway").rglob("*.py"))
    for metric, shown in (
        ("stateroom_limit`", r"\.bounded\(\s*\"([a-z_]+)\""),
        ("stateroom_round_success_timestamp_seconds`", r"\b(?:_repeat|round_ended)\(\"([a-z]+)\""),
    ):
        [row] = [line for line in page.splitlines() if line.startswith(f"| `{metric}")]
        names = set(re.findall(shown, source))
        assert len(names) > 3
        assert {name for name in names if f"`{name}`" not in row} == set()


def test_the_example_of_the_api_key_page_is_one():
    text = (ROOT / "docs" / "formats" / "api-key.md").read_text()
    example = re.search(r"sr_live_[0-9A-Za-z]{12}_[0-9A-Za-z]{49}$", text, re.MULTILINE)
    presented = api_keys.parse(example[0])
    assert presented is not None
    now = datetime(2026, 1, 1, tzinfo=UTC)
    peppers = Peppers(Pepper(1, bytes(32)))
    record, _ = api_keys.mint(peppers, api_keys.NewKey(kind="operator", permissions=("operator",), now=now), presented)
    assert record.mac.hex() in text
    assert record.seal.mac.hex() in text
    assert peppers.seal(replace(record, revoked_at=now)).seal.mac.hex() in text
