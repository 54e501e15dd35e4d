"""Settings: sources, precedence, and what a wrong one says."""

from pathlib import Path

import pytest

from cosmodrome_server.config import Config, ConfigError, load


def test_an_empty_configuration_is_the_defaults() -> None:
    assert load(environment={}) == Config()


def test_flags_win_over_environment_and_environment_over_file(tmp_path: Path) -> None:
    file = tmp_path / "cosmodrome.toml"
    file.write_text("[server]\nport = 1\nhost = 'file'\nname = 'file'\n")
    chosen = load(
        file,
        environment={"COSMODROME_SERVER_PORT": "2", "COSMODROME_HOST": "environment"},
        overrides={"server.port": "3"},
    ).server
    assert (chosen.port, chosen.host, chosen.name) == (3, "environment", "file")


def test_variables_of_the_sdk_are_not_settings_of_the_server() -> None:
    assert load(environment={"COSMODROME_ENDPOINT": "x", "PATH": "y"}) == Config()


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("store.durabilty", "os", "no setting store.durabilty; did you mean durability?"),
        ("stor.durability", "os", "no area [stor]; did you mean store?"),
        ("store.durability", "sometimes", "durability"),
        ("server.port", "99999", "<= 65535"),
        ("server.dev", "perhaps", "server.dev: Expected `bool`"),
        ("limits.body_bytes", "0", ">= 1"),
        ("server.data", "", "length >= 1"),
        ("flow.topics", "orders", "flow.topics is written name=value,name=value, not 'orders'"),
        ("flow.topics", "a=1,b", "not 'b'"),
    ],
)
def test_a_wrong_setting_says_which_and_what_would_fit(
    setting: str, value: str, words: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environment={}, overrides={setting: value})
    assert words in str(caught.value)
    assert setting.split(".", maxsplit=1)[0] in str(caught.value)


def test_a_wrong_setting_of_a_file_names_the_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.toml"
    file.write_text("[server]\nprot = 1\n")
    with pytest.raises(ConfigError, match=r"broker\.toml: no setting server\.prot; did you mean"):
        load(file, environment={})


def test_a_file_that_is_missing_or_no_toml_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        load(tmp_path / "nothing.toml", environment={})
    (tmp_path / "x.toml").write_text("[")
    with pytest.raises(ConfigError, match="is not TOML"):
        load(tmp_path / "x.toml", environment={})
    (tmp_path / "y.toml").write_bytes(b'[server]\nname = "\xff"')
    with pytest.raises(ConfigError, match="is not TOML"):
        load(tmp_path / "y.toml", environment={})


def test_lists_and_tables_are_written_with_commas_outside_files() -> None:
    chosen = load(
        environment={
            "COSMODROME_SECURITY_OPEN_REQUESTS": "a, b",
            "COSMODROME_FLOW_TOPICS": "t=5,u=6",
        }
    )
    assert chosen.security.open_requests == ["a", "b"]
    assert chosen.flow.topics == {"t": 5, "u": 6}


def test_topics_are_created_on_first_use_under_dev_unless_said_otherwise() -> None:
    assert not load(environment={}).auto_create
    assert load(environment={"COSMODROME_DEV": "true"}).auto_create
    said = {"COSMODROME_DEV": "true", "COSMODROME_TOPICS_AUTO_CREATE": "false"}
    assert not load(environment=said).auto_create
