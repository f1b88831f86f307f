"""A small HTTP server that speaks the artifact part of API v1, and fails where a test says so."""

import base64
import hashlib
import http.server
import json
import re
import threading
from collections import Counter
from urllib.parse import parse_qs, unquote, urlsplit
from uuid import uuid4

import msgspec

PART_BYTES = 2 * 1024 * 1024  # less than a real gateway's, so that many parts are few bytes
EXPIRES = "2026-11-23T10:00:00Z"


def digest_field(content):
    return f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"


def unbase64url(text):
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Refused(Exception):
    def __init__(self, status, code, *, retryable=False):
        super().__init__(code)
        self.status, self.code, self.retryable = status, code, retryable


class ArtifactServer:
    """Its state, and its faults.

    ``faults`` maps (method, kind of path) to what happens to the next such requests, in order: a `Refused`, or
    "lost" (done, but the connection ends without an answer), or None.
    """

    def __init__(self):
        self.artifacts, self.contents, self.uploads, self.completed = {}, {}, {}, {}
        self.part_bytes = PART_BYTES
        self.bytes_given = 0
        self.requests = []  # (method, kind, path)
        self.headers = []
        self.parts_stored = Counter()
        self.faults = {}
        self.cut_after = []  # bytes of content after which a download breaks off, one for each answer
        self.knows_ranges = True
        self.tells_part_digests = True
        self.content_served = None  # other content than was stored
        self.in_flight = self.in_flight_max = 0
        self.both_in_flight = threading.Event()
        self.gate = None  # a Barrier that parts meet at
        self.lock = threading.Lock()
        outer = self

        class Exchange(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def __getattr__(self, name):  # the standard library calls do_GET, do_PUT...
                if name.startswith("do_"):
                    return lambda: outer.serve(self)
                raise AttributeError(name)

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request, client_address):
                pass

        self.http = Server(("127.0.0.1", 0), Exchange)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_):
        self.http.shutdown()
        self.http.server_close()

    def count(self, method, kind):
        return sum(1 for request in self.requests if request[:2] == (method, kind))

    def serve(self, exchange):
        url = urlsplit(exchange.path)
        words = [unquote(word) for word in url.path.removeprefix("/v1/").split("/")]
        body = exchange.rfile.read(int(exchange.headers.get("content-length", 0)))
        kind = next(
            kind for kind in ("parts", "complete", "uploads", "content", "copy", "urls", "artifacts") if kind in words
        )
        with self.lock:
            self.requests.append((exchange.command, kind, url.path))
            self.headers.append(dict(exchange.headers.items()))
            pending = self.faults.get((exchange.command, kind))
            fault = pending.pop(0) if pending else None
        try:
            if isinstance(fault, Refused):
                raise fault
            if kind == "content":
                return self.give_content(exchange, words[1])
            status, answer = getattr(self, f"{exchange.command.lower()}_{kind}")(
                words, body, exchange.headers, parse_qs(url.query)
            )
        except Refused as refused:
            status = refused.status
            answer = {"status": status, "code": refused.code, "title": refused.code, "retryable": refused.retryable}
            return self.reply(exchange, status, json.dumps(answer).encode(), "application/problem+json")
        if fault == "lost":
            exchange.close_connection = True
            return None
        return self.reply(exchange, status, b"" if answer is None else msgspec.msgpack.encode(answer))

    @staticmethod
    def reply(exchange, status, body, media_type="application/msgpack"):
        exchange.send_response(status)
        exchange.send_header("Content-Type", media_type)
        exchange.send_header("Content-Length", str(len(body)))
        exchange.end_headers()
        exchange.wfile.write(body)

    def check_digest(self, headers, content):
        said, digest = headers.get("content-digest"), digest_field(content)
        if said not in {None, digest}:
            raise Refused(400, "digest-mismatch")
        return digest

    def store(self, thread_id, description, content, digest=None):
        artifact_id = str(uuid4())
        versions = [
            each
            for each in self.artifacts.values()
            if each["thread_id"] == thread_id and each["name"] == description["name"]
        ]
        self.contents[artifact_id] = content
        self.artifacts[artifact_id] = {
            "artifact_id": artifact_id,
            "pointer": f"stateroom:artifact:{artifact_id}",
            "thread_id": thread_id,
            "name": description["name"],
            "version": len(versions) + 1,
            "media_type": description["media_type"],
            "size_bytes": len(content),
            "digest": digest or digest_field(content),
            "metadata": description.get("metadata", {}),
            "created_at": "2026-11-22T10:00:00Z",
        }
        if description.get("preview") is not None:
            self.artifacts[artifact_id]["preview"] = description["preview"]
        return self.artifacts[artifact_id]

    def artifact(self, words):
        if words[1] not in self.artifacts:
            raise Refused(404, "artifact-not-found")
        return self.artifacts[words[1]]

    def upload(self, words):
        if words[1] not in self.uploads:
            raise Refused(404, "upload-not-found")
        return self.uploads[words[1]]

    # --- operations ---

    def post_artifacts(self, words, body, headers, query):
        digest = self.check_digest(headers, body)
        extended = re.fullmatch(
            r"UTF-8''((?:[A-Za-z0-9!#$&+.^_`|~-]|%[0-9A-F]{2})+)", headers["stateroom-artifact-name"]
        )
        described = {"name": unquote(extended[1]), "media_type": headers["content-type"]}
        if "stateroom-artifact-metadata" in headers:
            described["metadata"] = json.loads(unbase64url(headers["stateroom-artifact-metadata"]))
        if "stateroom-artifact-preview" in headers:
            described["preview"] = unbase64url(headers["stateroom-artifact-preview"])
        if "idempotency-key" not in headers:
            raise Refused(400, "invalid-request")
        with self.lock:
            done = self.completed.get(headers["idempotency-key"])
            if done is None:
                done = self.completed[headers["idempotency-key"]] = self.store(words[1], described, body, digest)
        return 201, done

    def post_uploads(self, words, body, headers, query):
        upload_id = str(uuid4())
        self.uploads[upload_id] = {"thread_id": words[1], **msgspec.msgpack.decode(body), "parts": {}}
        return 201, self.shown(upload_id)

    def shown(self, upload_id):
        upload = self.uploads[upload_id]
        return {
            "upload_id": upload_id,
            "thread_id": upload["thread_id"],
            "name": upload["name"],
            "part_bytes": self.part_bytes,
            "expires_at": EXPIRES,
            "parts": [
                {
                    "part_number": number,
                    "size_bytes": len(content),
                    "digest": digest_field(content) if self.tells_part_digests else None,
                }
                for number, content in sorted(upload["parts"].items())
            ],
        }

    def get_uploads(self, words, body, headers, query):
        self.upload(words)
        return 200, self.shown(words[1])

    def delete_uploads(self, words, body, headers, query):
        self.upload(words)
        del self.uploads[words[1]]
        return 204, None

    def put_parts(self, words, body, headers, query):
        upload, number = self.upload(words), int(words[3])
        with self.lock:
            self.in_flight += 1
            self.in_flight_max = max(self.in_flight, self.in_flight_max)
            if self.in_flight == 2:
                self.both_in_flight.set()
        try:
            if self.gate is not None:
                self.gate.wait(30)
            digest = self.check_digest(headers, body)
            with self.lock:
                upload["parts"][number] = body
                self.parts_stored[number] += 1
        finally:
            with self.lock:
                self.in_flight -= 1
        return 200, {"part_number": number, "size_bytes": len(body), "digest": digest}

    def post_complete(self, words, body, headers, query):
        if words[1] in self.completed:
            return 201, self.completed[words[1]]
        upload, asked = self.upload(words), msgspec.msgpack.decode(body)
        parts = [upload["parts"].get(number) for number in range(asked["parts"])]
        if None in parts or any(len(part) != self.part_bytes for part in parts[:-1]):
            raise Refused(409, "upload-incomplete")
        content = b"".join(parts)
        if asked["digest"] != (digest := digest_field(content)):
            raise Refused(400, "digest-mismatch")
        self.completed[words[1]] = self.store(upload["thread_id"], upload, content, digest)
        del self.uploads[words[1]]
        return 201, self.completed[words[1]]

    def get_artifacts(self, words, body, headers, query):
        if words[0] == "artifacts":
            return 200, self.artifact(words)
        found = [
            each
            for each in reversed(self.artifacts.values())
            if each["thread_id"] == words[1] and query.get("name", [each["name"]]) == [each["name"]]
        ]
        start, limit = int(query.get("cursor", ["0"])[0]), int(query["limit"][0])
        end = start + limit
        return 200, {"artifacts": found[start:end], "next_cursor": str(end) if end < len(found) else None}

    def delete_artifacts(self, words, body, headers, query):
        self.artifact(words)
        del self.artifacts[words[1]]
        return 204, None

    def post_copy(self, words, body, headers, query):
        artifact, asked = self.artifact(words), msgspec.msgpack.decode(body)
        described = artifact | {"name": asked.get("name", artifact["name"])}
        return 201, self.store(asked["thread_id"], described, self.contents[words[1]])

    def post_urls(self, words, body, headers, query):
        artifact, asked = self.artifact(words), msgspec.msgpack.decode(body)
        url = (
            f"https://gateway.test/v1/artifact-urls/{artifact['version']}-{asked['ttl_seconds']}-{asked['disposition']}"
        )
        return 200, {"url": url, "expires_at": EXPIRES}

    def delete_urls(self, words, body, headers, query):
        self.artifact(words)
        return 204, None

    def give_content(self, exchange, artifact_id):
        artifact = self.artifact(["artifacts", artifact_id])
        content = self.contents[artifact_id] if self.content_served is None else self.content_served
        etag = f'"{hashlib.sha256(b"keyed" + artifact["digest"].encode()).hexdigest()[:32]}"'
        wanted = re.fullmatch(r"bytes=(\d+)-(\d+)", exchange.headers.get("range", ""))
        may = exchange.headers.get("if-range") in {None, etag}
        start, stop = 0, len(content)
        if wanted and may and self.knows_ranges:
            start, stop = int(wanted[1]), min(int(wanted[2]) + 1, len(content))
            if start >= len(content):
                raise Refused(416, "range-not-satisfiable")
            exchange.send_response(206)
            exchange.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(content)}")
        else:
            exchange.send_response(200)
        exchange.send_header("Content-Type", artifact["media_type"])
        exchange.send_header("ETag", etag)
        exchange.send_header("Content-Length", str(stop - start))
        exchange.end_headers()
        given = content[start:stop]
        with self.lock:
            cut = self.cut_after.pop(0) if self.cut_after else None
            self.bytes_given += len(given)
        if cut is not None and cut < len(given):
            exchange.wfile.write(given[:cut])
            exchange.close_connection = True
            return
        exchange.wfile.write(given)
