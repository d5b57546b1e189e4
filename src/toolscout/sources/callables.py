"""Describes Python callables as tools, from their signatures and docstrings.

The readers `python` and `schemas` share this module. Equal code gives equal tools: schemas and descriptions do not
depend on memory addresses, the order of sets, or the folders of this machine.
"""

from __future__ import annotations

import collections.abc
import contextlib
import dataclasses
import enum
import importlib
import inspect
import itertools
import keyword
import math
import os
import re
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import docstring_parser
from docstring_parser import DocstringStyle

from toolscout.errors import BadEntry, UserError
from toolscout.sources.reading import RawTool, Schema, build_tool, describe_type
from toolscout.types import Tool

__all__ = ["build_type_schema", "convert_errors", "describe_callable", "find_function"]

MAX_DOCSTRING_CHARS: Final = 1_000
MAX_EXAMPLE_CHARS: Final = 2_000
MAX_DEFAULT_CHARS: Final = 200
MAX_DEFAULT_ITEMS: Final = 20
MAX_REASON_CHARS: Final = 200  # of why a module cannot be imported
MAX_TYPE_NESTING: Final = 4
PLAIN_TYPES: Final[dict[object, str]] = {
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
#: Special forms around a type. `Required` and `NotRequired` are missing in Python 3.10.
WRAPPERS: Final = (typing.Annotated, *(getattr(typing, name, typing.Annotated) for name in ("Required", "NotRequired")))
ARRAY_TYPES: Final = (
    collections.abc.Iterable,
    collections.abc.Iterator,
    collections.abc.Collection,
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Set,
    collections.abc.MutableSet,
)
#: Attributes of pydantic models, named tuples, msgspec structs and attrs classes.
RECORD_ATTRIBUTES: Final = ("model_fields", "_fields", "__struct_fields__", "__attrs_attrs__")
#: Type names in docstrings → type names of JSON Schema.
DOCUMENTED_TYPES: Final = {kind.__name__: PLAIN_TYPES[kind] for kind in (str, int, float, bool, dict, list)} | {
    "string": "string",
    "integer": "integer",
    "boolean": "boolean",
    "number": "number",
}
_ABSENT: Final = inspect.Parameter.empty
Scope = Mapping[str, object]  # global names of a module
_STAR_KINDS: Final = {"*": inspect.Parameter.VAR_POSITIONAL, "**": inspect.Parameter.VAR_KEYWORD}
#: One parameter in the signature of a C function's docstring: brackets, stars, name and default.
_DOCUMENTED_PARAMETER: Final = re.compile(r"([\s\[\]]*)(\*{0,2})((?:[^\W\d]\w*)?)\s*(=.*?)?[\s\[\]]*")

SECTIONS: Final = (
    (re.compile(r"^ *(Parameters|Returns|Yields|See Also|Examples?) *\n *-{3,}", re.M), DocstringStyle.NUMPYDOC),
    (re.compile(r"^ *:(param|type|returns?|rtype|raises?)\b", re.M), DocstringStyle.REST),
    (re.compile(r"^ *(Args|Arguments|Parameters|Params|Returns|Yields|Raises):", re.M), DocstringStyle.GOOGLE),
    (re.compile(r"^ *@(param|type|returns?|rtype|raise)\b", re.M), DocstringStyle.EPYDOC),
)
#: `name(arguments)` with an optional result. One pattern for all names: compiling one each takes longer than to match.
_SIGNATURE_LINE: Final = re.compile(r"(?P<name>[\w.]+)\((?P<arguments>[^()\n]*)\)[ :]*(?:(?:->|=|--)[^\n]*)?(?:\n|$)")
#: A call at the beginning of a docstring, of whatever name, and what is behind its arrow. It is no description:
#: `AnnAssign(expr target, expr? value)`, `aclose() -> raise GeneratorExit`. A line may end within parentheses.
_CALL: Final = r"(?:\w+\.)*\w+\((?:[^()]|\([^()]*\))*\)[ \t]*"
_LEADING_CALL: Final = re.compile(
    _CALL + r"(?:-+>[ \t]*(?P<result>\([^()]*\)(?=[ \t]*(?:\n|\Z))|[^\n]*))?:?[ \t]*(?:\n|\Z)"
)
#: The same with its description behind it: `enable(file): enable the fault handler`.
_DESCRIBED_CALL: Final = re.compile(_CALL + r"(?::|--(?!>))[ \t]*(?=\S)")
_MEMORY_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
_VERSION_NOTE: Final = re.compile(r"\.\. version(?:added|changed):: \S+ ?")
_ROLE: Final = re.compile(r":[a-z]+(?::[a-z]+)?:`~?\.?([^`<]+?)(?: *<[^`]*>)?`")


class _Verbatim:
    """An annotation or a default that a signature prints as a given text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


def describe_callable(
    source: str,
    function: Callable[..., object],
    *,
    identity: str | None = None,
    path: Sequence[str] = (),
    module: str | None = None,
    qualname: str | None = None,
    receiver: bool = False,
) -> Tool:
    """Describe a function, a method or a class (its constructor) as a tool, without calling it.

    Args:
        source: name of the source.
        function: what to describe.
        identity: id within the source and name. By default the function's own name.
        path: as in `Tool`.
        module: where the function can be imported from. By default the module that defines it.
        qualname: its name within the module.
        receiver: whether the first parameter is the object that the method belongs to (`self`). It is left out.

    Raises:
        BadEntry: if the function has no name, or raises an error when it is inspected.
    """
    with convert_errors("a function that can be described"):
        own_name = getattr(function, "__name__", None)
        identity = identity or own_name
        if not isinstance(identity, str) or identity == "<lambda>":
            raise BadEntry("expected a function with a name, found one without: define it with def")
        _, _, short = identity.rpartition(".")
        text = _get_docstring(function)
        signature = _read_signature(function, receiver) or _parse_documented_signature(text, short)
        doc = _read_documentation(function, text, {short, own_name if isinstance(own_name, str) else short})
        scope = _find_scope(function)
        examples = _find_examples(text)
        fields = RawTool(
            id=identity,
            description=doc.description,
            parameters=None if signature is None else _build_parameters(signature, doc.parameters, scope),
            path=path,
            returns=_describe_result(signature, doc.returns, scope),
            meta={
                "module": module or str(getattr(function, "__module__", None) or ""),
                "qualname": qualname or str(getattr(function, "__qualname__", identity)),
                "signature": "" if signature is None else short + _format_signature(signature),
                **({"examples": examples} if examples else {}),
            },
        )
        return build_tool(source, fields)


def find_function(meta: Mapping[str, Any]) -> tuple[object, Any]:
    """Import the Python function that a tool's `meta` names, and return the module or class that has it, and itself.

    Args:
        meta: of the tool: `module`, `qualname`, and if there are fixed arguments, the object `arguments`.

    Raises:
        UserError: if the module cannot be imported, if nothing in it that can be called has this name, or if the fixed
            arguments are no object.
    """
    module, qualname, fixed = str(meta["module"]), meta.get("qualname"), meta.get("arguments", {})
    if not isinstance(qualname, str):
        raise UserError(f"`meta` names the module {module!r}, but no function in it: set `qualname`")
    if not isinstance(fixed, Mapping):
        raise UserError(f"expected an object as fixed arguments of the function, found {describe_type(fixed)}")
    try:
        value: Any = importlib.import_module(module)
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:MAX_REASON_CHARS]}"
        raise UserError(f"module {module!r} cannot be imported: {reason}") from error
    owner: object = None
    try:
        for part in qualname.split("."):
            owner, value = value, getattr(value, part)
    except AttributeError as error:
        raise UserError(f"module {module!r} has no function {qualname!r}") from error
    if not callable(value) and not inspect.isdatadescriptor(value):
        raise UserError(f"{qualname!r} in module {module!r} is no function: it is of type {type(value).__name__}")
    return owner, value


@contextlib.contextmanager
def convert_errors(expected: str) -> Iterator[None]:
    """Turn every error of inspected foreign code into a `BadEntry` that says what was expected."""
    try:
        yield
    except BadEntry:
        raise
    except Exception as error:
        raise BadEntry(f"expected {expected}, found {type(error).__name__}: {str(error)[:200]}") from None


# --- signatures -------------------------------------------------------------------------------------------------------


def _read_signature(function: Callable[..., object], receiver: bool = False) -> inspect.Signature | None:
    """Return the signature that Python knows, without its first parameter if `receiver`. None if it knows none."""
    options: dict[str, Any] = {}
    if sys.version_info >= (3, 14):
        import annotationlib

        options["annotation_format"] = annotationlib.Format.FORWARDREF
    try:
        signature = inspect.signature(function, **options)
    except Exception:  # foreign code may raise anything
        return None
    parameters = list(signature.parameters.values())
    return signature.replace(parameters=parameters[1:]) if receiver else signature


def _parse_documented_signature(text: str, name: str) -> inspect.Signature | None:
    """Parse the signature at the start of a C function's docstring, such as `name(a[, b=0]) -> result`.

    Of several signatures the longest counts. None if there is none, or it is not a list of names.
    """
    argument_lists = [line["arguments"] for line in _find_signature_lines(text, {name})]
    if not argument_lists:
        return None
    try:
        return inspect.Signature(_parse_parameters(max(argument_lists, key=len)))
    except ValueError:  # also of `Signature`: a name occurs twice, or in an order that Python refuses
        return None


def _parse_parameters(arguments: str) -> list[inspect.Parameter]:
    """Parse a list such as `a[, b=0], *rest`. Raises ValueError if it is not a list of names.

    A parameter is optional if it has a default, or an opening bracket is anywhere before it.
    """
    parameters: list[inspect.Parameter] = []
    kind: Any = inspect.Parameter.POSITIONAL_OR_KEYWORD
    optional = False
    for part in arguments.split(","):
        if part.strip(" []") in ("...", "/"):
            continue
        match = _DOCUMENTED_PARAMETER.fullmatch(part)
        if match is None or keyword.iskeyword(match[3]):
            raise ValueError(part)
        brackets_before, stars, name, default_text = match.groups()
        optional = optional or "[" in brackets_before or bool(default_text)
        kind = _STAR_KINDS.get(stars, kind)
        if name:  # a star alone has none
            # The text of a default need not be Python, so it is not shown.
            default = _Verbatim("...") if optional and not stars else _ABSENT
            parameters.append(inspect.Parameter(name, kind, default=default))
        if stars == "*":
            kind = inspect.Parameter.KEYWORD_ONLY  # of all parameters behind it
        has_bracket_behind = "[" in part  # then the next parameters are optional
        optional = optional or has_bracket_behind
    return parameters


def _format_signature(signature: inspect.Signature) -> str:
    """Format a signature as a text that is the same in every run."""

    def replace(value: object, format_value: Callable[[object], str]) -> object:
        return value if value is _ABSENT else _Verbatim(format_value(value))

    parameters = [
        part.replace(annotation=replace(part.annotation, _format_type), default=replace(part.default, _format_default))
        for part in signature.parameters.values()
    ]
    result = replace(signature.return_annotation, _format_type)
    return str(inspect.Signature(parameters, return_annotation=result))


def _format_default(value: object) -> str:
    """Format a default: as Python if it is JSON, a class or function by its name, anything else as `...`."""
    if _is_json(value):
        return repr(value)
    return value.__name__ if inspect.isclass(value) or inspect.isroutine(value) else "..."


def _is_json(value: object, depth: int = 0) -> bool:
    """Return whether a default may be part of a schema: small, JSON, and the same on every machine.

    Instances of subclasses of `str`, `int` and the others are no JSON.
    """
    if type(value) not in (list, tuple, dict, str, float, bool, int, type(None)):
        return False
    if isinstance(value, (list, tuple, dict)):
        items = [*value, *value.values()] if isinstance(value, dict) else value
        is_small = depth < MAX_TYPE_NESTING and len(items) <= MAX_DEFAULT_ITEMS
        return is_small and all(_is_json(item, depth + 1) for item in items)
    if isinstance(value, str):
        return _is_portable(value)
    return not isinstance(value, float) or math.isfinite(value)


def _is_portable(text: str) -> bool:
    """Return whether a text is short and the same on every machine."""
    if len(text) > MAX_DEFAULT_CHARS or _MEMORY_ADDRESS.search(text):
        return False
    is_absolute_path = len(text) > 1 and os.path.isabs(text)  # a slash alone is more often a separator
    return not is_absolute_path


def _build_parameters(
    signature: inspect.Signature, documented: Mapping[str, tuple[str, str]], scope: Scope, depth: int = 0
) -> Schema:
    """Build the schema of all parameters of a signature. `documented` maps names to (type, description)."""
    properties: Schema = {}
    required: list[str] = []
    schema: Schema = {"type": "object", "properties": properties}
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            schema["additionalProperties"] = True
            continue
        documented_type, documented_text = documented.get(name, ("", ""))
        entry = _build_property(parameter.annotation, documented_type, documented_text, scope, depth)
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:  # `*names`: a list of what the annotation describes
            description = entry.pop("description", None)
            fields = {"type": "array", "items": entry, "description": description}
            entry = {key: value for key, value in fields.items() if value}
        elif parameter.default is _ABSENT:
            required.append(name)
        elif _is_json(parameter.default):
            entry["default"] = parameter.default
        properties[name] = entry
    if required:
        schema["required"] = required
    return schema


def _build_property(annotation: object, documented_type: str, description: str, scope: Scope, depth: int) -> Schema:
    """Build the schema of one parameter. A type that JSON Schema cannot express is put before the description.

    The type in the docstring counts only if the signature has none. `scope` and `depth` as in `build_type_schema`.
    """
    type_text = ""  # a type that the schema does not express
    if annotation is _ABSENT:
        plain_type = re.sub(r",? *(optional|default.*)$", "", documented_type).strip()
        entry: Schema = {"type": DOCUMENTED_TYPES[plain_type]} if plain_type in DOCUMENTED_TYPES else {}
        if not entry:
            type_text = documented_type
    else:
        entry = build_type_schema(annotation, scope, depth)
        if not entry and annotation is not Any:
            type_text = _format_type(annotation)
    description = " ".join((description or entry.get("description", "")).split())
    if type_text:
        description = f"({type_text}) {description}".strip()
    return entry | {"description": description} if description else entry


def _describe_result(signature: inspect.Signature | None, documented: str, scope: Scope) -> object:
    """Return the schema or the description of the result. None if neither is known."""
    annotation = _ABSENT if signature is None else signature.return_annotation
    if annotation is _ABSENT:  # only the description is known, if any
        return documented or None
    return _build_property(annotation, documented_type="", description=documented, scope=scope, depth=0) or None


# --- types ------------------------------------------------------------------------------------------------------------


def build_type_schema(annotation: object, scope: Scope | None = None, depth: int = 0) -> Schema:
    """Build the JSON Schema of a type annotation. Empty if JSON Schema cannot express the type.

    Args:
        annotation: a type, a special form of `typing`, or the text of one.
        scope: where the names in such a text are looked up.
        depth: how many types the annotation stands inside. Below four levels the schema is empty.
    """
    scope = scope or {}
    annotation = _resolve_annotation(annotation, scope)
    if depth > MAX_TYPE_NESTING:
        return {}
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if not arguments and isinstance(annotation, (type, types.NoneType)) and annotation in PLAIN_TYPES:
        return {"type": PLAIN_TYPES[annotation]}
    if origin in WRAPPERS:
        return build_type_schema(arguments[0], scope, depth) | _read_note(arguments[1:])
    if origin is typing.Literal:
        return {"enum": list(arguments)} if all(map(_is_json, arguments)) else {}
    inner = [build_type_schema(item, scope, depth + 1) for item in arguments if item is not ...]
    if origin in (typing.Union, types.UnionType):
        return _join_branches(inner)
    return _build_class_schema(origin or annotation, inner, is_generic=bool(origin), depth=depth)


def _read_note(notes: Sequence[object]) -> Schema:
    """Return the description in the notes of `Annotated`: the first text, or the text of a field such as pydantic's."""
    texts = (note if isinstance(note, str) else getattr(note, "description", None) for note in notes)
    text = next((text for text in texts if isinstance(text, str)), None)
    return {} if text is None else {"description": text}


def _join_branches(branches: list[Schema]) -> Schema:
    """Join the schemas of a union: to a list of type names if each has only a type, else to `anyOf`."""
    if not all(branches):  # one allows anything, so the union does
        return {}
    if all(set(branch) == {"type"} and isinstance(branch["type"], str) for branch in branches):
        names = list(dict.fromkeys(branch["type"] for branch in branches))
        return {"type": names if len(names) > 1 else names[0]}
    return {"anyOf": branches}


def _build_class_schema(kind: object, inner: list[Schema], is_generic: bool, depth: int) -> Schema:
    """Build the schema of a class. Empty if `kind` is no class, or JSON Schema cannot express it.

    The caller has described `str` and a bare `dict` itself. For `dict[str, int]`, `kind` is `dict`, `inner` has the
    schemas of the types in brackets, and `is_generic` is true: then every collection is an array.
    """
    if not isinstance(kind, type):
        return {}
    if issubclass(kind, collections.abc.Mapping) and not typing.is_typeddict(kind):
        values = inner[1] if len(inner) == 2 else {}  # the type of the keys is dropped: in JSON they are texts
        return {"type": "object", "additionalProperties": values} if values else {"type": "object"}
    is_typed_collection = is_generic and issubclass(kind, collections.abc.Collection)
    if kind in PLAIN_TYPES or kind in ARRAY_TYPES or is_typed_collection:
        items = inner[0] if len(inner) == 1 else {}  # a tuple of several types has no one type of items
        return {"type": "array", "items": items} if items else {"type": "array"}
    return _build_record_schema(kind, depth)


def _build_enum_schema(kind: type[enum.Enum]) -> Schema:
    """Build the schema of an enum: its values, or its members' names if a value is no JSON."""
    values = [member.value for member in kind]
    return {"enum": values if all(map(_is_json, values)) else [member.name for member in kind]}


def _build_record_schema(kind: type, depth: int) -> Schema:
    """Build the schema of an enum, a typed dictionary or a class of records. Empty for other classes.

    The fields of records are the parameters of their constructor.
    """
    if issubclass(kind, enum.Enum):
        return _build_enum_schema(kind)
    scope = vars(sys.modules.get(kind.__module__, typing))
    if typing.is_typeddict(kind):
        annotations = inspect.get_annotations(kind)
        properties = {name: build_type_schema(annotation, scope, depth + 1) for name, annotation in annotations.items()}
        needed = getattr(kind, "__required_keys__", ())
        return {"type": "object", "properties": properties, "required": [name for name in properties if name in needed]}
    if not dataclasses.is_dataclass(kind) and not any(hasattr(kind, attribute) for attribute in RECORD_ATTRIBUTES):
        return {}
    signature = _read_signature(kind)
    pydantic_fields = getattr(kind, "model_fields", {})
    documented = {name: ("", getattr(field, "description", None) or "") for name, field in pydantic_fields.items()}
    return {} if signature is None else _build_parameters(signature, documented, scope, depth + 1)


def _find_scope(function: object) -> Scope:
    """Return the global names with which the annotations of a function are resolved: those of its module.

    Decorators and bound methods are unwrapped. If Python does not know the module, the names of `typing` are returned.
    """
    with contextlib.suppress(ValueError):
        function = inspect.unwrap(function)  # type: ignore[arg-type]  # ValueError: it wraps itself
    function = getattr(function, "__func__", function)
    scope = getattr(function, "__globals__", None)
    if scope is None:
        scope = vars(sys.modules.get(str(getattr(function, "__module__", "")), typing))
    return scope if isinstance(scope, dict) else {}


def _resolve_annotation(annotation: object, scope: Scope) -> object:
    """Return the type that a text annotation or a forward reference means, or else the text.

    Names are looked up in `scope` and in `typing`. Another annotation is returned unchanged.
    """
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    if not isinstance(annotation, str):
        return annotation
    holder = types.SimpleNamespace(__annotations__={"value": annotation})  # `get_type_hints` wants an object
    try:
        return typing.get_type_hints(holder, {**vars(typing), **scope}, {}, include_extras=True)["value"]
    except Exception:  # an unknown name, or foreign code that raises anything
        return annotation


def _format_type(annotation: object) -> str:
    """Format an annotation as a text of at most 200 characters that is the same in every run."""
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _MEMORY_ADDRESS.sub("", text.replace("typing.", ""))[:MAX_DEFAULT_CHARS]


# --- docstrings -------------------------------------------------------------------------------------------------------


class _Docstring(NamedTuple):
    """The content of a docstring. `parameters` maps each name to its type as text and its description."""

    description: str
    parameters: dict[str, tuple[str, str]]
    returns: str


def _get_docstring(function: object) -> str:
    """Return the docstring of a function or class without indentation, inherited if it has none. It may be empty."""
    try:
        text = inspect.getdoc(function)
    except Exception:  # a `__doc__` may be a property that does anything
        return ""
    return text if isinstance(text, str) else ""


def _read_documentation(function: Callable[..., object], text: str, names: set[str]) -> _Docstring:
    """Parse the docstring `text` of a function or class. `names` as in `_read_docstring`.

    If the docstring of a class describes no parameters, those in the docstring of its constructor count.
    """
    doc = _read_docstring(text, names)
    if inspect.isclass(function) and not doc.parameters:
        doc = doc._replace(parameters=_read_docstring(_get_docstring(function.__init__), set()).parameters)
    return doc


def _read_docstring(text: str, names: set[str]) -> _Docstring:
    """Parse a docstring. `names` are the function names that signatures in its first lines may have."""
    text = _skip_leading_calls(_skip_signature_lines(text, names))
    style = next((style for pattern, style in SECTIONS if pattern.search(text)), None)
    if style is None:
        return _Docstring(_shorten(text), {}, "")
    try:
        parsed = docstring_parser.parse(text, style=style)
    except (docstring_parser.ParseError, ValueError, IndexError, AttributeError, TypeError):
        return _Docstring(_shorten(text), {}, "")
    parameters = {
        name.strip().lstrip("*"): (item.type_name or "", _to_plain_text(item.description or ""))
        for item in parsed.params
        for name in item.arg_name.split(",")
    }
    returns = parsed.returns
    returns_parts = (returns.type_name, returns.description) if returns else ()
    return _Docstring(
        description=_shorten("\n\n".join(filter(None, (parsed.short_description, parsed.long_description)))),
        parameters=parameters,
        returns=_to_plain_text(": ".join(filter(None, returns_parts))),
    )


def _find_examples(text: str) -> str:
    r"""Return the doctests (`>>>`) of a docstring: whole lines, up to 2,000 characters. Empty if it has none.

    Characters that cannot be printed are written as escapes, as in the source of a doctest such as `b'\x81'`.
    """
    if ">>>" not in text:
        return ""
    lines: list[str] = []
    is_inside = False
    for line in text.splitlines():
        is_prompt = line.lstrip().startswith(">>>")
        if is_prompt and not is_inside and lines:
            lines.append("")  # between two doctests
        is_inside = is_prompt or (is_inside and bool(line.strip()))  # a doctest ends with a blank line
        if is_inside:
            lines.append(line.rstrip())
    line_ends = itertools.accumulate(len(line) + 1 for line in lines)  # in characters from the start
    n_lines = sum(end <= MAX_EXAMPLE_CHARS for end in line_ends)
    examples = textwrap.dedent("\n".join(lines[:n_lines])).strip("\n")
    return _MEMORY_ADDRESS.sub("", _escape_unprintable(examples))


def _escape_unprintable(text: str) -> str:
    """Write characters that cannot be printed as escapes, except line breaks and tabs."""
    return "".join(
        character if character.isprintable() or character in "\n\t" else character.encode("unicode_escape").decode()
        for character in text
    )


def _shorten(text: str) -> str:
    """Return the first paragraphs without doctests and directives: up to 1,000 characters, at least one."""
    paragraphs: list[str] = []
    for paragraph in re.split(r"\n\s*\n", text):
        plain = _to_plain_text(paragraph)
        if not plain or plain.startswith((">>>", ".. ")):
            continue
        if paragraphs and sum(map(len, paragraphs)) + len(plain) > MAX_DOCSTRING_CHARS:
            break
        paragraphs.append(plain)
    return "\n".join(paragraphs)


def _to_plain_text(text: str) -> str:
    """Return a text in one line, without Sphinx roles (:class:`X` becomes X), version notes and memory addresses."""
    return _MEMORY_ADDRESS.sub("", _ROLE.sub(r"\1", _VERSION_NOTE.sub("", " ".join(text.split()))).strip())


def _skip_signature_lines(text: str, names: set[str]) -> str:
    """Return a docstring without signatures at its beginning, unless nothing or the rest of a sentence follows them."""
    lines = _find_signature_lines(text, names)
    tail = text[lines[-1].end() :] if lines else text
    goes_on = tail.startswith((" ", "("))
    return tail.lstrip() if tail and not goes_on else text


def _skip_leading_calls(text: str) -> str:
    """Return a docstring without the calls at its beginning, such as `f(x) -> value`.

    If nothing is behind them, return the first result that consists of several words.
    """
    described_call = _DESCRIBED_CALL.match(text)
    if described_call is not None:
        return text[described_call.end() :]
    described_result, tail = "", text
    while match := _LEADING_CALL.match(tail):
        result = (match["result"] or "").strip()
        if not described_result and " " in result and not result.startswith("("):
            described_result = result
        tail = tail[match.end() :].lstrip()
        if tail.startswith("("):  # a remark on the call, such as "(an obsolete synonym)"
            tail = tail.partition("\n")[2].lstrip()
    return tail or described_result


def _find_signature_lines(text: str, names: set[str]) -> list[re.Match[str]]:
    """Find the lines `name(arguments)` at the beginning of a docstring, with one of the `names`, also as `x.name`.

    The matches have a group `arguments`.
    """
    suffixes = tuple(f".{name}" for name in names)
    lines: list[re.Match[str]] = []
    line = _SIGNATURE_LINE.match(text)
    while line is not None and f".{line['name']}".endswith(suffixes):
        lines.append(line)
        line = _SIGNATURE_LINE.match(text, line.end())
    return lines
