"""Secrets that a command needs without the rest of the gateway's settings."""

import os
from collections.abc import Mapping
from pathlib import Path

from gateway.cli.failure import ExitCode, Failure


def secret(name: str, *, hint: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the secret in the variable ``name``, or in the file that ``name`` + ``_FILE`` names.

    Args:
        name: The variable.
        hint: What to do when there is none.
        environ: Where to look.

    Raises:
        Failure: There is none, or the file cannot be read.
    """
    if value := environ.get(name, "").strip():
        return value
    if path := environ.get(f"{name}_FILE"):
        try:
            value = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text"
            raise Failure(f"{name}_FILE cannot be read", detail=f"{path}: {reason}") from None
        if value:
            return value
        raise Failure(f"{name}_FILE names an empty file", detail=path)
    raise Failure(f"{name} is not set", hint=hint, exit_code=ExitCode.USAGE)
