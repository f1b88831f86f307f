import re
import time
from pathlib import Path

import msgspec
import pytest

from crypto.errors import CryptoError, KeyDenied, KeyUnavailable, RootKeyInvalid
from gateway import problems, wire
from gateway.admission import limits
from gateway.bodies import validation
from gateway.documents.openapi import golden
from gateway.wire.checkpoints import DecryptRequest, SaveRequest, WritesRequest
from gateway.wire.schemas import StateRollbackRequest
from storage.errors import HeadMoved, StateTooLarge, StorageError
from storage.ledger.streams import BlobTooLarge

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
    return problems.describe(error, public_url="https://x.example", request_id="r")


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
    assert (ROOT / "tests/golden/openapi.json").read_text() == golden(), "run python -m gateway.documents.openapi"


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


@pytest.mark.parametrize(
    ("body", "what", "steps"),
    [
        ('{"status":"%s"}', "status must be one of the allowed values", ("status",)),
        ('{"%s":1}', "unknown member", ()),
        ('{"model":{"%s":1}}', "unknown member", ("model",)),
    ],
)
def test_what_is_wrong_is_found_at_once_however_long_a_name_is(body, what, steps):
    def seconds(length: int) -> float:
        with pytest.raises(msgspec.ValidationError) as wrong:
            msgspec.json.decode(body % ("n" * length), type=SaveRequest)
        begun = time.process_time()
        assert validation.explain(wrong.value)[:2] == (what, steps)
        return time.process_time() - begun

    assert seconds(8_000_000) < 0.1 * 8_000_000 / 20_000 * max(seconds(20_000), 1e-5)


@pytest.mark.parametrize(
    ("shape", "sent", "pointer"),
    [
        (SaveRequest, {"status": "running"}, ("status",)),
        (WritesRequest, {"writes": [], "status": "paused"}, ("status",)),
    ],
)
def test_what_is_not_one_of_the_allowed_words_is_told_which_they_are(shape, sent, pointer):
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.convert(sent, shape)
    what, steps, _ = validation.explain(caught.value, shape)
    assert (what.startswith("status must be one of "), steps) == (True, pointer)
    assert {"active", "waiting", "failed"} <= {*what.removeprefix("status must be one of ").split(", ")}
    assert "running" not in what
    assert validation.explain(caught.value).what == "status must be one of the allowed values"


@pytest.mark.parametrize(
    ("shape", "sent", "what", "limit"),
    [
        (wire.artifacts.ArtifactUrlRequest, {"ttl_seconds": 901}, "ttl_seconds must be 1 to 900 seconds", None),
        (StateRollbackRequest, {"threads_per_second": 0}, "threads_per_second must be 1 to 1,000 a second", None),
        (SaveRequest, {"agent": ""}, "agent must have 1 to 255 characters", None),
        (SaveRequest, {"agent": "a" * 256}, "agent must have 1 to 255 characters", "NAME_BYTES_MAX"),
        (SaveRequest, {"namespace": "n" * 1025}, "namespace must have at most 1,024 characters",
         "NAMESPACE_BYTES_MAX"),
        (SaveRequest, {"step": 2**31}, "step must be -2,147,483,648 to 2,147,483,647", None),
        (SaveRequest, {"step": "1"}, "step must be an integer, not text", None),
        (SaveRequest, {"delta_channels": ["a", ""]}, "delta_channels[1] must have 1 to 255 characters", None),
        (SaveRequest, {"source": "a b"}, "source must match ^[A-Za-z0-9._:-]{1,64}", None),
        (SaveRequest, {"agent": "a\0b"}, "agent must not hold the character NUL (U+0000)", None),
        (SaveRequest, {"channels": {"c": {"holes": [-1]}}}, "what is in channels must be at least 0", None),
        (DecryptRequest, {"reason": " "}, "reason must not be blank", None),
        (WritesRequest, {}, "writes is required", None),
        (WritesRequest, {"writes": [{"channel": "a", "idx": 0}] * 1001}, "writes must have at most 1,000 elements",
         "WRITES_MAX"),
        (wire.transfer.UnboundImport, {"export_id": "x"},
         "export_id must be a UUID, such as 01988d2e-7c31-7f60-9a3b-0d4c5e6f7081",
         None),
        (SaveRequest, [], "must be an object, not a list", None),
    ],
)  # fmt: skip
def test_a_bound_is_told_with_its_member_its_unit_and_both_ends(shape, sent, what, limit):
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(msgspec.json.encode(sent), type=shape)
    found = validation.explain(caught.value, shape)
    assert (found.what, found.limit) == (what, limit)


def test_no_word_of_the_validators_is_left_for_any_bound_of_a_body():
    for shape in (one for one in wire.SHAPES.values() if issubclass(one, wire.base.Request)):
        for member in msgspec.structs.fields(shape):
            for wrong in (-(2**70), 2**70, "", "x" * 300_000, [], [""] * 20_000, {}, None, 1.5, True):
                try:
                    msgspec.json.decode(msgspec.json.encode({member.name: wrong}), type=shape)
                except msgspec.ValidationError as error:
                    what = validation.explain(error, shape).what
                    assert not re.search(r"`|Expected|RFC3339|encoded", what), what
