"""Known answers, checked once before a process serves.

Owns the decision that this installation computes what the formats promise: `cryptography` is new enough, and
Cobblestone-256, AES-256-GCM and HKDF give published results. It takes about a millisecond and does not
replace the full vector suites of the tests.
"""

from dataclasses import dataclass
from typing import Final

import cryptography
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

from crypto.ciphers import cobblestone
from crypto.errors import OpenError, SelfTestFailed

CRYPTOGRAPHY_MAJOR_MIN: Final = 47


@dataclass(frozen=True, slots=True)
class KnownAnswers:
    """Published inputs and outputs, in hex.

    Attributes:
        cobblestone: input key, context, plaintext, message (its first 24 bytes are the salt).
        aes_gcm: key, nonce, associated data, plaintext, ciphertext with tag.
        hkdf_expand_sha256: pseudorandom key, info, output.
    """

    cobblestone: tuple[str, str, str, str]
    aes_gcm: tuple[str, str, str, str, str]
    hkdf_expand_sha256: tuple[str, str, str]


PUBLISHED: Final = KnownAnswers(
    # C2SP Wycheproof, c2sp_chunked_encryption_aes_256_gcm_test.json, tcId 9
    cobblestone=(
        "59454c4c4f57205355424d4152494e452059454c4c4f57205355424d4152494e",
        "7465737420636f6e74657874",
        "6368756e6b6564",
        (
            "dbedaefc1c35dc6c0f22b743b03e488747166a51f33479e7ceb8b7e11cc0d2710f624a127501bc4a"
            "ea7d0af6f83cfe359b9e69415aa537f36adf86eb35b070475baa039bb7791432adbca49578bbd3"
        ),
    ),
    # McGrew and Viega, The Galois/Counter Mode of Operation, appendix B, test case 16
    aes_gcm=(
        "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308",
        "cafebabefacedbaddecaf888",
        "feedfacedeadbeeffeedfacedeadbeefabaddad2",
        (
            "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
            "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
        ),
        (
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
            "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
            "76fc6ece0f4e1768cddf8853bb2d551b"
        ),
    ),
    # RFC 5869, appendix A.1, step 2
    hkdf_expand_sha256=(
        "077709362c2e32df0ddc3f0dc47bba6390b6c73bb50f9c3122ec844ad7c2b3e5",
        "f0f1f2f3f4f5f6f7f8f9",
        "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
    ),
)


def check_cryptography_version(installed: str) -> None:
    """Refuse a `cryptography` release older than this build needs.

    A dependency of something else once moved it back without a word; the wrong release still imports.

    Raises:
        SelfTestFailed: It is older than 47, or does not say what it is.
    """
    major = installed.partition(".")[0]
    if not major.isdecimal() or int(major) < CRYPTOGRAPHY_MAJOR_MIN:
        raise SelfTestFailed(f"cryptography {installed} is installed; {CRYPTOGRAPHY_MAJOR_MIN} or newer is needed")


def check_known_answers(answers: KnownAnswers) -> None:
    """Compute every answer in both directions and compare.

    Raises:
        SelfTestFailed: One differs; the message names the construction.
    """
    input_key, context, plaintext, message = map(bytes.fromhex, answers.cobblestone)
    try:
        opened = cobblestone.open_(input_key, context, message)
    except OpenError:
        raise SelfTestFailed("Cobblestone-256 does not open its known answer") from None
    salt = message[: cobblestone.SALT_BYTES]
    if opened != plaintext or cobblestone.seal(input_key, context, plaintext, salt) != message:
        raise SelfTestFailed("Cobblestone-256 does not give its known answer")

    gcm_key, nonce, associated_data, plaintext, ciphertext = map(bytes.fromhex, answers.aes_gcm)
    cipher = AESGCM(gcm_key)
    try:
        opened = cipher.decrypt(nonce, ciphertext, associated_data)
    except InvalidTag:
        raise SelfTestFailed("AES-256-GCM does not open its known answer") from None
    if opened != plaintext or cipher.encrypt(nonce, plaintext, associated_data) != ciphertext:
        raise SelfTestFailed("AES-256-GCM does not give its known answer")

    pseudorandom_key, info, output = map(bytes.fromhex, answers.hkdf_expand_sha256)
    if HKDFExpand(hashes.SHA256(), len(output), info).derive(pseudorandom_key) != output:
        raise SelfTestFailed("HKDF does not give its known answer")


def run() -> None:
    """Check the installed library and its known answers.

    Raises:
        SelfTestFailed: The process must not serve.
    """
    check_cryptography_version(cryptography.__version__)
    check_known_answers(PUBLISHED)
