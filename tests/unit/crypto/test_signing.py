"""Ed25519 and signed notes, against vectors of others: RFC 8032 and Go's golang.org/x/mod/sumdb/note."""

import pytest

from crypto import NoteInvalid, NoteKey, SecretKey, SigningKey, open_note, sign_note
from crypto.signing import verify_signature

GO_KEY = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
GO_TEXT = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
GO_SIGNATURE = (
    "\N{EM DASH} PeterNeumann "
    "x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
)
GO_NOTE = GO_TEXT + "\n" + GO_SIGNATURE

# RFC 8032, section 7.1: secret key, public key, message, signature.
RFC_8032 = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
        ),
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        (
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        ),
    ),
]


@pytest.fixture(scope="module")
def signing_key():
    return SigningKey(SecretKey.generate())


@pytest.mark.parametrize(("seed", "public", "message", "signature"), RFC_8032)
def test_signatures_are_those_of_rfc_8032(seed, public, message, signature):
    made = SigningKey(SecretKey(bytes.fromhex(seed)))
    assert made.public_key.hex() == public
    assert made.sign(bytes.fromhex(message)).hex() == signature
    assert verify_signature(made.public_key, bytes.fromhex(message), bytes.fromhex(signature))


def test_a_note_that_go_signed_opens():
    note_key = NoteKey.parse(GO_KEY)
    assert str(note_key) == GO_KEY
    assert open_note(GO_NOTE, note_key) == GO_TEXT


def test_a_note_opens_under_its_key_and_no_other(signing_key):
    note = sign_note("a\nb\n", "log", signing_key)
    assert open_note(note, NoteKey("log", signing_key.public_key)) == "a\nb\n"
    for other in (NoteKey("log", SigningKey(SecretKey.generate()).public_key), NoteKey("gol", signing_key.public_key)):
        with pytest.raises(NoteInvalid):
            open_note(note, other)


def test_every_changed_character_of_a_text_is_refused(signing_key):
    note = sign_note("origin\n12\nhash\n", "log", signing_key)
    note_key = NoteKey("log", signing_key.public_key)
    for position in range(len("origin\n12\nhash\n")):
        changed = note[:position] + ("x" if note[position] != "x" else "y") + note[position + 1 :]
        with pytest.raises(NoteInvalid):
            open_note(changed, note_key)


def test_another_signers_line_is_passed_over_but_ours_must_be_right(signing_key):
    note_key = NoteKey.parse(GO_KEY)
    stranger = sign_note(GO_TEXT, "witness", signing_key).removeprefix(GO_TEXT + "\n")
    assert open_note(GO_NOTE + stranger, note_key) == GO_TEXT
    forged = GO_SIGNATURE.replace("x08go/ZJ", "x08go/ZK")
    with pytest.raises(NoteInvalid):
        open_note(GO_NOTE + forged, note_key)


@pytest.mark.parametrize(
    "note",
    ["", "\n\n", GO_TEXT, GO_NOTE[:-1], GO_NOTE + "\n", GO_NOTE.replace("\N{EM DASH}", "-"), GO_TEXT + GO_SIGNATURE,
     GO_NOTE.replace("Peter", "Pe\tter"), GO_NOTE.replace("If", "\rIf"), "\ud800\n\n" + GO_SIGNATURE,
     GO_TEXT + "\n" + GO_SIGNATURE * 101],
)  # fmt: skip
def test_what_is_no_note_is_refused(note):
    with pytest.raises(NoteInvalid):
        open_note(note, NoteKey.parse(GO_KEY))


@pytest.mark.parametrize("text", ["", "no line feed", "a\x00\n", "tab\t\n", "\ud800\n"])
def test_a_text_that_no_note_can_hold_is_not_signed(signing_key, text):
    with pytest.raises(NoteInvalid):
        sign_note(text, "log", signing_key)


@pytest.mark.parametrize(
    "text",
    ["", "a+b", GO_KEY.replace("c74f20a3", "c74f20a4"), GO_KEY.replace("Peter", "Petra"), GO_KEY[:-4],
     GO_KEY.replace("+ARpc", "+AhRpc"), "a b+00000000+AQ==", "+00000000+AQ=="],
)  # fmt: skip
def test_what_is_no_public_key_is_refused(text):
    with pytest.raises(NoteInvalid):
        NoteKey.parse(text)


def test_a_signing_key_shows_nothing(signing_key):
    assert repr(signing_key) == "SigningKey(...)"


@pytest.mark.parametrize(
    "note", ["x" * 1_000_001, GO_TEXT + "\n\N{EM DASH} PeterNeumann x08g\n"], ids=["long", "short"]
)
def test_a_note_that_is_too_long_or_whose_signature_is_too_short_is_refused(note: str) -> None:
    with pytest.raises(NoteInvalid):
        open_note(note, NoteKey.parse(GO_KEY))
