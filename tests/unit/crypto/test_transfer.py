"""Exports sealed for one transfer key: HPKE as RFC 9180 says, and a stream in which nothing can be changed."""

import hmac
import json
from uuid import UUID

import pytest
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from crypto import (
    ExportForOther,
    ExportForOtherTenant,
    ExportOpener,
    ExportSealer,
    OpenError,
    SecretKey,
    TransferKey,
    TransferPublicKey,
    TransferRecipient,
)
from crypto.ciphers import cobblestone
from crypto.errors import ExportUnbound, TransferKeyInvalid

TENANT_ID = UUID(int=7)
EXPORT_ID = UUID("0192f0c0-0000-7000-8000-000000000001")
CHUNK = 16384 + 16


# --- RFC 9180, base mode, written from its text: checked by its appendix, and the library by it -----------------------


def extract(salt, keying_material):
    return hmac.digest(salt or bytes(32), keying_material, "sha256")


def expand(secret, info, length):
    output, block = b"", b""
    while len(output) < length:
        block = hmac.digest(secret, block + info + bytes((len(output) // 32 + 1,)), "sha256")
        output += block
    return output[:length]


def labeled_extract(suite_id, salt, label, keying_material):
    return extract(salt, b"HPKE-v1" + suite_id + label + keying_material)


def labeled_expand(suite_id, secret, label, info, length):
    return expand(secret, length.to_bytes(2, "big") + b"HPKE-v1" + suite_id + label + info, length)


def decapsulate(enc, private):
    recipient = private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
    suite_id = b"KEM" + (0x20).to_bytes(2, "big")
    shared = private.exchange(X25519PublicKey.from_public_bytes(enc))
    return labeled_expand(
        suite_id, labeled_extract(suite_id, b"", b"eae_prk", shared), b"shared_secret", enc + recipient, 32
    )


def rfc_open(enc, ciphertext, private, info, aad, aead_id, key_bytes):
    suite_id = b"HPKE" + b"".join(each.to_bytes(2, "big") for each in (0x20, 1, aead_id))
    psk_id_hash = labeled_extract(suite_id, b"", b"psk_id_hash", b"")
    info_hash = labeled_extract(suite_id, b"", b"info_hash", info)
    context = b"\0" + psk_id_hash + info_hash
    secret = labeled_extract(suite_id, decapsulate(enc, private), b"secret", b"")
    key = labeled_expand(suite_id, secret, b"key", context, key_bytes)
    nonce = labeled_expand(suite_id, secret, b"base_nonce", context, 12)
    return AESGCM(key).decrypt(nonce, ciphertext, aad)


def test_our_reading_of_rfc_9180_opens_the_vector_of_its_appendix_a_1_1():
    private = X25519PrivateKey.from_private_bytes(
        bytes.fromhex("4612c550263fc8ad58375df3f557aac531d26850903e55a9f23f21d8534e8ac8")
    )
    assert private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw).hex() == (
        "3948cfe0ad1ddb695d780e59077195da6c56506b027329794ab02bca80815c4d"
    )
    opened = rfc_open(
        bytes.fromhex("37fda3567bdbd628e88668c3c8d7e97d1d1253b6d4ea6d44c150f741f1bf4431"),
        bytes.fromhex("f938558b5d72f1a23810b4be2ab4f84331acc02fc97babc53a52ae8218a355a96d8770ac83d07bea87e13c512a"),
        private,
        bytes.fromhex("4f6465206f6e2061204772656369616e2055726e"),
        bytes.fromhex("436f756e742d30"),
        aead_id=1,
        key_bytes=16,
    )
    assert opened == b"Beauty is truth, truth beauty"


def test_what_is_sealed_for_a_transfer_key_opens_by_rfc_9180_with_aes_256_gcm():
    secret = SecretKey.generate()
    private = X25519PrivateKey.from_private_bytes(bytes(secret.borrow()))
    sealed = TransferKey(secret).public_key.seal(b"a file key", b"info")
    assert rfc_open(sealed[:32], sealed[32:], private, b"info", b"", aead_id=2, key_bytes=32) == b"a file key"
    with pytest.raises(InvalidTag):
        rfc_open(sealed[:32], sealed[32:], private, b"other", b"", aead_id=2, key_bytes=32)


# --- keys -------------------------------------------------------------------------------------------------------------


def test_the_text_of_a_public_key_reads_back_and_says_its_fingerprint():
    recipient = TransferRecipient(TransferKey(SecretKey.generate()).public_key, TENANT_ID)
    assert TransferRecipient.parse(str(recipient)) == recipient
    assert len(bytes.fromhex(recipient.public_key.fingerprint)) == 16


def test_a_damaged_text_of_a_public_key_is_refused_at_every_character():
    text = str(TransferRecipient(TransferKey(SecretKey.generate()).public_key, TENANT_ID))
    for at, character in enumerate(text):
        other = "A" if character != "A" else "B"
        with pytest.raises(TransferKeyInvalid):
            TransferRecipient.parse(text[:at] + other + text[at + 1 :])
    for other in (text[:-1], text + "A", text + "=", "", "stateroom-transfer-1:", text.upper(), text + "\n", "ä"):
        with pytest.raises(TransferKeyInvalid):
            TransferRecipient.parse(other)


def test_a_point_of_small_order_is_refused_as_a_recipient():
    with pytest.raises(TransferKeyInvalid):
        TransferRecipient.parse(str(TransferRecipient(TransferPublicKey(bytes(32)), TENANT_ID)))


def test_a_transfer_key_does_not_show():
    secret = SecretKey.generate()
    assert bytes(secret.borrow()).hex() not in repr(TransferKey(secret))


# --- files ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def transfer_key():
    return TransferKey(SecretKey.generate())


def keys_of(transfer_key):
    return lambda fingerprint: transfer_key if fingerprint == transfer_key.public_key.fingerprint else None


def sealed(transfer_key, content, step=10_000, export_id=EXPORT_ID):
    sealer = ExportSealer(TransferRecipient(transfer_key.public_key, TENANT_ID), export_id)
    middle = b"".join(sealer.write(content[at : at + step]) for at in range(0, len(content), step))
    return sealer.start + middle + sealer.finish()


def opened(transfer_key, file, step=7_777):
    opener = ExportOpener(keys_of(transfer_key), TENANT_ID)
    content = b"".join(opener.write(file[at : at + step]) for at in range(0, len(file), step))
    return content + opener.finish()


@pytest.mark.parametrize("size", [0, 1, 16383, 16384, 16385, 3 * 16384, 100_000])
@pytest.mark.parametrize("step", [1_000, 16_400, 1_000_000])
def test_a_file_opens_to_what_was_sealed(transfer_key, size, step):
    content = bytes(index * 7 % 251 for index in range(size))
    assert opened(transfer_key, sealed(transfer_key, content, step), step) == content


def test_a_file_opens_byte_by_byte(transfer_key):
    assert opened(transfer_key, sealed(transfer_key, b"x" * 20_000), step=1) == b"x" * 20_000


def test_a_bit_flipped_anywhere_is_refused(transfer_key):
    file = sealed(transfer_key, b"content" * 8_000)
    for at in [*range(400), *range(400, len(file), 997), len(file) - 1]:
        altered = bytearray(file)
        altered[at] ^= 1
        with pytest.raises((OpenError, ExportForOther)):
            opened(transfer_key, bytes(altered))


def test_a_file_that_was_cut_anywhere_is_refused(transfer_key):
    file = sealed(transfer_key, b"content" * 8_000)
    first = len(file) % CHUNK
    for cut in {*range(400), *range(first, len(file), CHUNK), *range(400, len(file), 1_009), len(file) - 1}:
        with pytest.raises(OpenError):
            opened(transfer_key, file[:cut])


@pytest.mark.parametrize("more", [1, 16, 16383, 16384, CHUNK, 100_000])
def test_bytes_after_the_end_are_refused(transfer_key, more):
    with pytest.raises(OpenError):
        opened(transfer_key, sealed(transfer_key, b"content" * 8_000) + bytes(more))


def test_chunks_that_change_places_are_refused(transfer_key):
    file = sealed(transfer_key, bytes(4 * 16384))
    at = len(file) - 16 - 4 * CHUNK
    chunks = [file[at + CHUNK * n : at + CHUNK * (n + 1)] for n in range(4)]
    swapped = file[:at] + chunks[1] + chunks[0] + b"".join(chunks[2:]) + file[-16:]
    assert len(swapped) == len(file)
    with pytest.raises(OpenError):
        opened(transfer_key, swapped)


def test_a_chunk_of_another_export_is_refused(transfer_key):
    one, other = (sealed(transfer_key, bytes(4 * 16384)) for _ in range(2))
    at = len(one) - 16 - 3 * CHUNK
    with pytest.raises(OpenError):
        opened(transfer_key, one[:at] + other[at : at + CHUNK] + one[at + CHUNK :])


def test_the_start_of_another_export_is_refused(transfer_key):
    one, other = (sealed(transfer_key, bytes(100)) for _ in range(2))
    with pytest.raises(OpenError):
        opened(transfer_key, one[: len(one) - 116 - 56] + other[len(other) - 116 - 56 :])


def test_a_file_for_another_key_is_refused_by_name(transfer_key):
    other = TransferKey(SecretKey.generate())
    with pytest.raises(ExportForOther) as refused:
        opened(transfer_key, sealed(other, b"content"))
    assert refused.value.recipient == other.public_key.fingerprint


def test_the_opener_holds_less_than_a_chunk(transfer_key):
    file = sealed(transfer_key, bytes(1_000_000))
    opener = ExportOpener(keys_of(transfer_key), TENANT_ID)
    given = 0
    for at in range(0, len(file), 4096):
        given += len(opener.write(file[at : at + 4096]))
        assert at + 4096 - given < CHUNK + 4096 + 1_000 + 16 * (1 + given // 16384)


def test_a_header_that_is_too_long_is_refused_before_it_is_kept(transfer_key):
    magic_and_format = sealed(transfer_key, b"")[:5]
    with pytest.raises(OpenError) as caught:
        ExportOpener(keys_of(transfer_key), TENANT_ID).write(magic_and_format + b"\xff\xff")
    assert caught.value.code == "format"


def test_an_export_of_another_tenant_is_refused(transfer_key):
    opener = ExportOpener(keys_of(transfer_key), UUID(int=8))
    with pytest.raises(ExportForOtherTenant):
        opener.write(sealed(transfer_key, b"content"))


def test_a_file_of_format_1_needs_somebody_who_answers_for_it(transfer_key):
    public_key = transfer_key.public_key
    header = json.dumps({"recipient": public_key.fingerprint, "export_id": str(EXPORT_ID)}).encode()
    clear = b"\xc1SRX\x01" + len(header).to_bytes(2, "big") + header
    info, file_key = b"stateroom/v1/export\0" + clear, SecretKey.generate()
    sealed_key = public_key.seal(bytes(file_key.borrow()), info)
    body = cobblestone.seal(file_key.borrow(), info, b"content")
    file = clear + len(sealed_key).to_bytes(2, "big") + sealed_key + body
    with pytest.raises(ExportUnbound) as refused:
        ExportOpener(keys_of(transfer_key), TENANT_ID).write(file)
    assert refused.value.export_id == EXPORT_ID
    opener = ExportOpener(keys_of(transfer_key), TENANT_ID, unbound={EXPORT_ID})
    assert opener.write(file) + opener.finish() == b"content"
