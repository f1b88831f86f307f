"""A client that keeps more connections busy than a gateway admits of one tenant: a process of its own.

It is told what to do by one line of JSON on standard input (`url`, `api_key`, `writers`, `bodies` in base64), says
`warm` when every writer has been answered, and when standard input ends, what came of it since. It imports nothing but
the standard library, so that it is under way at once and takes little of the machine.
"""

import asyncio
import base64
import json
import sys
import time
from urllib.parse import urlsplit

SAVED, REFUSED = "saved per s", "refused per s"


class Hammer:
    """Writers on connections and threads of their own.

    Attributes:
        saved: How many of their saves were stored.
        refused: How many were not.
    """

    def __init__(self, url: str, api_key: str, bodies: list[bytes]) -> None:
        self._address = urlsplit(url)
        self._bodies = bodies
        self._headers = (
            f" HTTP/1.1\r\nHost: {self._address.netloc}\r\nAuthorization: Bearer {api_key}\r\n"
            "Stateroom-Subject: hammer\r\nContent-Type: application/msgpack\r\nAccept: application/msgpack\r\n"
        )
        self.saved = self.refused = 0

    async def write(self, name: str, answered: asyncio.Event) -> None:
        """Save again and again; wait as long as a refusal says."""
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        number = 0
        while True:
            body = self._bodies[number % len(self._bodies)]
            number += 1
            head = f"POST /v1/threads/{name}/checkpoints{self._headers}Content-Length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            await reader.readexactly(int(answer.partition(b"content-length:")[2].partition(b"\r\n")[0]))
            if answer.startswith(b"http/1.1 201 "):
                self.saved += 1
            else:
                self.refused += 1
                await asyncio.sleep(float(answer.partition(b"retry-after:")[2].partition(b"\r\n")[0]))
            answered.set()

    async def run(self, writers: int) -> None:
        """Say when all are under way, and in the end what came of it."""
        answered = [asyncio.Event() for _ in range(writers)]
        names = [f"hammer-{time.time_ns()}-{number}" for number in range(writers)]
        tasks = [asyncio.create_task(self.write(*each)) for each in zip(names, answered, strict=True)]
        under_way = asyncio.gather(*(each.wait() for each in answered))
        ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
        await asyncio.wait((under_way, *tasks), return_when=asyncio.FIRST_COMPLETED)
        self.saved = self.refused = 0
        began = time.perf_counter()
        if under_way.done():
            print("warm", flush=True)
            await asyncio.wait((ended, *tasks), return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            if task.done():
                task.result()  # raises what ended it
        seconds = time.perf_counter() - began
        print(json.dumps({SAVED: self.saved / seconds, REFUSED: self.refused / seconds}), flush=True)


def main() -> None:
    """Do what standard input says."""
    order = json.loads(sys.stdin.readline())
    bodies = [base64.b64decode(each) for each in order["bodies"]]
    asyncio.run(Hammer(order["url"], order["api_key"], bodies).run(order["writers"]))


if __name__ == "__main__":
    main()
