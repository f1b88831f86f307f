"""What can be wrong with a schema's steps, or happen when they run.

Every message names schema, step and path, and no value: values are a user's state.
"""


class StateMigrationError(Exception):
    """Base of this package's errors."""


class StepInvalid(StateMigrationError):
    """A declarative step cannot be accepted.

    Attributes:
        pointer: JSON Pointer (RFC 6901) to the fault inside the step.
    """

    def __init__(self, message: str, pointer: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer


class SchemaInvalid(StateMigrationError):
    """A JSON Schema cannot be accepted.

    Attributes:
        pointer: JSON Pointer (RFC 6901) to the fault inside the definition.
    """

    def __init__(self, message: str, pointer: str = "") -> None:
        super().__init__(message)
        self.pointer = pointer


class ChainInvalid(StateMigrationError):
    """Steps do not form one line of versions.

    Attributes:
        step: Which step is at fault, as ``v1_to_v2``.
    """

    def __init__(self, message: str, step: str) -> None:
        super().__init__(message)
        self.step = step


class StateTooNew(StateMigrationError):
    """State was saved at a version that is not registered, or that the reader's version cannot be reached from.

    ``why`` says what is missing on the way.
    """

    def __init__(self, schema: str, saved: int, wanted: int, why: str) -> None:
        super().__init__(f"state of {schema!r} is at version {saved}; it cannot be read at version {wanted}: {why}")
        self.schema = schema
        self.saved = saved
        self.wanted = wanted
        self.why = why


class UpcastFailed(StateMigrationError):
    """A step could not be applied to this state. The stored bytes are untouched, and repeating does not help.

    ``step`` is as ``v1_to_v2``, ``pointer`` a JSON Pointer to the place in the state, as far as it is known.
    """

    def __init__(self, schema: str, step: str, why: str, pointer: str = "") -> None:
        super().__init__(f"step {step} of {schema!r} failed at {pointer or '/'}: {why}")
        self.schema = schema
        self.step = step
        self.pointer = pointer
        self.why = why


class PathFault(StateMigrationError):
    """Inside a step: what went wrong, and where. `chain` turns it into `UpcastFailed`."""

    def __init__(self, why: str, pointer: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.pointer = pointer
