"""The watcher process from its start: where several launchers share a job it waits for its turn, then it watches.

While another launcher's watcher is at work, this one hears only what its own launcher says: that the job is asked to end, has
ended, or that a trigger came, which is passed on to the watcher that watches.
"""

from perfwatch.processes.channel import Channel, Message
from perfwatch.processes.control import ask
from perfwatch.processes.place import LEAVE_SECONDS, Place
from perfwatch.run.request import Request
from perfwatch.run.watcher import Watcher

TURN_SECONDS = 1.0  # how often a launcher that does not watch asks whether it should now
RELAY_SECONDS = 5.0


def watch(channel: Channel, place: Place, request: Request, child: int) -> None:
    """Wait for our turn, then watch until the child has ended.

    Args:
        channel: our end of the line to the launcher.
        place: where the launchers of the job meet.
        request: what the user asked for.
        child: pid of the command that the launcher has started.
    """
    while not place.take_watch():
        for message in channel.receive(TURN_SECONDS):
            if "ended" in message:
                channel.send({"done": True})
                place.leave(LEAVE_SECONDS)
                return
            if "terminating" in message:
                channel.send({"snapshot": True})
            if "trigger" in message:
                _relay(place, message)
        if channel.closed:
            return
    Watcher(channel, place, request, child).serve()


def _relay(place: Place, message: Message) -> None:
    """A trigger that reached a launcher which does not watch is meant for the one that does."""
    request = {"command": "trigger", "what": message["trigger"], "signal": message.get("signal")}
    try:
        ask(place.control, request, RELAY_SECONDS)
    except OSError:
        pass  # it is just ending: there is nothing left to ask
