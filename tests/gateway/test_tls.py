"""TLS on both sides: verified, with own authorities and client certificates, and exchanged while connections live."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest
import trustme

from gateway.harness import Asked, Client, FakeEngine, Stand, answer_whole, chat, event, run, until
from gateway.stand import core_settings, gating
from millgate.cli.banner import Running
from millgate.gateway import EngineAddress, TlsError, TlsFiles, listener_context
from millgate.gateway.settings import LineAddress
from millgate.http1.server import ServerLimits
from millgate.servers.line.contract import LineLimits, LineSettings
from millgate.sockets.descriptors import LINGERING
from millgate.wiring.settings import Built


class Authority:
    """A certificate authority whose files lie in a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory = directory
        self._authority = trustme.CA()
        self.name = name
        self.path = str(directory / f"{name}.pem")
        self._authority.cert_pem.write_to_path(self.path)

    def files(self, *identities: str, authorities: "Authority | None" = None) -> TlsFiles:
        """Issue a certificate for these names."""
        issued = self._authority.issue_cert(*identities)
        cert = str(self._directory / f"{self.name}-{identities[0]}-{id(issued)}.pem")
        key = cert.replace(".pem", ".key")
        for index, blob in enumerate(issued.cert_chain_pems):
            blob.write_to_path(cert, append=index > 0)
        issued.private_key_pem.write_to_path(key)
        return TlsFiles(cert, key, authorities.path if authorities is not None else None)

    def client(self, files: TlsFiles | None = None) -> ssl.SSLContext:
        """Return the context of a client that trusts this authority."""
        context = ssl.create_default_context(cafile=self.path)
        if files is not None:
            assert files.cert is not None
            context.load_cert_chain(files.cert, files.key)
        return context


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "ours")


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls"), "theirs")


async def connect(stand: Stand, context: ssl.SSLContext) -> Client:
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", stand.gateway.port, ssl=context, server_hostname="localhost"
    )
    return Client(reader, writer)


async def ask_once(stand: Stand, context: ssl.SSLContext) -> int:
    client = await connect(stand, context)
    client.ask(chat())
    return (await client.answer()).status


async def close(client: Client) -> None:
    client.writer.transport.abort()
    await asyncio.sleep(0)


def test_a_client_is_served_over_tls_whole_answers_and_streams(authority: Authority) -> None:
    async def body() -> None:
        async with gating(ssl=listener_context(authority.files("localhost"))) as stand:
            client = await connect(stand, authority.client())
            for stream in (False, True, False):
                client.ask(chat(stream=stream))
                answer = await client.answer()
                assert (answer.status, answer.whole) == (200, True)
            await close(client)
            await stand.settle()

    run(body())


def test_the_banner_names_the_address_that_clients_of_a_tls_listener_use(authority: Authority) -> None:
    async def body() -> None:
        async with gating(ssl=listener_context(authority.files("localhost"))) as stand:
            running = Running.of(stand.gateway, Built(core_settings(), ()))
            assert running.url == f"https://127.0.0.1:{stand.gateway.port}"
        async with gating() as stand:
            running = Running.of(stand.gateway, Built(core_settings(), ()))
            assert running.url == f"http://127.0.0.1:{stand.gateway.port}"

    run(body())


def test_an_early_refusal_over_tls_reaches_the_client(authority: Authority) -> None:
    """TLS has no half-close: the answer must not be lost for want of one."""

    async def body() -> None:
        async with gating(ssl=listener_context(authority.files("localhost"))) as stand:
            client = await connect(stand, authority.client())
            client.ask(b"", headers={"content-length": str(10**12)})
            assert (await client.answer()).status == 413
            assert await client.reader.read() == b""
            await close(client)

    run(body())


def test_a_hang_up_over_tls_reaches_the_engine(authority: Authority) -> None:
    async def script(asked: Asked) -> None:
        asked.open_stream()
        asked.send(event("a"))
        await asked.hung_up()

    async def body() -> None:
        async with gating(script, ssl=listener_context(authority.files("localhost"))) as stand:
            client = await connect(stand, authority.client())
            client.ask(chat(stream=True))
            await client.head()
            await close(client)
            await (await stand.engine.next()).hung_up()
            await stand.settle()

    run(body())


def test_plain_text_on_the_tls_port_is_closed_and_serves_nobody(authority: Authority) -> None:
    async def body() -> None:
        async with gating(ssl=listener_context(authority.files("localhost"))) as stand:
            client = await stand.client()
            client.ask(chat())
            assert b"HTTP" not in await client.reader.read()
            assert stand.engine.asked == []

    run(body())


def test_a_client_must_show_a_certificate_of_our_authority(authority: Authority, stranger: Authority) -> None:
    async def body() -> None:
        context = listener_context(authority.files("localhost", authorities=authority))
        async with gating(ssl=context) as stand:
            client = await connect(stand, authority.client(authority.files("somebody")))
            client.ask(chat())
            assert (await client.answer()).status == 200
            await close(client)
            for files in (None, stranger.files("somebody")):
                with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                    await ask_once(stand, authority.client(files))
            assert len(stand.engine.asked) == 1

    run(body())


