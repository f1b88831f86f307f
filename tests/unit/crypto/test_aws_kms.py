import socket
import time
import traceback
from collections.abc import Iterator
from uuid import UUID

import pytest
from botocore.stub import Stubber

from crypto.errors import KeyDenied, KeyUnavailable, OpenError, RootKeyInvalid
from crypto.keyring import SecretKey
from crypto.roots import WrappedKey, create_root_key
from crypto.roots.aws_kms import AwsKmsRootKey

CONTEXT = {"deployment": str(UUID(int=1)), "tenant": str(UUID(int=2)), "purpose": "tenant", "version": "1"}
BOUND = {f"stateroom:{name}": value for name, value in CONTEXT.items()}
KEY_ID = "12345678-1234-1234-1234-123456789abc"
ARN = f"arn:aws:kms:eu-central-1:111122223333:key/{KEY_ID}"
CANARY = b"canary-canary-canary-canary-1234"
WRAPPED = WrappedKey("aws-kms", ARN, "-", b"ciphertext-canary")


@pytest.fixture(scope="module", autouse=True)
def _credentials() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as environ:
        environ.setenv("AWS_ACCESS_KEY_ID", "test")
        environ.setenv("AWS_SECRET_ACCESS_KEY", "test")
        yield


@pytest.fixture(scope="module")
def root_key() -> AwsKmsRootKey:
    """One for all: its client reads what the service can do, which takes longer than a test."""
    return AwsKmsRootKey.open(ARN, {})


@pytest.fixture
def kms(root_key: AwsKmsRootKey) -> Iterator[Stubber]:
    with Stubber(root_key._client) as stubber:
        yield stubber
        stubber.assert_no_pending_responses()


async def test_every_call_names_the_key_of_the_setting_and_binds_opaque_ids(
    root_key: AwsKmsRootKey, kms: Stubber
) -> None:
    answer = {"CiphertextBlob": b"sealed", "KeyId": ARN}
    kms.add_response("encrypt", answer, {"KeyId": ARN, "Plaintext": CANARY, "EncryptionContext": BOUND})
    kms.add_response(
        "decrypt",
        {"Plaintext": CANARY, "KeyId": ARN},
        {"KeyId": ARN, "CiphertextBlob": b"sealed", "EncryptionContext": BOUND},
    )
    kms.add_response(
        "re_encrypt",
        answer,
        {
            "CiphertextBlob": b"sealed",
            "SourceKeyId": ARN,
            "SourceEncryptionContext": BOUND,
            "DestinationKeyId": ARN,
            "DestinationEncryptionContext": BOUND,
        },
    )
    wrapped = await root_key.wrap(SecretKey(CANARY), CONTEXT)
    assert wrapped == WrappedKey("aws-kms", ARN, "-", b"sealed")
    # What the row says never chooses the key: an attacker's own ARN there is not asked.
    elsewhere = WrappedKey("aws-kms", ARN.replace("1111", "6666"), "-", b"sealed")
    assert (await root_key.unwrap(elsewhere, CONTEXT)).kcv() == SecretKey(CANARY).kcv()
    assert await root_key.rewrap(wrapped, CONTEXT) == wrapped


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("AccessDeniedException", 400, KeyDenied),
        ("DisabledException", 400, KeyDenied),
        ("NotFoundException", 400, KeyDenied),
        ("InvalidCiphertextException", 400, KeyDenied),
        ("IncorrectKeyException", 400, KeyDenied),
        ("KMSInvalidStateException", 400, KeyDenied),
        ("InvalidKeyUsageException", 400, KeyDenied),
        ("ThrottlingException", 400, KeyUnavailable),
        ("LimitExceededException", 400, KeyUnavailable),
        ("KeyUnavailableException", 500, KeyUnavailable),
        ("DependencyTimeoutException", 503, KeyUnavailable),
        ("KMSInternalException", 500, KeyUnavailable),
        ("SomethingNew", 502, KeyUnavailable),
        ("SomethingNew", 429, KeyUnavailable),
        ("SomethingNew", 400, KeyDenied),
        ("ExpiredTokenException", 400, KeyUnavailable),
    ],
)
async def test_refusals_deny_outages_pass_and_neither_shows_what_was_sent(
    root_key: AwsKmsRootKey, kms: Stubber, code: str, status: int, expected: type[Exception]
) -> None:
    for operation in ("encrypt", "decrypt", "re_encrypt", "encrypt"):
        kms.add_client_error(operation, code, f"about {CANARY.decode()}", http_status_code=status)
    calls = (
        lambda: root_key.wrap(SecretKey(CANARY), CONTEXT),
        lambda: root_key.unwrap(WRAPPED, CONTEXT),
        lambda: root_key.rewrap(WRAPPED, CONTEXT),
        root_key.health,
    )
    for call in calls:
        with pytest.raises(expected) as caught:
            await call()
        error = caught.value
        shown = "".join(traceback.format_exception(error))
        assert "canary" not in shown.replace("CANARY", "")
        assert error.__context__ is None
        assert error.__cause__ is None
        if isinstance(error, KeyUnavailable):
            assert error.retry_after_seconds == 1
        else:
            assert code in str(error)


