"""Where settings come from, and what is said when they are wrong."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from configs.effects import ACCELERATOR_OPTIONS
from configs.loader import (
    LoadedSettings,
    SettingsError,
    describe,
    load_settings,
    options,
)
from configs.settings import Settings


def from_yaml(tmp_path: Path, text: str, flags: dict[str, str | bool] | None = None) -> LoadedSettings:
    path = tmp_path / "tandem.yaml"
    path.write_text(text)
    return load_settings(flags or {}, {}, path)


def test_defaults_without_any_source() -> None:
    loaded = load_settings({}, {"PATH": "/bin"})
    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}


def test_every_option_is_described_and_has_a_valid_default() -> None:
    defaults = Settings()
    assert [option.name for option in options()] == list(Settings.__struct_fields__)
    for option in options():
        assert option.description[0].isupper() and not option.description.endswith("."), option.name
        assert option.default == getattr(defaults, option.name)
    assert msgspec.convert(msgspec.to_builtins(defaults), Settings) == defaults


def test_flags_beat_environment_beats_file_beats_default(tmp_path: Path) -> None:
    path = tmp_path / "tandem.yaml"
    path.write_text("port: 1\nthreads: 1\nmax_running: 1\nprefix_caching: off\n")
    environment = {"TANDEM_PORT": "2", "TANDEM_THREADS": "2", "TANDEM_HOST": "::1"}
    loaded = load_settings({"port": "3", "model": "mine"}, environment, path)
    settings = loaded.settings
    assert (settings.port, settings.threads, settings.max_running) == (3, 2, 1)
    assert (settings.model, settings.host, settings.prefix_caching) == ("mine", "::1", False)
    origins = loaded.origins
    assert origins["port"] == "flag --port"
    assert origins["model"] == "argument MODEL"
    assert origins["threads"] == "environment TANDEM_THREADS"
    assert origins["max_running"] == f"{path}: max_running"
    assert origins["page_size"] == "default"


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("1", True), ("on", True), ("No", False), ("false", False), ("0", False)],
)
def test_booleans_in_words(text: str, value: bool) -> None:
    assert load_settings({}, {"TANDEM_PREFIX_CACHING": text}).settings.prefix_caching is value


def test_an_empty_variable_counts_as_unset() -> None:
    assert load_settings({}, {"TANDEM_PORT": "", "TANDEM_CONFIG": ""}).settings.port == 8000


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("port", "eighty", "a whole number from 0 to 65535"),
        ("port", "65536", "a whole number from 0 to 65535"),
        ("port", "8000.5", "a whole number from 0 to 65535"),
        ("port", "9" * 30, "a whole number from 0 to 65535"),
        ("page_size", "0", "a whole number from 1 to 256"),
        ("threads", "-1", "a whole number from 1 to 1024"),
        ("max_queue", "-1", "a whole number from 0 to 2147483647"),
        ("drain_timeout", "-0.1", "a number from 0 to 1048576"),
        ("drain_timeout", "nan", "a number from 0 to 1048576"),
        ("write_timeout", "inf", "a number above 0, 1048576 at most"),
        ("host_kv_gib", "0", "a number above 0, 1048576 at most"),
        ("prefix_caching", "maybe", "true or false"),
        ("dtype", "float16", "one of auto, bfloat16, float32"),
        ("host", "", "text"),
        ("served_model_name", "caf\udce9", "text"),
    ],
)
def test_wrong_values_name_the_flag_and_what_is_allowed(name: str, text: str, expected: str) -> None:
    with pytest.raises(SettingsError) as error:
        load_settings({name: text}, {})
    flag = "--" + name.replace("_", "-")
    assert str(error.value) == f"flag {flag}: {text!r} is not allowed; expected {expected}"


def test_wrong_values_name_the_variable_or_the_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="environment TANDEM_PORT: 'x' is not allowed"):
        load_settings({}, {"TANDEM_PORT": "x"})
    with pytest.raises(SettingsError, match=r"tandem\.yaml: port: '80' is not allowed; expected a whole"):
        from_yaml(tmp_path, "port: '80'")
    with pytest.raises(SettingsError, match=r"tandem\.yaml: host: 1 is not allowed; expected text"):
        from_yaml(tmp_path, "host: 1")


ACCELERATOR_VALUES = {
    "device_kv_pages": "64",
    "emulate_profile": "times.json",
    "profile": "times.json",
    "plan_mode": "catch-up",
    "tpot_limit": "0.1",
    "host_tpot_limit": "0.5",
}


@pytest.mark.parametrize(("name", "text"), ACCELERATOR_VALUES.items())
def test_options_of_an_accelerator_that_is_not_there_are_refused(
    tmp_path: Path, name: str, text: str
) -> None:
    flag, variable = "--" + name.replace("_", "-"), "TANDEM_" + name.upper()
    why = "there is no accelerator to plan for; add --device emulated"
    with pytest.raises(SettingsError) as error:
        load_settings({name: text}, {})
    assert str(error.value) == f"flag {flag}: {why}"
    with pytest.raises(SettingsError) as error:
        load_settings({"device": "cpu"}, {variable: text})
    assert str(error.value) == f"environment {variable}: {why}"
    with pytest.raises(SettingsError, match=rf"tandem\.yaml: {name}: {why}"):
        from_yaml(tmp_path, f"{name}: {text}")
    for there in (
        load_settings({name: text, "device": "emulated"}, {}),
        from_yaml(tmp_path, f"{name}: {text}", {"device": "emulated"}),
    ):
        assert str(getattr(there.settings, name)) == text


def test_every_option_of_an_accelerator_is_among_them() -> None:
    assert ACCELERATOR_VALUES.keys() == set(ACCELERATOR_OPTIONS)
    names = list(Settings.__struct_fields__)
    assert list(ACCELERATOR_OPTIONS) == names[names.index("device") + 1 : names.index("host")]


def test_what_says_nothing_about_an_accelerator_is_allowed_without_one() -> None:
    assert load_settings({"plan_mode": "auto", "device": "cpu"}, {}).settings == Settings()


def test_a_long_value_is_shortened() -> None:
    with pytest.raises(SettingsError) as error:
        load_settings({"port": "x" * 10_000}, {})
    assert len(str(error.value)) < 200


def test_unknown_names_bring_the_nearest_known_one(tmp_path: Path) -> None:
    with pytest.raises(
        SettingsError, match=r"variable TANDEM_HOST_KV_PAGE; did you mean TANDEM_HOST_KV_PAGES\?"
    ):
        load_settings({}, {"TANDEM_HOST_KV_PAGE": "5"})
    with pytest.raises(
        SettingsError, match=r"tandem\.yaml: unknown option max-running; did you mean max_running\?"
    ):
        from_yaml(tmp_path, "max-running: 5")
    with pytest.raises(SettingsError, match=r"unknown option zzz$"):
        from_yaml(tmp_path, "zzz: 5")
    with pytest.raises(SettingsError, match=r"unknown option 5$"):
        from_yaml(tmp_path, "5: 5")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"port: [1", "is not valid YAML"),
        (b"- port", "must hold `option: value` lines"),
        (b"port", "must hold"),
        (b"\xff\xfe\xff", "is not UTF-8 text"),
        (b"port: 1\nport: 2", "gives port twice"),
        (b"? [1]\n: 2", "is not valid YAML"),
        (b"port: " + 5000 * b"[" + 5000 * b"]", "is nested too deeply"),
        (b"!!python/object/apply:os.system ['true']", "is not valid YAML"),
    ],
)
def test_unreadable_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "tandem.yaml"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=message) as error:
        load_settings({}, {}, path)
    assert "\n" not in str(error.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"can't read config file .*nowhere\.yaml: No such file"):
        load_settings({}, {}, tmp_path / "nowhere.yaml")


def test_an_empty_file_and_nulls_leave_the_defaults(tmp_path: Path) -> None:
    assert from_yaml(tmp_path, "# nothing\n").settings == Settings()
    assert from_yaml(tmp_path, "threads: null\n").settings == Settings()


def test_description_is_a_config_file_that_gives_the_same_settings(tmp_path: Path) -> None:
    loaded = load_settings({"model": 'odd "name": #1', "prefix_caching": False, "drain_timeout": "5"}, {})
    assert "# flag --no-prefix-caching" in describe(loaded)
    assert from_yaml(tmp_path, describe(loaded)).settings == loaded.settings


def test_queue_limit_follows_max_running_unless_given() -> None:
    assert Settings(max_running=3).queue_limit == 12
    assert Settings(max_running=3, max_queue=0).queue_limit == 0


def test_lists_come_from_repeated_flags_from_commas_and_from_yaml(tmp_path: Path) -> None:
    assert load_settings({"api_key": ["a", "b"]}, {}).settings.api_key == ("a", "b")
    assert load_settings({}, {"TANDEM_API_KEY": "a, b,"}).settings.api_key == ("a", "b")
    assert from_yaml(tmp_path, "cors_origin: [https://a.example, '*']").settings.cors_origin == (
        "https://a.example",
        "*",
    )
    with pytest.raises(SettingsError, match="expected a list, each an origin"):
        load_settings({"cors_origin": ["a.example"]}, {})


@pytest.mark.parametrize("key", ["s3cret key", "s3cr\u00e9t", "s3cret\n", "", "s3cret,s3cret"])
def test_secrets_are_never_shown(key: str) -> None:
    with pytest.raises(SettingsError, match="flag --api-key: what it gives is not allowed") as error:
        load_settings({"api_key": ["good", key]}, {})
    assert "s3cr" not in str(error.value)
    shown = describe(load_settings({"api_key": ["s3cret", "other"]}, {}))
    assert "s3cret" not in shown
    assert re.search(r"^# api_key: 2 not shown +# flag --api-key$", shown, re.MULTILINE)


def test_what_kubernetes_makes_of_a_service_name_is_ignored() -> None:
    links = {
        "TANDEM_PORT": "tcp://10.0.0.1:80",
        "TANDEM_SERVICE_HOST": "10.0.0.1",
        "TANDEM_SERVICE_PORT": "80",
        "TANDEM_SERVICE_PORT_HTTP": "80",
        "TANDEM_PORT_80_TCP": "tcp://10.0.0.1:80",
        "TANDEM_PORT_80_TCP_PROTO": "tcp",
        "TANDEM_PORT_80_TCP_PORT": "80",
        "TANDEM_PORT_80_TCP_ADDR": "10.0.0.1",
        "TANDEM_CPU_PORT": "tcp://10.0.0.2:80",
        "TANDEM_CPU_SERVICE_HOST": "10.0.0.2",
    }
    loaded = load_settings({}, {**links, "TANDEM_MAX_RUNNING": "3"})
    assert loaded.settings == Settings(max_running=3)
    (warning,) = loaded.warnings
    assert all(name in warning for name in links)
    assert load_settings({}, {"TANDEM_PORT": "81"}).settings.port == 81
    for wrong in ({"TANDEM_PORT": "eighty"}, {"TANDEM_PORTS": "tcp://10.0.0.1:80"}, {"TANDEM_SERVICE": "x"}):
        with pytest.raises(SettingsError):
            load_settings({}, wrong)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"uds": "/x", "port": "1"}, "flag --port: the server listens on a Unix socket"),
        ({"admin_key": "k"}, "flag --admin-key: there is no second listener without --admin-port"),
        ({"max_requests_per_key": "2"}, "flag --max-requests-per-key: there are no keys"),
        ({"tls_key": "k"}, "flag --tls-key: there is no TLS without --tls-cert"),
        ({"tls_client_auth": "required"}, "flag --tls-client-auth: there is no TLS"),
        ({"tls_cert": "c", "tls_client_auth": "required"}, "--tls-ca and --tls-client-auth go together"),
        ({"tls_cert": "c", "tls_ca": "a"}, "--tls-ca and --tls-client-auth go together"),
    ],
)
def test_options_without_effect_are_refused(flags: dict[str, str], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_settings(flags, {})
