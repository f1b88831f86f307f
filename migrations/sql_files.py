"""Files of SQL that revisions run: numbered functions and the tables of the baseline.

A file is never edited once it is released: a changed function gets a new name and a new file. The files are read
statement by statement, because the driver prepares each by itself.
"""

import re
from collections.abc import Mapping
from pathlib import Path

# A statement ends with a semicolon at the end of a line, but not within the body of a function.
_STATEMENT = re.compile(r"(?:\$body\$.*?\$body\$|[^$;]|;(?!\n)|\$(?!body\$))+", re.DOTALL)
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)
_FUNCTION = re.compile(r"^CREATE FUNCTION stateroom\.(\w+).*?^AS \$body\$(.*?)\$body\$;", re.DOTALL | re.MULTILINE)


def bodies(folder: Path) -> dict[str, str]:
    """What the functions in a folder of files do, by their names."""
    texts = (path.read_text() for path in sorted(folder.glob("*.sql")))
    return {name: body for text in texts for name, body in _FUNCTION.findall(text)}


def statements(path: Path, words: Mapping[str, str] | None = None) -> list[str]:
    """The statements of a file, without comments.

    ``words`` says what each ``@word@`` in it stands for.
    """
    text = path.read_text()
    for word, meaning in (words or {}).items():
        text = text.replace(f"@{word}@", meaning)
    return [each.strip() for each in _STATEMENT.findall(_COMMENT.sub("", text)) if each.strip()]
