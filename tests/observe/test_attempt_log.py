"""The log of attempts: one line each, of which nothing is secret and nothing that was sent can break it."""

import json
import time
from datetime import datetime
from pathlib import Path

import pytest

from millgate.core.decisions import Admit, Ended, Leg, Yield
from millgate.core.events import Arrived
from millgate.core.words import Outcome, Reason, Stage
from millgate.observe.attempt_log import AttemptLog
from millgate.observe.ring import Facts, facts_of

HOSTILE = 'a\r\nb\x1b[31m"}{${jndi:ldap://x}\u202e\x00'


def asked(number: int, tenant: str = "") -> Facts:
    facts: Facts = facts_of(Arrived(number, tenant, fingerprint=lambda: 1))
    return facts


def refuse(
    log: AttemptLog, number: int = 1, tenant: str = "", request_id: bytes | None = None, hint_s: float = 3.25
) -> None:
    refusal = Yield(number, Reason.QUEUE_FULL, hint_s, retry=True)
    log.add(time.monotonic(), asked(number, tenant), None, refusal, request_id)


def test_a_refusal_is_one_line_with_its_reason_its_hint_and_the_time_of_day(tmp_path: Path) -> None:
    log = AttemptLog(str(tmp_path / "log"), boot="b007", first_lane="interactive")
    began = time.time()
    refuse(log, 255)
    log.close()

    line = json.loads((tmp_path / "log").read_text())
    assert (line["id"], line["attempt"], line["outcome"]) == ("b007-ff", 255, "yielded")
    assert (line["reason"], line["retry_after_s"], line["retry"]) == ("queue_full", 3.25, True)
    assert time.strftime("%Y-%m-%dT%H:%M", time.gmtime(began)) <= line["time"][:16]


def test_nothing_that_a_client_sent_breaks_a_line(tmp_path: Path) -> None:
    log = AttemptLog(str(tmp_path / "log"), tenants=[HOSTILE])
    refuse(log, 1, HOSTILE, HOSTILE.encode())
    log.close()

    raw = (tmp_path / "log").read_bytes()
    assert raw.count(b"\n") == 1
    assert not any(byte < 0x20 for byte in raw[:-1])
    assert json.loads(raw)["tenant"] == HOSTILE


def test_a_tenant_and_a_first_lane_that_a_reload_brings_are_named(tmp_path: Path) -> None:
    log = AttemptLog(str(tmp_path / "log"), first_lane="chat", tenants=["acme"])
    refuse(log, 1, "globex")
    log.adopt("batch", ["globex"])
    refuse(log, 2, "globex")
    refuse(log, 3, "acme")
    log.close()

    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["lane"] for line in lines] == ["chat", "batch", "batch"]
    assert [line["tenant"] == "globex" for line in lines] == [False, True, False]
    assert lines[0]["tenant"].startswith("tenant-")


def test_what_runs_of_a_tenant_that_a_reload_takes_away_is_written_under_its_name(tmp_path: Path) -> None:
    """Its tokens would belong to no tenant where the log is added up."""
    log = AttemptLog(str(tmp_path / "log"), tenants=["acme"])
    log.adopt("", ["globex"])
    log.adopt("", ["initech"])
    refuse(log, 1, "acme")
    refuse(log, 2, "globex")
    log.close()

    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert [line["tenant"] for line in lines] == ["acme", "globex"]


@pytest.mark.parametrize(
    ("seconds", "written"), [(0.12344, 0.1234), (0.12346, 0.1235), (0.0, 0.0), (float("inf"), None)]
)
def test_times_are_written_to_a_tenth_of_a_millisecond(
    tmp_path: Path, seconds: float, written: float | None
) -> None:
    log = AttemptLog(str(tmp_path / "log"))
    admit = Admit(1, (Leg("gpu", 1, 10, 5),), 0.0, seconds, 1.0)
    ended = Ended(1, Outcome.GOOD, "lane", "gpu", seconds, seconds, seconds, 5, 5, None)
    log.add(time.monotonic(), asked(1), admit, ended, None)
    log.close()

    line = json.loads((tmp_path / "log").read_text())
    assert [line[name] for name in ("expected_ttft_s", "waited_s", "total_s", "ttft_s")] == [written] * 4


def test_the_time_of_day_goes_on_with_the_time_of_the_core(tmp_path: Path) -> None:
    log = AttemptLog(str(tmp_path / "log"))
    began, times = time.time() - time.monotonic(), (86_400.0, 86_400.25, 86_401.5, 86_400.75)
    for at in times:
        log.add(at, asked(1), None, Yield(1, Reason.QUOTA, 1.0, retry=False), None)
    log.close()

    lines = [json.loads(line) for line in (tmp_path / "log").read_bytes().splitlines()]
    written_s = [datetime.fromisoformat(line["time"]).timestamp() for line in lines]
    assert written_s == pytest.approx([began + at for at in times], abs=0.05)


def test_an_id_that_the_door_made_is_its_number_in_hexadecimal_digits(tmp_path: Path) -> None:
    log = AttemptLog(str(tmp_path / "log"), boot="b007")
    numbers = [0, 9, 15, 16, 255, 256, 257, 4095, 4096, 65_535, 65_536, 255, 2**63 - 1, 256]
    for number in numbers:
        refuse(log, number)
    log.close()

    lines = [json.loads(line) for line in (tmp_path / "log").read_bytes().splitlines()]
    assert [line["id"] for line in lines] == [f"b007-{number:x}" for number in numbers]


def test_tokens_can_be_charged_by_model_and_what_no_engine_was_asked_for_names_none(tmp_path: Path) -> None:
    log = AttemptLog(str(tmp_path / "log"))
    facts: Facts = facts_of(Arrived(1, "acme", model="gpt-large"))
    served = Ended(1, Outcome.GOOD, "lane", "account", 0.0, 1.0, 0.5, 5, 5, None)
    gone = Ended(2, Outcome.CLIENT_GONE, "lane", None, 1.0, 1.0, None, 0, 0, Stage.QUEUED)
    log.add(time.monotonic(), facts, Admit(1, (Leg("account", 1, 10, 5),), 0.0, 0.5, 1.0), served, None)
    log.add(time.monotonic(), facts, None, gone, None)
    log.close()

    lines = [json.loads(line) for line in (tmp_path / "log").read_bytes().splitlines()]
    assert [line.get("model") for line in lines] == ["gpt-large", None]


@pytest.mark.parametrize(
    ("model", "written"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", True),
        ("ft:gpt-4o@2024-08-06:acme::9x", True),
        ("a\\r\\nevil: 1", False),
        ("${jndi:ldap://x}", False),
        ("mod\u202eel", False),
        ("", False),
    ],
)
def test_a_text_that_names_no_model_is_left_out(tmp_path: Path, model: str, written: bool) -> None:
    log = AttemptLog(str(tmp_path / "log"))
    served = Ended(1, Outcome.GOOD, "lane", "gpu", 0.0, 1.0, 0.5, 5, 5, None)
    log.add(time.monotonic(), facts_of(Arrived(1, model=model)), None, served, None)
    log.close()
    assert json.loads((tmp_path / "log").read_bytes()).get("model") == (model if written else None)
