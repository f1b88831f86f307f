"""Rows and records as a person or a program reads them.

Listings are tables for people and, with ``--json``, one JSON document a line, exactly as the API gave it.
"""

from collections.abc import Iterable
from typing import Any

import rich_click as click

from gateway.cli import render


class Listing:
    """The first rows of a listing, and whether there are more."""

    def __init__(self, items: Iterable[dict[str, Any]], limit: int, everything: bool) -> None:
        self._items = items
        self._limit = None if everything else limit
        self.cut = False

    def __iter__(self) -> Any:
        for count, item in enumerate(self._items):
            if count == self._limit:
                self.cut = True
                return
            yield item


def print_listing(
    listing: Listing, columns: dict[str, str], *, as_json: bool, empty: str, times: tuple[str, ...] = ()
) -> None:
    """Print the rows by the names of ``columns``; those in ``times`` are moments."""
    if as_json:
        for item in listing:
            render.emit_json(item)
        return
    rows = [
        [render.moment(item.get(name)) if name in times else render.cell(item.get(name)) for name in columns]
        for item in listing
    ]
    render.table(list(columns.values()), rows, empty=empty)
    if listing.cut:
        render.say("There is more: --limit N or --all.")


def print_record(item: dict[str, Any], *, as_json: bool, times: tuple[str, ...] = ()) -> None:
    """Print one resource; the members named in ``times`` are moments."""
    if as_json:
        render.emit_json(item)
    else:
        render.record(
            {name: render.moment(value) if name in times else render.cell(value) for name, value in item.items()}
        )


def confirm(question: str, assume_yes: bool) -> None:
    """Go on only when a person says yes, or said so beforehand."""
    if not assume_yes:
        click.confirm(question, abort=True, err=True)
