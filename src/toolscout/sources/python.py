"""Reads Python functions as tools: `py:module`, `py:module:name`, `py:stdlib` (standard library).

Reading imports the module, which runs its code. The reading's message says so. The public functions and classes (as
constructors) of a module become tools, and so do the documented methods and properties of its public classes. A package
also gives those of its public submodules, and `py:module:Class` those of one class. The standard library gives the
methods that its classes define and document themselves, without properties.
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
from collections.abc import Collection, Iterable, Iterator
from types import ModuleType
from typing import Any, Final, NamedTuple

import msgspec

from toolscout.errors import SourceError, name_nearest
from toolscout.settings import Settings
from toolscout.sources.callables import describe_callable
from toolscout.sources.reading import Problem, Reading, collect, source_name
from toolscout.types import Tool

__all__ = ["describe_callable", "read"]

STDLIB: Final = "stdlib"
MAX_NAMED_MODULES: Final = 3  # of the standard library that this Python lacks
#: Submodules that are never imported: tests and programs.
SKIPPED: Final = frozenset({"conftest", "setup", "test", "tests", "testutils"})
#: Submodules that packages have for their tests and builds. They are read only if the locator names them.
HELPER_MODULES: Final = frozenset({"distutils", "f2py", "testing"})
#: Modules of the standard library that are left out: demonstrations, windows, duplicates, internals, deprecated ones.
SKIPPED_STDLIB: Final = """
antigravity this idlelib turtle turtledemo tkinter lib2to3 pydoc_data ensurepip rlcompleter test xxlimited xxsubtype
encodings genericpath nt ntpath nturl2path opcode posix posixpath pyexpat sre_compile sre_constants sre_parse
aifc asynchat asyncore audioop cgi cgitb chunk crypt distutils imghdr imp mailcap msilib nis nntplib
ossaudiodev pipes smtpd sndhdr spwd sunau telnetlib uu xdrlib
"""


class _Member(NamedTuple):
    """A public callable or property and its place.

    `receiver`: whether its first parameter is the object that it belongs to (`self`).
    """

    module: str
    qualname: str
    value: Any  # whatever a module has
    receiver: bool = False
    is_property: bool = False

    @property
    def name(self) -> str:
        return f"{self.module}.{self.qualname}"


def read(locator: str, *, name: str | None, settings: Settings) -> list[Reading]:
    """Import what `py:module`, `py:module:name` or `py:stdlib` names, and read its public functions.

    Args:
        locator: with the prefix `py:`.
        name: the source's name. By default the locator without its prefix, with a dot for the second colon.
        settings: not used.

    Raises:
        SourceError: if the module cannot be imported, or has no public member of that name.
    """
    module_name, _, member = locator.removeprefix("py:").partition(":")
    source = name or source_name(".".join(part for part in (module_name, member) if part))
    if module_name == STDLIB and not member:
        return [_read_stdlib(source)]
    if not all(part.isidentifier() for part in module_name.split(".")):
        raise SourceError(f"{locator}: expected py:module or py:module:name, found {module_name!r} as module")
    module = _import_module(module_name)
    problems: list[Problem] = []
    if member:
        members = _remove_aliases(_find_member(locator, module, member))
    else:
        modules = list(_walk_modules(module_name, module, problems))
        listed = (item for path, part in modules for item in _list_members(path, part, problems))
        members = _add_class_members(_remove_aliases(listed))
    return [_build_reading(source, members, problems, f"imported {_label_version(module)}")]


def _read_stdlib(source: str) -> Reading:
    """Read what is documented in the standard library. The message names modules that cannot be imported here."""
    problems: list[Problem] = []
    absent: list[Problem] = []
    modules: list[tuple[str, ModuleType]] = []
    public_names = {name for name in sys.stdlib_module_names if not name.startswith("_")}
    for name in sorted(public_names.difference(SKIPPED_STDLIB.split())):
        try:
            modules += _walk_modules(name, _import_module(name), absent)
        except SourceError as error:
            absent.append(Problem(name, str(error)))
    members = _remove_aliases(member for name, module in modules for member in _list_members(name, module, problems))
    methods = [method for member in members for method in _list_methods(member, inherited=False)]
    documented = [member for member in _remove_aliases([*members, *methods]) if _is_documented(member.value)]
    message = f"imported {len(modules)} modules of Python {platform.python_version()}"
    if absent:
        message += f"; not in this installation: {', '.join(problem.entry for problem in absent[:MAX_NAMED_MODULES])}"
    if len(absent) > MAX_NAMED_MODULES:
        message += f" and {len(absent) - MAX_NAMED_MODULES} more"
    return _build_reading(source, documented, problems, message)


def _is_documented(value: object) -> bool:
    """Return whether a value has a docstring. A docstring that a class inherits from its base does not count."""
    if isinstance(value, type):
        return bool(vars(value).get("__doc__"))
    return bool(getattr(value, "__doc__", None))


def _remove_aliases(members: Iterable[_Member]) -> list[_Member]:
    """Return each object once, sorted by name. Its own name wins over an alias, then the shortest path wins."""
    by_object: dict[int, _Member] = {}  # id of the object → its best name so far

    def rank(item: _Member) -> tuple[bool, int, str]:
        is_alias = item.qualname.rpartition(".")[2] != getattr(item.value, "__name__", None)
        return is_alias, len(item.name), item.name

    for item in members:
        by_object[id(item.value)] = min(by_object.get(id(item.value), item), item, key=rank)
    return sorted(by_object.values(), key=lambda item: item.name)


def _build_reading(source: str, members: Iterable[_Member], problems: list[Problem], message: str) -> Reading:
    entries = ((item.name, functools.partial(_build_tool, source, item)) for item in members)
    return msgspec.structs.replace(collect(source, "python", entries, problems=problems), message=message)


def _build_tool(source: str, item: _Member) -> Tool:
    """Build the tool of a function or a property. A property has no parameters."""
    top = item.module.partition(".")[0]
    tool = describe_callable(
        source,
        _find_getter(item.value) if item.is_property else item.value,
        identity=item.name,
        path=("python" if top in sys.stdlib_module_names else top, item.name.rpartition(".")[0]),
        module=item.module,
        qualname=item.qualname,
        receiver=item.receiver,
    )
    if not item.is_property:
        return tool
    meta = {**tool.meta, "signature": item.qualname.rpartition(".")[2], "member": "property"}
    return msgspec.structs.replace(tool, parameters={"type": "object", "properties": {}}, meta=meta)


# --- modules ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Discard the warnings and the output of foreign code that runs inside."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _import_module(name: str) -> ModuleType:
    """Import a module, whose code may do anything: even `SystemExit` from it is reported as an error of the source."""
    try:
        with _silence():
            return importlib.import_module(name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        problem = f"{type(error).__name__} while importing it: {' '.join(str(error).split())[:200]}"
        missing = isinstance(error, ModuleNotFoundError) and error.name
        if missing and f"{name}.".startswith(f"{missing}."):  # the module itself, or a package around it
            advice = "install it into this environment, or put its folder on PYTHONPATH"
            problem = f"no module of that name here: {name_nearest(name, sys.stdlib_module_names, advice)}"
        raise SourceError(f"{name}: expected a Python module, found {problem}") from None


def _label_version(module: ModuleType) -> str:
    """Return the module's name with the version of its package or of Python."""
    top = module.__name__.partition(".")[0]
    if top in sys.stdlib_module_names:
        return f"{module.__name__} of Python {platform.python_version()}"
    version = getattr(sys.modules.get(top), "__version__", "")
    return f"{module.__name__} {version}".strip() if isinstance(version, str) else module.__name__


