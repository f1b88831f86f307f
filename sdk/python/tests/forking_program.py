"""Warms what it is told to, forks, and lets both processes ask at once; each must get its own answers only.

Run in a process of its own: ``forking_program.py KIND URL``. Ends with 0 if all was well in both.
"""

import asyncio
import os
import sys
import threading

from stateroom import AsyncClient, Client, acting_for, current_subject
from stateroom._io.httpx_transport import AsyncHttpxTransport, HttpxTransport
from stateroom.langgraph import StateroomSaver

API_KEY = "sr_live_0123456789ab_" + "x" * 49
TIMES = 20
CONFIG = {"configurable": {"thread_id": "t", "checkpoint_ns": ""}}


def client(url):
    made = Client(url, API_KEY, subject=current_subject)
    return lambda: made.whoami().subject_id


def proxied_client(url):
    made = Client(url, API_KEY, subject=current_subject)
    made._transport = HttpxTransport(None)
    return lambda: made.whoami().subject_id


def saver(url):
    made = StateroomSaver(url, API_KEY)
    return lambda: made.get_tuple(CONFIG).metadata["whose"]


class Loops:
    """A loop that runs in a thread, and in a fork, which has no such thread, another one."""

    def __init__(self):
        self._process = None

    def run(self, coroutine):
        if self._process != os.getpid():
            self._process, self._loop = os.getpid(), asyncio.new_event_loop()
            threading.Thread(target=self._loop.run_forever, daemon=True).start()
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)


def async_client(url):
    loops, made = Loops(), AsyncClient(url, API_KEY, subject=current_subject)

    async def ask():
        return (await made.whoami()).subject_id

    return lambda: loops.run(ask())


def proxied_async_client(url):
    loops, made = Loops(), AsyncClient(url, API_KEY, subject=current_subject)
    made._transport = AsyncHttpxTransport(None)

    async def ask():
        return (await made.whoami()).subject_id

    return lambda: loops.run(ask())


def saver_on_loop(url):
    loops, made = Loops(), StateroomSaver(url, API_KEY)

    async def ask():
        return (await made.aget_tuple(CONFIG)).metadata["whose"]

    return lambda: loops.run(ask())


def ask_as(subject, ask):
    with acting_for(subject):
        answers = {ask() for _ in range(TIMES)}
    assert answers == {subject}, f"{subject} was told of {answers}"


def main():
    ask = globals()[sys.argv[1]](sys.argv[2])
    ask_as("before", ask)
    child = os.fork()
    if child == 0:
        ask_as("child", ask)
        return  # by the way that ends every object
    ask_as("parent", ask)
    _, status = os.waitpid(child, 0)
    assert status == 0, "the child failed"
    ask_as("parent", ask)


main()
