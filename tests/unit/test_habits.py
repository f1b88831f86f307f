"""The habits of the project: what its hosted CI runs, and how its changelog is kept."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_hosted_ci_uses_actions_by_commit_and_names_their_version():
    for workflow in WORKFLOWS:
        uses = re.findall(r"uses: (.*)", workflow.read_text())
        assert uses
        assert [each for each in uses if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", each)] == []


def test_what_ci_and_the_guide_for_contributors_make_exists():
    for page in (*WORKFLOWS, ROOT / ".ci" / "run", ROOT / "CONTRIBUTING.md", ROOT / ".pre-commit-config.yaml"):
        made = re.findall(r"(?:^|`|run: |entry: )make ([a-z-]+)", page.read_text(), re.MULTILINE)
        assert made, page
        assert set(made) <= TARGETS, page


def test_the_changelog_has_a_section_for_each_version_the_newest_first():
    titles = re.findall(r"^## \[(.*?)\](?: - (\d{4}-\d\d-\d\d))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert len(titles) == (ROOT / "CHANGELOG.md").read_text().count("\n## ")
    dated = [(tuple(map(int, version.split("."))), date) for version, date in titles if version != "Unreleased"]
    assert dated == sorted(dated, reverse=True)
    assert len({version for version, _ in dated}) == len(dated)
    assert [version for version, _ in titles].index("Unreleased") == 0
