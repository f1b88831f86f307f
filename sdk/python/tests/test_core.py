import base64
import pickle  # noqa: TID251 - what process pools do to exceptions
from datetime import UTC, datetime

import msgspec
import pytest

from sdk.python.tests.fakes import API_KEY, URL, FakeClock
from stateroom import (
    SHARED,
    CommitUnknown,
    GatewayUnavailable,
    HeadMoved,
    InvalidRequest,
    LimitExceeded,
    NotConfigured,
    SubjectRequired,
    TenantBusy,
    Timeouts,
    acting_for,
    current_subject,
    encode_id,
)
from stateroom._protocol.core import Answer, Attempts, Call, Endpoint, path, retry_after_seconds

GET = Call(method="GET", path="/whoami", repeatable=True)
POST = Call(method="POST", path="/api-keys", repeatable=False)
JSON = {"content-type": "application/problem+json"}


def attempts(call=GET, clock=None, **timeouts):
    return Attempts(
        call, Timeouts(**timeouts), monotonic=(clock or FakeClock()).monotonic, jitter=lambda ceiling: ceiling
    )


def problem_body(code, *, retryable, **extra):
    return msgspec.json.encode({"code": code, "status": 0, "retryable": retryable, **extra})


@pytest.mark.parametrize("plain", ["a", "trip-7", "user@example.com", "a|b+c:d.e_f", "x" * 255])
def test_plain_ids_travel_as_they_are(plain):
    assert encode_id(plain) == plain


@pytest.mark.parametrize("odd", ["..", ".", "a/b", "~shared", "Zoë", "a b", "%2e", "x" * 256, "-a", "a\n", "\x00"])
def test_other_ids_travel_as_base64url_and_come_back(odd):
    encoded = encode_id(odd)
    assert encoded.startswith("~")
    assert "=" not in encoded
    padded = encoded[1:] + "=" * (-len(encoded[1:]) % 4)
    assert base64.urlsafe_b64decode(padded).decode() == odd


def test_empty_or_surrogate_ids_are_refused():
    for bad in ("", "\ud800"):
        with pytest.raises(InvalidRequest):
            encode_id(bad)


def test_ids_in_paths_cannot_change_the_path():
    assert path("threads", ":", "../admin", "checkpoints") == "/threads/~Li4vYWRtaW4/checkpoints"
    assert path("threads", ":", "a|b") == "/threads/a%7Cb"
    assert path("threads", ":", ":") == "/threads/~Og"


def test_a_path_refuses_an_id_that_no_gateway_takes_and_names_the_limit():
    assert path("threads", ":", "x" * 255) == "/threads/" + "x" * 255
    for long in ("x" * 256, "é" * 128):
        with pytest.raises(InvalidRequest, match="at most 255 bytes of UTF-8, and one has 256"):
            path("threads", ":", long)


def test_query_values_are_escaped():
    call = Call(method="GET", path="/checkpoints", query=(("filter", '{"a+b":"&"}'), ("cursor", None)))
    assert Endpoint(URL, API_KEY, None).target(call) == (
        "http://gateway.test/v1/checkpoints?filter=%7B%22a%2Bb%22%3A%22%26%22%7D"
    )


@pytest.mark.parametrize("url", ["http://h", "http://h/", "http://h/v1", "http://h/v1/"])
def test_the_url_may_or_may_not_name_the_api_version(url):
    assert Endpoint(url, API_KEY, None).target(GET) == "http://h/v1/whoami"


@pytest.mark.parametrize(
    ("url", "api_key"),
    [
        ("ftp://h", "k"),
        ("h:1", "k"),
        ("http://u:p@h", "k"),
        ("http://h:port", "k"),
        ("http://h:65536", "k"),
        ("http://[::1", "k"),
        ("http://h", ""),
        ("http://h", "a\nb"),
        ("http://h", "é"),
    ],
)
def test_unusable_configuration_is_refused_without_showing_the_key(url, api_key):
    with pytest.raises(NotConfigured) as caught:
        Endpoint(url, api_key, None)
    assert not api_key or api_key not in caught.value.detail.split()


