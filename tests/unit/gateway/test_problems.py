from pathlib import Path

import pytest

from crypto.errors import CryptoError, KeyDenied, KeyUnavailable, RootKeyInvalid
from gateway import limits, problems
from gateway.openapi import golden
from storage.blob_io import BlobTooLarge
from storage.errors import HeadMoved, StateTooLarge, StorageError

ROOT = Path(__file__).parents[3]


def tree(base: type[Exception]) -> list[type[Exception]]:
    return [base, *(found for child in base.__subclasses__() for found in tree(child))]


def test_every_error_of_storage_crypto_and_gateway_has_a_row_of_its_own():
    everything = [
        error for base in (StorageError, CryptoError, problems.GatewayError, limits.Refused) for error in tree(base)
    ]
    ours = {
        error
        for error in everything
        if error.__module__.split(".")[0] in {"storage", "crypto", "gateway"}
        and not error.__name__.startswith("_")  # a module's own: outside it, it is its ancestor
    }
    assert len(ours) > 40
    assert ours <= problems.TABLE.keys()


def test_one_code_means_one_thing():
    for kind in problems.TABLE.values():
        assert problems.KINDS[kind.code] == kind
        assert kind.retryable == (kind.retry_after_seconds is not None), kind.code


def describe(error: Exception):
    return problems.describe(error, public_url="https://x.example", instance="/v1/whoami", request_id="r")


def test_errors_that_are_not_ours_say_nothing_of_themselves():
    problem, _ = describe(ValueError("secret"))
    assert "secret" not in repr(problem)
    assert (problem.status, problem.code, problem.retryable) == (500, "internal", False)


def test_retry_after_is_whole_seconds_and_at_least_one():
    assert describe(KeyUnavailable(0.2))[1]["retry-after"] == "1"
    assert describe(KeyUnavailable(7.4))[1]["retry-after"] == "7"


@pytest.mark.parametrize("error", [RootKeyInvalid("no root key file at /etc/secret"), KeyDenied("token expired")])
def test_a_root_key_that_is_away_or_refuses_may_come_back_and_is_not_named(error):
    problem, headers = describe(error)
    assert (problem.status, problem.code, problem.retryable) == (503, "key-unavailable", True)
    assert int(headers["retry-after"]) > 0
    assert str(error) not in repr(problem)


def test_a_moved_head_names_the_head_even_when_there_is_none():
    assert describe(HeadMoved(None))[0].head_id is None


def test_frames_show_where_but_no_text():
    with pytest.raises(ValueError, match="secret") as raised:
        int_of_secret()
    assert "secret'" not in "".join(problems.frames(raised.value))
    assert any("int_of_secret" in frame for frame in problems.frames(raised.value))


def int_of_secret() -> None:
    raise ValueError("the secret")


def test_the_page_of_problems_is_up_to_date():
    assert (ROOT / "docs/problems.md").read_text() == problems.page(), "run python -m gateway.problems"


def test_the_openapi_document_is_up_to_date():
    assert (ROOT / "tests/golden/openapi.json").read_text() == golden(), "run python -m gateway.openapi"


@pytest.mark.parametrize(
    ("error", "limit"),
    [
        (StateTooLarge(64), "RESOLVED_BYTES_MAX"),
        (BlobTooLarge(), "ARTIFACT_BYTES_MAX"),
        (problems.BodyTooLarge(), "BODY_BYTES_MAX"),
        (problems.BodyTooLarge("PART_BYTES_MAX", 5), "PART_BYTES_MAX"),
    ],
)
def test_what_is_too_large_names_its_limit(error, limit):
    problem, _ = describe(error)
    assert (problem.status, problem.limit) == (413, limit)
