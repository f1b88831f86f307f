import ast
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from storage.encoding import decode_json, encode_json, encode_msgpack, json_decoder, json_encoder
from tests.support.little_memory import outcomes

ROOT = Path(__file__).parents[3]
VALUES = [None, {}, [], "é" * 300, b"\0" * 70_000, {"b": [1.5, 2**63], "a": {"ü": Raw(b"1")}}, ["x"] * 5000, "\n" * 900]
CRASHES = {"msgspec.json": {"Encoder", "encode", "Decoder", "decode"}, "msgspec.msgpack": {"Encoder", "encode"}}
CALLS = {each for calls in CRASHES.values() for each in calls}


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_the_bytes_are_those_of_msgspec(value):
    assert encode_json(value) == msgspec.json.encode(value)
    assert encode_msgpack(value) == msgspec.msgpack.encode(value)
    assert json_encoder(order="deterministic")(value) == msgspec.json.encode(value, order="deterministic")
    text = msgspec.json.encode(value)
    assert decode_json(text) == json_decoder(Any)(text) == msgspec.json.decode(text)
    assert decode_json(text, Raw) == Raw(text)


def test_what_msgspec_refuses_is_refused_as_by_it():
    with pytest.raises(msgspec.ValidationError):
        decode_json(b'["a"]' + b" " * 2000, dict[str, Any])
    with pytest.raises(msgspec.DecodeError):
        json_decoder(str)(b'"' + b"a" * 2000)
    with pytest.raises(OverflowError):
        encode_msgpack(2**64)


@pytest.mark.slow
@pytest.mark.parametrize(
    "act",
    [
        "x = ['y' * 1000] * 8000; act = lambda: encode_msgpack(x)",
        "x = Raw(b'1' * 8_000_000); act = lambda: encode_msgpack(x)",
        "x = ['y\\n' * 500] * 8000; act = lambda: encode_json(x)",
        "x = '\\n' * 4_000_000; act = lambda: encode_json(x)",
        "x = b'y' * 8_000_000; act = lambda: json_encoder(order='deterministic')(x)",
        "x = encode_json('y' * 8_000_000); act = lambda: decode_json(x)",
        "x = encode_json([f'text {n}' for n in range(150_000)]); act = lambda: json_decoder(Any)(x)",
        "x = encode_json(['y' * 3000] * 1500 + ['\\n😀' * 50] * 300); act = lambda: decode_json(x)",
    ],
)
def test_without_memory_is_a_memory_error_and_not_the_end_of_the_process(act):
    imports = "from typing import Any\nfrom msgspec import Raw\nfrom storage.encoding import *\n"
    code, came = outcomes(imports + act, range(0, 96 * 1024, 3000))
    assert (code, came) == (0, {"done", "MemoryError"})


def calls_that_crash(source: str) -> list[str]:
    """The calls of msgspec in ``source`` that end the process when there is no memory, by whatever name."""
    tree = ast.parse(source)
    names = {"msgspec": "msgspec"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("msgspec"):
            names |= {each.asname or each.name: f"{node.module}.{each.name}" for each in node.names}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            full = names.get(node.id, "")
        elif isinstance(node, ast.Attribute) and node.attr in CALLS:
            first, _, rest = ast.unparse(node).partition(".")
            full = ".".join(filter(None, (names.get(first), rest)))
        else:
            continue
        module, _, member = full.rpartition(".")
        if member in CRASHES.get(module, ()):
            found.append(full)
    return found


def test_calls_that_crash_are_found_by_whatever_name():
    assert calls_that_crash("import msgspec\nmsgspec.json.encode(1)") == ["msgspec.json.encode"]
    assert calls_that_crash("from msgspec import json\njson.Decoder(int)") == ["msgspec.json.Decoder"]
    assert calls_that_crash("from msgspec.msgpack import encode as e\ne(1)") == ["msgspec.msgpack.encode"]
    assert calls_that_crash("import json, msgspec\njson.decode(1)\nmsgspec.msgpack.decode(b'')") == []


def test_only_one_module_of_the_process_that_serves_calls_what_crashes():
    here = ROOT / "storage/encoding.py"
    assert calls_that_crash(here.read_text()) != []
    served = [path for path in ROOT.glob("gateway/**/*.py") if not path.is_relative_to(ROOT / "gateway/cli")]
    modules = [*served, *ROOT.glob("storage/**/*.py")]
    assert [path.name for path in modules if path != here and calls_that_crash(path.read_text())] == []
