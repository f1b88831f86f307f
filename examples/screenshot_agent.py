"""An agent that looks at pages: its screenshots are artifacts, its state holds their pointers.

Needs ``STATEROOM_URL`` and ``STATEROOM_API_KEY``. The state stays small however many screenshots there are, and the
signed URL at the end shows the newest one in a browser, without a credential, for five minutes.

    set -a; . .stateroom/env; set +a
    python examples/screenshot_agent.py watch-1
"""

import argparse
import struct
import zlib
from dataclasses import dataclass, field

from stateroom import Client

WIDTH, HEIGHT = 320, 200
PAGES = ["news.example", "shop.example", "mail.example"]


@dataclass
class Watch:
    """The agent's state: what it has seen, as pointers."""

    seen: dict[str, str] = field(default_factory=dict)


def screenshot(page: str) -> bytes:
    """Stands in for a browser: a PNG of stripes that differ from page to page."""
    shade = zlib.crc32(page.encode()).to_bytes(4, "big")
    rows = b"".join(b"\0" + bytes((shade[row // 50],)) * WIDTH for row in range(HEIGHT))  # no filter, grey
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def main() -> None:
    """Look at the pages that are not seen yet, then show what was seen."""
    parser = argparse.ArgumentParser(description="An agent that keeps screenshots.")
    parser.add_argument("thread_id")
    parser.add_argument("--subject", default="user-42", help="whose pages they are")
    chosen = parser.parse_args()

    with Client.from_env(subject=chosen.subject) as client:
        thread = client.thread(chosen.thread_id, agent="watch", state_type=Watch)
        head = thread.load()
        watch = head.state if head else Watch()
        for page in PAGES:
            if page in watch.seen:
                continue
            artifact = client.artifacts.upload(
                chosen.thread_id,
                screenshot(page),
                name=f"{page}.png",
                metadata={"page": page},
                preview=f"{page}: stripes, {WIDTH} by {HEIGHT}".encode(),
            )
            watch.seen[page] = artifact.pointer
            thread.save(watch)  # the artifact is there before a state names it
            print(f"looked at {page}: {artifact.size_bytes} bytes", flush=True)

        for artifact in client.artifacts.list(chosen.thread_id):
            print(f"{artifact.name} version {artifact.version}: {(artifact.preview or b'').decode()}")
        newest = client.artifacts.url(watch.seen[PAGES[-1]], disposition="inline")
        print(f"see it until {newest.expires_at:%H:%M:%S} UTC: {newest.url}")


if __name__ == "__main__":
    main()
