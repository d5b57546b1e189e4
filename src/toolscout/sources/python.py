"""Reads Python functions as tools: `py:module`, `py:module:name`, and `py:stdlib` for the standard library.

Reading imports the module, that is, runs its code; the reading's message says so. Of a module the public functions and
classes (as constructors) become tools, of a package also those of its public submodules; `py:module:Class` gives the
public methods of a class. The standard library also gives the methods that its classes define and document themselves:
there they are the interface.
"""

from __future__ import annotations

import contextlib
import difflib
import enum
import functools
import importlib
import inspect
import io
import pkgutil
import platform
import sys
import warnings
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.config import Settings
from toolscout.errors import SourceError
from toolscout.sources import Problem, Reading, collect, source_name
from toolscout.sources.callables import describe_callable
from toolscout.types import Tool

__all__ = ["describe_callable", "read"]

STDLIB: Final = "stdlib"
#: Submodules that are never imported: tests, programs, and what acts as soon as it is imported.
SKIPPED: Final = frozenset({"conftest", "setup", "test", "tests", "testutils"})
#: Of the standard library: demonstrations and windows, twins of other modules, internals, and what is deprecated.
SKIPPED_STDLIB: Final = """
antigravity this idlelib turtle turtledemo tkinter lib2to3 pydoc_data ensurepip rlcompleter test xxlimited xxsubtype
encodings genericpath nt ntpath nturl2path opcode posix posixpath pyexpat sre_compile sre_constants sre_parse
aifc asynchat asyncore audioop cgi cgitb chunk crypt distutils imghdr imp mailcap msilib nis nntplib
ossaudiodev pipes smtpd sndhdr spwd sunau telnetlib uu xdrlib
"""


class _Found(NamedTuple):
    """A public callable, where it was found. `receiver`: its first parameter is the object it belongs to."""

    module: str
    qualname: str
    value: Any
    receiver: bool = False

    @property
    def name(self) -> str:
        return f"{self.module}.{self.qualname}"


def read(locator: str, *, name: str | None, settings: Settings) -> list[Reading]:
    """Return the public functions behind `py:module`, `py:module:name` or `py:stdlib`. Imports what it reads.

    Args:
        locator: with the prefix `py:`.
        name: of the source; by default the locator without the prefix, a dot for the second colon.
        settings: not used.

    Raises:
        SourceError: when the module cannot be imported, or has nothing public of that name.
    """
    module_name, _, member = locator.removeprefix("py:").partition(":")
    source = name or source_name(".".join(part for part in (module_name, member) if part))
    if module_name == STDLIB and not member:
        return [_read_stdlib(source)]
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise SourceError(f"{locator}: expected py:module or py:module:name, found {module_name!r} as module")
    module = _import(module_name)
    problems: list[Problem] = []
    if member:
        members: Iterable[_Found] = _find_member(locator, module, member)
    else:
        members = [item for part in list(_walk(module_name, module, problems)) for item in _members(*part, problems)]
    return [_reading(source, _once(members), problems, f"imported {_label_version(module)}")]


def _read_stdlib(source: str) -> Reading:
    """Return the documented functions, classes and methods; what this build of Python lacks is in the message."""
    problems: list[Problem] = []
    absent: list[Problem] = []
    modules: list[tuple[str, ModuleType]] = []
    for name in sorted(sys.stdlib_module_names.difference(SKIPPED_STDLIB.split())):
        if not name.startswith("_"):
            try:
                modules += _walk(name, _import(name), absent)
            except SourceError as error:
                absent.append(Problem(name, str(error)))
    members = _once(item for name, module in modules for item in _members(name, module, problems))
    methods = [method for item in members for method in _methods(item, inherited=False)]
    documented = [item for item in _once([*members, *methods]) if _is_documented(item.value)]
    message = f"imported {len(modules)} modules of Python {platform.python_version()}"
    if absent:
        message += f"; not in this installation: {', '.join(problem.entry for problem in absent)}"
    return _reading(source, documented, problems, message)


def _is_documented(value: object) -> bool:
    return bool(vars(value).get("__doc__") if isinstance(value, type) else getattr(value, "__doc__", None))


def _once(members: Iterable[_Found]) -> list[_Found]:
    """Return each object once, sorted by name. Its own name is preferred to an alias, then the shortest path."""
    best: dict[int, tuple[tuple[bool, int, str], _Found]] = {}
    for item in members:
        own_name = getattr(item.value, "__name__", None)
        rank = (item.qualname.rpartition(".")[2] != own_name, len(item.name), item.name)
        if id(item.value) not in best or rank < best[id(item.value)][0]:
            best[id(item.value)] = (rank, item)
    return sorted((item for _, item in best.values()), key=lambda item: item.name)


def _reading(source: str, found: Iterable[_Found], problems: list[Problem], message: str) -> Reading:
    entries = ((item.name, functools.partial(_tool, source, item)) for item in found)
    return msgspec.structs.replace(collect(source, "python", entries, problems=problems), message=message)


def _tool(source: str, item: _Found) -> Tool:
    top = item.module.partition(".")[0]
    return describe_callable(
        source,
        item.value,
        identity=item.name,
        path=("python" if top in sys.stdlib_module_names else top, item.name.rpartition(".")[0]),
        module=item.module,
        qualname=item.qualname,
        receiver=item.receiver,
    )


