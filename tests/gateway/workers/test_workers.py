"""A gate of two workers as its clients, its operator and its engine see it; every part is a process of its own."""

import contextlib
import json
import os
import shutil
import signal
import socket
import time
from functools import partial
from pathlib import Path

import pytest
import trustme
from lab.interpreted import is_compiled
from prometheus_client import PROCESS_COLLECTOR

import millgate
from gateway.workers.stand import (
    CAP,
    CHAT,
    END_WITHIN_S,
    START_WITHIN_S,
    Crowd,
    Engine,
    Gate,
    Start,
    User,
    answered,
    chat,
    fetch,
    is_alive,
    kill,
    listens,
    until,
    users_of,
)
from millgate.client.line import LineClient
from millgate.gateway.workers.views import ProcessesCollector

TOKENS = 20
"""An answer of 0.2 s."""
LOAD_S = 2.0


def test_the_banner_comes_once_and_every_worker_has_the_port_that_was_free(gate: Gate) -> None:
    until(lambda: gate.events("serving"))  # a thread writes it
    banners = gate.events("serving")
    assert [banner["workers"] for banner in banners] == [2]
    assert len(gate.processes()) == 2
    with users_of(gate.url, [1, 1]) as (many, few):
        assert many[0].worker != few[0].worker


def test_a_request_is_found_on_the_worker_that_served_it_by_its_id_and_by_its_number(gate: Gate) -> None:
    with users_of(gate.url, [1, 1]) as served:
        ids = [user.last_id for (user,) in served]
    for last_id in ids:
        told = json.loads(fetch(gate.admin, f"/api/why?id={last_id}")[1])
        (attempt,) = told["attempts"]
        # Its worker's first share may come some milliseconds later.
        kinds = [step["kind"] for step in attempt["steps"] if step["kind"] != "queue"]
        assert kinds == ["arrived", "admit", "ended"]
        by_number = json.loads(fetch(gate.admin, f"/api/why?id={attempt['attempt']}")[1])
        assert [each["steps"] for each in by_number["attempts"]] == [attempt["steps"]]


def test_two_workers_together_never_pass_the_cap_and_use_all_of_it_wherever_the_load_is(
    gate: Gate, engine: Engine
) -> None:
    with users_of(gate.url, [2 * CAP, 1]) as (many, few):
        engine.reset()
        counted = gate.metric("millgate_attempts_total")
        with Crowd(many + few, TOKENS) as crowd:
            time.sleep(LOAD_S)
    assert engine.stats()["peak_running"] == CAP
    assert set(crowd.statuses) == {200}
    assert gate.metric("millgate_attempts_total") - counted == crowd.statuses[200]


def test_a_killed_worker_is_replaced_while_the_other_serves_and_the_cap_holds(
    gate: Gate, engine: Engine
) -> None:
    before = gate.processes()
    with users_of(gate.url, [CAP, CAP]) as (many, few), Crowd(many + few, TOKENS) as crowd:
        engine.reset()
        counted = gate.metric("millgate_attempts_total")
        time.sleep(0.5)
        kill(min(before.values()))
        until(lambda: len(set(gate.processes()) - set(before)) == 1 and len(gate.processes()) == 2)
        until(lambda: gate.limit() == CAP)
        after = crowd.statuses[200]
        until(lambda: crowd.statuses[200] > after + CAP)
    assert engine.stats()["peak_running"] <= CAP
    assert set(crowd.statuses) == {200}
    assert 1 <= len(crowd.broken) <= CAP  # what the killed worker had under way, and nothing else
    assert gate.metric("millgate_worker_restarts_total") == 1.0
    (died,) = gate.events("worker died")
    assert died["why"] == "killed from outside, most often for memory"  # as the kernel does it
    assert gate.metric("millgate_attempts_total") >= counted + crowd.statuses[200] / 2
    assert listens(gate.url)


