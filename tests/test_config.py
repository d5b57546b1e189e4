from __future__ import annotations

from pathlib import Path

import pytest

from toolscout.config import Settings, load_settings
from toolscout.encoders.remote import RemoteEncoder
from toolscout.errors import ConfigError, MissingExtra, require


def test_arguments_come_before_the_environment_before_the_file_before_defaults(tmp_path: Path) -> None:
    file = tmp_path / "toolscout.toml"
    file.write_text('k = 7\ncaller = "file"\nmcp_timeout = 5\n')
    found = load_settings(file=file, environ={"TOOLSCOUT_K": "8", "TOOLSCOUT_CALLER": "env"}, k=9)
    assert (found.k, found.caller, found.mcp_timeout, found.recipe) == (9, "env", 5.0, "hybrid")
    origins = {name: origin for name, _, origin in found.items()}
    assert origins["k"] == "argument"
    assert origins["caller"] == "environment"
    assert origins["mcp_timeout"] == str(file)
    assert origins["recipe"] == "default"


def test_an_unknown_setting_is_named_with_its_place_and_the_nearest_known(tmp_path: Path) -> None:
    file = tmp_path / "toolscout.toml"
    file.write_text("mcp_timeouts = 5\n")
    with pytest.raises(ConfigError, match="found 'mcp_timeouts': did you mean 'mcp_timeout'"):
        load_settings(file=file, environ={})


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"TOOLSCOUT_K": "many"}, "expected a whole number, found 'many'"),
        ({"TOOLSCOUT_K": "0"}, "expected a number above 0, found 0"),
        ({"TOOLSCOUT_CALL_TIMEOUT": "nan"}, "call_timeout: expected a number above 0"),
        ({"TOOLSCOUT_GATEWAY_BUDGET": "10"}, "gateway_budget: expected at least 200 tokens, found 10"),
        ({"TOOLSCOUT_FALSE_REJECTS": "0.5"}, "false_rejects: expected a share from 0"),
        ({"TOOLSCOUT_FALSE_REJECTS": "nan"}, "false_rejects: expected a share from 0"),
        ({"TOOLSCOUT_JOURNAL": "perhaps"}, "expected true or false, found 'perhaps'"),
        ({"TOOLSCOUT_JOURNAL_QUERIES": "some"}, "expected full, hash or none, found 'some'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_with_what_was_expected(environ: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_settings(environ=environ)


def test_booleans_read_as_people_write_them() -> None:
    assert load_settings(environ={"TOOLSCOUT_JOURNAL": "off"}).journal is False
    assert load_settings(environ={"TOOLSCOUT_JOURNAL": "Yes"}).journal is True


def test_names_stand_in_a_list_or_with_commas_between_them(tmp_path: Path) -> None:
    file = tmp_path / "toolscout.toml"
    file.write_text('pins = ["mail/send, now", "a/b"]\n')
    assert load_settings(file=file, environ={}).pins == ("mail/send, now", "a/b")
    assert load_settings(environ={"TOOLSCOUT_PINS": "mail/send, a/b"}).pins == ("mail/send", "a/b")
    file.write_text("pins = [3]\n")
    with pytest.raises(ConfigError, match="expected a list of names, found"):
        load_settings(file=file, environ={})


def test_a_file_that_is_missing_or_no_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected a settings file, found none"):
        load_settings(file=tmp_path / "absent.toml", environ={})
    broken = tmp_path / "broken.toml"
    broken.write_text("k = = 3")
    with pytest.raises(ConfigError, match="expected TOML"):
        load_settings(file=broken, environ={})
    wrong = tmp_path / "wrong.toml"
    wrong.write_text("k = true\nrecipe = 3")
    with pytest.raises(ConfigError, match="expected a whole number, found True"):
        load_settings(file=wrong, environ={})


def test_the_home_may_begin_with_a_tilde() -> None:
    assert load_settings(environ={}, home="~/x").home == Path.home() / "x"
    assert Settings().home.is_absolute()


def test_a_missing_extra_names_the_install_line() -> None:
    with pytest.raises(MissingExtra, match=r"pip install 'toolscout\[train\]'"):
        require("no_such_package_here", "train")
    assert require("json", "none").loads("1") == 1


@pytest.mark.parametrize(
    "place",
    [
        "http://user:hunter2@host/v1#m",
        "user:hunter2@host/v1",
        "http://user:hunt/hunter2@host#m",
        "http://u:#hunter2@h#m",
    ],
)
def test_a_password_in_the_address_of_a_language_model_is_refused_and_not_shown(place: str) -> None:
    with pytest.raises(ConfigError, match=r"without user and password.*\(environment\).*TOOLSCOUT_LLM_KEY") as refused:
        load_settings(environ={"TOOLSCOUT_LLM": place})
    assert "hunter2" not in str(refused.value)
    assert load_settings(environ={"TOOLSCOUT_LLM": "http://host/v1#claude@2"}).llm == "http://host/v1#claude@2"


def test_so_is_one_in_the_address_of_an_encoder() -> None:
    with pytest.raises(
        ConfigError, match="encoder: expected an address without user.*TOOLSCOUT_EMBEDDINGS_KEY"
    ) as refused:
        load_settings(encoder="https://user:hunter2@host/v1/embeddings#m")
    assert "hunter2" not in str(refused.value)
    with pytest.raises(ConfigError) as refused:
        RemoteEncoder("https://user:hunter2@host/v1/embeddings#m", timeout=1.0)
    assert "hunter2" not in str(refused.value)
    assert load_settings(encoder="models/a@2").encoder == "models/a@2"
