"""Turns a Python callable into a Tool: its signature becomes JSON Schema, its docstring the descriptions.

The readers `python` and `schemas` share this module. Equal code gives equal tools: schemas and descriptions do not
depend on memory addresses, the order of sets, or the folders of this machine.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import enum
import inspect
import keyword
import math
import os
import re
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from toolscout.errors import BadEntry
from toolscout.sources import build_tool
from toolscout.sources.docstrings import docstring, read_docstring, signature_lines, without_addresses
from toolscout.types import Tool

__all__ = ["convert_errors", "from_callable", "type_schema"]

MAX_DEFAULT: Final = 200
MAX_NESTING: Final = 4
PLAIN: Final[dict[Any, str]] = {
    str: "string",
    int: "integer",
    float: "number",
    bool: "boolean",
    dict: "object",
    list: "array",
    tuple: "array",
    set: "array",
    frozenset: "array",
    None: "null",
    type(None): "null",
}
WRAPPERS: Final = (typing.Annotated, *(getattr(typing, name, typing.Annotated) for name in ("Required", "NotRequired")))
ARRAYS: Final = (collections.abc.Iterable, collections.abc.Iterator, collections.abc.Collection)
WRITTEN: Final = {kind.__name__: PLAIN[kind] for kind in (str, int, float, bool, dict, list)} | {
    "string": "string",
    "integer": "integer",
    "boolean": "boolean",
    "number": "number",
}
_ABSENT: Final = inspect.Parameter.empty


class _Verbatim:
    """Stands for an annotation or a default in a printed signature."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def from_callable(
    source: str,
    function: Callable[..., Any],
    *,
    identity: str | None = None,
    path: Sequence[str] = (),
    module: str | None = None,
    qualname: str | None = None,
    receiver: bool = False,
) -> Tool:
    """Return the tool of a function, a method or a class (its constructor). Nothing is called.

    Args:
        source: name of the source.
        function: what to describe.
        identity: id within the source and name; by default the function's own name.
        path: as in `Tool`.
        module: where the function can be imported from; by default where it says it was defined.
        qualname: its name within the module.
        receiver: the first parameter is the object that the method belongs to, and is left out.

    Raises:
        BadEntry: for something that has no name, or that fails when it is looked at.
    """
    with convert_errors("a function that can be described"):
        own_name = getattr(function, "__name__", None)
        identity = identity or own_name
        if not isinstance(identity, str) or identity == "<lambda>":
            raise BadEntry("expected a function with a name, found one without: define it with def")
        short = identity.rpartition(".")[2]
        text = docstring(function)
        signature = _signature(function, receiver) or _written_signature(text, short)
        doc = read_docstring(text, {short, own_name if isinstance(own_name, str) else short})
        if inspect.isclass(function) and not doc.parameters:
            doc = doc._replace(parameters=read_docstring(docstring(function.__init__), set()).parameters)
        scope = _scope(function)
        return build_tool(
            source,
            identity,
            description=doc.description,
            parameters=None if signature is None else _parameters(signature, doc.parameters, scope),
            path=path,
            returns=_returns(signature, doc.returns, scope),
            meta={
                "module": module or str(getattr(function, "__module__", None) or ""),
                "qualname": qualname or str(getattr(function, "__qualname__", identity)),
                "signature": "" if signature is None else short + _format_signature(signature),
            },
        )


@contextlib.contextmanager
def convert_errors(expected: str) -> Iterator[None]:
    """Turn any error of an object under inspection into a `BadEntry` that names what was expected."""
    try:
        yield
    except BadEntry:
        raise
    except Exception as error:
        raise BadEntry(f"expected {expected}, found {type(error).__name__}: {str(error)[:200]}") from None


# --- signatures -------------------------------------------------------------------------------------------------------


def _signature(function: Callable[..., Any], receiver: bool) -> inspect.Signature | None:
    options: dict[str, Any] = {}
    if sys.version_info >= (3, 14):
        import annotationlib

        options["annotation_format"] = annotationlib.Format.FORWARDREF
    try:
        signature = inspect.signature(function, **options)
        if receiver:
            signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    except Exception:
        return None
    return signature


