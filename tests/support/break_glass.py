"""Operators' keys with the permission ``decrypt-any``, made as operators make them: with the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
from sqlalchemy.engine import make_url

from gateway.cli.local.instance import Identity
from tests.support.gateway import GatewayProcess


def decrypting_key(gateway: GatewayProcess) -> str:
    """A new operator key of an embedded gateway that may read any state."""
    identity = msgspec.json.decode((gateway.data_dir / "embedded.json").read_bytes(), type=Identity)
    superuser = make_url(gateway.database_dsn)
    app_url = superuser.set(username="gw_app", password=identity.app_password)
    made = subprocess.run(
        [Path(sys.executable).with_name("stateroom"), "init", "--another", "--decrypt-any", "--json"],
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("STATEROOM_")},
            "STATEROOM_DATABASE_URL": app_url.render_as_string(hide_password=False),
            "STATEROOM_DEPLOYMENT_ID": str(identity.deployment_id),
            "STATEROOM_API_KEY_PEPPER": identity.api_key_pepper,
            "STATEROOM_ROOT_KEY": f"file:{gateway.data_dir / 'root.key'}",
            "STATEROOM_LISTEN": "127.0.0.1:0",
            "STATEROOM_METRICS_LISTEN": "off",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert made.returncode == 0, made.stderr
    api_key: str = json.loads(made.stdout)["api_key"]
    return api_key
