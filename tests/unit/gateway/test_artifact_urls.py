import base64
import hashlib
import hmac
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import msgspec
import pytest

from gateway.http.artifact_urls import ArtifactUrls
from gateway.problems import ArtifactUrlInvalid
from storage.keys.key_seals import Pepper, Peppers

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
PEPPER = bytes(range(32))
PEPPERS = Peppers(Pepper(1, PEPPER))
URLS = ArtifactUrls(PEPPERS)


def made(**changes):
    granted = {
        "tenant_id": uuid4(),
        "subject_id": "user-1",
        "artifact_id": uuid4(),
        "epoch": 3,
        "expires_at": NOW + timedelta(seconds=60),
        "disposition": "inline",
    } | changes
    return granted, URLS.write(**granted)


def opened(token, urls=URLS, method="GET", now=NOW):
    return urls.read(token, method=method, now=now)


def parts(token):
    signed = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
    return signed[:32], signed[32:]


def join(mac, message):
    return base64.urlsafe_b64encode(mac + message).rstrip(b"=").decode()


def test_a_token_grants_what_it_was_made_for():
    granted, token = made()
    grant = opened(token)
    assert grant.method == "GET"
    assert {name: getattr(grant, name) for name in granted if name != "expires_at"} == {
        name: value for name, value in granted.items() if name != "expires_at"
    }


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "HEAD", "get"])
def test_it_is_for_one_method(method):
    with pytest.raises(ArtifactUrlInvalid):
        opened(made()[1], method=method)


def test_it_ends_at_its_moment():
    _, token = made()
    assert opened(token, now=NOW + timedelta(seconds=59))
    for late in (60, 61, 10**6):
        with pytest.raises(ArtifactUrlInvalid):
            opened(token, now=NOW + timedelta(seconds=late))


@pytest.mark.parametrize("place", range(7))
def test_no_member_of_it_can_be_changed(place):
    _, token = made()
    mac, message = parts(token)
    members = msgspec.msgpack.decode(message)
    other = msgspec.msgpack.decode(parts(made(epoch=4, subject_id="user-2", disposition="attachment")[1])[1])
    members[place] = {0: "PUT", 5: members[5] + 600}.get(place, other[place])
    with pytest.raises(ArtifactUrlInvalid):
        opened(join(mac, msgspec.msgpack.encode(members)))


def test_another_pepper_and_a_cursors_key_open_nothing():
    _, token = made()
    _, message = parts(token)
    with pytest.raises(ArtifactUrlInvalid):
        opened(token, ArtifactUrls(Peppers(Pepper(1, bytes(32)))))
    cursor_key = hmac.digest(PEPPER, b"stateroom/cursor/v1", hashlib.sha256)
    for key in (PEPPER, cursor_key, b""):
        with pytest.raises(ArtifactUrlInvalid):
            opened(join(hmac.digest(key, message, hashlib.sha256), message))


@pytest.mark.parametrize("token", ["", "A", "x" * 5000, "é", "A" * 43, "=", "....", "\0"])
def test_what_is_no_token_is_refused_alike(token):
    with pytest.raises(ArtifactUrlInvalid):
        opened(token)


def test_one_token_has_one_spelling():
    for length in range(1, 4):  # so that every number of unused bits in the last character occurs
        _, token = made(subject_id="u" * length)
        others = [token + "=", token + "==", token + "\n", " " + token, token.replace("-", "+").replace("_", "/") + " "]
        alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
        others += [token[:-1] + last for last in alphabet if last != token[-1]]
        for other in others:
            with pytest.raises(ArtifactUrlInvalid):
                opened(other)