def _written_signature(text: str, name: str) -> inspect.Signature | None:
    """Read the signature at the beginning of a C function's docstring, as in `name(a[, b=0]) -> result`.

    The longest one counts if there are several. None: there is none, or it is not a list of names.
    """
    lines = signature_lines(text, {name})
    parameters: list[inspect.Parameter] = []
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    optional = False
    for part in max((line["arguments"] for line in lines), key=len, default="?").split(","):
        word = re.fullmatch(r"([\s\[\]]*)(\*{0,2})([^\W\d]\w*)?\s*(=.*?)?[\s\[\]]*", part)
        if word is None:
            if part.strip(" []") in ("...", "/"):
                continue
            return None
        before, stars, parameter, default = word.groups()
        if keyword.iskeyword(parameter or ""):
            return None
        optional = optional or "[" in before or bool(default)
        if stars:
            kind = inspect.Parameter.VAR_KEYWORD if stars == "**" else inspect.Parameter.VAR_POSITIONAL
        if parameter:
            omitted = _Verbatim("...") if optional and not stars else _ABSENT
            parameters.append(inspect.Parameter(parameter, kind, default=omitted))
        if stars == "*":
            kind = inspect.Parameter.KEYWORD_ONLY
        optional = optional or "[" in part
    try:
        return inspect.Signature(parameters) if lines else None
    except ValueError:
        return None


def _format_signature(signature: inspect.Signature) -> str:
    """Return the signature as text, without what differs between two runs."""
    parameters = [
        parameter.replace(
            annotation=_ABSENT if parameter.annotation is _ABSENT else _Verbatim(_type_text(parameter.annotation)),
            default=_ABSENT if parameter.default is _ABSENT else _Verbatim(_default_text(parameter.default)),
        )
        for parameter in signature.parameters.values()
    ]
    returned = signature.return_annotation
    if returned is not inspect.Signature.empty:
        returned = _Verbatim(_type_text(returned))
    return str(inspect.Signature(parameters, return_annotation=returned))


def _default_text(value: object) -> str:
    if _is_json(value):
        return repr(value)
    return value.__name__ if inspect.isclass(value) or inspect.isroutine(value) else "..."


def _is_json(value: object, depth: int = 0) -> bool:
    """Return whether a default can stand in a schema: small, JSON, and the same on every machine (no absolute path)."""
    if value is None or type(value) in (bool, int):
        return True
    if isinstance(value, float):
        return type(value) is float and math.isfinite(value)
    if isinstance(value, str):
        return type(value) is str and len(value) <= MAX_DEFAULT and (len(value) == 1 or not os.path.isabs(value))
    if depth < MAX_NESTING and type(value) in (list, tuple, dict):
        items = [*value, *value.values()] if isinstance(value, dict) else value
        return len(items) <= 20 and all(  # type: ignore[arg-type]
            _is_json(item, depth + 1)
            for item in items  # type: ignore[attr-defined]
        )
    return False


def _parameters(
    signature: inspect.Signature, written: Mapping[str, tuple[str, str]], scope: Mapping[str, Any], depth: int = 0
) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    required: list[str] = []
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            schema["additionalProperties"] = True
            continue
        kind, description = written.get(name, ("", ""))
        entry = _entry(parameter.annotation, kind, description, scope, depth)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            text = entry.pop("description", None)
            entry = {"type": "array"} | ({"items": entry} if entry else {}) | ({"description": text} if text else {})
        elif parameter.default is _ABSENT:
            required.append(name)
        elif _is_json(parameter.default):
            entry["default"] = parameter.default
        properties[name] = entry
    if required:
        schema["required"] = required
    return schema


def _entry(annotation: Any, kind: str, description: str, scope: Mapping[str, Any], depth: int) -> dict[str, Any]:
    """Return the schema of one parameter; a type that JSON Schema cannot say stands in the description."""
    if annotation is _ABSENT:
        plain = WRITTEN.get(re.sub(r",? *(optional|default.*)$", "", kind).strip())
        entry, text = ({"type": plain}, "") if plain else ({}, kind)
    else:
        entry = type_schema(annotation, scope, depth)
        text = "" if entry or annotation is Any else _type_text(annotation)
    description = " ".join((description or entry.get("description", "")).split())
    described = f"({text}) {description}".strip() if text else description
    return entry | {"description": described} if described else entry


def _returns(signature: inspect.Signature | None, written: str, scope: Mapping[str, Any]) -> Any:
    annotation = _ABSENT if signature is None else signature.return_annotation
    if annotation is _ABSENT:
        return written or None
    return _entry(annotation, "", written, scope, 0) or None


# --- types ------------------------------------------------------------------------------------------------------------