def _walk_modules(
    name: str, module: ModuleType, problems: list[Problem], *, must_declare: bool = False
) -> Iterator[tuple[str, ModuleType]]:
    """Yield (public name, module) of a module and its public submodules, sorted.

    In a package that declares `__all__`, and in every package below it (`must_declare`), a submodule is public only if
    `__all__` names it or if it declares `__all__` itself. A submodule that cannot be imported is added to `problems`.
    """
    yield name, module
    names = _read_declared_names(module)
    must_declare = must_declare or names is not None
    declared = names or []
    for inner in _list_submodules(name, module, declared):
        path = f"{name}.{inner}"
        try:
            submodule = _import_module(path)
        except SourceError as error:
            problems.append(Problem(path, str(error)))
            continue
        if not must_declare or inner in declared or _read_declared_names(submodule) is not None:
            yield from _walk_modules(path, submodule, problems, must_declare=must_declare)


def _list_submodules(name: str, module: ModuleType, declared: Collection[str]) -> list[str]:
    """Return the sorted names of a package's submodules, without private ones and tests.

    `__all__` (`declared`) may name one that is in no file of the package, such as `os.path`.
    """
    submodules = {entry.name for entry in pkgutil.iter_modules(getattr(module, "__path__", ()))}
    submodules.update(entry for entry in declared if f"{name}.{entry}" in sys.modules)
    return [
        inner
        for inner in sorted(submodules - SKIPPED - HELPER_MODULES)
        if not (inner.startswith(("_", "test_")) or inner.endswith(("_test", "_tests")))
    ]


