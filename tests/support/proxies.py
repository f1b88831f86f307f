"""The proxies of ``deploy/proxy`` as processes: their own files, with what an operator would write into them.

HAProxy is told by its environment; of nginx's example the lines are replaced that its first comment names.
"""

import asyncio
import datetime as dt
import ipaddress
import json
import os
import re
import socket
import ssl
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.support.metrics import free_port

FOLDER = Path(__file__).resolve().parents[2] / "deploy" / "proxy"
START_SECONDS_MAX = 10.0


class Certificate:
    """A certificate for this machine, and a context that trusts it alone."""

    def __init__(self, folder: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
        now = dt.datetime.now(dt.UTC)
        names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(key, hashes.SHA256())
        )
        self.file, self.key_file, self.both = (folder / f"{part}.pem" for part in ("certificate", "key", "tls"))
        self.file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self.key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        self.both.write_bytes(self.file.read_bytes() + self.key_file.read_bytes())

    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.file))


class Proxy(ABC):
    """One process in front of gateways, at `url`.

    Args:
        program: Its path.
        folder: Where its files go.
        certificate: Its certificate.
        gateways: Ports of gateways, each with the port of its metrics and probes.
        edit: Changes the text of its file.
    """

    name = ""

    def __init__(
        self,
        program: str,
        folder: Path,
        certificate: Certificate,
        gateways: Sequence[tuple[int, int]],
        *,
        edit: Callable[[str], str] = str,
        **variables: str,
    ) -> None:
        self.port, self.metrics_port = free_port(), free_port()
        self.url = f"https://localhost:{self.port}"
        self.certificate = certificate
        self._gateways = gateways
        self._variables = variables
        self._log = folder / f"{self.name}-{self.port}.log"
        self._file = folder / f"{self.name}-{self.port}.conf"
        self._file.write_text(edit(self._text()))
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _text(self) -> str:
        """Its file, as it is to be used here."""

    @abstractmethod
    def _command(self) -> list[str]:
        """The command line that serves in the foreground."""

    def _environ(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"]}

    @abstractmethod
    def check(self) -> subprocess.CompletedProcess[str]:
        """What the program itself says of its file."""

    @property
    def log(self) -> str:
        return self._log.read_text()

    @property
    def requests(self) -> list[dict[str, Any]]:
        """Its lines about requests."""
        lines = (json.loads(line) for line in self.log.splitlines() if line.startswith("{"))
        return [line for line in lines if line["event"] == "request"]

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def runs(self) -> bool:
        assert self._process is not None
        return self._process.poll() is None

    async def __aenter__(self) -> Self:
        with self._log.open("wb") as file:
            command, environ = self._command(), self._environ()
            self._process = await asyncio.to_thread(subprocess.Popen, command, env=environ, stdout=file, stderr=file)
        async with asyncio.timeout(START_SECONDS_MAX):
            while not await self._listens():
                assert self.runs, self.log
                await asyncio.sleep(0.05)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            await asyncio.to_thread(self._process.wait, 10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    async def _listens(self) -> bool:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", self.port)
        except ConnectionRefusedError:
            return False
        writer.close()
        return True

    async def connect(self, receive_bytes: int = 2**18) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection over TLS, which keeps about so much that it does not read."""
        connected = socket.socket()
        try:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            connected.setblocking(False)
            await asyncio.get_running_loop().sock_connect(connected, ("127.0.0.1", self.port))
            context = self.certificate.context()
            return await asyncio.open_connection(
                sock=connected, ssl=context, server_hostname="localhost", limit=receive_bytes
            )
        except BaseException:
            connected.close()
            raise


class HAProxy(Proxy):
    name = "haproxy"

    def _text(self) -> str:
        return (FOLDER / "haproxy.cfg").read_text()

    def _command(self) -> list[str]:
        return [self._program, "-db", "-f", str(self._file)]

    def _environ(self) -> dict[str, str]:
        servers = {}
        for number, (port, metrics_port) in enumerate(self._gateways, 1):
            servers[f"STATEROOM_GATEWAY_{number}"] = f"127.0.0.1:{port}"
            servers[f"STATEROOM_GATEWAY_{number}_METRICS_PORT"] = str(metrics_port)
        own = {
            "STATEROOM_PROXY_LISTEN": f"127.0.0.1:{self.port}",
            "STATEROOM_PROXY_CERTIFICATE": str(self.certificate.both),
            "STATEROOM_PROXY_METRICS_LISTEN": f"127.0.0.1:{self.metrics_port}",
        }
        return super()._environ() | own | servers | self._variables

    def check(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._program, "-c", "-f", str(self._file)],
            env=self._environ(),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )


class Nginx(Proxy):
    name = "nginx"

    def _text(self) -> str:
        text = (FOLDER / "nginx.conf").read_text()
        servers = "".join(
            f"        server 127.0.0.1:{port} max_fails=1 fail_timeout=2s;\n" for port, _ in self._gateways
        )
        text, replaced = re.subn(r"(?: +server 127\.0\.0\.1:\d+ max_fails=1 fail_timeout=2s;\n)+", servers, text)
        assert replaced == 1
        for shipped, ours in (
            ("listen 443 ssl", f"listen 127.0.0.1:{self.port} ssl"),
            ("/etc/stateroom/tls/certificate.pem", str(self.certificate.file)),
            ("/etc/stateroom/tls/key.pem", str(self.certificate.key_file)),
            ("pid /run/nginx.pid", f"pid {self._file.with_suffix('.pid')}"),
        ):
            assert text.count(shipped) == 1, shipped
            text = text.replace(shipped, ours)
        return text

    def _command(self) -> list[str]:
        return [self._program, "-c", str(self._file), "-g", "daemon off;"]

    def check(self) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._program, "-t", "-c", str(self._file)], capture_output=True, text=True, timeout=60, check=False
        )