def test_a_reload_brings_new_certificates_and_keeps_what_is_open(
    authority: Authority, stranger: Authority
) -> None:
    async def body() -> None:
        async with gating(ssl=listener_context(authority.files("localhost"))) as stand:
            old = await connect(stand, authority.client())
            for issuer in (stranger, authority, stranger):
                renewed = replace(stand.gateway.settings, ssl=listener_context(issuer.files("localhost")))
                assert await stand.gateway.adopt(renewed, core_settings()) == ()
            fresh = await connect(stand, stranger.client())
            with pytest.raises(ssl.SSLCertVerificationError):
                await connect(stand, authority.client())
            for client in (old, fresh):
                client.ask(chat())
                assert (await client.answer()).status == 200
                await close(client)

    run(body())


def test_files_that_cannot_be_used_are_named_with_their_setting(authority: Authority, tmp_path: Path) -> None:
    good = authority.files("localhost")
    assert good.cert is not None
    other = authority.files("other")
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("PRIVATE planted garbage", encoding="utf-8")
    for files, field in (
        (TlsFiles("/nowhere.pem", good.key), "cert"),
        (TlsFiles(good.cert, "/nowhere.key"), "key"),
        (TlsFiles(good.cert, other.key), "cert"),
        (TlsFiles(str(garbage), good.key), "cert"),
        (TlsFiles(good.cert, good.key, str(garbage)), "client_ca"),
    ):
        with pytest.raises(TlsError) as caught:
            listener_context(files)
        assert caught.value.field == field
        assert "planted" not in str(caught.value)


# ---- towards the engine


@asynccontextmanager
async def secure_engine(
    context: ssl.SSLContext,
    files: TlsFiles,
    server_name: str | None = "engine.test",
    script: Callable[[Asked], Awaitable[None]] = answer_whole,
) -> AsyncIterator[Stand]:
    """Serve a gateway in front of an engine that speaks TLS with this context."""
    engine = FakeEngine(script)
    await engine.start(ssl=context)
    address = EngineAddress.from_url(
        "engine", f"https://127.0.0.1:{engine.port}/v1", files=files, server_name=server_name
    )
    async with gating() as stand:
        await stand.gateway.adopt(replace(stand.gateway.settings, engines=(address,)), core_settings())
        yield Stand(stand.gateway, engine)
    await engine.stop()


def test_an_engine_is_verified_by_its_name_and_authority(authority: Authority, stranger: Authority) -> None:
    async def body() -> None:
        context = listener_context(authority.files("engine.test"))
        ours, theirs = TlsFiles(authorities=authority.path), TlsFiles(authorities=stranger.path)
        for files, name, status in (
            (ours, "engine.test", 200),
            (ours, "other.test", 502),
            (ours, None, 502),
            (theirs, "engine.test", 502),
            (TlsFiles(), "engine.test", 502),
        ):
            async with secure_engine(context, files, name) as stand:
                assert (await stand.ask(chat())).status == status
                assert len(stand.engine.asked) == (status == 200)

    run(body())


def test_an_engine_whose_certificate_is_refused_is_said_to_be_that_and_not_to_be_away(
    authority: Authority, stranger: Authority
) -> None:
    async def body() -> None:
        context = listener_context(authority.files("engine.test"))
        async with secure_engine(context, TlsFiles(authorities=stranger.path)) as stand:
            for _ in range(3):
                assert (await stand.ask(chat())).status == 502
            (standing,) = stand.gateway.fleet.standings
            assert "connect (cannot connect to 127.0.0.1" in standing.failing
            assert "certificate verify failed" in standing.failing

    run(body())


def test_an_engine_is_shown_our_certificate_and_asked_for_its_name(authority: Authority) -> None:
    async def body() -> None:
        names: list[str | None] = []
        context = listener_context(authority.files("engine.test", authorities=authority))
        context.sni_callback = lambda _connection, name, _context: names.append(name)
        async with secure_engine(context, authority.files("gate", authorities=authority)) as stand:
            assert (await stand.ask(chat(stream=True))).status == 200
        assert set(names) == {"engine.test"}
        async with secure_engine(context, TlsFiles(authorities=authority.path)) as stand:
            assert (await stand.ask(chat())).status in {502, 504}
            assert stand.engine.asked == []

    run(body())


