"""Items over HTTP: `item put`, `get`, `list`, `search`, `delete`, `paths`.

One item is named by the labels of its path and its key; many by a ``--prefix``. Values travel as the JSON that they are
given and kept as, so that what `list --json` prints is what `put --lines` takes. Reads leave times to live as they are,
unless ``--refresh`` is asked for. How far what takes long has come goes to stderr, and only to a terminal.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import quote

import rich_click as click

from gateway.cli import render
from gateway.cli.calling import Listing, Remote, as_silent_subject, as_subject, confirm, yes_option
from gateway.cli.environment import share_header
from gateway.cli.failure import ExitCode, Failure
from gateway.cli.parameters import Page, Period, gathered, page_options

if TYPE_CHECKING:
    import msgspec

    from gateway.cli.connection import Connection

_VALUE_CHARACTERS_MAX = 100  # of a value in a table; --json prints all of it
_BATCH_ITEMS = 100  # what the API takes in one batch
_BATCH_BYTES = 8 * 1024 * 1024
_PAGE_ITEMS_MAX = 100
_SAFE = "~._:@+-,"
_EMPTY_KEY = "~"  # how the empty key travels
# A line of `put --lines` is an item as it is printed: of that, these members are put.
_WRITTEN = ("path", "key", "value", "ttl_seconds", "vectors")
# What a whole batch is refused with where one of its lines is at fault.
_FAULTS = ("invalid-request", "limit-exceeded", "malformed-body", "body-too-large")
_COLUMNS = {
    "path": "Path",
    "key": "Key",
    "revision": "Revision",
    "updated_at": "Updated",
    "expires_at": "Expires",
    "value": "Value",
}


def _row(item: dict[str, Any]) -> dict[str, Any]:
    text = render.compact(item["value"])
    if len(text) > _VALUE_CHARACTERS_MAX:
        text = f"{text[:_VALUE_CHARACTERS_MAX]}... ({len(text):,} characters)"
    return item | {"value": text}


_ITEMS = Listing(_COLUMNS, empty="No items.", row=_row)
_NEAREST = Listing({"score": "Score", **_COLUMNS}, empty="No items with vectors by this model.", row=_row)
_PATHS = Listing({"path": "Path"}, empty="No paths.", row=lambda labels: {"path": labels})


class _JsonObject(click.ParamType[Any]):
    """A JSON object, kept as it is written."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> "msgspec.Raw":
        """Return the JSON that ``value`` is."""
        import msgspec

        if isinstance(value, msgspec.Raw):
            return value
        try:
            return _object(value.encode())
        except (ValueError, UnicodeEncodeError) as error:
            self.fail(str(error), param, ctx)


def _object(text: bytes) -> "msgspec.Raw":
    """A JSON object as it is written.

    Raises:
        ValueError: It is none.
    """
    import msgspec

    raw = msgspec.json.decode(text, type=msgspec.Raw)
    if not bytes(raw).startswith(b"{"):
        raise ValueError("it is no JSON object")
    return raw


_words_argument = click.argument("words", nargs=-1, required=True, metavar="LABEL... KEY")
_prefix_option = click.option(
    "--prefix", multiple=True, metavar="LABEL", help="Only what is under these labels, one after the other; repeatable."
)
_filter_option = click.option(
    "--filter", "wanted", type=_JsonObject(), metavar="JSON", help='Only values like this, such as {"kind": "fact"}.'
)
_refresh_option = click.option("--refresh", is_flag=True, help="Give what has a time to live that time anew.")
_revision_option = click.option(
    "--if-revision", type=click.IntRange(1), metavar="N", help="Only if the item is at this revision."
)


