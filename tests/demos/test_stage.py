"""The stage: configurations that the gate accepts, bounded event rates, and children that cannot be lost."""

import os
import signal
import subprocess
import sys

import pytest

from millgate.demos import processes
from millgate.demos.connection import GateAddress
from millgate.demos.processes import Child, ChildError, Children
from millgate.demos.showing import Show
from millgate.demos.stage import (
    EVENTS_PER_S,
    DemoStage,
    EngineSetup,
    fetch,
    perform,
    tokens_per_event,
)
from millgate.engine.profile import find_profile, scaled

ENGINE = EngineSetup("llama3-70b_h100_tp4", time_scale=5.0, max_num_seqs=16)


@pytest.mark.parametrize("cap", [1, 16, 64, 256])
@pytest.mark.parametrize("time_scale", [1.0, 10.0])
def test_a_full_engine_stays_within_the_event_rate(cap: int, time_scale: float) -> None:
    setup = EngineSetup("llama3-8b_h100_tp1", time_scale, cap)
    prior = scaled(find_profile(setup.profile), time_scale).prior()

    tokens_per_s = cap / (prior.tpot_base_s + cap * prior.tpot_per_stream_s)

    assert tokens_per_s / tokens_per_event(setup) <= EVENTS_PER_S


def test_a_child_that_does_not_start_says_why() -> None:
    with Children() as children:
        child = children.start(["no-such-command"])

        with pytest.raises(ChildError, match="no-such-command"):
            child.await_ready({"door": "ready"})


def _gone(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return True
    return False


SLEEPER = (
    sys.executable,
    "-c",
    "import sys, time; print('ready at 7', file=sys.stderr, flush=True); time.sleep(60)",
)


def test_leaving_the_block_by_an_error_ends_every_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "COMMAND", SLEEPER)
    started: list[Child] = []

    def interrupted() -> None:
        with Children() as children:
            started.extend(children.start(["sleeper"]) for _ in range(2))
            for child in started:
                assert child.await_ready({"port": r"ready at (\d+)"}) == {"port": "7"}
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert len(started) == 2
    assert all(_gone(child.process_id) for child in started)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_leaves_no_child_behind(number: signal.Signals) -> None:
    """A demo process of its own starts a child, tells its id, and is interrupted."""
    program = f"""if True:
        import sys, time
        from millgate.demos import processes, stage
        from millgate.demos.showing import Show
        processes.COMMAND = {SLEEPER!r}
        def play(stage):
            child = stage._children.start(["sleeper"])
            child.await_ready({{"port": "ready at (7)"}})
            print(child.process_id, flush=True)
            time.sleep(60)
        sys.exit(stage.perform(Show(as_json=True), play))
    """
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child_id = int(process.stdout.readline())
        process.send_signal(number)
        code = process.wait(20)

    assert code == 128 + number
    assert _gone(child_id)


@pytest.mark.parametrize(("error", "code"), [(ChildError("lost"), 1), (KeyboardInterrupt(), 130)])
def test_a_demo_that_fails_says_so_and_has_an_exit_code(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def play(_: DemoStage) -> None:
        raise error

    assert perform(Show(as_json=True), play) == code
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err


def test_what_does_not_answer_is_a_child_error() -> None:
    with pytest.raises(ChildError, match="GET /stats of port 1 failed"):
        fetch(GateAddress("127.0.0.1", 1), "/stats")