def test_a_stored_answer_is_known_to_every_worker_as_its_tenants_alone_and_to_those_that_come_later(
    start: Start,
) -> None:
    gate = start("--set", "tenant_from=key").begin()

    def ask(key: str, **more: str) -> tuple[int, str]:
        body = json.dumps({"model": "m", "input": "Hello", "max_output_tokens": 2, **more}).encode()
        fields = {"content_type": "application/json", "authorization": f"Bearer {key}"}
        status, answer = fetch(gate.url, "/v1/responses", "POST", body, **fields)
        return status, json.loads(answer).get("id", "")

    def look(key: str, answer_id: str) -> int:
        return fetch(gate.url, f"/v1/responses/{answer_id}", authorization=f"Bearer {key}")[0]

    ids = []
    for _ in range(30):  # each on a connection of its own, which either worker may have
        status, answer_id = ask("alice")
        assert status == 200
        assert ask("alice", previous_response_id=answer_id)[0] == 200
        assert look("alice", answer_id) == 200
        assert look("mallory", answer_id) == 404
        ids.append(answer_id)

    before = gate.processes()
    kill(min(before.values()))
    until(lambda: len(set(gate.processes()) - set(before)) == 1 and len(gate.processes()) == 2)
    gate.process.send_signal(signal.SIGUSR2)
    until(lambda: gate.events("all workers replaced"), 2 * 20.0)
    assert not set(before) & set(gate.processes())
    assert [look("alice", answer_id) for answer_id in ids] == [200] * len(ids)
    assert [look("mallory", answer_id) for answer_id in ids] == [404] * len(ids)


def _told_here(gate: Gate, many: list[User], other: User, tokens: int) -> dict[str, float]:
    """Fill a worker's streams and its queue, have it refuse one more, and return what the other worker knows of that client when it is due."""
    with contextlib.ExitStack() as filling:
        for user in many[:-1]:
            filling.enter_context(Crowd([user], 20 * TOKENS))
            time.sleep(0.2)
        assert many[-1].ask(tokens) == 503
        time.sleep(many[-1].hint_s)
        assert other.ask(tokens) == 200
    told = json.loads(fetch(gate.admin, f"/api/why?id={other.last_id}")[1])
    numbers: dict[str, float] = told["attempts"][0]["steps"][0]["numbers"]
    return numbers


def test_a_client_without_a_ticket_that_comes_to_another_worker_when_told_keeps_its_age(start: Start) -> None:
    gate = start("--set", "lanes.*.max_queue=1").begin()
    with users_of(gate.url, [CAP + 2, 1]) as (many, (other,)):
        # A machine that is busy may wake it when it is late; it is a newcomer then.
        tries = (_told_here(gate, many, other, tokens) for tokens in (400, 401, 402))
        known = next(numbers for numbers in tries if numbers.get("due_at"))
    assert known["hint_s"] > 0.0
    assert known["first_seen"] == pytest.approx(known["due_at"] - known["hint_s"], abs=0.5)


def test_workers_are_replaced_one_by_one_and_no_request_fails(gate: Gate, engine: Engine) -> None:
    before = set(gate.processes())
    with users_of(gate.url, [CAP, CAP]) as (many, few):
        counted = gate.metric("millgate_attempts_total")
        engine.reset()
        with Crowd(many + few, TOKENS) as crowd:
            time.sleep(0.3)
            gate.process.send_signal(signal.SIGUSR2)
            until(lambda: gate.events("all workers replaced"), 2 * 20.0)
            assert not before & set(gate.processes())
    assert crowd.broken == []
    assert set(crowd.statuses) == {200}
    assert engine.stats()["peak_running"] <= CAP
    # Nothing that a worker has counted is lost when it leaves.
    assert gate.metric("millgate_attempts_total") - counted == crowd.statuses[200]


def test_jobs_that_a_replaced_worker_has_executed_stay_in_the_published_metrics(start: Start) -> None:
    """The counters fell to what the new workers had counted."""
    gate = start("--line-port", "0", "--set", "line.heptamini_metrics=true")
    ready = gate.ready()
    gate.url, gate.admin = ready["url"], ready["admin_url"]
    for _ in range(3):
        with LineClient(ready["line_address"]) as client:
            client.send(chat(2))

    gate.process.send_signal(signal.SIGUSR2)
    until(lambda: gate.events("all workers replaced"), 2 * 20.0)
    until(lambda: len(gate.children()) == 2)

    assert gate.metric("heptamini_executed_total") == 3


def test_a_worker_that_dies_while_its_replacement_starts_leaves_one_successor(start: Start) -> None:
    gate = start().begin()
    before = gate.processes()
    gate.process.send_signal(signal.SIGUSR2)
    until(lambda: len(gate.children()) == 3)  # the replacement of the first one is being started
    kill(before[min(before)])
    until(lambda: gate.events("all workers replaced"), 2 * 20.0)
    until(lambda: len(gate.processes()) == 2)
    assert len(gate.children()) == 2
    assert not set(before) & set(gate.processes())
    assert gate.metric("millgate_workers") == 2.0
    assert gate.end() == 0


