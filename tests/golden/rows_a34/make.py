"""Writes `deployment.tar.xz`: what the build 871834a stored, by its own gateway, worker, command line and SDK.

    python -m tests.golden.rows_a34.make

It builds that commit from this clone's history, as `make mixed` does with its own, and takes three minutes. It is run
again only when the story below tells of another kind of row: what it writes has other keys and ids each time.
"""

import asyncio
import json
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from base64 import b64encode, urlsafe_b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import msgspec
from sqlalchemy.engine import make_url

from gateway.embedded.postgres import EmbeddedPostgres, postgres_programs
from gateway.embedded.s3 import EmbeddedS3
from tests.previous.conftest import Process, Sdk
from tests.support.golden_rows import FILE, Answered, Document, Golden, Question, body_of, dump, restore, stored
from tests.support.operations import encoded
from tests.support.previous_build import Recorded, environment

BUILD = Recorded(
    "871834a4b00df08ea5cc6ccd77565c80db0cb636", "eb468a9a8f88e1ea91c8cc7ad2cb822e05032bea2e6239fe047deca71ff43830"
)
# Nothing of it may be due when a test reads it, in whatever year.
CENTURY_SECONDS = 3_162_240_000
ENDED_SECONDS_MAX = 120.0
ADA, BOB, EVE, ZOE, SHARED = "ada", "bob", "eve", "Zoë / 1", "~shared"
NAMESPACES = ("", "work:1", "work:1|deep")
_OWNER, _APP = "owner-of-the-golden", "app-of-the-golden"


def large_value(name: str) -> str:
    """A text that is just large enough to live in the bucket."""
    return f"{name} ".ljust(16_400, "v")


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code < 300, f"{answer.request.method} {answer.request.url}: {answer.text}"
    return answer.json() if answer.content else None


def until(done: Callable[[], Any]) -> Any:
    """What is answered once it is something: another process works on it, and tells nobody."""
    deadline = time.monotonic() + ENDED_SECONDS_MAX
    while not (found := done()):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    return found


class Deployment:
    """The earlier build on engines of its own.

    Attributes:
        environ: What its processes are told.
    """

    def __init__(self, folder: Path, venv: Path, postgres: EmbeddedPostgres, s3: EmbeddedS3) -> None:
        self.folder, self.venv, self.postgres, self.s3 = folder, venv, postgres, s3
        self.url = ""
        self.environ: dict[str, str] = {}
        root_key = folder / "root.key"
        self.run("root-key", "create", str(root_key))
        self.environ = {
            "STATEROOM_ROOT_KEY": f"file:{root_key}",
            "STATEROOM_API_KEY_PEPPER": secrets.token_hex(32),
            "STATEROOM_DEPLOYMENT_ID": str(uuid4()),
            # The least that may be: a large value is one that a small file can hold.
            "STATEROOM_S3_URL": f"{s3.url()}&offload_bytes_min=16384",
            "STATEROOM_ARCHIVE_URL": s3.archive_url(),
            "STATEROOM_LISTEN": "127.0.0.1:0",
            "STATEROOM_DRAIN_SECONDS": "0",
        }
        self.use_database("first")
        self.run("db", "upgrade")
        made = json.loads(self.run("init", "--json", "--expires", "never"))
        self.operator_key = str(made["api_key"])

    def use_database(self, name: str) -> str:
        """Make an empty database and go on with it; returns the URL of its superuser."""
        roles = self.run("db", "roles")
        self._psql("postgres", roles)
        self._psql("postgres", f"ALTER ROLE gw_migrate PASSWORD '{_OWNER}'; ALTER ROLE gw_app PASSWORD '{_APP}'")
        self._psql("postgres", f"CREATE DATABASE {name} OWNER gw_migrate")
        self._psql(name, roles)
        base = make_url(self.postgres.superuser_url(name)).set(drivername="postgresql")
        for variable, role, password in (
            ("DATABASE_OWNER_URL", "gw_migrate", _OWNER),
            ("DATABASE_URL", "gw_app", _APP),
        ):
            self.environ[f"STATEROOM_{variable}"] = base.set(username=role, password=password).render_as_string(False)
        self.superuser_url = base.render_as_string(False)
        return self.superuser_url

    def _psql(self, database: str, script: str) -> None:
        url = self.postgres.superuser_url(database).replace("+asyncpg", "", 1)
        command = [postgres_programs() / "psql", "-qX", "-v", "ON_ERROR_STOP=1", url]
        subprocess.run(command, input=script, text=True, check=True)

    def run(self, *arguments: str, allowed: tuple[int, ...] = (0,)) -> str:
        environ = {"PATH": os.environ["PATH"], **self.environ}
        command = [self.venv / "bin" / "stateroom", *arguments]
        done = subprocess.run(command, check=False, env=environ, capture_output=True, text=True)
        assert done.returncode in allowed, f"{arguments}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def running(self, *command: str) -> Iterator[Process]:
        process = Process(self.venv, self.folder / f"{secrets.token_hex(4)}.log", self.environ, *command).ready()
        try:
            yield process
        finally:
            process.stop()

    @contextmanager
    def serving(self) -> Iterator[None]:
        with self.running("serve", "--no-background") as process:
            self.url = f"http://{process.address}"
            yield

    def client(self, api_key: str, subject: str | None = None) -> httpx.Client:
        headers = {"Authorization": f"Bearer {api_key}"}
        if subject is not None:
            headers["Stateroom-Subject"] = encoded(subject)
        return httpx.Client(base_url=self.url, headers=headers, timeout=30)

    def operator(self) -> httpx.Client:
        return self.client(self.operator_key)

    def tenant(self, name: str) -> tuple[str, str]:
        """Found a tenant; returns its id and a key that may do everything in it, for good."""
        with self.operator() as operator:
            founded = ok(operator.post("/v1/admin/tenants", json={"name": name}))
        with self.client(founded["api_key"]) as founder:
            grants = ok(founder.get("/v1/whoami"))["grants"]
            body = {"kind": "service", "name": "everything", "permissions": grants, "expires_at": None}
            made = ok(founder.post("/v1/api-keys", json=body))
        assert made["expires_at"] is None
        return founded["tenant_id"], made["api_key"]


