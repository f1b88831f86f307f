"""What lengths tell (threat 17): compressed with a secret, a guess has a telling length; uncompressed, it has not."""

import string
from uuid import UUID

from crypto import Kind, Sealer, SecretKey, SubjectKeys

SECRET = "token=q7Zr4KxW9b"
CANDIDATES = string.ascii_letters + string.digits


def lengths(*, compress: bool) -> dict[str, int]:
    """The sealed length of a record with the secret and, beside it, an attacker's guess of its next character."""
    sealer = Sealer(UUID(int=1), UUID(int=2), "user-1", SubjectKeys({1: SecretKey.generate()}, 1, SecretKey.generate()))
    known = SECRET[:-1]
    found = {}
    for guess in CANDIDATES:
        text = f'{{"secret":"{SECRET}","note":"{known}{guess}"}}'.encode() + b'{"padding":"' + b"x" * 400 + b'"}'
        found[guess] = len(sealer.seal(Kind.MANIFEST, ("t",), text, compress=compress))
    return found


def test_without_compression_all_62_guesses_have_one_length() -> None:
    assert len(set(lengths(compress=False).values())) == 1


def test_with_compression_the_right_guess_is_among_the_shortest_which_proves_the_oracle_works() -> None:
    found = lengths(compress=True)
    assert found[SECRET[-1]] == min(found.values())
    assert len(set(found.values())) > 1
