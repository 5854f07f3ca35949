"""Any bytes, cut anywhere, and ten thousand random dialogues beside a model of the contract."""

from collections.abc import Iterator
from itertools import pairwise
from random import Random

from hypothesis import given, settings, strategies as st

from millgate.servers.line.contract import LineLimits
from servers.line.stand import Stand, brief, chunk, frame, manifest, ping, upload

PAYLOADS = (b"0123456789", b"abcd", b"x")
LIMITS = LineLimits(line_bytes=600, jobs=3)

_WELL_FORMED = [
    *upload(PAYLOADS[0]).splitlines(keepends=True),
    *upload(PAYLOADS[1], "K").splitlines(keepends=True),
    ping(),
    frame("share"),
    b"\n",
    b"\r\n",
]
_PIECES = st.one_of(
    st.binary(max_size=80),
    st.sampled_from(_WELL_FORMED),
    st.sampled_from([line[:40] for line in _WELL_FORMED]),
    st.text(alphabet='{}[]":,0129vjobseq\\u\n', max_size=60).map(str.encode),
)


@settings(max_examples=150)
@given(pieces=st.lists(_PIECES, max_size=12), cuts=st.lists(st.integers(0, 2000), max_size=8))
def test_any_bytes_cut_anywhere_are_answered_the_same(pieces: list[bytes], cuts: list[int]) -> None:
    """Never a crash, never more memory than the bound, and every answer is a frame (the stand reads each)."""
    data = b"".join(pieces)
    whole, cut = Stand(LIMITS, budget_bytes=12), Stand(LIMITS, budget_bytes=12)
    whole.send(data)
    edges = [0, *sorted(edge for edge in cuts if edge <= len(data)), len(data)]
    for begin, end in pairwise(edges):
        if cut.closed:
            break
        cut.send(data[begin:end])
        assert len(cut.session._intake) <= LIMITS.line_bytes
        assert cut.budget.held_bytes <= cut.budget.limit_bytes

    assert [brief(reply) for reply in cut.replies] == [brief(reply) for reply in whole.replies]
    assert [bytes(ask.payload.data) for ask in cut.asks] == [bytes(ask.payload.data) for ask in whole.asks]
    lines = [line for line in data.split(b"\n")[:-1] if line.strip(b" \t\r\n\f\v")]
    if not whole.closed:
        assert len(whole.replies) + len(whole.asks) == len(lines)
    whole.take(whole.session.leave())
    assert whole.budget.held_bytes == 0


@settings(max_examples=100)
@given(data=st.binary(max_size=2000))
def test_noise_never_asks_for_a_slot(data: bytes) -> None:
    stand = Stand(LIMITS)
    stand.send(data)

    assert stand.asks == []
    assert stand.budget.held_bytes == 0


