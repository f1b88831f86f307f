"""Writes the blocking client from the asynchronous one.

What is above a transport is written once, for event loops. This program reads each ``async_*.py`` and writes the module
beside it without the prefix: it drops ``async`` and ``await``, calls at once what would run in a worker thread, and
replaces names. What cannot be derived like that (sending, and doing several things at the same time) is written by hand
for both, under the same names: ``_io.on_loop`` and ``_io.blocking``.
"""

import re
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent / "src" / "stateroom"
SOURCES = sorted(PACKAGE.rglob("async_*.py"))

# In this order. A name that begins with `Async` has a blocking twin without it, as has a module `async_...`.
RULES = [
    (r" *@overload\n *async def once\(.*\n\n", ""),  # they tell coroutine functions from others
    (r"\basyncio\.sleep\b", "time.sleep"),
    (r"\bawait asyncio\.to_thread\(\s*([\w.]+)(?:,\s*|(?=\)))", r"\1("),
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\b([Aa])n(\s+(?:``)?Async)", r"\1\2"),
    (r"(?<=[a-z_])Async(?=[A-Z])|\bAsync(?=[A-Z])", ""),
    (r"\b(_?)async_(?=\w)", r"\1"),
    (r"\bopen_async_", "open_"),
    (r"__a(enter|exit|iter|next)__", r"__\1__"),
    (r"\baclose\b", "close"),
    (r"\b_io\.on_loop\b", "_io.blocking"),
    (r"\bAwaitable\[(\w+)\] \| \1\b", r"\1"),
    (r"\bAwaitable\[(\w+)\]", r"\1"),
    ("callers on an event loop", "callers that block"),
    ("belongs to the event loop it was first used on", "may be shared between threads"),
    ("one task at a time", "one thread at a time"),
    ("a function or a coroutine function", "a function"),
]


def blocking(source: Path) -> str:
    """The blocking twin of a module."""
    text = source.read_text()
    for pattern, replacement in RULES:
        text = re.sub(pattern, replacement, text)
    left = re.search(r"^.*\b(await|async|asyncio\.)\b.*$", text.replace("import asyncio\n", ""), re.MULTILINE)
    if left:
        raise SystemExit(f"{source.name}: no rule makes this blocking: {left[0].strip()}")
    text = f"# Generated from {source.name} by `make generate`: change that, not this.\n" + text
    for command in (
        ["check", "--fix-only", "--unsafe-fixes", "--quiet", "--select=F401,I001,UP028,UP034,C416"],
        ["format", "--quiet"],
    ):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(target_of(source)), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


def target_of(source: Path) -> Path:
    """Where the twin is written."""
    return source.with_name(source.name.replace("async_", "", 1))


def main() -> None:
    """Write what is not fresh; with ``--check`` say so instead."""
    fresh = {target_of(each): blocking(each) for each in SOURCES}
    stale = [each for each, text in fresh.items() if not each.exists() or each.read_text() != text]
    if "--check" in sys.argv[1:] and stale:
        names = ", ".join(each.name for each in stale)
        raise SystemExit(
            f"not what the asynchronous client says: {names}. Run `make generate`, and commit what it writes."
        )
    for each in stale:
        each.write_text(fresh[each])


if __name__ == "__main__":
    main()