# --- modules ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Foreign code runs inside: its warnings and what it prints go nowhere."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _import(name: str) -> ModuleType:
    try:
        with _silence():
            return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name and f"{name}.".startswith(f"{error.name}."):
            problem = "no module of that name here: install it into this environment, or put its folder on PYTHONPATH"
        else:
            problem = f"{type(error).__name__} while importing it: {' '.join(str(error).split())[:200]}"
        raise SourceError(f"{name}: expected a Python module, found {problem}") from None


def _label_version(module: ModuleType) -> str:
    """Return the module's name with the version of what it belongs to."""
    top = module.__name__.partition(".")[0]
    if top in sys.stdlib_module_names:
        return f"{module.__name__} of Python {platform.python_version()}"
    version = getattr(sys.modules.get(top), "__version__", "")
    return f"{module.__name__} {version}".strip() if isinstance(version, str) else module.__name__


def _walk(
    name: str, module: ModuleType, problems: list[Problem], *, listed: bool = False
) -> Iterator[tuple[str, ModuleType]]:
    """(public name, module) of the module and its public submodules, sorted; a failing import becomes a problem.

    A package that declares `__all__` says what is public (`listed`): below it, only those submodules count that it
    lists or that declare `__all__` as well. A listed module may really live elsewhere, as `os.path` does.
    """
    yield name, module
    declared = _declared_names(module)
    listed = listed or declared is not None
    inside = {entry.name for entry in pkgutil.iter_modules(getattr(module, "__path__", ()))}
    inside.update(entry for entry in declared or () if f"{name}.{entry}" in sys.modules)
    for inner in sorted(inside - SKIPPED):
        if inner.startswith(("_", "test_")) or inner.endswith(("_test", "_tests")):
            continue
        path = f"{name}.{inner}"
        try:
            submodule = _import(path)
        except SourceError as error:
            problems.append(Problem(path, str(error)))
            continue
        if not listed or inner in (declared or ()) or _declared_names(submodule) is not None:
            yield from _walk(path, submodule, problems, listed=listed)


def _declared_names(module: ModuleType) -> list[str] | None:
    names = vars(module).get("__all__")
    if not isinstance(names, (list, tuple)):
        return None
    return sorted({name for name in names if isinstance(name, str)})


def _members(path: str, module: ModuleType, problems: list[Problem]) -> Iterator[_Found]:
    """Yield the public functions and classes of a module, which `path` names, sorted."""
    declared = _declared_names(module)
    for name in sorted(vars(module)) if declared is None else declared:
        if name.startswith("_") or name in SKIPPED:
            continue
        try:
            with _silence():
                value = getattr(module, name)
                is_member = _is_tool(value) and (declared is not None or _belongs(value, module))
        except Exception as error:
            problems.append(Problem(f"{path}.{name}", f"expected a public name, found {type(error).__name__}"))
            continue
        if is_member:
            yield _Found(path, name, value)


def _belongs(value: object, module: ModuleType) -> bool:
    """Return whether a module without `__all__` means a name as its own; a package means its submodules' names too."""
    origin = getattr(value, "__module__", None)
    if not isinstance(origin, str):
        return False
    if hasattr(module, "__path__"):
        return origin.partition(".")[0].lstrip("_") == module.__name__.partition(".")[0]
    return origin in (module.__name__, f"_{module.__name__}")


def _is_tool(value: object) -> bool:
    if isinstance(value, type):
        return not issubclass(value, (BaseException, enum.Enum)) and not inspect.isabstract(value)
    return callable(value) and isinstance(getattr(value, "__name__", None), str) and type(value).__module__ != "typing"


# --- names within a module --------------------------------------------------------------------------------------------


def _find_member(locator: str, module: ModuleType, member: str) -> list[_Found]:
    """Return what `py:module:member` means: the methods of a class, or one function."""
    value: Any = module
    for part in member.split("."):
        try:
            with _silence():
                value = getattr(value, part)
        except Exception:
            near = difflib.get_close_matches(part, dir(value), n=1)
            hint = f": did you mean {near[0]!r}?" if near else ""
            raise SourceError(f"{locator}: expected a name in {module.__name__}, found no {part!r}{hint}") from None
    if inspect.isclass(value):
        return list(_methods(_Found(module.__name__, member, value), inherited=True))
    if not callable(value):
        raise SourceError(f"{locator}: expected a function or a class, found a {type(value).__name__}")
    return [_Found(module.__name__, member, value)]


def _methods(owner: _Found, *, inherited: bool) -> Iterator[_Found]:
    """Yield the public methods of a class, sorted: all, or only those that it defines itself. A function has none."""
    if not isinstance(owner.value, type):
        return
    for name in sorted(dir(owner.value) if inherited else vars(owner.value)):
        if name.startswith("_"):
            continue
        raw = inspect.getattr_static(owner.value, name, None)
        bound = isinstance(raw, (staticmethod, classmethod)) or type(raw).__name__ == "classmethod_descriptor"
        if bound or inspect.isroutine(raw):
            value = getattr(owner.value, name) if bound else raw
            yield _Found(owner.module, f"{owner.qualname}.{name}", value, receiver=not bound)