class Job:
    """What the contract knows of one job."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.chunks = -(-len(payload) // 4)
        self.next = 0
        self.number = 0
        self.seq = 0
        self.state = "uploading"


class Model:
    """The contract in plain words: what must be said to each frame and each decision."""

    def __init__(self) -> None:
        self.jobs: dict[str, Job] = {}
        self.numbers = 0
        self.closed = False

    def manifest(self, name: str, seq: int, payload: bytes, *, valid: bool) -> str:
        job = self.jobs.get(name)
        if not valid or (job is not None and job.state == "asked"):
            return f"clarify/need manifest_invalid {name} {seq + 1}"
        if job is None and len(self.jobs) >= LIMITS.jobs:
            self.closed = True
            return f"confirm/abort too_many_jobs {name} {seq + 2}"
        self.jobs[name] = job = Job(payload)
        self.numbers += 1
        job.number = self.numbers
        return f"clarify/ok {name} {seq + 1}"

    def chunk(self, name: str, seq: int, index: int, *, spoiled: bool) -> str | None:
        """Return what is said, None when the job asks for a slot instead."""
        need = f"clarify/need %s {name} {seq + 1}"
        job = self.jobs.get(name)
        if job is None:
            return need % "manifest_missing"
        if job.state == "asked":
            if index == job.chunks - 1:
                job.seq = seq
                return f"clarify/ok {name} {seq + 1}"
            return need % "chunk_expected_index"
        wanted = job.chunks - 1 if job.state == "yielded" else job.next
        if index != wanted:
            return need % "chunk_expected_index"
        if spoiled:
            return need % "chunk_hash_mismatch"
        job.seq = seq
        if job.state == "uploading":
            job.next += 1
            if job.next < job.chunks:
                return f"clarify/ok {name} {seq + 1}"
        job.state = "asked"
        return None

    def decided(self, name: str, word: str) -> str:
        job = self.jobs[name]
        if word == "clarify/yield server_busy":
            job.state = "yielded"
        else:
            del self.jobs[name]
        return f"{word} {name} {job.seq + 2}"


_NAMES = ("A", "B", "C", "D")


def _lines() -> dict[tuple[object, ...], bytes]:
    """Return every line that a dialogue may send, without its seq, made once: making them is the dear part."""
    made: dict[tuple[object, ...], bytes] = {}
    for name in _NAMES:
        for payload in PAYLOADS:
            made["m", name, payload, True] = manifest(payload, name, seq=77)
            made["m", name, payload, False] = manifest(payload, name, seq=77, cipher="aes")
            for index in range(3):
                made["c", name, payload, index, False] = chunk(payload, index, name, seq=77)
                made["c", name, payload, index, True] = chunk(payload, index, name, seq=77, sha256="0" * 64)
    return made


LINES = _lines()
SEQ = b'"seq": 77'


class Dialogue:
    """One random dialogue: the same steps for the session and for the model."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.stand = Stand(LIMITS)
        self.model = Model()
        self.seq = 0

    def steps(self, count: int) -> Iterator[tuple[list[str], list[str]]]:
        for _ in range(count):
            if self.model.closed:
                return
            self.seq += 1
            yield self.step()

    def step(self) -> tuple[list[str], list[str]]:
        """Return what was said and what had to be said."""
        dice = self.dice
        asked = [name for name, job in self.model.jobs.items() if job.state == "asked"]
        kind = dice.random()
        if asked and kind < 0.35:
            return self.decide(dice.choice(asked))
        if kind < 0.42:
            return self.heard(ping("P", self.seq)), [f"confirm/ok P {self.seq + 1}"]
        if kind < 0.46:
            return self.heard(b"noise\n"), ["clarify/need not_json J_? 1"]
        name = dice.choice(_NAMES[: 2 + (dice.random() < 0.1) * 2])
        job = self.model.jobs.get(name)
        if job is None or kind < 0.5:
            payload, valid = dice.choice(PAYLOADS), dice.random() < 0.9
            wanted: str | None = self.model.manifest(name, self.seq, payload, valid=valid)
            return self.heard(self.line("m", name, payload, valid)), [wanted] if wanted else []
        index = job.next if dice.random() < 0.8 and job.state == "uploading" else dice.randrange(3)
        if job.state == "yielded" and dice.random() < 0.7:
            index = job.chunks - 1
        spoiled = dice.random() < 0.1
        line = self.line("c", name, job.payload, index, spoiled)
        wanted = self.model.chunk(name, self.seq, index, spoiled=spoiled)
        return self.heard(line), [wanted] if wanted else []

    def line(self, *key: object) -> bytes:
        return LINES[key].replace(SEQ, b'"seq": %d' % self.seq)

    def heard(self, line: bytes) -> list[str]:
        return [brief(reply) for reply in self.stand.send(line)]

    def decide(self, name: str) -> tuple[list[str], list[str]]:
        number = self.model.jobs[name].number
        kind = self.dice.randrange(3)
        replies = (self.stand.yielded, self.stand.done, self.stand.failed)[kind](number)
        word = ("clarify/yield server_busy", "confirm/done", "confirm/abort backend_error")[kind]
        return [brief(reply) for reply in replies], [self.model.decided(name, word)]


def test_ten_thousand_random_dialogues_follow_the_contract() -> None:
    dice = Random(20260)
    ended = 0
    for _ in range(10_000):
        dialogue = Dialogue(dice)
        for said, wanted in dialogue.steps(5):
            assert said == wanted
        asked = [job for job in dialogue.model.jobs.values() if job.state == "asked"]
        stand = dialogue.stand
        assert stand.closed == dialogue.model.closed
        stand.take(stand.session.leave() if not stand.closed else ())
        assert stand.budget.held_bytes == 0
        assert len(stand.drops) == len(asked)
        ended += sum(reply.status == "done" for reply in stand.replies)

    assert ended > 300  # the dice do reach the ends