def test_the_api_key_is_never_shown():
    assert API_KEY not in repr(Endpoint(URL, API_KEY, None))


def test_the_subject_follows_the_context_and_is_encoded():
    endpoint = Endpoint(URL, API_KEY, current_subject)
    with pytest.raises(SubjectRequired):
        endpoint.headers(GET)
    with acting_for("user-42"):
        assert endpoint.headers(GET)["Stateroom-Subject"] == "user-42"
        with acting_for("Zoë"):
            assert endpoint.headers(GET)["Stateroom-Subject"] == "~Wm_Dqw"
        assert endpoint.headers(GET)["Stateroom-Subject"] == "user-42"
    with pytest.raises(SubjectRequired):
        endpoint.headers(GET)


def test_the_tenants_own_subject_is_named_literally():
    assert Endpoint(URL, API_KEY, SHARED).headers(GET)["Stateroom-Subject"] == "~shared"


def test_a_key_bound_to_a_subject_needs_no_header():
    assert "Stateroom-Subject" not in Endpoint(URL, API_KEY, None).headers(GET)


def test_a_pinned_subject_outlives_the_block_it_was_pinned_in():
    endpoint = Endpoint(URL, API_KEY, current_subject)
    with acting_for("user-42"):
        pinned = endpoint.pin()
    with acting_for("user-43"):
        assert endpoint.headers(GET, pinned)["Stateroom-Subject"] == "user-42"


def test_a_retryable_problem_is_repeated_after_its_retry_after():
    trial = attempts()
    trial.begin()
    wait = trial.answered(429, {**JSON, "retry-after": "4"}, problem_body("tenant-busy", retryable=True))
    assert wait == 4.0


def test_a_problem_that_is_not_retryable_is_raised_at_once():
    trial = attempts()
    trial.begin()
    with pytest.raises(LimitExceeded) as caught:
        trial.answered(422, JSON, problem_body("limit-exceeded", retryable=False, limit="channels", request_id="r"))
    assert (caught.value.limit, caught.value.request_id) == ("channels", "r")


def test_a_wait_that_would_overrun_the_budget_is_not_begun():
    trial = attempts(total_seconds=3.0)
    trial.begin()
    with pytest.raises(TenantBusy):
        trial.answered(429, {**JSON, "retry-after": "4"}, problem_body("tenant-busy", retryable=True))


def test_waits_grow_exponentially_up_to_their_maximum():
    clock = FakeClock()
    trial = attempts(clock=clock)
    waits = []
    for _ in range(8):
        trial.begin()
        waits.append(trial.failed("no answer", received=True))
    assert waits == [0.1, 0.2, 0.4, 0.8, 1.6, 3.0, 3.0, 3.0]


def test_jitter_stays_between_nothing_and_the_ceiling():
    for _ in range(200):
        trial = Attempts(GET, Timeouts(), monotonic=FakeClock().monotonic)
        trial.begin()
        assert 0.0 <= trial.failed("no answer", received=True) <= 0.1


def test_an_attempt_never_waits_longer_than_what_is_left_of_the_budget():
    clock = FakeClock()
    trial = attempts(clock=clock)
    assert trial.begin() == (2.0, 10.0)
    clock.sleep(25.0)
    assert trial.begin() == (2.0, 5.0)
    clock.sleep(4.5)
    assert trial.begin() == (0.5, 0.5)


def test_an_attempt_that_the_budget_cuts_short_ends_with_what_the_gateway_said_before():
    clock = FakeClock()
    trial = attempts(clock=clock, total_seconds=3.0)
    trial.begin()
    clock.sleep(trial.answered(429, {**JSON, "retry-after": "2"}, problem_body("tenant-busy", retryable=True)))
    clock.sleep(trial.begin()[1])
    with pytest.raises(TenantBusy) as caught:
        trial.failed("no answer", received=True)
    assert "attempt 2" in str(caught.value.__cause__)


