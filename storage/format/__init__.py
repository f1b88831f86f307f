"""The sealed formats, pure: bytes in, bytes out, no I/O.

Each module's page is in ``docs/formats/``. Formats are written in one version and read in all that were ever written.
"""
