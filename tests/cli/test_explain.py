"""`millgate explain` and `millgate check`: what would be decided, and whether a file can be served."""

import json
import re
from pathlib import Path

import pytest

from cli.admin_door import admin_door
from millgate.cli.exits import ExitCode
from millgate.cli.main import main
from millgate.core.events import Arrived

Captured = pytest.CaptureFixture[str]
NO_GATE = ["--set", "admin.port=1"]
PROMPT = "planted prompt that nobody may see"


@pytest.fixture
def request_file(tmp_path: Path) -> Path:
    file = tmp_path / "request.json"
    body = {"model": "m", "max_tokens": 50, "n": 2, "messages": [{"role": "user", "content": PROMPT}]}
    file.write_text(json.dumps(body), encoding="utf-8")
    return file


def test_without_a_gate_an_empty_one_decides_and_says_so(request_file: Path, capsys: Captured) -> None:
    code = main(["explain", str(request_file), "--json", *NO_GATE])

    out, err = capsys.readouterr()
    answer = json.loads(out)
    assert (code, answer["decision"]["kind"], answer["running"]) == (ExitCode.OK, "admit", 0)
    assert answer["output_tokens"] > 50  # two answers were asked for
    assert "no gate answers at http://127.0.0.1:1: this is what an empty gate would decide" in err
    assert PROMPT not in out + err


def test_a_lane_that_there_is_not_is_an_error_that_names_the_lanes(
    request_file: Path, capsys: Captured
) -> None:
    there_are = "names none (there are interactive, long_context, throughput, agents)"
    assert main(["explain", str(request_file), "--lane", "interactiv", *NO_GATE]) == ExitCode.USAGE
    assert f"--lane: {there_are}" in capsys.readouterr().err
    with admin_door() as door:
        code = main(["explain", str(request_file), "--lane", "interactiv", "--admin", door.url])
    assert code == ExitCode.FAILURE
    assert f"{door.url} answered 400: lane: names none (there are " in capsys.readouterr().err


def test_of_several_engines_it_says_what_each_would_cost(request_file: Path, capsys: Captured) -> None:
    engines = ["engines=[{name: a, url: 'http://127.0.0.1:1'}, {name: b, url: 'http://127.0.0.1:2'}]"]
    code = main(["explain", str(request_file), *NO_GATE, "--set", *engines])

    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert code == ExitCode.OK
    assert re.fullmatch(
        r"of \d+ prompt tokens a holds none and costs \d\.\d s, b holds none and costs \d\.\d s",
        lines["engine_because"],
    )


def test_what_can_never_fit_is_explained(request_file: Path, capsys: Captured) -> None:
    code = main(["explain", str(request_file), *NO_GATE, "--set", "engines.0.kv_tokens=10"])

    out, _err = capsys.readouterr()
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert (code, lines["decision.kind"], lines["decision.reason"]) == (ExitCode.OK, "yield", "too_large")


