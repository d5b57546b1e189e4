"""What people imported from version 0.2 still works, and says where it is now."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
import warnings

import pytest

from toolscout._moved import MOVED_MODULES

PUBLIC = """
import warnings
warnings.simplefilter("ignore")
from toolscout import Scout, Settings, Tool
from toolscout.catalogue.store import Catalogue
from toolscout.config import Settings as OldSettings
from toolscout.home import Home, describe_home
from toolscout.indexes.sparse import BM25
from toolscout.methods import Artifacts
from toolscout.methods.lesson import Lesson
from toolscout.models.model_store import Model
from toolscout.recipes.registry import recipe
from toolscout.workspace import Workspace, index_words
import toolscout.access.policy, toolscout.catalogue.screening, toolscout.journal.journal, toolscout.privacy.redaction
from toolscout.home.catalogue.store import Catalogue as NewCatalogue
from toolscout.settings import Settings as NewSettings
assert Catalogue is NewCatalogue and OldSettings is NewSettings is Settings, "a module was read twice"
import toolscout.home.catalogue.store as store
assert store.__spec__.name == store.__name__ == "toolscout.home.catalogue.store"
"""


def test_imports_of_version_0_2_give_the_modules_of_today() -> None:
    done = subprocess.run([sys.executable, "-c", PUBLIC], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_module_of_version_0_2_that_moved_is_there() -> None:
    installed = {name: importlib.util.find_spec(name) for name in {new.split(".")[0] for new in MOVED_MODULES.values()}}
    new_names = sorted({new for new in MOVED_MODULES.values() if installed[new.split(".")[0]]})
    assert [new for new in new_names if importlib.util.find_spec(new) is None] == []
    parents = sorted({old.rpartition(".")[0] for old in MOVED_MODULES} - {*MOVED_MODULES, "toolscout"})
    with warnings.catch_warnings(action="ignore"):
        assert [name for name in parents if importlib.util.find_spec(name) is None] == []


@pytest.mark.parametrize(
    "old",
    ["toolscout.config", "toolscout.methods", "toolscout.catalogue.screening", "toolscout.indexes.engines.words",
     "toolscout.search.step_search", "toolscout.server.state", "toolscout.gateway.http", "toolscout.cli.lab"],
)  # fmt: skip
def test_a_moved_module_says_its_new_name(old: str, monkeypatch: pytest.MonkeyPatch) -> None:
    top = MOVED_MODULES[old].split(".")[0]
    if top != "toolscout":
        pytest.importorskip(top)
    for name in [name for name in sys.modules if name == old or (old.startswith(f"{name}.") and name in MOVED_MODULES)]:
        monkeypatch.delitem(sys.modules, name)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        module = importlib.import_module(old)
    assert f"{old} is now {MOVED_MODULES[old]}" in [str(warning.message) for warning in said]
    assert module is importlib.import_module(MOVED_MODULES[old]) and module.__name__ == MOVED_MODULES[old]


def test_a_name_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match="toolscout.nothing"):
        importlib.import_module("toolscout.nothing")
    with (
        pytest.warns(DeprecationWarning),
        pytest.raises(ModuleNotFoundError, match=r"toolscout\.home\.catalogue\.nothing"),
    ):
        importlib.import_module("toolscout.catalogue.nothing")
    home = importlib.import_module("toolscout.home")
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = home.Nothing
