"""A configuration is loaded whole or refused with the place, the path and the limit of every problem."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given, settings, strategies as st

from millgate.config.document import read_document
from millgate.config.load import load_config, validated
from millgate.config.overrides import Override, from_assignment
from millgate.config.problems import ConfigError, ValueOrigin
from millgate.config.schema import Config
from millgate.config.units import Objective

ENGINE = "engines: [{url: 'http://127.0.0.1:8000'}]\n"
Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write_file(text: str) -> Path:
        file = tmp_path / "gate.yaml"
        file.write_text(text, encoding="utf-8")
        return file

    return write_file


def refusal(write: Write, text: str) -> list[str]:
    """Return the problems of this file, without the directory in front."""
    with pytest.raises(ConfigError) as caught:
        load_config(write(text))
    return [str(problem).removeprefix(str(write(text).parent) + "/") for problem in caught.value.problems]


def test_one_engine_is_a_whole_configuration(write: Write) -> None:
    config = load_config(write(ENGINE)).config

    assert [engine.name for engine in config.engines] == ["127.0.0.1:8000"]
    assert [lane.name for lane in config.lanes] == ["interactive", "long_context", "throughput", "agents"]
    assert (config.listen.host, config.listen.port) == ("127.0.0.1", 8080)
    assert (config.admin.host, config.admin.port) == ("127.0.0.1", 8081)


def test_values_arrive_in_seconds_bytes_and_counts(write: Write) -> None:
    text = (
        ENGINE + "lanes: [{name: chat, ttft_slo: 2s, tpot_slo: 40ms, max_queue_bytes: 1MiB, max_queue: 1k}]\n"
    )

    lane = load_config(write(text)).config.lanes[0]

    assert (lane.ttft_slo, lane.tpot_slo, lane.max_queue_bytes, lane.max_queue) == (
        Objective(2.0),
        Objective(0.04),
        1_048_576,
        1000,
    )


def test_every_problem_names_file_line_column_path_and_limit(write: Write) -> None:
    problems = refusal(write, "listen:\n  port: 70000\nengines:\n  - url: ftp://x\n    max_inflight: 0\n")

    assert problems == [
        "gate.yaml:2:3: listen.port: must be at most 65,535, not 70000",
        "gate.yaml:4:5: engines[0].url: 'ftp://x' is not an address: write http://host:port",
        "gate.yaml:5:5: engines[0].max_inflight: must be at least 1, not 0",
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("listn: {}", "1:1: listn: is not a setting; did you mean `listen`?"),
        ("limits: {bodi: 1MB}", "1:10: limits.bodi: is not a setting; did you mean `body`?"),
        ("admin: {token: x}", "admin.token: is not a setting; did you mean `token_env`?"),
        ("admin: {password: x}", "admin.password: is not a setting: secrets come from the environment"),
        (
            "zebra: 1",
            "1:1: zebra: is not a setting; known here: listen, admin, engines, discovery, lanes, tenants, workers, mode, hard_cap, tenant_from, quotas, quotas_file, retries, records, tracing, line, cluster, extproc, limits",
        ),
        ("listen: 8080", "1:1: listen: must be a mapping, not a number"),
        ("lanes: chat", "1:1: lanes: must be a list, not text"),
        ("quotas_file: " + "q" * 4097, "1:1: quotas_file: must have at most 4096 characters"),
        ("lanes: []", "1:1: lanes: must have at least 1 items, not 0"),
        ("lanes: [{}]", "1:9: lanes[0].name: is missing"),
        ("lanes: [{name: a b}]", "lanes[0].name: must match"),
        ("lanes: [{name: a}, {name: a}]", "lanes have the same name: a"),
        (
            "lanes: [{name: a, order: arival}]",
            "must be one of 'arrival', 'deadline' or 'short_first', not 'arival'; did you mean 'arrival'?",
        ),
        ("lanes: [{name: a, deadline: 48h}]", "lanes[0].deadline: must be at most 24h, not '48h'"),
        (
            "lanes: [{name: a, takes: batch}]",
            "lanes[0].takes: is for other lanes: the first takes what no other does",
        ),
        (
            "lanes: [{name: a}, {name: b, over: 5s}]",
            "lanes[1].over: has no meaning in a lane that `takes` no requests by size",
        ),
        (
            "lanes: [{name: a}, {name: b, takes: agents, over: 5s}]",
            "lanes[1].over: has no meaning in a lane that `takes` no requests by size",
        ),
        (
            "lanes: [{name: a}, {name: b, takes: agents}, {name: c, takes: agents}]",
            "lanes[2].takes: agents are those of the lane b",
        ),
        ("lanes: [{name: a, max_queue: 0, window: 1s}]", "lanes[0].window: holds work, and `max_queue`"),
        ("lanes: [{name: a, max_wait: 0s, window: 1s}]", "lanes[0].window: holds work, and `max_queue`"),
        ("lanes: [{name: a}, {name: b, takes: batch, over: 25h}]", "lanes[1].over: must be at most 24h"),
        (
            "lanes: [{name: a}, {name: b, takes: batch}, {name: c, takes: batch, over: 10s}]",
            "lanes[2].takes: batch over 10s are those of the lane b: give `over`",
        ),
        ("lanes: [{name: a, ttft_slo: 0s}]", "lanes[0].ttft_slo: must be more than 0s"),
        ("lanes: [{name: a, max_queue: off}]", "lanes[0].max_queue: False is not a whole number"),
        ("admin: {hosts: ['gate:8081']}", "1:17: admin.hosts[0]: must match"),
        ("limits: {body: 2GiB}", "limits.body: must be at most 1GiB"),
        (
            "listen: {host: 0.0.0.0}",
            "listen.host: 0.0.0.0 can be reached from outside and no client keys are configured",
        ),
        ("listen: {port: 1, port: 2}", "1:19: listen.port: is given twice, first in line 1"),
        ("listen: {1: 2}", "1:10: listen: has a key that is not a word"),
        (
            "listen: {cors: {origins: ['https://app.example:443']}}",
            "listen.cors.origins[0]: 'https://app.example:443' matches no page: browsers leave :443 out, write https://app.example",
        ),
    ],
)
def test_a_wrong_line_is_refused_where_it_stands(write: Write, line: str, complaint: str) -> None:
    problems = refusal(write, f"{line}\n{ENGINE}")

    assert len(problems) == 1
    assert complaint in problems[0]
    assert problems[0].startswith("gate.yaml:1")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("engines: [", "gate.yaml:1:11: is not YAML"),
        ("a: {\n\tb: 1}", "gate.yaml:2:1: is not YAML"),
        ("- 1", "gate.yaml:1:1: must be a mapping of settings"),
        ("x: " + "[" * 1200, "is not YAML"),
        ("x: !!python/object/apply:os.system [id]", "gate.yaml:1:4: x: is not a plain value but"),
        ("x: !!python/name:os.system ''", "gate.yaml:1:4: x: is not a plain value but"),
        ("x: !!binary aGk=", "gate.yaml:1:4: x: is not a plain value but"),
        ("x: !!set {a, b}", "gate.yaml:1:4: x: is not a plain value but"),
        ("x: !!bool perhaps", "gate.yaml:1:4: x: cannot be read"),
        ("x: !!int ''", "gate.yaml:1:4: x: cannot be read"),
        ("x: " + "9" * 5000, "gate.yaml:1:4: x: cannot be read"),
        ("engines: {url: http://h:1}", "1:1: engines: must be a list, not a mapping"),
        ("engines:", "1:1: engines: must be a list, not nothing"),
        (
            "engines: [{url: http://h:1, name: on}]",
            "engines[0].name: must be text, not true or false: write it in quotes",
        ),
        ("engines: [{url: http://h:1, name: 12}]", "must be text, not a number: write it in quotes"),
        (
            "engines: [{url: http://h:1/v1/chat/completions}]",
            "engines[0].url: ends in the path of a request: write http://h:1/v1",
        ),
        ("engines: [{url: 2020-99-99}]", "engines[0].url: '2020-99-99' is not an address"),
        ("x: &loop [*loop]", "holds more than 50000 values or 20 levels"),
        (
            "a: &a [1,1,1,1,1,1,1,1,1,1]\n"
            + "".join(
                f"{n}: &{n} [{','.join([f'*{p}'] * 10)}]\n" for p, n in zip("abcdefg", "bcdefgh", strict=True)
            ),
            "holds more than 50000 values",
        ),
        ("#" * (1024 * 1024 + 1), "is longer than 1048576"),
        ("", "engines: is missing: name an engine with --upstream http://host:port"),
    ],
)
def test_what_is_no_configuration_at_all_is_refused(write: Write, text: str, complaint: str) -> None:
    assert complaint in refusal(write, text)[0]


def test_a_limit_that_follows_an_slo_needs_one(write: Write) -> None:
    engine = "engines: [{url: 'http://127.0.0.1:8000', limit: {kind: slo_gradient}}]\n"
    (problem,) = refusal(write, engine)
    assert problem.startswith("gate.yaml:1:50: engines[0].limit.kind: slo_gradient has no `tpot_slo` to keep")
    assert load_config(write(engine + "lanes: [{name: a}, {name: b, tpot_slo: 40ms}]\n"))
    assert load_config(write(engine.replace("gradient", "gradient, tpot_slo: 40ms")))


def test_a_quota_of_a_tenant_whom_nobody_can_name_is_refused(write: Write) -> None:
    text = ENGINE + "quotas: [{name: trial, tenant: ann, rpm: 1}]\n"
    assert refusal(write, text) == ["gate.yaml:2:24: quotas[0].tenant: names no tenant: ann"]
    assert load_config(write(text + "listen: {trusted_peers: [10.0.0.0/8]}\n"))


SCALARS = st.sampled_from(
    [
        "1",
        "-1",
        "1e9",
        ".inf",
        ".nan",
        "5s",
        "yes",
        "null",
        "~",
        "1:30",
        "0o7",
        "0x1F",
        "2020-01-01",
        "''",
        "*a",
        "&a b",
        "!!int x",
        "é",
        "[",
        "{}",
        "http://a:1",
    ]
)
KEYS = st.sampled_from(
    [
        "listen",
        "admin",
        "engines",
        "lanes",
        "limits",
        "url",
        "name",
        "port",
        "host",
        "max_queue",
        "idle",
        "prior",
        "<<",
        "?",
        "1",
    ]
)


@given(
    st.recursive(
        SCALARS,
        lambda inner: (
            st.lists(inner, max_size=3).map(lambda items: f"[{', '.join(items)}]")
            | st.lists(st.tuples(KEYS, inner), max_size=4).map(
                lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"
            )
        ),
        max_leaves=12,
    )
    | st.text(max_size=80)
)
@settings(max_examples=300)
@example('engines: [{url: "http://e:1"}]')
def test_any_text_is_loaded_or_refused_with_a_place(text: str) -> None:
    try:
        config = validated(read_document(text, "gate.yaml")).config
    except ConfigError as error:
        problems = [str(problem) for problem in error.problems]
    else:
        problems = []
        assert config.engines
    assert all("\n" not in problem and len(problem) < 400 for problem in problems)


def test_a_missing_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read: No such file or directory"):
        load_config(tmp_path / "nowhere.yaml")


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "gate.yaml").write_bytes(b"a: \xff\n")

    with pytest.raises(ConfigError, match="is not UTF-8 text at byte 3"):
        load_config(tmp_path / "gate.yaml")


def test_a_byte_order_mark_is_not_part_of_the_first_key(tmp_path: Path) -> None:
    (tmp_path / "gate.yaml").write_bytes(b"\xef\xbb\xbf" + ENGINE.encode())

    assert load_config(tmp_path / "gate.yaml").config.engines[0].url == "http://127.0.0.1:8000"


def test_flag_wins_over_environment_over_file_over_default(write: Write) -> None:
    file = write(ENGINE + "listen: {port: 1}\nadmin: {port: 2}\nlimits: {idle: 3s, body_deadline: 3s}\n")
    environ = {"MILLGATE_LISTEN__PORT": "4", "MILLGATE_ADMIN__PORT": "5"}

    loaded = load_config(file, environ, [Override(("listen", "port"), 6, ValueOrigin("--port"))])

    assert (loaded.config.listen.port, loaded.config.admin.port) == (6, 5)
    assert (loaded.config.limits.idle, loaded.config.limits.header_deadline) == (3.0, 10.0)
    assert loaded.origin("listen", "port") == "--port"
    assert loaded.origin("admin", "port") == "MILLGATE_ADMIN__PORT"
    assert loaded.origin("limits", "idle") == f"{file}:4:10"
    assert loaded.origin("limits", "header_deadline") is None


def test_a_problem_from_the_environment_or_a_flag_names_the_variable_or_the_flag(write: Write) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(ENGINE), {"MILLGATE_LISTEN__PORT": "many"}, [from_assignment("limits.idle=5")])

    assert [str(problem) for problem in caught.value.problems] == [
        "--set limits.idle: limits.idle: 5 has no unit: write 5s, 5ms or 5m",
        "MILLGATE_LISTEN__PORT: listen.port: 'many' is not a whole number: write it like 200, 8k (8,000) or 8Ki (8,192)",
    ]


def test_a_misspelt_variable_is_refused_by_its_name(write: Write) -> None:
    with pytest.raises(
        ConfigError, match="MILLGATE_LISTN__PORT: listn: is not a setting; did you mean `listen`"
    ):
        load_config(write(ENGINE), {"MILLGATE_LISTN__PORT": "1"})


def test_variables_without_a_double_underscore_are_not_settings(write: Write) -> None:
    """Kubernetes injects MILLGATE_PORT for a service of that name; it must not stop the gate."""
    loaded = load_config(
        write(ENGINE), {"MILLGATE_PORT": "tcp://10.0.0.7:8080", "MILLGATE_SERVICE_HOST": "10.0.0.7"}
    )

    assert loaded.config.listen.port == 8080


def test_list_items_are_set_by_place_by_name_and_all_at_once(write: Write) -> None:
    file = write("engines: [{url: 'http://a:1'}, {url: 'http://b:2', name: Big}]\n")
    flags = map(
        from_assignment,
        ["engines.0.max_inflight=3", "engines[1].kv_tokens=8k", "engines.*.ignores_hangups=no"],
    )

    engines = load_config(file, {"MILLGATE_ENGINES__BIG__MAX_INFLIGHT": "5"}, flags).config.engines

    assert [engine.max_inflight for engine in engines] == [3, 5]
    assert [engine.kv_tokens for engine in engines] == [None, 8000]
    assert [engine.ignores_hangups for engine in engines] == ["no", "no"]


def test_what_is_set_of_all_engines_says_nothing_where_there_are_none() -> None:
    """`millgate serve --max-inflight 8` was told that engines must be a list, and not that one is missing."""
    with pytest.raises(ConfigError, match=r"^engines: is missing: name an engine with --upstream"):
        load_config(None, {}, [from_assignment("engines.*.max_inflight=8")])


def test_an_engine_is_named_by_its_address_in_full_where_that_begins_with_zeros(write: Write) -> None:
    file = write(
        "engines: [{url: 'http://[::1]:8000'}, {url: 'http://[fd00::1]:8000'}, {url: 'http://[::]:1'}]\n"
    )
    names = [engine.name for engine in load_config(file).config.engines]
    assert names == ["0::1:8000", "fd00::1:8000", "0:::1"]


def test_engines_and_the_default_lane_can_be_set_without_a_file() -> None:
    flags = map(from_assignment, ["engines.0.url=http://a:1", "lanes.interactive.ttft_slo=5s"])

    config = load_config(None, {}, flags).config

    assert config.engines[0].url == "http://a:1"
    assert [(lane.name, lane.ttft_slo) for lane in config.lanes] == [
        ("interactive", Objective(5.0)),
        ("long_context", None),
        ("throughput", None),
        ("agents", None),
    ]


@pytest.mark.parametrize(
    ("assignment", "complaint"),
    [
        (
            "lanes.chat.ttft_slo=5s",
            "--set lanes.chat.ttft_slo: lanes: has none named 'chat' (interactive, long_context, throughput, agents)",
        ),
        ("engines.nosuch.max_inflight=3", "engines: has none named 'nosuch' (none has a name)"),
        ("engines.None.max_inflight=3", "engines: has none named 'None' (none has a name)"),
        ("lanes.7.ttft_slo=5s", "there are 4 of them, counted from 0"),
        ("port", "--set: 'port' is not path=value"),
        ("listen..port=1", "has an empty part in its path"),
        ("engines.0.url.x=1", "has no settings in it"),
        ("listen.port=[", "is not YAML"),
    ],
)
def test_an_assignment_that_reaches_nothing_is_refused(write: Write, assignment: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(ENGINE), {}, [from_assignment(assignment)])

    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret@a:1",
        "http://:secret@a",
        "https://secret@a",
        "user:secret@a:1",
        "http://a:1/?key=secret",
        "a:1?key=secret",
        "a:80",
        "http://",
        "http://a:99999",
        "http://a?x=1",
        "http://a b:1",
        "http://a:1/b c",
        "http://a:1/\u00e9",
    ],
)
def test_an_address_that_is_no_plain_base_address_is_refused_without_showing_a_secret(
    write: Write, url: str
) -> None:
    problems = refusal(write, f"engines: [{{url: '{url}'}}]")

    assert [problem.split(": ")[1] for problem in problems] == ["engines[0].url"]
    assert "secret" not in problems[0]


def test_yes_and_no_stay_words_although_yaml_reads_booleans(write: Write) -> None:
    text = "engines: [{url: 'http://a:1', ignores_hangups: yes}, {url: 'http://b:1', ignores_hangups: no}]"

    assert [engine.ignores_hangups for engine in load_config(write(text)).config.engines] == ["yes", "no"]


def test_profile_and_prior_cannot_both_be_given(write: Write) -> None:
    problems = refusal(write, "engines: [{url: 'http://a:1', profile: demo, prior: {tpot_base: 1ms}}]")

    assert "`profile` and `prior` both say how fast it is: give one" in problems[0]


def test_an_admin_door_that_can_be_reached_needs_its_token_in_the_environment(write: Write) -> None:
    file = write(ENGINE + "admin: {host: 0.0.0.0, token_env: MY_TOKEN}\n")

    with pytest.raises(
        ConfigError, match=r"admin\.host: 0\.0\.0\.0 can be reached .* environment variable MY_TOKEN"
    ):
        load_config(file, {"MILLGATE_ADMIN_TOKEN": "other"})
    token = load_config(file, {"MY_TOKEN": "hush-hush-hush-hush"}).admin_token
    assert token is not None
    assert token.get_secret_value() == "hush-hush-hush-hush"


@pytest.mark.parametrize("secret", ["sk-live-7aX", "http://ann:hush@proxy:1", "hf_hushHush7"])
@pytest.mark.parametrize("setting", ["api_key_env", "proxy_env"])
def test_a_secret_in_place_of_the_name_of_its_variable_is_refused_without_being_repeated(
    write: Write, setting: str, secret: str
) -> None:
    """An operator pastes the key where the name of a variable belongs: it stood in the log of the start, and of each reload."""
    file = write(f"engines: [{{url: 'http://127.0.0.1:8000', {setting}: '{secret}'}}]\n")

    with pytest.raises(ConfigError) as caught:
        load_config(file, {})

    assert secret not in str(caught.value)
    assert f"gate.yaml:1:42: engines[0].{setting}: " in str(caught.value)
    assert "environment variable" in str(caught.value)


def test_a_loaded_configuration_never_shows_the_token(write: Write) -> None:
    assert "hush" not in repr(load_config(write(ENGINE), {"MILLGATE_ADMIN_TOKEN": "hush-hush-hush-hush"}))


def test_a_configuration_cannot_be_changed_after_it_was_checked() -> None:
    config = Config.model_validate({"engines": [{"url": "http://a:1"}]})

    with pytest.raises(ValueError, match="frozen"):
        config.listen.port = 1


def test_an_admin_token_that_can_be_guessed_is_refused_without_being_shown(write: Write) -> None:
    file = write(ENGINE)
    with pytest.raises(ConfigError, match="MILLGATE_ADMIN_TOKEN is shorter than 16 characters") as caught:
        load_config(file, {"MILLGATE_ADMIN_TOKEN": "qqqqqqqqqqqqqqq"})
    assert "qqq" not in str(caught.value)
    assert load_config(file, {"MILLGATE_ADMIN_TOKEN": "q" * 16}).admin_token is not None


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        ("'metrics'", "engines[0].metrics: must match"),
        ("':99999/metrics'", "engines[0].metrics: port 99999 is above 65535"),
        ("'http://127.0.0.1:8002/metrics'", "engines[0].metrics: must match"),
    ],
)
def test_a_metrics_page_is_a_path_with_a_port_perhaps(write: Write, metrics: str, said: str) -> None:
    engine = f"engines: [{{url: 'http://127.0.0.1:8000', metrics: {metrics}}}]\n"
    assert any(said in line for line in refusal(write, engine))
