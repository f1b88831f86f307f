"""Root keys: the outermost keys, which never enter the database.

`create_root_key` turns the operator's setting into a `RootKey`; each provider is a module of this package, and
the clients of AWS and Vault are imported only when the setting names them.
"""

import re
from typing import Final
from uuid import UUID

from crypto.errors import RootKeyInvalid
from crypto.roots.base import TOMBSTONE_PURPOSE, RootKey, WrappedKey, root_context
from crypto.roots.breaker import GuardedRootKey
from crypto.roots.file import FileRootKey
from crypto.roots.memory import MemoryRootKey
from crypto.roots.service import parse_options
from crypto.roots.several import RootKeys

__all__ = [
    "TOMBSTONE_PURPOSE",
    "FileRootKey",
    "GuardedRootKey",
    "MemoryRootKey",
    "RootKey",
    "RootKeys",
    "WrappedKey",
    "create_root_key",
    "root_context",
]

_NEXT_ROOT: Final = re.compile(r"\s+(?=(?:file|aws-kms|vault):)")
_KMS_ALIAS: Final = re.compile(r"aws-kms:(?:arn:[^?]*:)?alias/")


def create_root_key(spec: str) -> RootKey:
    """Open the root key, or the root keys, a setting names. No service is asked yet.

    Args:
        spec: One of

            - `file:/absolute/path/to/root.key`
            - `aws-kms:KEY_ARN_OR_ALIAS?region=REGION&endpoint=URL` (see `crypto.roots.aws_kms`)
            - `vault:https://HOST:PORT/MOUNT/KEY?token_file=/PATH&ca=/PATH&namespace=NAME` (see
              `crypto.roots.vault`)

            or several, separated by white space: the first is active, the others unwrap what they made before.
            A KMS or Vault key with the further option `tenant=UUID` is that tenant's own; the same order holds
            among those of one tenant. In a list KMS keys are named by their ARN or id: an alias moves, and does
            not tell which wrappings are its own.

    Raises:
        RootKeyInvalid: No such provider in this build, or the provider refuses its configuration. The message
            names what is wrong and never repeats the setting: someone may have put a key there.
    """
    specs = _NEXT_ROOT.split(spec.strip())
    if len(specs) > 1 and any(_KMS_ALIAS.match(each) for each in specs):
        raise RootKeyInvalid("where several root keys are listed, name KMS keys by ARN: an alias moves")
    deployment_roots: list[RootKey] = []
    tenant_roots: dict[UUID, list[RootKey]] = {}
    for each in specs:
        tenant_id, root_key = _open(each)
        (deployment_roots if tenant_id is None else tenant_roots.setdefault(tenant_id, [])).append(root_key)
    if len(deployment_roots) == 1 and not tenant_roots:
        return deployment_roots[0]
    return RootKeys(deployment_roots, tenant_roots)


def _open(spec: str) -> tuple[UUID | None, RootKey]:
    provider, separator, location = spec.partition(":")
    if provider == "file" and separator:
        path = location.removeprefix("//")
        if not path.startswith("/"):
            raise RootKeyInvalid("a root key file needs an absolute path: file:/path/to/root.key")
        return None, FileRootKey.open(path)
    location, _, query = location.partition("?")
    if provider == "aws-kms":
        from crypto.roots import aws_kms  # noqa: PLC0415  a deployment without KMS need not load boto3 for it

        options = parse_options(query, aws_kms.OPTIONS | {"tenant"}, aws_kms.FORM)
        return _tenant_id(options), GuardedRootKey(aws_kms.AwsKmsRootKey.open(location, options))
    if provider == "vault":
        try:
            from crypto.roots import vault  # noqa: PLC0415  hvac is an extra
        except ModuleNotFoundError:
            raise RootKeyInvalid("Vault needs the extra `vault`: install stateroom-gateway[vault]") from None
        options = parse_options(query, vault.OPTIONS | {"tenant"}, vault.FORM)
        return _tenant_id(options), GuardedRootKey(vault.VaultRootKey.open(location, options))
    raise RootKeyInvalid(
        "the root key setting names no supported provider; supported: file:/path/to/root.key, "
        "aws-kms:KEY_ARN_OR_ALIAS, vault:https://HOST:PORT/MOUNT/KEY?token_file=/PATH",
    )


def _tenant_id(options: dict[str, str]) -> UUID | None:
    text = options.pop("tenant", None)
    if text is None:
        return None
    try:
        return UUID(text)
    except ValueError:
        raise RootKeyInvalid("the root key setting's option tenant is no UUID") from None
