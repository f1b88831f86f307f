"""The nine store edits of agmi-check (PyPI ``agent-memory-integrity``) against the LangGraph saver: all rejected.

The adapter is honest: it edits rows as superuser, with every key in place and nothing else in between; where an edit
would be idle without it (a forged or a truncated tail), it also points the head at the row that the edit wants served;
and its second context is a thread of the same subject, under the same keys. The saver keeps its tokens in a folder
beside the store, which the snapshot does not include, as T9 prescribes.
"""

import asyncio
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import asyncpg
import pytest
from agmi.adapters.base import MemoryAdapter, Record
from agmi.check import LABELS, render, run
from langgraph.checkpoint.base import create_checkpoint, empty_checkpoint

from stateroom import FileTokenStore
from stateroom.langgraph import StateroomSaver

CONTENT = ("manifest", "piece_ids")
METADATA = ("agent", "source", "run_id", "status", "step", "created_at")


class StateroomAdapter(MemoryAdapter):
    name = "stateroom (LangGraph saver)"
    supports_replay = True
    supports_metadata = True
    supports_snapshot = True

    def __init__(self, gateway, token_store=FileTokenStore):
        self._gateway = gateway
        self._token_store = token_store

    def setup(self):
        self._subject = f"agmi-{uuid4()}"
        self._thread, self._other = "thread", "other-thread"
        self._tokens = tempfile.mkdtemp(prefix="stateroom-agmi-")
        self._saver = None
        self.reload()

    def teardown(self):
        self._saver.close()
        shutil.rmtree(self._tokens)

    def reload(self):
        if self._saver is not None:
            self._saver.close()
        store = self._token_store(self._tokens)
        self._saver = StateroomSaver(self._gateway.url, self._gateway.api_key, subject=self._subject, token_store=store)

    def verify(self):
        self.verify_detail = None
        try:
            if self._saver.get_tuple(self._config(self._thread)) is None:
                self.verify_detail = "get_tuple() returned no checkpoint"
                return False
            list(self._saver.list(self._config(self._thread)))
        except Exception as error:  # noqa: BLE001  the tool's own answer, whatever it is
            self.verify_detail = f"{type(error).__name__}: {error}"[:160]
            return False
        return True

    @staticmethod
    def _config(thread_id):
        return {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}

    def _put(self, thread_id, steps, marker):
        config = self._config(thread_id)
        checkpoint = empty_checkpoint()
        for step in steps:
            checkpoint = create_checkpoint(checkpoint, {}, step)
            checkpoint["channel_values"] = {"state": f"{marker}-{step}"}
            checkpoint["channel_versions"] = {"state": step + 1}
            config = self._saver.put(config, checkpoint, {"source": "loop", "step": step}, {"state": step + 1})

    def seed(self, n):
        self._put(self._thread, range(n), "seed")

    def seed_other(self, n):
        self._put(self._other, range(n), "other")

    def append_genuine(self):
        latest = self._saver.get_tuple(self._config(self._thread))
        checkpoint = create_checkpoint(latest.checkpoint, {}, 99)
        checkpoint["channel_values"] = {"state": "late"}
        checkpoint["channel_versions"] = {"state": 100}
        self._saver.put(latest.config, checkpoint, {"source": "loop", "step": 99}, {"state": 100})

    # Raw access, as the superuser of the database

    def _sql(self, work):
        async def connected():
            connection = await asyncpg.connect(self._gateway.database_dsn)
            try:
                return await work(connection)
            finally:
                await connection.close()

        # In a thread of its own: asyncio.run would take the event loop of the session away.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, connected()).result()

    def _rows(self, thread_id):
        rows = self._sql(
            lambda c: c.fetch(
                "SELECT * FROM stateroom.checkpoints WHERE subject_id = $1 AND thread_id = $2 ORDER BY checkpoint_id",
                self._subject,
                thread_id,
            )
        )
        return [Record(seq, dict(row)) for seq, row in enumerate(rows)]

    def read_all_raw(self):
        return self._rows(self._thread)

    def read_other_raw(self):
        return self._rows(self._other)

    def _at(self, seq):
        rows = self.read_all_raw()
        return rows[seq].fields["checkpoint_id"] if seq < len(rows) else None

    def _update(self, seq, values):
        names = list(values)
        assignments = ", ".join(f"{name} = ${at + 4}" for at, name in enumerate(names))
        target = self._at(seq)
        done = self._sql(
            lambda c: c.execute(
                f"UPDATE stateroom.checkpoints SET {assignments}"  # noqa: S608
                " WHERE subject_id = $1 AND thread_id = $2 AND checkpoint_id = $3",
                self._subject,
                self._thread,
                target,
                *values.values(),
            )
        )
        assert done == "UPDATE 1"

    def _point_head_at_newest(self):
        self._sql(
            lambda c: c.execute(
                "UPDATE stateroom.heads SET head_id = (SELECT max(checkpoint_id) FROM stateroom.checkpoints"
                " WHERE subject_id = $1 AND thread_id = $2) WHERE subject_id = $1 AND thread_id = $2",
                self._subject,
                self._thread,
            )
        )

    def write_raw(self, record):
        if self._at(record.seq) is not None:
            self._update(record.seq, {name: record.fields[name] for name in CONTENT})
            return
        self._sql(lambda c: _insert(c, "checkpoints", record.fields))
        self._point_head_at_newest()

    def delete_raw(self, seq):
        gone = self._at(seq)
        self._sql(
            lambda c: c.execute(
                "DELETE FROM stateroom.checkpoints WHERE subject_id = $1 AND thread_id = $2 AND checkpoint_id = $3",
                self._subject,
                self._thread,
                gone,
            )
        )
        self._point_head_at_newest()

    def mutate_payload(self, record):
        sealed = bytearray(record.fields["manifest"])
        sealed[len(sealed) // 2] ^= 1
        record.fields["manifest"] = bytes(sealed)
        return record

    def forge_record(self, template):
        tip = template.fields["checkpoint_id"]
        later = f"{tip[:-12]}{int(tip[-12:], 16) + 1:012x}"
        forged = Record(template.seq + 1, {**template.fields, "checkpoint_id": later, "parent_id": tip})
        return self.mutate_payload(forged)

    def replay_onto(self, victim_seq, donor):
        self._update(victim_seq, {name: donor.fields[name] for name in CONTENT})

    def read_meta(self, seq):
        return {name: self.read_all_raw()[seq].fields[name] for name in METADATA}

    def write_meta(self, seq, meta):
        # Metadata is sealed with the content; what is left to edit are the clear columns beside it.
        values = {name: meta[name] for name in METADATA}
        if meta.get("agmi_meta_tampered"):
            values["source"] = "agmi"
        self._update(seq, values)

    def identity_of(self, record):
        return record.fields["checkpoint_id"]

    def payload_of(self, record):
        return ":".join(record.fields[name].hex() for name in CONTENT)

    def owner_of(self, record):
        return record.fields["thread_id"]

    def snapshot_store(self):
        """Everything the database holds of the subject."""

        async def copy(connection):
            tables = await connection.fetch(
                "SELECT c.table_name FROM information_schema.columns c JOIN information_schema.tables t"
                " USING (table_schema, table_name)"
                " WHERE c.table_schema = 'stateroom' AND c.column_name = 'subject_id' AND t.table_type = 'BASE TABLE'"
            )
            return {
                row["table_name"]: await connection.fetch(
                    f"SELECT * FROM stateroom.{row['table_name']} WHERE subject_id = $1",  # noqa: S608
                    self._subject,
                )
                for row in tables
            }

        return self._sql(copy)

    def restore_store(self, token):
        async def put_back(connection):
            async with connection.transaction():
                for table, rows in token.items():
                    await connection.execute(
                        f"DELETE FROM stateroom.{table} WHERE subject_id = $1",  # noqa: S608
                        self._subject,
                    )
                    for row in rows:
                        await _insert(connection, table, dict(row))

        self._sql(put_back)


async def _insert(connection, table, fields):
    places = ", ".join(f"${at + 1}" for at in range(len(fields)))
    await connection.execute(
        f"INSERT INTO stateroom.{table} ({', '.join(fields)}) VALUES ({places})",  # noqa: S608
        *fields.values(),
    )


@pytest.fixture(scope="module")
def rows(gateway_of_module):
    return run(StateroomAdapter(gateway_of_module))


@pytest.fixture(scope="module")
def gateway_of_module(request):
    return request.getfixturevalue("running_gateway")


@pytest.mark.parametrize("edit", LABELS)
def test_the_edit_is_rejected_when_it_is_read(rows, edit):
    [row] = [row for row in rows if row["attack"] == edit]
    assert row["verdict"] == "REJECTED", row
    wanted = "RollbackDetected" if edit == "snapshot_rollback" else "IntegrityFailure"
    assert wanted in row["detail"], row


def test_all_nine_edits_are_in_the_table(rows):
    print(render(StateroomAdapter.name, rows))  # noqa: T201  the table that a release reports
    assert [row["edit"][:2] for row in rows] == [f"T{number}" for number in range(1, 10)]


def test_without_tokens_a_snapshot_rollback_is_noticed_by_the_gateway_that_acknowledged_what_is_gone(gateway_of_module):
    # It remembers for five minutes, and no other process does: that is why the token is there.
    verdicts = {
        row["attack"]: row["verdict"]
        for row in run(StateroomAdapter(gateway_of_module, token_store=lambda folder: None))
    }
    assert set(verdicts.values()) == {"REJECTED"}