@pytest.mark.skipif(is_compiled(), reason="a compiled package is not changed by its source")
def test_workers_of_another_version_than_their_supervisor_do_not_begin(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After an upgrade in place the supervisor could not read what new workers said: never ready again, and no metrics."""
    package = tmp_path / "millgate"
    shutil.copytree(Path(millgate.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    gate = start().begin()
    before = gate.processes()
    source = (package / "__init__.py").read_text(encoding="utf-8")
    upgraded = source.replace(f'"{millgate.__version__}"', '"99.0.0"')
    (package / "__init__.py").write_text(upgraded, encoding="utf-8")
    gate.process.send_signal(signal.SIGUSR2)
    until(lambda: gate.events("workers are not replaced: a new one did not start"))
    (event,) = gate.events("workers are not replaced: a new one did not start")
    assert event["problem"] == f"99.0.0 is installed, and {millgate.__version__} runs: restart the gate"
    assert gate.processes() == before
    assert fetch(gate.admin, "/readyz")[0] == 200
    assert gate.end() == 0


def test_sigterm_before_the_workers_are_ready_is_no_cut(start: Start) -> None:
    gate = start()
    until(lambda: len(gate.children()) == 2)
    assert gate.end() == 0


def test_what_workers_used_of_a_day_is_used_after_a_restart_too(start: Start, tmp_path: Path) -> None:
    """Each deployment gave every team another day."""
    kept = ("--set", f"quotas_file={tmp_path / 'quotas.json'}")
    budget = ("--set", "quotas.0.name=day", "--set", "quotas.0.tpd=20000")

    def used() -> float:
        files = [json.loads((tmp_path / f"quotas.json.{slot}").read_text()) for slot in range(2)]
        return sum(float(use[4]) for _, uses in files for use in uses)

    first = start(*kept, *budget).begin()
    ask = partial(fetch, first.url, CHAT, "POST", chat(100), content_type="application/json")
    time.sleep(1.5)  # until both have their shares
    said = [ask() for _ in range(4)]
    assert [status for status, _ in said] == [200] * 4, [text[:300] for _, text in said]
    assert first.end() == 0
    before = used()
    assert before > 400
    second = start(*kept, *budget).begin()
    time.sleep(3.0)  # until both have their shares, and have been told again
    assert second.end() == 0
    assert used() == pytest.approx(before, rel=0.03)


def test_sighup_reloads_every_worker_and_sigterm_drains_them_and_then_nothing_is_left(
    start: Start, tmp_path: Path
) -> None:
    file = tmp_path / "gate.yaml"
    file.write_text("engines: [{url: 'http://127.0.0.1:9'}]\n", encoding="utf-8")
    gate = start("--config", str(file)).begin()
    file.write_text("engines: [{url: 'http://127.0.0.1:9'}]\nlimits: {body: 1MiB}\n", encoding="utf-8")
    gate.process.send_signal(signal.SIGHUP)
    until(lambda: len(gate.events("configuration reloaded")) == 2)
    assert [line["changed"] for line in gate.events("configuration reloaded")] == [["limits.body"]] * 2
    file.write_text("zebra: 1\n", encoding="utf-8")
    gate.process.send_signal(signal.SIGHUP)
    until(lambda: len(gate.events("configuration refused, the old one stays in force")) == 2)
    assert gate.metric("millgate_config_reload_success") == 0.0
    processes = gate.processes().values()
    with users_of(gate.url, [1, 1]) as (many, few), Crowd(many + few, 3 * TOKENS) as crowd:
        time.sleep(0.3)
        crowd.over.set()
        assert gate.end() == 0
    assert crowd.broken == []
    assert set(crowd.statuses) == {200}
    assert not any(is_alive(process) for process in processes)
    assert not listens(gate.url)
    for event in ("configuration reloaded", "drained"):
        assert sorted(line["worker"] for line in gate.events(event)) == [1, 2]


@pytest.mark.parametrize("supervisor_first", [True, False])
def test_a_stop_of_all_processes_at_once_drains_as_one_of_the_supervisor_does(
    start: Start, supervisor_first: bool
) -> None:
    """systemd's own `KillMode` and `pkill` do that: each worker heard it twice, cut its streams, and the gate ended with 130."""
    gate = start().begin()
    workers = list(gate.processes().values())
    with users_of(gate.url, [1, 1]) as (many, few), Crowd(many + few, 3 * TOKENS) as crowd:
        time.sleep(0.3)
        crowd.over.set()
        for process in [gate.process.pid, *workers] if supervisor_first else [*workers, gate.process.pid]:
            os.kill(process, signal.SIGTERM)
            time.sleep(0.05)  # both are heard
        assert gate.process.wait(END_WITHIN_S) == 0
    assert crowd.broken == []
    assert set(crowd.statuses) == {200}
    assert not gate.events("cut short by a second signal")


def test_a_second_stop_of_all_processes_cuts_what_they_serve(start: Start) -> None:
    gate = start().begin()
    workers = list(gate.processes().values())
    with users_of(gate.url, [1, 1]) as (many, few), Crowd(many + few, 50 * TOKENS) as crowd:
        time.sleep(0.3)
        crowd.over.set()
        for _ in range(2):
            for process in [gate.process.pid, *workers]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGTERM)
            time.sleep(0.3)
        assert gate.process.wait(END_WITHIN_S) == 130
    assert gate.events("cut short by a second signal")


