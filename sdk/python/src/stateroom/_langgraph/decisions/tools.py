"""Tools as decisions see them: which form of a tool an action is of, and the one form of its arguments.

Asking and acting see different arguments: a model's, and those that the tool's schema made of them. Both are brought
into one form here (``docs/formats/action-hash.md``). What a tool does is not this module's business.
"""

from collections.abc import Mapping
from typing import Any

import msgspec
from langchain_core.tools import BaseTool
from pydantic import BaseModel, TypeAdapter

from stateroom._decisions.actions import plain, tool_digest


class ToolForm(msgspec.Struct, frozen=True):
    """What a tool takes.

    Attributes:
        name: Its name.
        digest: What says which form of it this is.
        args_schema: The JSON Schema of its arguments, each of them required.
        model: The pydantic model that its arguments are; ``None``: it is declared by a JSON Schema.
    """

    name: str
    digest: str
    args_schema: dict[str, Any]
    model: type[BaseModel] | None

    @classmethod
    def of(cls, tool: BaseTool | type[BaseModel]) -> "ToolForm":
        """What a tool of LangChain takes, or a tool that is declared by the model of its arguments.

        Raises:
            TypeError: It is neither.
        """
        if isinstance(tool, BaseTool):
            version = (tool.metadata or {}).get("version")
            return cls._made(tool.name, _arguments_of(tool), None if version is None else str(version))
        if isinstance(tool, type) and issubclass(tool, BaseModel):
            return cls._made(tool.__name__, tool, None)
        raise TypeError(f"a {type(tool).__name__} is neither a LangChain tool nor a pydantic model")

    @classmethod
    def _made(cls, name: str, takes: type[BaseModel] | dict[str, Any], version: str | None) -> "ToolForm":
        if isinstance(takes, dict):
            return cls(name, tool_digest(name, takes, version), takes, None)
        # As they are dumped; not the model's own method, which LangChain replaces by one that knows no modes.
        schema = TypeAdapter(takes).json_schema(mode="serialization")
        schema = {**schema, "required": [*schema.get("properties", {})]}
        return cls(name, tool_digest(name, schema, version), schema, takes)

    def arguments(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments that a model or a person named, in the one form.

        Raises:
            ValueError: The tool does not take them, or they have no canonical form.
        """
        if self.model is not None:
            args = self.model.model_validate(dict(args)).model_dump(mode="json", by_alias=True)
        canonical: dict[str, Any] = plain(args)
        return canonical

    def called(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The values that the tool's function was called with, in the one form; what was injected is left out.

        Raises:
            ValueError: They have no canonical form.
        """
        if self.model is None:
            return self.arguments(values)
        fields = self.model.model_fields
        # A field with another name outside is validated by that.
        return self.arguments({fields[name].alias or name: value for name, value in values.items() if name in fields})

    def values(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """What the tool's function is called with for arguments that a person edited.

        Raises:
            ValueError: The tool does not take them.
        """
        if self.model is None:
            return dict(args)
        made = self.model.model_validate(dict(args))
        return {name: getattr(made, name) for name in self.model.model_fields}


def _arguments_of(tool: BaseTool) -> type[BaseModel] | dict[str, Any]:
    """What a model says to a tool: its own schema, or a part of it where the program injects the rest."""
    if isinstance(tool.args_schema, dict):
        return tool.args_schema
    whole, shown = tool.get_input_schema(), tool.tool_call_schema
    if not (isinstance(shown, type) and issubclass(shown, BaseModel) and issubclass(whole, BaseModel)):
        raise TypeError(f"the arguments of {tool.name} are a model of an older pydantic")
    # The part has no validators of the whole model.
    return whole if set(whole.model_fields) == set(shown.model_fields) else shown