def _read_declared_names(module: ModuleType) -> list[str] | None:
    """Return the names in `__all__`, sorted. None if the module declares none."""
    names = vars(module).get("__all__")
    return sorted({name for name in names if isinstance(name, str)}) if isinstance(names, (list, tuple)) else None


def _list_members(path: str, module: ModuleType, problems: list[Problem]) -> Iterator[_Member]:
    """Yield the public functions and classes of the module called `path`, sorted. Names that fail become problems."""
    declared = _read_declared_names(module)
    names = sorted(vars(module)) if declared is None else declared
    for name in names:
        if name.startswith("_") or name in SKIPPED:
            continue
        try:
            with _silence():
                value = getattr(module, name)
                is_member = _is_tool(value) and (declared is not None or _is_defined_in(module, value))
        except Exception as error:
            problems.append(Problem(f"{path}.{name}", f"expected a public name, found {type(error).__name__}"))
            continue
        if is_member:
            yield _Member(path, name, value)


def _is_defined_in(module: ModuleType, value: object) -> bool:
    """Return whether a function or class is defined in a module, or for a package, in any module of the package.

    Names that a module without `__all__` imports are not its own. Its internal half (`_json` of `json`) is part of it.
    """
    origin = getattr(value, "__module__", None)
    if not isinstance(origin, str):
        return False
    if hasattr(module, "__path__"):
        return origin.partition(".")[0].lstrip("_") == module.__name__.partition(".")[0]
    return origin in (module.__name__, f"_{module.__name__}")


def _is_tool(value: object) -> bool:
    """Return whether a value can be a tool: a class that can be constructed, or a named function."""
    if isinstance(value, type):
        return not issubclass(value, (BaseException, enum.Enum)) and not inspect.isabstract(value)
    is_type_hint = type(value).__module__ == "typing"  # such as `typing.Any`, which is callable too
    return callable(value) and isinstance(getattr(value, "__name__", None), str) and not is_type_hint


# --- members of classes -----------------------------------------------------------------------------------------------


def _find_member(locator: str, module: ModuleType, member: str) -> list[_Member]:
    """Return the members that `py:module:member` names: the methods and properties of a class, or one function.

    Raises:
        SourceError: if the module has no such name, or the name is of another value.
    """
    value: object = module
    for part in member.split("."):
        try:
            with _silence():
                value = getattr(value, part)
        except Exception:
            near = difflib.get_close_matches(part, dir(value), n=1)
            hint = f": did you mean {near[0]!r}?" if near else ""
            raise SourceError(f"{locator}: expected a name in {module.__name__}, found no {part!r}{hint}") from None
    owner = _Member(module.__name__, member, value)
    if inspect.isclass(value):
        properties = [item for item in _list_class_members(owner, ()) if item.is_property]
        return [*_list_methods(owner, inherited=True), *properties]
    if not callable(value):
        raise SourceError(f"{locator}: expected a function or a class, found a {type(value).__name__}")
    return [owner]


def _list_methods(owner: _Member, *, inherited: bool) -> Iterator[_Member]:
    """Yield the public methods of a class, sorted, with or without inherited ones. A function has none.

    The value of a static or class method is what the class gives: the raw attribute in `vars` cannot be described.
    """
    if not isinstance(owner.value, type):
        return
    for name in sorted(dir(owner.value) if inherited else vars(owner.value)):
        raw = inspect.getattr_static(owner.value, name, None)
        is_bound = _is_bound(raw)
        if not name.startswith("_") and (is_bound or inspect.isroutine(raw)):
            value = getattr(owner.value, name) if is_bound else raw
            yield _Member(owner.module, f"{owner.qualname}.{name}", value, receiver=not is_bound)