def test_an_endpoint_is_known_by_what_the_body_holds(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "completion.json"
    file.write_text('{"model": "m", "prompt": "hi"}', encoding="utf-8")

    assert main(["explain", str(file), "--json", *NO_GATE]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["decision"]["kind"] == "admit"


def test_a_response_is_no_embedding_though_both_have_an_input(tmp_path: Path, capsys: Captured) -> None:
    """It was explained as one that writes nothing, in the lane for such."""
    file = tmp_path / "response.json"
    file.write_text('{"model": "m", "input": "hi", "max_output_tokens": 32}', encoding="utf-8")

    assert main(["explain", str(file), "--json", *NO_GATE]) == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    assert (told["lane"], told["output_tokens"]) == ("interactive", 32)


def test_what_has_no_answer_of_tokens_is_explained_too(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "embeddings.json"
    file.write_text('{"model": "m", "input": ["a", "b"]}', encoding="utf-8")
    with admin_door() as door:
        code = main(["explain", str(file), "--json", "--admin", door.url])

    assert (code, json.loads(capsys.readouterr().out)["decision"]["kind"]) == (ExitCode.OK, "admit")


def test_an_image_is_no_prompt_of_its_own_bytes(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "image.json"
    url = "data:image/png;base64," + "A" * 400_000
    content = [{"type": "image_url", "image_url": {"url": url}}]
    file.write_text(
        json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]}), encoding="utf-8"
    )

    assert main(["explain", str(file), "--json", *NO_GATE]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out)["prompt_tokens"] < 10_000


@pytest.mark.parametrize(
    ("content", "arguments", "complaint"),
    [
        ("{", [], "is not a JSON object"),
        ("[1]", [], "is not a JSON object"),
        ("{}", [], "--path: give one: no endpoint that takes a permit"),
        ("{}", ["--path", "/v1/models"], "--path: /v1/models: no endpoint"),
        ('{"prompt": "x", "max_tokens": -1}', [], "max_tokens"),
        ('{"prompt": "x"}', ["--admin", "ftp://x"], "--admin: 'ftp://x' is not an address"),
    ],
)
def test_a_wrong_question_is_one_line_and_exit_code_2(
    tmp_path: Path, capsys: Captured, content: str, arguments: list[str], complaint: str
) -> None:
    file = tmp_path / "request.json"
    file.write_text(content, encoding="utf-8")

    code = main(["explain", str(file), *arguments, *NO_GATE])

    out, err = capsys.readouterr()
    assert (code, out) == (ExitCode.USAGE, "")
    assert complaint in err


def test_a_gate_that_must_answer_and_does_not_is_a_failure(request_file: Path, capsys: Captured) -> None:
    code = main(["explain", str(request_file), "--admin", "http://127.0.0.1:1"])

    assert code == ExitCode.FAILURE
    assert "nothing listens at http://127.0.0.1:1" in capsys.readouterr().err


def test_a_running_gate_is_asked_with_its_token(
    request_file: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MILLGATE_ADMIN_TOKEN", "hush-hush-hush-hush")
    request_file.write_text(request_file.read_text().replace('"n": 2', '"n": 1'), encoding="utf-8")
    with admin_door(token="hush-hush-hush-hush") as door:
        door.post(0.0, Arrived(1))
        code = main(["explain", str(request_file), "--json", "--admin", door.url])

        answer = json.loads(capsys.readouterr().out)
        assert (code, answer["running"], answer["decision"]["reason"]) == (ExitCode.OK, 1, "saturated")
        assert (
            main(["explain", str(request_file), "--admin", door.url, "--lane", "x" * 300]) == ExitCode.FAILURE
        )
        assert f"{door.url} answered 400: " in capsys.readouterr().err


def test_check_accepts_what_can_be_served(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "gate.yaml"
    key = "ab" * 32
    file.write_text(
        f"engines: [{{url: 'http://h:1'}}]\ntenants: [{{name: t, keys: [{key}]}}]\n", encoding="utf-8"
    )

    assert main(["check", str(file)]) == ExitCode.OK
    assert capsys.readouterr().out == f"{file}: valid, 1 engine(s), 4 lane(s), 1 tenant(s)\n"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("engines: [{url: 'http://h:1', profile: warp}]", ":1:31: engines[0].profile: 'warp' is not one of"),
        (
            "listen: {tls: {cert: /nowhere, key: /nowhere}}\nengines: [{url: 'http://h:1'}]",
            ":1:16: listen.tls.cert: /nowhere cannot be read: No such file or directory",
        ),
        (
            "engines: [{url: 'http://h:1', api_key_env: NOT_SET}]",
            ":1:31: engines[0].api_key_env: the environment",
        ),
    ],
)
def test_check_refuses_what_cannot_be_served_and_says_where(
    tmp_path: Path, capsys: Captured, text: str, complaint: str
) -> None:
    file = tmp_path / "gate.yaml"
    file.write_text(text + "\n", encoding="utf-8")

    assert main(["check", str(file)]) == ExitCode.USAGE
    assert f"{file}{complaint}" in capsys.readouterr().err
