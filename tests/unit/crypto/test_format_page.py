"""The worked example of docs/formats/envelope.md, computed again: a changed byte of the format fails here."""

import re
from pathlib import Path
from uuid import UUID

from crypto.ciphers import cobblestone
from crypto.context import Kind, encode_context
from crypto.envelope import Flag, Header, KeyScope
from crypto.keyring import SecretKey, SubjectKeys
from crypto.sealer import Sealer
from crypto.suites import Suite

PAGE = Path(__file__).resolve().parents[3] / "docs" / "formats" / "envelope.md"
DEPLOYMENT = UUID("00000000-0000-4000-8000-000000000001")
TENANT = UUID("00000000-0000-4000-8000-000000000002")


def read_example() -> dict[str, bytes]:
    block = PAGE.read_text().split("## Example")[1].split("```")[1].strip()
    example: dict[str, str] = {}
    name = ""
    for line in block.splitlines():
        if re.fullmatch("(?:[0-9a-f]{2})+", line):
            example[name] += line
        else:
            name = line
            example[name] = ""
    return {label: bytes.fromhex(text) for label, text in example.items()}


def test_the_documented_example_is_what_the_code_computes() -> None:
    example = read_example()
    data_key = SecretKey(bytes(range(32)))
    header = Header(Suite.COBBLESTONE_256, Flag(0), Kind.CHUNK, KeyScope.SUBJECT, 1).pack()
    row_key = data_key.derive(b"stateroom/v1/row", TENANT, "user-42", 1)
    context = encode_context(header, DEPLOYMENT, TENANT, "user-42", ("t1", 5))
    plaintext = bytes.fromhex("0000000500000005") + b"hello"
    message = cobblestone.seal(row_key.borrow(), context, plaintext, bytes(range(24)))
    assert example == {
        "data key check value": data_key.kcv(),
        "header": header,
        "row key": bytes(row_key.borrow()),
        "context": context,
        "sealed plaintext": plaintext,
        "envelope": header + message,
    }


def test_a_sealer_opens_the_documented_example() -> None:
    data_keys = {1: SecretKey(bytes(range(32)))}
    sealer = Sealer(DEPLOYMENT, TENANT, "user-42", SubjectKeys(data_keys, 1, SecretKey(bytes(32))))
    assert sealer.open(Kind.CHUNK, ("t1", 5), read_example()["envelope"]) == b"hello"