def _add_class_members(members: Collection[_Member]) -> list[_Member]:
    """Add the documented methods and properties of the classes among the members. Sorted by name.

    A member that comes from a base class counts where the base is not public, as in the many methods that DataFrame and
    Series have from one internal class. Members of a public base are listed with that base alone.
    """
    classes = [item for item in members if isinstance(item.value, type)]
    public = frozenset(id(item.value) for item in classes)
    by_name = {item.name: item for item in members}
    for owner in classes:
        for item in _list_class_members(owner, public):
            by_name.setdefault(item.name, item)
    return sorted(by_name.values(), key=lambda item: item.name)


def _list_class_members(owner: _Member, public: Collection[int], *, nested: bool = True) -> Iterator[_Member]:
    """Yield the documented public methods and properties of a class, and those of its inner classes (`nested`).

    A member that the class inherits is yielded if the base class is of the same package and not in `public`, the ids of
    the classes that are listed themselves. An accessor such as `pandas.Series.str` is an inner class too: reading it
    from its owner returns a class.
    """
    for name in sorted(dir(owner.value)):
        definer = _find_definer(owner.value, name)
        is_of_public_base = definer is not owner.value and id(definer) in public
        if name.startswith("_") or definer is None or is_of_public_base:
            continue
        item = _Member(owner.module, f"{owner.qualname}.{name}", vars(definer)[name])
        inner = _find_inner_class(owner.value, name, item.value)
        if inner is None:
            member = _read_member(owner.value, name, item)
            if member is not None and _is_documented(member.value):
                yield member
        elif nested and id(inner) not in public and _read_package(inner) == _read_package(owner.value):
            yield from _list_class_members(item._replace(value=inner), public, nested=False)


def _find_definer(owner: type, name: str) -> type | None:
    """Return the class that defines an attribute: the owner or a base. None if there is none in the owner's package."""
    definer = next((base for base in owner.__mro__ if name in vars(base)), None)
    if definer is None or _read_package(definer) != _read_package(owner):
        return None
    return definer


def _read_member(owner: type, name: str, item: _Member) -> _Member | None:
    """Return a method or property of a class as a member that can be described. None for any other attribute.

    `item` is the attribute with its raw value in `vars`. A static or class method is replaced by what the class gives.
    """
    raw = item.value
    if isinstance(raw, (property, functools.cached_property)) or inspect.isdatadescriptor(raw):
        return item._replace(receiver=True, is_property=True)
    if _is_bound(raw):
        value = _read_attribute(owner, name)
        return None if value is None else item._replace(value=value)
    return item._replace(receiver=True) if inspect.isroutine(raw) else None


def _is_bound(raw: object) -> bool:
    """Return whether a raw attribute is a static method or a class method, which can be called without an object."""
    return isinstance(raw, (staticmethod, classmethod)) or type(raw).__name__ == "classmethod_descriptor"  # one in C


def _read_package(value: type) -> str:
    """Return the name of the package that defines a class, without the underscore of an internal one."""
    return str(getattr(value, "__module__", "")).partition(".")[0].lstrip("_")


def _read_attribute(owner: type, name: str) -> object:
    """Return an attribute of a class. None if reading it fails."""
    try:
        with _silence():
            return getattr(owner, name)
    except Exception:
        return None


def _find_inner_class(owner: type, name: str, raw: object) -> type | None:
    """Return the inner class that an attribute is, or returns when it is read. None if it is no class or no tool.

    `raw` is the attribute as `vars` has it. Reading runs foreign code, so only possible classes are read.
    """
    is_function = inspect.isfunction(raw) or inspect.isbuiltin(raw)
    may_be_class = isinstance(raw, type) or hasattr(raw, "__get__")
    if is_function or not may_be_class:
        return None
    value = _read_attribute(owner, name)
    return value if isinstance(value, type) and _is_tool(value) else None


def _find_getter(value: Any) -> Any:
    """Return the function behind a property, or the property itself if it was given a docstring of its own."""
    getter = getattr(value, "fget", None) or getattr(value, "func", None)  # `func` is of a cached property
    has_own_docstring = getattr(getter, "__doc__", None) != value.__doc__
    return value if getter is None or has_own_docstring else getter