def test_a_reload_shows_engines_the_new_certificates_at_once(
    authority: Authority, stranger: Authority
) -> None:
    async def body() -> None:
        context = listener_context(authority.files("engine.test"))
        async with secure_engine(context, TlsFiles(authorities=authority.path)) as stand:
            assert (await stand.ask(chat())).status == 200
            for issuer, status in ((stranger, 502), (authority, 200)):
                renewed = EngineAddress.from_url(
                    "engine",
                    f"https://127.0.0.1:{stand.engine.port}",
                    files=TlsFiles(authorities=issuer.path),
                    server_name="engine.test",
                )
                settings = replace(stand.gateway.settings, engines=(renewed,))
                await stand.gateway.adopt(settings, core_settings())
                assert (await stand.ask(chat())).status == status

    run(body())


def test_a_connection_that_was_busy_at_a_reload_carries_no_request_after_its_own(
    authority: Authority, stranger: Authority
) -> None:
    """An authority is withdrawn under load: of busy connections each was used for the next request, and so for days."""

    async def body() -> None:
        reloaded = asyncio.Event()

        async def script(asked: Asked) -> None:
            if not reloaded.is_set():
                await reloaded.wait()
            await answer_whole(asked)

        context = listener_context(authority.files("engine.test"))
        files = TlsFiles(authorities=authority.path)
        async with secure_engine(context, files, script=script) as stand:
            under_way = asyncio.ensure_future(stand.ask(chat()))
            await until(lambda: stand.engine.asked)
            withdrawn = EngineAddress.from_url(
                "engine",
                f"https://127.0.0.1:{stand.engine.port}",
                files=TlsFiles(authorities=stranger.path),
                server_name="engine.test",
            )
            settings = replace(stand.gateway.settings, engines=(withdrawn,))
            await stand.gateway.adopt(settings, core_settings())
            reloaded.set()
            assert (await under_way).status == 200
            assert (await stand.ask(chat())).status == 502

    run(body())


def test_a_reload_brings_new_certificates_to_the_line_door_too(
    authority: Authority, stranger: Authority
) -> None:
    async def body() -> None:
        line = LineAddress(port=0, ssl=listener_context(authority.files("localhost")))
        async with gating(line=line) as stand:
            renewed = replace(line, ssl=listener_context(stranger.files("localhost")))
            settings = replace(stand.gateway.settings, line=renewed)
            assert await stand.gateway.adopt(settings, core_settings()) == ()
            port = stand.gateway.line_port
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.open_connection(
                    "127.0.0.1", port, ssl=authority.client(), server_hostname="localhost"
                )
            _reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=stranger.client(), server_hostname="localhost"
            )
            writer.transport.abort()
            moved = replace(stand.gateway.settings, line=replace(renewed, ssl=None))
            assert await stand.gateway.adopt(moved, core_settings()) == ("line",)

    run(body())


@pytest.mark.parametrize("door", ["http", "line"])
def test_clients_within_their_handshake_count_from_the_accept_and_no_longer_than_it_lasts(
    authority: Authority, door: str
) -> None:
    """Silent ones, those that speak no TLS, and those that hang up; beyond the cap and its surplus nothing is queued."""

    async def body() -> None:
        context = listener_context(authority.files("localhost"))
        line = LineAddress(port=0, ssl=context, door=LineSettings(limits=LineLimits(connections=1)))
        async with gating(ssl=context, line=line, server=ServerLimits(connections=1)) as stand:
            gateway = stand.gateway
            port = gateway.port if door == "http" else gateway.line_port
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(LINGERING + 2)]
            await until(lambda: gateway.descriptors.clients == LINGERING + 2)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b""
            writer.close()
            assert gateway.descriptors.clients == LINGERING + 2
            for number, (_reader, writer) in enumerate(silent):
                if number % 2:
                    writer.write(b"GET / HTTP/1.1\r\n\r\n")
                else:
                    writer.close()
            await until(lambda: gateway.descriptors.clients == 0)
            for _reader, writer in silent:
                writer.close()
            _reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=authority.client(), server_hostname="localhost"
            )
            await until(lambda: gateway.descriptors.clients == 1)
            writer.transport.abort()
            await until(lambda: gateway.descriptors.clients == 0)

    run(body())


def test_a_gateway_that_closes_cuts_handshakes(authority: Authority) -> None:
    async def body() -> None:
        async with gating(ssl=listener_context(authority.files("localhost"))) as stand:
            reader, writer = await asyncio.open_connection("127.0.0.1", stand.gateway.port)
            await until(lambda: stand.gateway.descriptors.clients == 1)
            await stand.gateway.stop()
            assert stand.gateway.descriptors.clients == 0
            with suppress(ConnectionError):
                assert await reader.read() == b""
            writer.close()

    run(body())


def test_a_key_that_is_half_written_is_told_in_words(authority: Authority, tmp_path: Path) -> None:
    """It was `[SSL] PEM lib (_ssl.c:3895)`."""
    files = authority.files("localhost")
    assert files.cert is not None
    assert files.key is not None
    key = tmp_path / "half.key"
    key.write_bytes(Path(files.key).read_bytes()[:100])

    with pytest.raises(TlsError, match="one of them is not PEM, or not whole"):
        listener_context(TlsFiles(files.cert, str(key)))
