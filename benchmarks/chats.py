"""Slices of growing conversations: bare saves, a graph of one node, and an agent with tools.

After each, the whole conversation is loaded and compared, so that nothing is fast because it was lost.
"""

from langchain_core.messages import HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from benchmarks.bench import CLIENT_CPU, SECONDS, SIZE, WAL, Bench, Meter, cpu_each
from benchmarks.contenders import DELTA, LANGGRAPH, SEALED, SERIALISE, SQLITE, STATEROOM, new_thread, sqlite_path
from benchmarks.engines import GATEWAY_DATABASE, PEER_DATABASE, SEALED_PEER_DATABASE
from benchmarks.workload import TOOLS_PER_QUESTION, Prose, agent_graph, chat, chat_graph, chat_saves, config_of

TURN_BYTES = 2000

_DATABASES = {STATEROOM: GATEWAY_DATABASE, LANGGRAPH: PEER_DATABASE, SEALED: SEALED_PEER_DATABASE}


class _Kept:
    """What a contender writes from now on: bytes it occupies, and bytes of PostgreSQL's log."""

    def __init__(self, bench: Bench, contender: str) -> None:
        self._bench, self._engines, self._contender = bench, bench.engines, contender
        self._stored = self._logged = 0

    async def begin(self) -> None:
        self._stored, self._logged = await self._now()

    async def grown(self) -> dict[str, float]:
        stored, logged = await self._now()
        if self._contender == SQLITE:
            return {SIZE: (stored - self._stored) / 1e6}
        if self._contender not in _DATABASES:
            return {}
        return {SIZE: (stored - self._stored) / 1e6, WAL: (logged - self._logged) / 1e6}

    async def _now(self) -> tuple[int, int]:
        if self._contender == SQLITE:
            # Its log is moved into the file first: it keeps its size and is used again.
            await self._bench.contenders.sqlite.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return sqlite_path(self._engines).stat().st_size, 0
        if self._contender not in _DATABASES:
            return 0, 0
        stored = await self._engines.tables_size(_DATABASES[self._contender])
        if self._contender == STATEROOM:
            stored += self._engines.s3_size()
        return stored, await self._engines.wal_bytes()


async def growing(bench: Bench, contender: str, prose: Prose, *, turns: int) -> dict[str, float]:
    """One save a turn of a ``messages`` channel that grows."""
    messages = chat(prose, turns, TURN_BYTES)
    if contender == SERIALISE:
        serde = JsonPlusSerializer()
        meter = Meter(bench)
        for turn in range(1, turns + 1):
            serde.dumps_typed(messages[: 2 * turn])
        elapsed, cpu = meter.stop()
        return {SECONDS: elapsed, CLIENT_CPU: cpu.client * 1000 / turns}
    saver = bench.contenders.savers[contender]
    thread_id = new_thread()
    if turns == bench.effort.turns:
        bench.threads["chat", contender] = thread_id  # to be loaded later
    saves = list(chat_saves(saver, messages))
    kept = _Kept(bench, contender)
    await kept.begin()
    config = config_of(thread_id)
    meter = Meter(bench)
    for save in saves:
        config = await saver.aput(config, *save)
    elapsed, cpu = meter.stop()
    metrics = {SECONDS: elapsed, **await kept.grown(), **cpu_each(cpu, turns)}
    loaded = await saver.aget_tuple(config_of(thread_id))
    assert loaded is not None
    assert loaded.checkpoint["channel_values"]["messages"] == messages
    return metrics


async def in_graph(bench: Bench, contender: str, prose: Prose, *, turns: int) -> dict[str, float]:
    """The same by a compiled graph: three saves and their writes a turn, and a load."""
    messages = chat(prose, turns, TURN_BYTES)
    name = contender.removesuffix(DELTA)
    graph = chat_graph(bench.contenders.savers[name], messages, delta=contender.endswith(DELTA))
    config = config_of(new_thread())
    kept = _Kept(bench, name)
    await kept.begin()
    meter = Meter(bench)
    for question in messages[::2]:
        # A copy, because LangGraph writes ids into the messages it is given.
        await graph.ainvoke({"messages": [HumanMessage(question.content, id=question.id)]}, config)
    elapsed, cpu = meter.stop()
    metrics = {SECONDS: elapsed, **await kept.grown(), **cpu_each(cpu, turns)}
    found = (await graph.aget_state(config)).values["messages"]
    assert [message.content for message in found] == [message.content for message in messages]
    return metrics


async def with_tools(bench: Bench, contender: str, prose: Prose) -> dict[str, float]:
    """An agent whose scripted model calls tools at once before it answers."""
    questions = bench.effort.questions
    graph = agent_graph(bench.contenders.savers[contender], prose, questions)
    config = config_of(new_thread())
    kept = _Kept(bench, contender)
    await kept.begin()
    meter = Meter(bench)
    for number in range(questions):
        await graph.ainvoke({"messages": [HumanMessage(f"question {number}", id=f"q-{number}")]}, config)
    elapsed, cpu = meter.stop()
    metrics = {SECONDS: elapsed, **await kept.grown(), **cpu_each(cpu, questions)}
    found = (await graph.aget_state(config)).values["messages"]
    assert len(found) == questions * (3 + TOOLS_PER_QUESTION), len(found)
    return metrics