class Thread:
    """A thread of the story, saved to by its subject, and what is asked about it at the end."""

    def __init__(self, story: "Story", thread_id: str, subject: str = ADA, **headers: str) -> None:
        self.story, self.thread_id, self.subject = story, thread_id, subject
        self.path = f"/v1/threads/{thread_id}"
        self.headers = headers
        self.client = story.deployment.client(story.keys["service"], subject)
        self.client.headers.update(headers)
        story.threads.append(self)

    def save(self, state: Any = None, /, **body: Any) -> str:
        if state is not None:
            body["state"] = state
        return str(ok(self.client.post(f"{self.path}/checkpoints", json={"agent": "writer", **body}))["checkpoint_id"])

    def append(self, **elements: list[Any]) -> None:
        head = self.client.get(f"{self.path}/checkpoints/latest").headers["etag"]
        body = {"changes": {"append": elements}, "agent": "writer"}
        ok(self.client.post(f"{self.path}/checkpoints", json=body, headers={"If-Match": head}))

    def write(self, checkpoint_id: str, task: str, *writes: dict[str, Any], **body: Any) -> None:
        path = f"{self.path}/checkpoints/{checkpoint_id}/writes/{task}"
        ok(self.client.post(path, json={"writes": list(writes), **body}))
        namespace = {"namespace": body["namespace"]} if "namespace" in body else {}
        self.story.ask(str(httpx.URL(path, params=namespace)), self.subject, **self.headers)

    def file(self, name: str, content: bytes, **headers: str) -> str:
        headers |= {"Stateroom-Artifact-Name": name, "Content-Type": "application/octet-stream"}
        made = ok(self.client.post(f"{self.path}/artifacts", content=content, headers=headers))
        self.story.ask(f"/v1/artifacts/{made['artifact_id']}", self.subject)
        self.story.ask(f"/v1/artifacts/{made['artifact_id']}/content", self.subject)
        return str(made["artifact_id"])

    def archive(self) -> str:
        return str(ok(self.client.post(f"{self.path}/archive"))["job_id"])

    def ask_for_everything(self) -> None:
        """Of each namespace: the head, the history, each checkpoint, and how its lists came to be."""
        ask = self.story.ask
        ask(self.path, self.subject)
        ask(f"{self.path}/retention", self.subject)
        ask(f"{self.path}/artifacts", self.subject, **self.headers)
        for namespace in NAMESPACES:
            params = {"namespace": namespace, "limit": "1000"}
            found = self.client.get(f"{self.path}/checkpoints", params=params)
            checkpoints = [each["checkpoint_id"] for each in found.json().get("checkpoints", [])]  # none if shredded
            for view in ("state", "channels"):
                for path in ("", "/latest", *(f"/{each}" for each in checkpoints)):
                    params = {"namespace": namespace, "view": view} | ({} if path else {"limit": "1000"})
                    ask(str(httpx.URL(f"{self.path}/checkpoints{path}", params=params)), self.subject, **self.headers)
            if checkpoints:
                params = {"namespace": namespace, "channel": "long"}
                path = f"{self.path}/checkpoints/latest/channel-history"
                ask(str(httpx.URL(path, params=params)), self.subject, **self.headers)