def test_sigusr2_to_all_processes_replaces_workers_and_kills_none(start: Start) -> None:
    """`systemctl kill` signals them all: every worker died of it with what it served."""
    gate = start().begin()
    before = set(gate.processes().values())
    with users_of(gate.url, [1, 1]) as (many, few), Crowd(many + few, TOKENS) as crowd:
        for process in [*before, gate.process.pid]:
            os.kill(process, signal.SIGUSR2)
        until(lambda: gate.events("all workers replaced"), 2 * 20.0)
    assert crowd.broken == []
    assert set(crowd.statuses) == {200}
    assert not gate.events("worker died")
    assert gate.end() == 0


def test_workers_end_with_a_supervisor_that_is_killed(start: Start) -> None:
    gate = start().begin()
    processes = gate.processes().values()
    kill(gate.process.pid)
    gate.process.wait()
    until(lambda: not any(is_alive(process) for process in processes), 10.0)
    assert not listens(gate.url)


def test_workers_that_die_again_and_again_end_the_gate_and_it_says_so(start: Start) -> None:
    gate = start().begin()
    by = time.monotonic() + END_WITHIN_S
    while gate.process.poll() is None and time.monotonic() < by:
        for worker in gate.children():
            kill(worker)
        time.sleep(0.3)
    assert gate.process.wait(1.0) == 1
    assert "died one after the other" in gate.events("failed")[0]["problem"]


def lanes(gate: Gate) -> set[str]:
    return {lane["name"] for lane in gate.state().get("lanes", ())}


def test_a_worker_that_is_started_again_has_the_configuration_that_the_others_have(
    start: Start, tmp_path: Path
) -> None:
    """An edit that is not to be in force yet, or has a mistake in it, waits for a reload."""
    file = tmp_path / "gate.yaml"
    file.write_text("lanes: [{name: first}]\n", encoding="utf-8")
    gate = start("--config", str(file)).begin()

    def replaced() -> set[str]:
        """Kill the oldest worker, and return the lanes of all when there is another one."""
        before = gate.processes()
        kill(before[min(before)])
        until(lambda: len(gate.processes()) == 2 and gate.processes() != before, START_WITHIN_S)
        return lanes(gate)

    file.write_text("lanes: [{name: second}]\n", encoding="utf-8")
    assert replaced() == {"first"}
    gate.process.send_signal(signal.SIGHUP)
    until(lambda: len(gate.events("configuration reloaded")) == 2)
    file.write_text("lanez: [{name: third}]\n", encoding="utf-8")
    assert replaced() == {"second"}, "a lane that is gone has left the others, too"
    gate.process.send_signal(signal.SIGHUP)
    until(lambda: len(gate.events("configuration refused, the old one stays in force")) == 2)
    assert replaced() == {"second"}
    assert gate.events("worker did not start") == []