def test_an_attempt_that_fails_within_the_budget_says_itself_why():
    clock = FakeClock()
    trial = attempts(clock=clock, total_seconds=3.0)
    trial.begin()
    clock.sleep(trial.answered(429, {**JSON, "retry-after": "2"}, problem_body("tenant-busy", retryable=True)))
    trial.begin()
    clock.sleep(0.9)
    with pytest.raises(GatewayUnavailable, match="refused"):
        trial.failed("the connection was refused", received=False)


def test_a_cut_short_call_that_may_be_done_and_cannot_be_repeated_does_not_say_that_it_was_refused():
    clock = FakeClock()
    trial = attempts(POST, clock=clock, total_seconds=3.0)
    trial.begin()
    clock.sleep(trial.answered(429, {**JSON, "retry-after": "2"}, problem_body("tenant-busy", retryable=True)))
    clock.sleep(trial.begin()[1])
    with pytest.raises(GatewayUnavailable, match="no answer"):
        trial.failed("no answer", received=True)


def test_an_unrepeatable_call_is_repeated_only_if_it_cannot_have_been_received():
    trial = attempts(POST)
    trial.begin()
    assert trial.failed("no connection", received=False) == 0.1
    with pytest.raises(GatewayUnavailable):
        trial.failed("read timed out", received=True)


def test_an_unrepeatable_call_is_not_repeated_when_its_commit_is_unknown():
    body = problem_body("commit-unknown", retryable=True)
    with pytest.raises(CommitUnknown):
        attempts(POST).answered(503, JSON, body)
    trial = attempts(GET)
    trial.begin()
    assert trial.answered(503, JSON, body) == 0.1


@pytest.mark.parametrize(("status", "repeated"), [(502, True), (503, True), (504, True), (500, False), (302, False)])
def test_an_answer_that_is_not_the_gateways_is_no_success_and_shows_nothing(status, repeated):
    trial = attempts()
    trial.begin()
    page = b"<html>secret</html>"
    if repeated:
        assert trial.answered(status, {"content-type": "text/html"}, page) == 0.1
        return
    with pytest.raises(GatewayUnavailable) as caught:
        trial.answered(status, {"content-type": "text/html"}, page)
    assert "secret" not in str(caught.value)


def test_an_undecodable_success_is_an_error_without_its_content():
    answer = Answer(status=200, headers={"content-type": "application/msgpack"}, body=b"\xc1secret")
    with pytest.raises(GatewayUnavailable) as caught:
        answer.decode(dict)
    assert "secret" not in str(caught.value)


def test_retry_after_may_be_a_date_or_nonsense():
    now = lambda: datetime(2026, 11, 21, 10, 0, 0, tzinfo=UTC)  # noqa: E731
    assert retry_after_seconds("Sat, 21 Nov 2026 10:00:07 GMT", now) == 7.0
    assert retry_after_seconds("Sat, 21 Nov 2026 09:00:00 GMT", now) == 0.0
    assert [retry_after_seconds(text, now) for text in ("soon", "inf", "nan", "-3", "1.5")] == [
        0,
        0,
        0,
        0,
        1.5,
    ]


def test_errors_survive_pickling_with_all_they_say():
    error = HeadMoved("moved", code="head-moved", status=412, head_id="h", request_id="r")
    copied = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (type(copied), copied.head_id, str(copied)) == (HeadMoved, "h", str(error))


def test_unknown_problems_of_a_newer_gateway_keep_their_code_and_their_family():
    trial = attempts()
    with pytest.raises(GatewayUnavailable) as caught:
        trial.answered(507, JSON, problem_body("disk-full", retryable=False))
    assert caught.value.code == "disk-full"