class Story:
    """What the earlier build is made to store, and what it is asked at the end."""

    def __init__(self, deployment: Deployment) -> None:
        self.deployment = deployment
        self.keys = {"operator": deployment.operator_key}
        self.named: dict[str, str] = {}
        self.threads: list[Thread] = []
        self.questions: list[Question] = []

    def ask(self, path: str, subject: str | None = None, *, key: str = "service", **headers: str) -> None:
        if subject is not None:
            headers["Stateroom-Subject"] = encoded(subject)
        self.questions.append(Question(key, path, headers))

    @contextmanager
    def service(self) -> Iterator[httpx.Client]:
        with self.deployment.client(self.keys["service"]) as client:
            yield client

    def ended(self, job_id: str, prefix: str = "/v1/jobs", key: str = "service") -> None:
        with self.deployment.client(self.keys[key]) as client:
            job = until(
                lambda: (
                    found if (found := ok(client.get(f"{prefix}/{job_id}")))["state"] in {"done", "failed"} else None
                )
            )
        assert job["state"] == "done", job

    # --- before the restore ------------------------------------------------------------------------------------------

    def lose(self) -> None:
        """Restore a backup that lacks what was anchored since, and accept it: rows that say what was lost."""
        with self.deployment.serving():
            self.named["tenant"], self.keys["service"] = self.deployment.tenant("golden")
            kept = Thread(self, "kept-by-the-backup")
            kept.save({"n": 1})
            ok(kept.client.post("/v1/audit/anchor"))
            self.threads.clear()
        backup = dump(self.deployment.superuser_url)
        with self.deployment.serving(), self.service() as service:
            Thread(self, "lost").save({"n": 2})
            self.threads.clear()
            body = {"kind": "subject", "name": "lost", "subject_id": ADA, "permissions": ["state:read"]}
            ok(service.post("/v1/api-keys", json=body))  # saves are no events: the log has to lose one, too
            ok(service.post("/v1/audit/anchor"))
        restore(self.deployment.use_database("second"), backup)
        self.deployment.run("restore", "accept")

    # --- with a worker -----------------------------------------------------------------------------------------------

    def finish_upgrade(self) -> None:
        """Have everything that this build can do: what it writes is then of the kinds that it has."""
        self.deployment.run("db", "finish-upgrade")
        Thread(self, "adopted").save({"payee": "carol"}, agent="unversioned")
        with self.service() as service:
            ok(service.put("/v1/state-schemas/pay/versions/1", json={"label": "first", "searchable": ["tier"]}))
            up = [{"op": "rename", "from": "/payee", "to": "/recipient"}]
            down = [{"op": "rename", "from": "/recipient", "to": "/payee"}]
            ok(service.put("/v1/state-schemas/pay/versions/2", json={"label": "second", "up": up, "down": down}))
            body = {"agent": "unversioned", "state_version": 1}
            until(lambda: service.post("/v1/state-schemas/pay/adoptions", json=body).status_code < 300)

    def save_threads(self) -> None:
        Thread(self, "kept-by-the-backup")
        self._save_states()
        self._save_writes()
        self._save_large_values()
        self._save_files()
        self._save_versioned()
        self._save_and_remove()
        self._save_for_others()
        self._save_by_the_sdk()
        self._save_for_the_archive()

    def _save_states(self) -> None:
        growing = Thread(self, "growing")
        growing.save({"long": [{"number": n, "text": f"{n} " + "x" * 700} for n in range(20)], "note": "ä → 🙂"})
        for number in range(5):
            growing.append(long=[{"number": 20 + number, "text": "y" * 700}])
        spread = Thread(self, "spread")
        for namespace in NAMESPACES:
            for number in range(3):
                model = {"name": "model-1", "temperature": 0.5, "seed": 7}
                usage = {"input_tokens": 10 + number, "output_tokens": 5, "cost_micros": 42}
                named = {"run_id": f"run-{number}", "model": model, "usage": usage, "source": "loop"}
                spread.save(
                    {"n": number, "namespace": namespace}, namespace=namespace, metadata={"by": namespace}, **named
                )
        forked = Thread(self, "forked")
        first = forked.save({"n": 1, "long": [1]})
        second = forked.save({"n": 2, "long": [1, 2]}, parent_id=first)
        forked.save({"n": "2, again", "long": [1, "2, again"]}, parent_id=first, fork=True)
        forked.save({"n": 3, "long": [1, "2, again", 3]})
        ok(forked.client.post(f"{forked.path}/copy", json={"target_thread_id": "copied"}))
        Thread(self, "copied")
        self.named["forked_from"] = second

    def _save_writes(self) -> None:
        waiting = Thread(self, "waiting")
        head = waiting.save({"n": 1}, status="waiting")
        waiting.write(
            head, "task-1", {"channel": "a", "idx": 0, "value": "1"}, {"channel": "b", "idx": 1, "value": ["2"] * 99}
        )
        waiting.write(head, "task-2", {"channel": "__error__", "idx": -1, "value": "no"}, status="failed")
        beside = waiting.save({"n": 2}, namespace="work:1")
        waiting.write(
            beside,
            "task-3",
            {"channel": "a", "idx": 0, "value": large_value("written")},
            namespace="work:1",
            task_path="p",
        )
        for status in ("active", "done", "failed"):
            Thread(self, f"is-{status}").save({"status": status}, status=status)

    def _save_large_values(self) -> None:
        large = Thread(self, "large")
        large.save({"shots": [large_value("one")], "note": "one"})
        large.save({"shots": [large_value("one"), large_value("two")], "note": "two"})
        share = {"Stateroom-Client-Share": b64encode(b"s" * 32).decode()}
        shared = Thread(self, "under-a-clients-share", BOB, **share)
        shared.save({"secret": 1, "long": ["x" * 300] * 9})
        shared.append(long=["y"])

    def _save_versioned(self) -> None:
        versioned = Thread(self, "versioned")
        for tier in ("gold", "silver", "gold"):
            versioned.save({"payee": "bob"}, state_schema="pay", state_version=1, metadata={"tier": tier})
        for thread in ("versioned", "adopted"):
            self.ask(f"/v1/threads/{thread}/checkpoints/latest", ADA, **{"Accept-State-Version": "pay=2"})
        self.ask(
            str(httpx.URL("/v1/threads/versioned/checkpoints", params={"filter": json.dumps({"tier": "gold"})})), ADA
        )
        self.ask(str(httpx.URL("/v1/checkpoints", params={"filter": json.dumps({"tier": "gold"})})), ADA)
        self.ask("/v1/state-schemas/pay/status")

    def _save_and_remove(self) -> None:
        strict = Thread(self, "strict")
        strict.save({"n": 1})
        ok(strict.client.patch(strict.path, json={"strict": True, "agent": "careful"}))
        held = Thread(self, "held")
        held.save({"n": 1})
        ok(held.client.put(f"{held.path}/retention", json={"legal_hold": True, "idle_ttl_seconds": CENTURY_SECONDS}))
        thinned = Thread(self, "thinned")
        for number in range(6):
            thinned.save({"n": number}, agent="thinned")
        pruned = Thread(self, "pruned")
        for number in range(3):
            pruned.save({"n": number})
        ok(pruned.client.post("/v1/threads:prune", json={"thread_ids": ["pruned"], "strategy": "keep_latest"}))
        compacted = Thread(self, "compacted")
        compacted.save({"long": [f"{n} " + "c" * 200 for n in range(40)]})
        body = {"channel": "long", "keep_last": 3, "summary": "what was before"}
        ok(compacted.client.post(f"{compacted.path}/compact", json=body))
        deleted = Thread(self, "deleted")
        deleted.save({"n": 1})
        ok(deleted.client.delete(deleted.path))
        run = Thread(self, "of-a-run")
        run.save({"n": 1}, run_id="deleted-run")
        ok(run.client.post("/v1/runs:delete", json={"run_ids": ["deleted-run"]}))
        once = Thread(self, "once")
        body = {"state": {"n": 1}}
        for _ in range(2):
            ok(once.client.post(f"{once.path}/checkpoints", json=body, headers={"Idempotency-Key": "once"}))

    def _save_for_others(self) -> None:
        for subject in (BOB, EVE, ZOE, SHARED):
            of_them = Thread(self, "theirs", subject)
            shot = {"shot": large_value(subject)} if subject in {BOB, EVE} else {}
            of_them.save({"whose": subject, "long": ["x" * 300] * 9, **shot})
            of_them.append(long=["more"])

    def _save_by_the_sdk(self) -> None:
        python, url = self.deployment.venv / "bin" / "python", self.deployment.url
        sdk = Sdk(python, url, self.keys["service"], ADA)
        for number in range(3):
            sdk.graph_save("graph", {"messages": [f"{n} " + "m" * 400 for n in range(5 + number)], "n": number})
        sdk.save("of-the-sdk", {"long": [1, 2], "n": 1})
        sdk.grow("of-the-sdk", [3, 4])
        sdk.once("of-the-sdk", "pay", "paid")
        sdk.fork("of-the-sdk", "forked-by-the-sdk")
        sdk.close()
        for thread in ("graph", "of-the-sdk", "forked-by-the-sdk"):
            Thread(self, thread)

    def _save_for_the_archive(self) -> None:
        for thread_id in ("archived", "archived-and-back", "archived-by-the-next-build"):
            thread = Thread(self, thread_id)
            shot = large_value("archived")
            thread.save({"long": [f"{n} " + "a" * 500 for n in range(30)], "shot": shot})
            thread.append(long=["more"])
            head = thread.save({"long": [1], "shot": shot}, status="waiting", run_id="run-9")
            thread.write(head, "task", {"channel": "long", "idx": 0, "value": [2]})
            thread.save({"deep": thread_id}, namespace="work:1")
            thread.file("in the archive.bin", b"archived")

    def _save_files(self) -> None:
        files = Thread(self, "files")
        metadata = {"Stateroom-Artifact-Metadata": urlsafe_b64encode(b'{"kind":"report"}').decode()}
        artifact = files.file("report.bin", b"r" * 5000, **metadata)
        files.file("report.bin", b"second version")
        files.save({"file": f"stateroom:artifact:{artifact}", "n": 1})
        ok(files.client.post(f"/v1/artifacts/{artifact}/copy", json={"thread_id": "copy-of-files"}))
        Thread(self, "copy-of-files")
        ok(files.client.post(f"/v1/artifacts/{artifact}/urls", json={}))
        ok(files.client.delete(f"/v1/artifacts/{artifact}/urls"))
        ok(files.client.delete(f"/v1/artifacts/{files.file('gone.bin', b'gone')}"))
        for complete in (True, False):
            begun = ok(files.client.post(f"{files.path}/uploads", json={"name": f"uploaded-{complete}.bin"}))
            ok(files.client.put(f"/v1/uploads/{begun['upload_id']}/parts/0", content=b"u" * 3000))
            if complete:
                ok(files.client.post(f"/v1/uploads/{begun['upload_id']}/complete", json={"parts": 1}))

    def set_policies(self) -> None:
        """What steers: retention, save policies, ceilings, quotas, keys, imports that an operator accepted."""
        tenant = f"/v1/admin/tenants/{self.named['tenant']}"
        with self.service() as service, self.deployment.operator() as operator:
            ok(operator.put(f"{tenant}/retention-ceilings", json={"archive_ttl_seconds": CENTURY_SECONDS}))
            ok(operator.patch(f"{tenant}/usage", json={"quota_bytes": 10**9, "rows_quota_bytes": 10**9}))
            ok(operator.post(f"{tenant}/unbound-imports", json={"export_id": str(uuid4())}))
            ok(service.put("/v1/retention", json={"idle_ttl_seconds": CENTURY_SECONDS, "on_expiry": "archive"}))
            thinning = {"every": 2, "keep_first": 1, "keep_last": 2}
            ok(service.put("/v1/retention?agent=thinned", json={"checkpoints_max": 4, "thinning": thinning}))
            ok(service.put("/v1/retention?agent=held", json={"legal_hold": True}))
            ok(service.put("/v1/save-policy", json={"strict": False}))
            ok(service.put("/v1/save-policy?agent=careful", json={"strict": True}))
            for name, subject, permissions in (
                ("reader", ADA, ["state:read"]), ("writer", BOB, ["state:read", "state:write"]),
                ("revoked", ADA, ["state:read"]),
            ):  # fmt: skip
                body = {"kind": "subject", "name": name, "subject_id": subject, "permissions": permissions}
                made = ok(service.post("/v1/api-keys", json=body))
                self.keys[name] = made["api_key"]
            ok(service.delete(f"/v1/api-keys/{self.keys['revoked'].split('_')[2]}"))
            self.ask("/v1/whoami", key="revoked")
            self.ask("/v1/threads/growing/checkpoints/latest", key="reader")
            for path in ("whoami", "retention", "retention?agent=thinned", "retention?agent=held", "save-policy",
                         "save-policy?agent=careful", "state-schemas", "state-schemas/pay",
                         "state-schemas/pay/adoptions", "api-keys", "subjects", "keys", "keys?subject_id=bob",
                         "transfer-key", "audit/key", "audit/anchor"):  # fmt: skip
                self.ask(f"/v1/{path}")
            for path in ("retention-ceilings", ""):
                self.ask(f"{tenant}/{path}".rstrip("/"), key="operator")
            for path in ("keys", "api-keys", "audit/key", "audit/anchor", "tenants?limit=1000"):
                self.ask(f"/v1/admin/{path}", key="operator")
            self.ask("/v1/threads?limit=1000", ADA)

    def other_tenants(self) -> None:
        """One that imports what this one exports, one that is suspended, one that is shredded."""
        tenants = {name: self.deployment.tenant(name) for name in ("importing", "suspended", "shredded")}
        for name, (tenant_id, api_key) in tenants.items():
            self.named[name], self.keys[name] = tenant_id, api_key
            with self.deployment.client(api_key, ADA) as client:
                ok(client.post("/v1/threads/own/checkpoints", json={"state": {"of": name}}))
            self.ask("/v1/threads/own/checkpoints/latest", ADA, key=name)
            self.ask(f"/v1/admin/tenants/{tenant_id}", key="operator")
        with self.deployment.client(self.keys["importing"]) as importing, self.service() as service:
            recipient = ok(importing.get("/v1/transfer-key"))["public_key"]
            exported = service.post("/v1/threads/waiting/export", json={"recipient": recipient, "subject_id": ADA})
            assert exported.status_code == 200, exported.text[:300]
            assert ok(importing.post("/v1/import", content=exported.content))["verified"] == 1
        for path in ("", "/checkpoints?view=state", "/checkpoints/latest?namespace=work:1"):
            self.ask(f"/v1/threads/waiting{path}", ADA, key="importing")
        with self.deployment.operator() as operator:
            path = f"/v1/admin/tenants/{self.named['suspended']}/suspend"
            ok(operator.post(path, json={"reason": "did not pay"}))

    def work(self) -> None:
        """Jobs that end, each of its kind, and a round of retention."""
        with self.deployment.running("worker"), self.service() as service, self.deployment.operator() as operator:
            threads = {each.thread_id: each for each in self.threads if each.subject == ADA}
            for name in ("archived", "archived-and-back"):
                self.ended(threads[name].archive())
            self.ended(ok(threads["archived-and-back"].client.post("/v1/threads/archived-and-back/restore"))["job_id"])
            for body in ({"level": "subject", "subject_id": BOB}, {"level": "tenant"}):
                self.ended(ok(service.post("/v1/keys:rotate", json=body))["job_id"])
            self.ended(ok(service.post("/v1/keys:rewrap"))["job_id"])
            body = {"target_version": 2, "idle_seconds": 0}
            self.ended(ok(service.post("/v1/state-schemas/pay/migrate", json=body))["job_id"])
            self.ended(ok(service.post(f"/v1/subjects/{EVE}/shred", json={"confirm": EVE}))["job_id"])
            self.ended(ok(service.post("/v1/verify"))["job_id"])
            tenant_id = self.named["shredded"]
            path = f"/v1/admin/tenants/{tenant_id}"
            job = ok(operator.post(f"{path}/shred", json={"confirm": tenant_id}))["job_id"]
            self.ended(job, f"{path}/jobs", "operator")
            for name in ("keys:rewrap", "verify"):
                self.ended(ok(operator.post(f"/v1/admin/{name}"))["job_id"], "/v1/admin/jobs", "operator")
            ok(service.post("/v1/retention/round"))
            until(lambda: ok(service.get("/v1/retention/round")).get("finished_at"))
            until(lambda: len(ok(threads["thinned"].client.get("/v1/threads/thinned/checkpoints"))["checkpoints"]) < 6)

    # --- without one -------------------------------------------------------------------------------------------------

    def begin_jobs(self) -> None:
        """Jobs that the next build ends."""
        with self.service() as service:
            left = {
                "rotation": service.post("/v1/keys:rotate", json={"level": "subject", "subject_id": BOB}),
                "shred": service.post(f"/v1/subjects/{encoded(ZOE)}/shred", json={"confirm": ZOE}),
            }
            self.named |= {name: ok(answer)["job_id"] for name, answer in left.items()}
            self.named["archiving"] = next(
                each for each in self.threads if each.thread_id == "archived-by-the-next-build"
            ).archive()

    def end(self) -> tuple[list[Answered], dict[str, list[Any]]]:
        """Ask everything; anchor the logs, and read them last."""
        with self.service() as service, self.deployment.operator() as operator:
            ok(service.post("/v1/audit/anchor"))
            ok(operator.post("/v1/admin/audit/anchor"))
            for thread in self.threads:
                thread.ask_for_everything()
            answers = []
            with httpx.Client(base_url=self.deployment.url, timeout=30) as nobody:
                for question in self.questions:
                    answer = question.ask(nobody, self.keys)
                    answers.append(Answered(question, answer.status_code, body_of(answer)))
            events = {"service": ok(service.get("/v1/audit?limit=1000"))["events"]}
            events["operator"] = ok(operator.get("/v1/admin/audit?limit=1000"))["events"]
        return answers, events


