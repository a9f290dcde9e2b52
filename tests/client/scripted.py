"""A server that says what a test tells it to: for answers that a real one rarely gives."""

import asyncio

from velaray.wire import pulsar_pb2 as pb
from velaray.wire.connection import WireConnection


class ScriptedServer:
    """Accepts connections, answers CONNECT and look-ups; the rest by ``answers``.

    ``answers`` maps a command's class to a function of (server, connection, command, entry),
    whose return value, if any, is sent. Everything received is in ``seen``.
    """

    def __init__(self, **answers):
        self.seen = []
        self.connections = []
        self.left = 0  # how many of them are closed
        self.answers = {
            pb.CommandConnect: lambda *_: pb.CommandConnected(
                server_version="scripted", protocol_version=20, max_message_size=5 << 20
            ),
            pb.CommandPartitionedTopicMetadata: lambda s, c, m, e: (
                pb.CommandPartitionedTopicMetadataResponse(
                    request_id=m.request_id, partitions=0, response=0
                )
            ),
            pb.CommandLookupTopic: lambda s, c, m, e: pb.CommandLookupTopicResponse(
                request_id=m.request_id, response=1, brokerServiceUrl=self.url
            ),
            pb.CommandProducer: lambda s, c, m, e: pb.CommandProducerSuccess(
                request_id=m.request_id, producer_name=m.producer_name or "made-up"
            ),
        }
        for name in ("Subscribe", "CloseConsumer", "CloseProducer", "Unsubscribe", "Seek"):
            self.answers[getattr(pb, f"Command{name}")] = lambda s, c, m, e: pb.CommandSuccess(
                request_id=m.request_id
            )
        for name, answer in answers.items():
            self.answers[getattr(pb, f"Command{name}")] = answer

    async def __aenter__(self):
        self._server = await asyncio.get_running_loop().create_server(
            lambda: WireConnection(self), "127.0.0.1", 0
        )
        self.url = f"pulsar://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *exc):
        self._server.close()
        for connection in self.connections:
            connection.abort()
        await self._server.wait_closed()

    def count(self, name):
        """How many commands of this name were received."""
        return sum(type(command).__name__ in (name, f"Command{name}") for command in self.seen)

    def on_connected(self, connection):
        """A client came."""
        self.connections.append(connection)

    def on_frame(self, connection, command, entry):
        """A client said something."""
        self.seen.append(command)
        kind = type(command) if type(command) in self.answers else type(command).__name__
        answer = self.answers.get(kind)
        said = answer(self, connection, command, entry) if answer else None
        if said is not None:
            connection.send(said)

    def on_corrupt_entry(self, connection, error):
        """Not scripted."""

    def on_writable(self, connection):
        """Not scripted."""

    def on_closed(self, connection, error):
        """A client left."""
        self.left += 1


def run(work):
    """Run a coroutine, within a limit."""
    asyncio.run(asyncio.wait_for(work, 30))


async def until(condition):
    """Wait until the condition holds."""
    while not condition():
        await asyncio.sleep(0.005)