async def test_health_is_a_dry_run_that_says_it_would_have_worked(root_key: AwsKmsRootKey, kms: Stubber) -> None:
    kms.add_client_error(
        "encrypt",
        "DryRunOperationException",
        http_status_code=412,
        expected_params={
            "KeyId": ARN,
            "Plaintext": b"health",
            "EncryptionContext": {"stateroom:purpose": "health"},
            "DryRun": True,
        },
    )
    await root_key.health()


async def test_a_plaintext_of_another_length_is_no_key(root_key: AwsKmsRootKey, kms: Stubber) -> None:
    kms.add_response("decrypt", {"Plaintext": b"short", "KeyId": ARN})
    with pytest.raises(OpenError):
        await root_key.unwrap(WRAPPED, CONTEXT)


async def test_a_service_that_is_not_there_is_unavailable() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        root_key = create_root_key(f"aws-kms:{ARN}?endpoint=http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(KeyUnavailable):
            await root_key.unwrap(WRAPPED, CONTEXT)
    await root_key.aclose()


@pytest.mark.slow
async def test_a_service_that_never_answers_is_unavailable_within_seconds() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        root_key = create_root_key(f"aws-kms:{ARN}?endpoint=http://127.0.0.1:{silent.getsockname()[1]}")
        started = time.monotonic()
        with pytest.raises(KeyUnavailable) as caught:
            await root_key.wrap(SecretKey(CANARY), CONTEXT)
        assert time.monotonic() - started < 10
        assert caught.value.__context__ is None
    await root_key.aclose()


def test_a_key_named_by_an_alias_needs_a_region_and_recognises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not AwsKmsRootKey.open("alias/app", {"region": "eu-central-1"}).recognises(WRAPPED)
    for name in (ARN, KEY_ID, ARN.replace("eu-central-1", "us-gov-west-1").replace("aws:", "aws-us-gov:")):
        assert AwsKmsRootKey.open(name, {} if "arn" in name else {"region": "eu-central-1"}).recognises(WRAPPED)
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(RootKeyInvalid, match="region"):
        AwsKmsRootKey.open("alias/app", {})


def test_the_address_of_the_service_is_not_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "https://attacker.example")
    assert AwsKmsRootKey.open(ARN, {})._client.meta.endpoint_url == "https://kms.eu-central-1.amazonaws.com"


async def test_what_another_provider_wrapped_or_is_too_long_is_refused_before_the_service_is_asked(
    root_key: AwsKmsRootKey, kms: Stubber
) -> None:
    assert (repr(root_key), root_key.provider) == (f"AwsKmsRootKey({ARN!r})", "aws-kms")
    with pytest.raises(KeyDenied):
        await root_key.unwrap(WrappedKey("vault", ARN, "-", b"x"), CONTEXT)
    for ciphertext in (b"", bytes(6145)):
        with pytest.raises(OpenError):
            await root_key.unwrap(WrappedKey("aws-kms", ARN, "-", ciphertext), CONTEXT)