async def objects(s3: EmbeddedS3) -> dict[str, dict[str, bytes]]:
    return {"blobs": await stored(s3.url()), "archive": await stored(s3.archive_url())}


def main() -> None:
    venv = environment(BUILD)
    folder = Path(tempfile.mkdtemp(prefix="stateroom-golden-"))
    try:
        with EmbeddedPostgres(folder) as postgres, EmbeddedS3(folder) as s3:
            deployment = Deployment(folder, venv, postgres, s3)
            story = Story(deployment)
            story.lose()
            with deployment.serving():
                story.finish_upgrade()
                story.save_threads()
                story.set_policies()
                story.other_tenants()
                story.work()
                story.begin_jobs()
                answers, events = story.end()
            own = {name: deployment.environ[f"STATEROOM_{name}"] for name in ("API_KEY_PEPPER", "DEPLOYMENT_ID")}
            document = Document(own, story.keys, story.named, answers, events)
            golden = Golden(
                document,
                (folder / "root.key").read_bytes(),
                dump(deployment.superuser_url),
                asyncio.run(objects(s3)),
            )
            golden.write(FILE)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    counts = {bucket: len(each) for bucket, each in golden.objects.items()}
    print(msgspec.json.encode({"answers": len(answers), "bytes": FILE.stat().st_size, **counts}).decode())  # noqa: T201


if __name__ == "__main__":
    main()
