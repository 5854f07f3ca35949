"""Pacing in real time: absolute times, and deliveries that follow the batch."""

import asyncio
import time

import pytest
import uvloop

from millgate.engine.batching import Batch
from millgate.engine.profile import EngineProfile, find_profile, scaled
from millgate.engine.sequences import BatchLimits, BatchStatistics, EngineSequence
from millgate.servers.emulator.pacer import Feed, Pacer


class Reader:
    """Writes down what is delivered to it."""

    def __init__(self) -> None:
        self.delivered: list[tuple[int, int, float, bool]] = []
        self.rows: list[BatchStatistics] = []
        self.over = asyncio.Event()
        self.expected = 1

    def on_tokens(self, feed: Feed, tokens: int, now: float, *, last: bool) -> None:
        self.delivered.append((feed.sequence.sequence_id, tokens, now, last))
        self.expected -= last
        if self.expected == 0:
            self.over.set()

    def on_second(self, statistics: BatchStatistics, now: float) -> None:
        self.rows.append(statistics)


def fast() -> EngineProfile:
    return scaled(find_profile("demo"), 10.0)


def test_a_blocked_loop_delays_deliveries_and_not_the_engine() -> None:
    async def story() -> None:
        profile = fast()
        reader = Reader()
        loop = asyncio.get_running_loop()
        pacer = Pacer(Batch(profile.step_model(), profile.limits()), reader, loop)
        pacer.submit(Feed(None, 0, EngineSequence(1, 200, 60), 1, loop.time()))
        await asyncio.sleep(0.02)
        time.sleep(0.03)  # noqa: ASYNC251 - the late loop is what is tested
        await asyncio.wait_for(reader.over.wait(), 10)
        pacer.stop()

        _, _, finished_at, last = reader.delivered[-1]
        assert last
        decoding_s = profile.step_model().decode_steps_s(1, 200, 59)
        assert finished_at - reader.delivered[0][2] == pytest.approx(decoding_s, abs=1e-6)
        assert sum(tokens for _, tokens, _, _ in reader.delivered) == 60
        assert max(tokens for _, tokens, _, _ in reader.delivered) > 1

    uvloop.run(story())


def test_an_answer_that_ended_in_the_moment_of_its_abort_keeps_nothing() -> None:
    async def story() -> None:
        profile = fast()
        loop = asyncio.get_running_loop()
        pacer = Pacer(Batch(profile.step_model(), profile.limits()), Reader(), loop)
        feed = Feed(None, 0, EngineSequence(1, 200, 1, pins_kv=True), 1, loop.time())
        pacer.submit(feed)
        time.sleep(0.05)  # noqa: ASYNC251 - it ends meanwhile, and nothing is delivered yet
        pacer.abort(feed)
        assert pacer.statistics().pinned == 0
        pacer.stop()

    uvloop.run(story())


def test_a_preempted_answer_is_delivered_whole_and_each_token_once() -> None:
    async def story() -> None:
        profile = fast()
        limits = BatchLimits(kv_tokens=96, max_num_seqs=4, max_num_batched_tokens=512, watermark_share=0.0)
        reader = Reader()
        reader.expected = 2
        loop = asyncio.get_running_loop()
        pacer = Pacer(Batch(profile.step_model(), limits), reader, loop)
        for sequence_id in (1, 2):
            pacer.submit(Feed(None, 0, EngineSequence(sequence_id, 32, 40), 4, loop.time()))
        await asyncio.wait_for(reader.over.wait(), 10)
        pacer.stop()

        assert pacer.batch.statistics(loop.time()).preemptions == 1
        for sequence_id in (1, 2):
            assert sum(tokens for number, tokens, _, _ in reader.delivered if number == sequence_id) == 40
        assert all(tokens >= 0 for _, tokens, _, _ in reader.delivered)

    uvloop.run(story())


def test_an_aborted_answer_is_never_heard_of_again() -> None:
    async def story() -> None:
        profile = fast()
        reader = Reader()
        loop = asyncio.get_running_loop()
        pacer = Pacer(Batch(profile.step_model(), profile.limits()), reader, loop)
        gone = Feed(None, 0, EngineSequence(1, 200, 500), 1, loop.time())
        pacer.submit(gone)
        pacer.submit(Feed(None, 0, EngineSequence(2, 200, 30), None, loop.time()))
        await asyncio.sleep(0.02)
        pacer.abort(gone)
        heard = len([entry for entry in reader.delivered if entry[0] == 1])
        assert not pacer.holds(gone)
        await asyncio.wait_for(reader.over.wait(), 10)
        pacer.stop()

        assert len([entry for entry in reader.delivered if entry[0] == 1]) == heard
        assert [entry[1] for entry in reader.delivered if entry[0] == 2] == [1, 29]

    uvloop.run(story())
