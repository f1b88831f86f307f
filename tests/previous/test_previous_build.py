"""A recorded build that cannot be made is a failure that says what to do, and never a skip."""

import pytest

from tests.support.previous_build import PreviousBuildError, Recorded, environment, install


def test_a_commit_that_is_not_in_the_clone_is_to_be_fetched(tmp_path):
    with pytest.raises(PreviousBuildError, match="git fetch --unshallow origin"):
        environment(Recorded("0" * 40, "0" * 64), tmp_path)


def test_another_lock_than_the_recorded_one_is_named(tmp_path):
    with pytest.raises(PreviousBuildError, match=r"uv\.lock of .* has SHA-256"):
        environment(Recorded("HEAD", "0" * 64), tmp_path)


def test_what_cannot_be_installed_is_told_with_the_command(tmp_path):
    with pytest.raises(PreviousBuildError, match="uv sync --frozen"):
        install(tmp_path, tmp_path / "venv")
