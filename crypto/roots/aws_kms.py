"""A root key in AWS KMS, through boto3 in bounded threads.

Owns the setting `aws-kms:KEY?region=...&endpoint=...` and what KMS's answers mean. KEY is a key ARN, key id,
alias or alias ARN; `region` defaults to the ARN's, else to boto3's own; `endpoint` is for private endpoints and
stand-ins. Credentials come from boto3's default chain. The principal needs `kms:Encrypt`, `kms:Decrypt`,
`kms:ReEncryptFrom` and `kms:ReEncryptTo`.

A tenant key is bound to the encryption context `stateroom:deployment`, `stateroom:tenant` (UUIDs),
`stateroom:purpose`, `stateroom:version`; CloudTrail logs it in clear, and policies can condition on it
(`kms:EncryptionContext:stateroom:tenant`). `health` uses `stateroom:purpose` = `health` alone. The key named by
the setting is passed on every call: what the database says about a wrapping never chooses the key.

KMS does not tell which of a key's rotated materials made a wrapping, so `root_key_version` is always `-`; and it
answers a changed wrapping, a foreign one and another context alike, so all three are `KeyDenied`.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from crypto.errors import CryptoError, KeyDenied, KeyUnavailable, OpenError, RootKeyInvalid
from crypto.keyring import SecretKey
from crypto.roots.base import WrappedKey, checked_context
from crypto.roots.service import (
    ATTEMPTS_MAX,
    CONNECT_SECONDS_MAX,
    READ_SECONDS_MAX,
    RETRY_AFTER_SECONDS,
    THREADS,
    ServiceThreads,
    check_endpoint,
)
from crypto.suites import KEY_BYTES

PROVIDER: Final = "aws-kms"
FORM: Final = "aws-kms:KEY_ARN_OR_ALIAS?region=REGION&endpoint=URL"
OPTIONS: Final = frozenset({"region", "endpoint"})

_KEY_ID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|mrk-[0-9a-f]{32}"
_ALIAS: Final = r"alias/[A-Za-z0-9/_-]{1,250}"
_NAME: Final = re.compile(
    rf"(?:arn:aws[a-z-]*:kms:(?P<region>[a-z0-9-]+):[0-9]{{12}}:)?(?:(?:key/)?(?P<id>{_KEY_ID})|{_ALIAS})"
)
_REGION: Final = re.compile(r"[a-z]{2}(?:-[a-z]+)+-[0-9]+")

# Every other refusal is the key's or the policy's; these say nothing about either and may pass.
_PASSING_CODES: Final = frozenset(
    {
        "DependencyTimeoutException",
        "ExpiredToken",
        "ExpiredTokenException",
        "InternalFailure",
        "KMSInternalException",
        "KeyUnavailableException",
        "LimitExceededException",
        "RequestLimitExceeded",
        "RequestThrottled",
        "RequestTimeout",
        "RequestTimeoutException",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "Throttling",
        "ThrottlingException",
        "TooManyRequestsException",
    }
)


def _meaning(error: ClientError) -> CryptoError:
    code = error.response.get("Error", {}).get("Code", "")
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _PASSING_CODES or status >= 500 or status == 429:
        return KeyUnavailable(RETRY_AFTER_SECONDS)
    # Only the code's letters: the message may repeat what was sent.
    return KeyDenied(f"AWS KMS refused: {re.sub('[^A-Za-z]', '', code)[:64] or 'no reason given'}")


def _encryption_context(context: Mapping[str, str]) -> dict[str, str]:
    return {f"stateroom:{name}": value for name, value in checked_context(context).items()}


class AwsKmsRootKey:
    """A symmetric encryption key of AWS KMS. Every wait ends within a few seconds."""

    provider = PROVIDER

    def __init__(self, name: str, client: Any) -> None:
        """Take a boto3 client for `kms`; use `open`.

        Raises:
            RootKeyInvalid: The name is no key ARN, key id, alias or alias ARN.
        """
        named = _NAME.fullmatch(name)
        if named is None or (name.startswith("arn:") and named["id"] and ":key/" not in name):
            raise RootKeyInvalid(f"this is no KMS key ARN, key id or alias: {FORM}")
        self._name = name
        self._key_id: str | None = named["id"]
        self._client = client
        self._threads = ServiceThreads("aws-kms")

    @classmethod
    def open(cls, name: str, options: Mapping[str, str]) -> "AwsKmsRootKey":
        """Open the key a setting names; asks KMS nothing yet.

        ``name`` is a key ARN, key id, alias or alias ARN; ``options`` may have `region` and `endpoint`.

        Raises:
            RootKeyInvalid: The name, the region or the endpoint cannot be used.
        """
        named = _NAME.fullmatch(name)
        if named is None:
            raise RootKeyInvalid(f"this is no KMS key ARN, key id or alias: {FORM}")
        region = options.get("region", named["region"])
        if region is not None and not _REGION.fullmatch(region):
            raise RootKeyInvalid(f"the region is no AWS region: {FORM}")
        if named["region"] is not None and region != named["region"]:
            raise RootKeyInvalid(f"the region is another than the ARN's: {FORM}")
        endpoint = options.get("endpoint")
        if endpoint is not None:
            check_endpoint(endpoint, FORM)
        try:
            client = boto3.session.Session().client(
                "kms",
                region_name=region,
                endpoint_url=endpoint,
                config=Config(
                    connect_timeout=CONNECT_SECONDS_MAX,
                    read_timeout=READ_SECONDS_MAX,
                    max_pool_connections=THREADS,
                    retries={"mode": "standard", "total_max_attempts": ATTEMPTS_MAX},
                    # Where keys are sent is this setting's to say, not a variable's.
                    ignore_configured_endpoint_urls=True,
                ),
            )
        except (BotoCoreError, ValueError):
            raise RootKeyInvalid(f"AWS KMS needs a region here, and a usable AWS configuration: {FORM}") from None
        return cls(name, client)

    def __repr__(self) -> str:
        return f"AwsKmsRootKey({self._name!r})"

    def recognises(self, wrapped: WrappedKey) -> bool:
        """See `RootKey.recognises`; a key named by an alias recognises nothing, for an alias moves."""
        return (
            wrapped.provider == PROVIDER
            and self._key_id is not None
            and wrapped.root_key_id.rpartition("/")[2] == self._key_id
        )

    async def wrap(self, key: SecretKey, context: Mapping[str, str]) -> WrappedKey:
        """Wrap a key with `Encrypt`; see `RootKey.wrap`."""
        bound = _encryption_context(context)
        answer = await self._ask(
            lambda: self._client.encrypt(KeyId=self._name, Plaintext=bytes(key.borrow()), EncryptionContext=bound)
        )
        return WrappedKey(PROVIDER, answer["KeyId"], "-", answer["CiphertextBlob"])

    async def unwrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> SecretKey:
        """Unwrap a key with `Decrypt`; see `RootKey.unwrap`."""
        bound = _encryption_context(context)
        self._refuse_foreign(wrapped)
        answer = await self._ask(
            lambda: self._client.decrypt(KeyId=self._name, CiphertextBlob=wrapped.ciphertext, EncryptionContext=bound)
        )
        if len(answer["Plaintext"]) != KEY_BYTES:
            raise OpenError("format")
        return SecretKey(answer["Plaintext"])

    async def rewrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> WrappedKey:
        """Wrap the same key under the newest material with `ReEncrypt`: it never leaves KMS."""
        bound = _encryption_context(context)
        self._refuse_foreign(wrapped)
        answer = await self._ask(
            lambda: self._client.re_encrypt(
                CiphertextBlob=wrapped.ciphertext,
                SourceKeyId=self._name,
                SourceEncryptionContext=bound,
                DestinationKeyId=self._name,
                DestinationEncryptionContext=bound,
            )
        )
        return WrappedKey(PROVIDER, answer["KeyId"], "-", answer["CiphertextBlob"])

    async def health(self) -> None:
        """Ask KMS, by a dry run, whether it would encrypt; no key material moves. `Decrypt` is not asked.

        Raises:
            KeyUnavailable: KMS cannot be reached or is too busy.
            KeyDenied: It would refuse.
        """
        await self._ask(self._encrypt_dry)

    async def aclose(self) -> None:
        """Wait for the calls under way and close the connections."""
        await self._threads.aclose()
        self._client.close()

    def _encrypt_dry(self) -> None:
        try:
            self._client.encrypt(
                KeyId=self._name,
                Plaintext=b"health",
                EncryptionContext={"stateroom:purpose": "health"},
                DryRun=True,
            )
        except ClientError as error:
            # KMS's way of saying that the call would have succeeded.
            if error.response.get("Error", {}).get("Code") != "DryRunOperationException":
                raise

    def _refuse_foreign(self, wrapped: WrappedKey) -> None:
        if wrapped.provider != PROVIDER:
            raise KeyDenied("this key was wrapped by another root key provider")
        if not 1 <= len(wrapped.ciphertext) <= 6144:  # KMS's own limit, enforced before it is asked
            raise OpenError("format")

    async def _ask(self, work: Callable[[], Any]) -> Any:
        return await self._threads.run(lambda: _call(work))


def _call(work: Callable[[], Any]) -> Any:
    failure: CryptoError
    try:
        return work()
    except ClientError as error:
        failure = _meaning(error)
    except BotoCoreError:
        # Connections, time limits and credentials that cannot be fetched now.
        failure = KeyUnavailable(RETRY_AFTER_SECONDS)
    # Outside the handler, so that the library's error, which may hold the request, is not its context.
    raise failure