class _Calls:
    """Calls on items, of one connection, with bodies in JSON; under a client-held share if there is one."""

    def __init__(self, connection: "Connection") -> None:
        self._connection = connection
        self._headers = {"Accept": "application/json", **share_header()}

    def read(self, target: str, body: Any = None, **query: str) -> Any:
        """Ask for what is at ``target``, with a body or without.

        Raises:
            Failure: The gateway refused or did not answer.
        """
        return self._ask("GET" if body is None else "POST", target, body, query=query)

    def write(self, method: str, target: str, body: Any = None, **headers: str) -> Any:
        """Change what is at ``target``; a call whose answer is lost is made again, and nothing is done twice.

        Raises:
            Failure: As `read`.
        """
        from uuid import uuid4

        return self._ask(method, target, body, headers=headers | {"Idempotency-Key": str(uuid4())})

    def each_page(self, target: str, body: dict[str, Any], rows_wanted: int | None) -> Iterator[dict[str, Any]]:
        """Pages of a search as long as the caller takes them.

        Raises:
            Failure: As `read`.
        """
        # One more than is shown tells whether there are more.
        limit = _PAGE_ITEMS_MAX if rows_wanted is None else min(rows_wanted + 1, _PAGE_ITEMS_MAX)
        cursor: str | None = None
        while True:
            page = self.read(target, {**body, "limit": limit, "cursor": cursor})
            yield page
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def _ask(
        self,
        method: str,
        target: str,
        body: Any,
        *,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        import msgspec

        sent = {**self._headers, **(headers or {})}
        if body is not None:
            body = msgspec.Raw(msgspec.json.encode(body))
            sent["Content-Type"] = "application/json"
        key = sent.pop("Idempotency-Key", None)
        with self._connection.sdk() as client:
            return client.request(method, target, params=query, body=body, headers=sent, idempotency_key=key).decode()


def _place(words: tuple[str, ...]) -> str:
    """Where the item is that these words name: labels, and its key."""
    import stateroom

    *labels, key = words
    joined = ",".join(map(stateroom.encode_id, labels))
    return f"/items/{quote(joined, safe=_SAFE)}/{quote(stateroom.encode_id(key) if key else _EMPTY_KEY, safe=_SAFE)}"


def _checked(words: tuple[str, ...]) -> tuple[str, ...]:
    if len(words) < 2 or not all(words[:-1]):
        raise click.UsageError("Name the labels of the path, at least one, and then the key.")
    return words


@click.group("item")
def item_group() -> None:
    """Items: what agents remember across threads, under paths (STATEROOM_API_KEY, --subject).

    What was put under a client-held share is there with STATEROOM_CLIENT_SHARE only.
    """


@dataclass(frozen=True, slots=True)
class _Put:
    """What is put, and when."""

    value: "msgspec.Raw | None"
    file: IO[bytes] | None
    lines: IO[bytes] | None
    ttl_seconds: int | None
    if_revision: int | None
    if_absent: bool


@item_group.command("put")
@click.argument("words", nargs=-1, metavar="[LABEL... KEY]")
@click.option("--value", type=_JsonObject(), metavar="JSON", help="The value: an object.")
@click.option("--file", type=click.File("rb"), metavar="FILE", help="Where the value is, as JSON; - is stdin.")
@click.option(
    "--lines",
    type=click.File("rb"),
    metavar="FILE",
    help="Put many: an item a line, as `item list --json` prints them; - is stdin.",
)
@click.option("--ttl", "ttl_seconds", type=Period(), help="How long it lives after it was put or read: 30d, 12h.")
@_revision_option
@click.option("--if-absent", is_flag=True, help="Only if there is none.")
@as_subject
@gathered("what", _Put)
def item_put(*, words: tuple[str, ...], what: _Put, remote: Remote) -> None:
    """Put a JSON object under a key of a path, in the place of what is there.

    With --lines, many of them: what is refused is told with its line, and the others are put. Run it again if it broke
    off.
    """
    if [what.value, what.file, what.lines].count(None) != 2:
        raise click.UsageError("Name one of --value, --file and --lines.")
    if what.if_absent and what.if_revision is not None:
        raise click.UsageError("--if-absent and --if-revision exclude each other.")
    if what.lines is not None:
        if words or what.ttl_seconds is not None or what.if_revision is not None:
            raise click.UsageError("Lines name their items and times to live: --lines goes with --if-absent only.")
        _put_lines(remote, what.lines, if_absent=what.if_absent)
        return
    place = _checked(words)
    body = {"value": what.value if what.file is None else _read(what.file), "ttl_seconds": what.ttl_seconds}
    condition = {"If-None-Match": "*"} if what.if_absent else {}
    if what.if_revision is not None:
        condition = {"If-Match": f'"{what.if_revision}"'}
    with remote.connect() as connection:
        remote.print_record(_Calls(connection).write("PUT", _place(place), body, **condition))


def _read(file: IO[bytes]) -> "msgspec.Raw":
    try:
        return _object(file.read())
    except ValueError as error:
        raise Failure(f"{file.name} holds no value", detail=str(error), exit_code=ExitCode.USAGE) from None


class _Loading:
    """Lines that are put in batches; one that is refused is told, and the others are put.

    Attributes:
        loaded: How many lines came to what.
    """

    def __init__(self, calls: _Calls, progress: render.Progress, *, if_absent: bool) -> None:
        self._calls = calls
        self._progress = progress
        self._condition = {"if_absent": True} if if_absent else {}
        self._batch: list[tuple[int, dict[str, Any]]] = []
        self._bytes = 0
        self.loaded = {"created": 0, "replaced": 0, "indexed": 0, "refused": 0}

    def add(self, number: int, line: bytes) -> None:
        """Take a line, and put what is there when that is a batch."""
        import msgspec

        try:
            members = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        except msgspec.DecodeError as error:
            self._refuse(number, f"it is no item: {error}")
            return
        written = {name: members[name] for name in _WRITTEN if name in members} | self._condition
        if not {"path", "key"} <= written.keys():
            self._refuse(number, "it is no item: it has no path and key")
            return
        if self._bytes + len(line) > _BATCH_BYTES:
            self.flush()
        self._batch.append((number, written))
        self._bytes += len(line)
        if len(self._batch) == _BATCH_ITEMS:
            self.flush()

    def flush(self) -> None:
        """Put what was taken."""
        batch, self._batch, self._bytes = self._batch, [], 0
        if batch:
            self._put(batch)
            self._progress.at(batch[-1][0])

    def _put(self, batch: list[tuple[int, dict[str, Any]]]) -> None:
        try:
            results = self._calls.write("POST", "/items:batch", {"writes": [each for _, each in batch]})["writes"]
        except Failure as failure:
            if failure.facts.get("code") not in _FAULTS:
                raise
            if len(batch) == 1:
                self._refuse(batch[0][0], failure.detail)
            else:
                for each in batch:  # which of them it is
                    self._put([each])
            return
        for (number, _), result in zip(batch, results, strict=True):
            if result["status"] == "refused":
                self._refuse(number, f"{result['problem']['code']}: {result['problem']['detail']}")
            else:
                self.loaded[result["status"]] += 1

    def _refuse(self, number: int, reason: str) -> None:
        self.loaded["refused"] += 1
        self._progress.say(f"line {number}: {reason}")


def _put_lines(remote: Remote, lines: IO[bytes], *, if_absent: bool) -> None:
    """Put an item for each line.

    Raises:
        Failure: some were refused, or no more could be put.
    """
    with remote.connect_for_files() as connection, render.Progress("lines") as progress:
        loading = _Loading(_Calls(connection), progress, if_absent=if_absent)
        for number, line in enumerate(lines, 1):
            if line.strip():
                loading.add(number, line)
        loading.flush()
    remote.print_record(loading.loaded)
    if refused := loading.loaded["refused"]:
        raise Failure("Some lines were not put", detail=f"{refused:,} were refused; the others are there.")


@item_group.command("get")
@_words_argument
@_refresh_option
@as_subject
def item_get(*, words: tuple[str, ...], refresh: bool, remote: Remote) -> None:
    """Show an item: its revision, its times and its value."""
    place = _checked(words)
    with remote.connect() as connection:
        item = _Calls(connection).read(_place(place), refresh=str(refresh).lower())
    if remote.as_json:
        render.emit_json(item)
        return
    value = item.pop("value")
    remote.print_record(item)
    render.line("")
    render.line("Value")
    render.document(value)


@dataclass(frozen=True, slots=True)
class _Which:
    """Which items are found."""

    prefix: tuple[str, ...]
    wanted: "msgspec.Raw | None"
    refresh: bool

    def body(self, **more: Any) -> dict[str, Any]:
        """The body of a search."""
        filtered = {} if self.wanted is None else {"filter": self.wanted}
        return {"prefix": self.prefix, "refresh": self.refresh, **filtered, **more}


def _print_found(remote: Remote, target: str, body: dict[str, Any], page: Page, listing: Listing) -> None:
    member = target.removeprefix("/items:").replace("search", "items")
    with remote.connect() as connection:
        pages = _Calls(connection).each_page(target, body, page.rows_wanted)
        remote.print_list(chain.from_iterable(each[member] for each in pages), page, listing)


@item_group.command("list")
@_prefix_option
@_filter_option
@_refresh_option
@page_options
@as_subject
@gathered("which", _Which)
def item_list(*, which: _Which, page: Page, remote: Remote) -> None:
    """List items with their values, the last changed first; --json --all is a dump that `put --lines` takes back."""
    _print_found(remote, "/items:search", which.body(), page, _ITEMS)


@dataclass(frozen=True, slots=True)
class _Near:
    """The vector that items are searched by."""

    near_file: IO[bytes]
    model: str
    metric: str

    def body(self) -> dict[str, Any]:
        """Return it as the body of a search has it.

        Raises:
            Failure: the file holds no vector.
        """
        import msgspec

        try:
            vector = msgspec.json.decode(self.near_file.read(), type=list[float])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            name, hint = self.near_file.name, "A vector is a JSON list of numbers."
            raise Failure(f"{name} holds no vector", detail=str(error), hint=hint, exit_code=ExitCode.USAGE) from None
        return {"model": self.model, "vector": vector, "metric": self.metric}


@item_group.command("search")
@click.option(
    "--near-file",
    type=click.File("rb"),
    required=True,
    metavar="FILE",
    help="The vector that those of the items are near to: a JSON list of numbers; - is stdin.",
)
@click.option("--model", required=True, metavar="NAME", help="The model that made it, as the items' vectors name it.")
@click.option(
    "--metric", type=click.Choice(("cosine", "dot", "l2")), default="cosine", show_default=True, help="What is near."
)
@_prefix_option
@_filter_option
@_refresh_option
@page_options
@as_subject
@gathered("which", _Which)
@gathered("near", _Near)
def item_search(*, near: _Near, which: _Which, page: Page, remote: Remote) -> None:
    """Find items by what they mean, the nearest first; the gateway embeds nothing, so bring a vector."""
    _print_found(remote, "/items:search", which.body(near=near.body()), page, _NEAREST)


@item_group.command("delete")
@click.argument("words", nargs=-1, metavar="[LABEL... KEY]")
@_prefix_option
@_filter_option
@_revision_option
@yes_option
@as_silent_subject
def item_delete(
    *,
    words: tuple[str, ...],
    prefix: tuple[str, ...],
    wanted: "msgspec.Raw | None",
    if_revision: int | None,
    assume_yes: bool,
    remote: Remote,
) -> None:
    """Delete an item; or with --prefix all that are under it, or those of them that --filter names.

    What changed after it was found stays, and is counted. Run it again if it broke off.
    """
    if not prefix:
        if wanted is not None:
            raise click.UsageError("--filter is about many items: say --prefix, too.")
        _delete_one(_checked(words), if_revision, assume_yes=assume_yes, remote=remote)
        return
    if words or if_revision is not None:
        raise click.UsageError("Name one item, or many by --prefix.")
    like = " that --filter names" if wanted is not None else ""
    confirm(f"Delete all items{like} under {_shown(prefix)}?", assume_yes)
    with remote.connect_for_files() as connection, render.Progress("items deleted") as progress:
        deleting = _Deleting(_Calls(connection), progress.at)
        deleting.run(_Which(prefix, wanted, refresh=False).body())
    left = f" {deleting.left:,} changed meanwhile and stay." if deleting.left else ""
    render.say(f"Deleted {deleting.deleted:,} items.{left}")


def _delete_one(words: tuple[str, ...], if_revision: int | None, *, assume_yes: bool, remote: Remote) -> None:
    confirm(f"Delete item {_shown(words)}?", assume_yes)
    condition = {} if if_revision is None else {"If-Match": f'"{if_revision}"'}
    with remote.connect() as connection:
        _Calls(connection).write("DELETE", _place(words), **condition)
    render.say(f"Deleted {_shown(words)}.")


def _shown(words: tuple[str, ...]) -> str:
    return render.safe(" / ".join(words))


class _Deleting:
    """Items that are found and deleted, a page at a time."""

    def __init__(self, calls: _Calls, told: Callable[[int], None]) -> None:
        self._calls = calls
        self._told = told
        self.deleted = 0
        self.left = 0

    def run(self, body: dict[str, Any]) -> None:
        """Delete what a search finds, as it was found.

        Raises:
            Failure: one may not be deleted.
        """
        for page in self._calls.each_page("/items:search", body, None):
            writes = [
                {"path": each["path"], "key": each["key"], "delete": True, "if_revision": each["revision"]}
                for each in page["items"]
            ]
            if writes:
                for result in self._calls.write("POST", "/items:batch", {"writes": writes})["writes"]:
                    self._count(result)
            self._told(self.deleted)

    def _count(self, result: dict[str, Any]) -> None:
        problem = result.get("problem")
        if problem is None:
            self.deleted += result["status"] == "deleted"
        elif problem["code"] == "item-moved":
            self.left += problem["revision"] is not None
        else:
            raise Failure(
                problem["title"],
                detail=f"{problem['detail']}\n{self.deleted:,} items were deleted before.",
                facts={"code": problem["code"]},
                exit_code=ExitCode.CONFLICT,
            )


@dataclass(frozen=True, slots=True)
class _Paths:
    """Which paths are listed."""

    prefix: tuple[str, ...]
    suffix: tuple[str, ...]
    max_depth: int | None


@item_group.command("paths")
@click.option("--prefix", multiple=True, metavar="LABEL", help="Their first labels; * is any one; repeatable.")
@click.option("--suffix", multiple=True, metavar="LABEL", help="Their last labels, likewise.")
@click.option("--max-depth", type=click.IntRange(1), metavar="N", help="Cut them to so many labels, each told once.")
@page_options
@as_subject
@gathered("which", _Paths)
def item_paths(*, which: _Paths, page: Page, remote: Remote) -> None:
    """List the paths that have items, in the order of their labels."""
    body = {"prefix": which.prefix, "suffix": which.suffix, "max_depth": which.max_depth}
    _print_found(remote, "/items:paths", body, page, _PATHS)


COMMANDS = (item_group,)
