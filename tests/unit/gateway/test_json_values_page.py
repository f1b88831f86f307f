"""The examples of ``docs/json-values.md``, sent as a client sends them."""

import re
from pathlib import Path

import pytest

from gateway import wire
from gateway.admission import limits
from gateway.admission.slices import finish
from gateway.bodies import codec
from gateway.bodies.scanning import Values
from gateway.problems import GatewayError, describe
from storage.errors import InvalidState, LimitExceeded, StorageError
from storage.model import Value

PAGE = (Path(__file__).parents[3] / "docs" / "json-values.md").read_text()


def rows(*titles):
    """The rows of all tables with these titles, without the marks of code."""
    found = []
    for table in re.findall(r"(?:^\|.*\n)+", PAGE, re.MULTILINE):
        head, _, *lines = [[cell.strip().strip("`") for cell in line.split(" | ")] for line in table.splitlines()]
        if [cell.strip("| ") for cell in head] == list(titles):
            found += [[cell.strip("| `") for cell in line] for line in lines]
    assert found, titles
    return found


def saved(text):
    """What a save of one channel with this JSON text keeps of it."""
    body = f'{{"state":{{"x":{text}}}}}'.encode()
    request, _ = finish(codec.read_body("json", body, wire.checkpoints.SaveRequest, Values(len(body))))
    assert isinstance(request.state, dict)
    return finish(codec.value_in("json", request.state["x"], "/state/x"))


def shown(value):
    return bytes(finish(codec.value_out("json", value))).decode()


@pytest.mark.parametrize(("text", "packed", "_"), rows("JSON", "MessagePack, in hexadecimal", "what it is"))
def test_a_value_is_kept_as_the_page_says_and_shown_as_it_was_sent(text, packed, _):
    assert saved(text) == Value("msgpack", bytes.fromhex(packed))
    assert shown(saved(text)) == text


@pytest.mark.parametrize(("sent", "seen", "_"), rows("sent", "shown", "why"))
def test_another_spelling_is_shown_as_the_page_says(sent, seen, _):
    assert shown(saved(sent)) == seen
    assert saved(sent).encoding == "msgpack"


@pytest.mark.parametrize(("text", "answer"), rows("JSON", "answer"))
def test_what_cannot_be_kept_is_refused_as_the_page_says(text, answer):
    with pytest.raises((StorageError, GatewayError)) as refused:
        saved(text)
    problem, _ = describe(refused.value, public_url="", request_id="")
    status, code, why = re.fullmatch(r"(\d+) `([a-z-]+)`?(?:: (.*))?", answer).groups()
    assert (problem.status, problem.code) == (int(status), code)
    if status == "422":
        assert why in problem.errors[0].detail


def test_an_encoded_channel_and_an_integer_beyond_64_bits_come_back_byte_for_byte():
    assert saved('{"$encoded":["pickle","gASVAQ=="]}') == Value("pickle", bytes.fromhex("80049501"))
    for text in ('{"$encoded":["pickle","gASVAQ=="]}', '{"id":18446744073709551616}'):
        assert shown(saved(text)) == text


def test_a_channel_nests_as_deep_as_the_page_says():
    left = int(re.search(r"a channel has (\d+) left", PAGE)[1])
    assert saved("[" * left + "]" * left).encoding == "msgpack"
    with pytest.raises(LimitExceeded, match=f"DEPTH_MAX is {limits.DEPTH_MAX}"):
        saved("[" * (left + 1) + "]" * (left + 1))


def test_the_advice_of_a_refused_word_is_the_way_to_send_it():
    with pytest.raises(InvalidState, match=re.escape('{"$map": [["$...", value]]}')):
        saved('{"$bytes":"hello world"}')
    assert saved('{"$map":[["$bytes","hello world"]]}').data == b"\x81\xa6$bytes\xabhello world"


def test_words_mean_nothing_in_metadata():
    body = b'{"state":{},"metadata":{"$bytes":"x"}}'
    request, _ = finish(codec.read_body("json", body, wire.checkpoints.SaveRequest, Values(len(body))))
    assert request.metadata == {"$bytes": "x"}