def type_schema(annotation: Any, scope: Mapping[str, Any] | None = None, depth: int = 0) -> dict[str, Any]:
    """JSON Schema of a type annotation; `{}` for what JSON Schema cannot say.

    Args:
        annotation: a type, a special form of `typing`, or the text of one.
        scope: where the names in such a text are looked up.
        depth: how many levels further out the annotation stands; deeper than four levels nothing is said.
    """
    scope = scope or {}
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if isinstance(annotation, str):
        annotation = _resolve_annotation(annotation, scope)
    if depth > MAX_NESTING:
        return {}
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if annotation is None or (isinstance(annotation, type) and annotation in PLAIN and not arguments):
        return {"type": PLAIN[annotation]}
    if origin in WRAPPERS:
        return _add_description(type_schema(arguments[0], scope, depth), arguments[1:])
    if origin is typing.Literal:
        return {"enum": list(arguments)} if all(_is_json(item) for item in arguments) else {}
    if origin in (typing.Union, types.UnionType):
        return _union([type_schema(item, scope, depth + 1) for item in arguments])
    return _generic_schema(origin or annotation, origin, arguments, scope, depth)


def _generic_schema(
    kind: Any, origin: Any, arguments: Sequence[Any], scope: Mapping[str, Any], depth: int
) -> dict[str, Any]:
    """Return the schema of a mapping, a collection or another class, with the types of its items."""
    if not isinstance(kind, type):
        return {}
    inner = [item for item in arguments if item is not ...]
    if issubclass(kind, collections.abc.Mapping) and not typing.is_typeddict(kind):
        values = type_schema(inner[1], scope, depth + 1) if len(inner) == 2 else {}
        return {"type": "object"} | ({"additionalProperties": values} if values else {})
    if (
        kind in PLAIN
        or kind in ARRAYS
        or (origin and issubclass(kind, collections.abc.Collection))
        or _is_sequence(kind)
    ):
        items = type_schema(inner[0], scope, depth + 1) if len(inner) == 1 else {}
        return {"type": "array"} | ({"items": items} if items else {})
    return _class_schema(kind, depth)


def _is_sequence(kind: type) -> bool:
    return kind in (
        collections.abc.Sequence,
        collections.abc.MutableSequence,
        collections.abc.Set,
        collections.abc.MutableSet,
    )


def _add_description(schema: dict[str, Any], notes: Sequence[Any]) -> dict[str, Any]:
    for note in notes:
        text = note if isinstance(note, str) else getattr(note, "description", None)
        if isinstance(text, str):
            return schema | {"description": text}
    return schema


def _union(branches: list[dict[str, Any]]) -> dict[str, Any]:
    if not all(branches):
        return {}
    if all(set(branch) == {"type"} and isinstance(branch["type"], str) for branch in branches):
        names = list(dict.fromkeys(branch["type"] for branch in branches))
        return {"type": names if len(names) > 1 else names[0]}
    return {"anyOf": branches}


def _class_schema(kind: type, depth: int) -> dict[str, Any]:
    """Return the schema of a class whose values are records or a choice; `{}` for any other."""
    scope = vars(sys.modules.get(kind.__module__, typing))
    if issubclass(kind, enum.Enum):
        values = [member.value for member in kind]
        return {"enum": values if all(_is_json(value) for value in values) else [member.name for member in kind]}
    if typing.is_typeddict(kind):
        properties = {
            name: type_schema(annotation, scope, depth + 1)
            for name, annotation in inspect.get_annotations(kind).items()
        }
        needed = sorted(kind.__required_keys__, key=list(properties).index)  # type: ignore[attr-defined]
        return {"type": "object", "properties": properties, "required": needed}
    marks = ("model_fields", "_fields", "__struct_fields__", "__attrs_attrs__")
    if dataclasses.is_dataclass(kind) or any(hasattr(kind, mark) for mark in marks):
        signature = _signature(kind, receiver=False)
        if signature is not None:
            fields = getattr(kind, "model_fields", {})
            written = {name: ("", getattr(field, "description", None) or "") for name, field in fields.items()}
            return _parameters(signature, written, scope, depth + 1)
    return {}


def _scope(function: Any) -> Mapping[str, Any]:
    with contextlib.suppress(ValueError):
        function = inspect.unwrap(function)
    function = getattr(function, "__func__", function)
    scope = getattr(function, "__globals__", None)
    if scope is None:
        scope = vars(sys.modules.get(str(getattr(function, "__module__", "")), typing))
    return scope if isinstance(scope, dict) else {}


def _resolve_annotation(text: str, scope: Mapping[str, Any]) -> Any:
    """Return the meaning of an annotation's text in its module, which is imported already; or else the text."""
    holder = types.SimpleNamespace(__annotations__={"it": text})
    try:
        return typing.get_type_hints(holder, {**vars(typing), **scope}, {}, include_extras=True)["it"]
    except Exception:
        return text


def _type_text(annotation: Any) -> str:
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return without_addresses(text.replace("typing.", ""))[:MAX_DEFAULT]