def test_a_worker_that_is_started_after_a_reload_leaves_to_the_restart_what_the_others_leave_to_it(
    start: Start, tmp_path: Path
) -> None:
    """A log in a folder that is made by the next release would keep it from starting."""
    file, log = tmp_path / "gate.yaml", tmp_path / "attempts.jsonl"
    file.write_text(f"records: {{log_attempts: {log}}}\n", encoding="utf-8")
    gate = start("--config", str(file)).begin()
    file.write_text(f"records: {{log_attempts: {tmp_path}/later/attempts.jsonl}}\n", encoding="utf-8")
    gate.process.send_signal(signal.SIGHUP)
    told = "configuration reloaded, but some of it needs a restart"
    until(lambda: len(gate.events(told)) == 2)
    before = gate.processes()

    kill(before[min(before)])
    until(lambda: len(gate.processes()) == 2 and gate.processes() != before, START_WITHIN_S)

    assert gate.events("worker did not start") == []
    gate.process.send_signal(signal.SIGHUP)
    until(lambda: len(gate.events(told)) == 4)
    assert [each["needs_restart"] for each in gate.events(told)] == [["records"]] * 4


def test_a_certificate_that_is_gone_and_then_a_worker_that_dies_leave_the_others_serving(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At night a reload is refused; hours later the kernel kills one worker. Six starts fail before the file is there again."""
    monkeypatch.setenv("TOKEN", "t" * 32)
    issued, cert, key = trustme.CA().issue_cert("gate"), tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(cert)
    issued.private_key_pem.write_to_path(key)
    file = tmp_path / "gate.yaml"
    tls = f"{{cert: {cert}, key: {key}}}"
    file.write_text(f"line: {{port: 0, token_env: TOKEN, tls: {tls}}}\n", encoding="utf-8")
    gate = start("--config", str(file)).begin()
    cert.unlink()
    gate.process.send_signal(signal.SIGHUP)
    until(lambda: len(gate.events("configuration refused, the old one stays in force")) == 2)
    (_, victim), (left, _) = gate.processes().items()
    kill(victim)
    until(lambda: gate.events("worker did not start"), START_WITHIN_S)
    time.sleep(6.0)  # five quick deaths in a row end a gate in which no other worker serves

    assert gate.process.poll() is None
    assert list(gate.processes()) == [left]
    assert (gate.metric("millgate_workers"), gate.metric("millgate_workers_wanted")) == (1, 2)
    assert answered(gate) == {200}
    assert fetch(gate.admin, "/readyz")[0] == 200
    (told,) = gate.events("worker did not start")  # once, not for every try
    assert "cert.pem cannot be read" in told["problem"]

    issued.cert_chain_pems[0].write_to_path(cert)
    until(lambda: len(gate.processes()) == 2, START_WITHIN_S)
    assert gate.metric("millgate_worker_restarts_total") == 1
    assert answered(gate) == {200}


def test_a_port_that_is_taken_is_reported_once_also_by_another_gate_with_workers(
    start: Start, gate: Gate
) -> None:
    port = gate.url.rpartition(":")[2]
    second = start("--port", port)
    assert second.process.wait(20.0) == 3
    (problem,) = second.events("failed")
    assert problem["problem"].startswith(f"127.0.0.1:{port} is taken")
    with socket.create_server(("127.0.0.1", 0)) as other:
        third = start("--admin-port", str(other.getsockname()[1]))
        assert third.process.wait(20.0) == 3
    assert listens(gate.url)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["--set", "lanes.0.name=a", "--set", "lanes.0.zebra=1"], "zebra"),
        (["--set", "listen.tls.cert=/nowhere", "--set", "listen.tls.key=/nowhere"], "/nowhere"),
    ],
    ids=["no setting", "no file"],
)
def test_what_is_wrong_with_a_configuration_is_reported_once(
    start: Start, settings: list[str], said: str
) -> None:
    gate = start(*settings)
    assert gate.process.wait(20.0) == 2
    problems = [each["problem"] for each in gate.events("failed")]
    assert len(problems) == 1
    assert said in problems[0]


def test_one_user_is_served_by_one_worker_for_as_long_as_its_connection_is_open(gate: Gate) -> None:
    user = User(gate.url)
    served = {user.worker for _ in range(3) if user.ask() == 200}
    assert len(served) == 1
    user.close()


def test_descriptors_of_all_workers_are_compared_with_what_all_may_have() -> None:
    """MillgateConnectionsRefused divides one by the other: with four workers a third of each one's bound was an alarm."""
    page = {
        sample.name: sample.value
        for metric in ProcessesCollector(lambda: [os.getpid()]).collect()
        for sample in metric.samples
    }
    alone = {sample.name: sample.value for metric in PROCESS_COLLECTOR.collect() for sample in metric.samples}

    assert page["process_max_fds"] == 2 * alone["process_max_fds"]
    assert page["process_start_time_seconds"] == alone["process_start_time_seconds"]
