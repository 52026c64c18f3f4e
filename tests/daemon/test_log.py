"""The daemon's log, as text and as JSON."""

import io
import json

from perfwatch.daemon.log import Log


def test_text_has_the_pid_before_the_sentence() -> None:
    """Further fields are for programs."""
    stream = io.StringIO()
    log = Log(stream)
    log("watching this machine")
    log("adopted, python train.py", "adopted", 42, uid=0, command="python train.py")

    assert stream.getvalue() == "perfwatch: watching this machine\nperfwatch: pid 42: adopted, python train.py\n"


def test_json_is_one_object_for_each_event_without_empty_fields() -> None:
    """Whatever the job chose as its name stays on its line, and cannot steer a terminal."""
    stream = io.StringIO()
    log = Log(stream, as_json=True, clock=lambda: 1.25)
    log("adopted, \x1b[2J\n", "adopted", 42, uid=0, cause=None, session="", command="\x1b[2J\n\u202e")

    assert stream.getvalue().count("\n") == 1
    assert stream.getvalue().strip().isprintable()
    assert json.loads(stream.getvalue()) == {
        "schema": "perfwatch.log/1",
        "time": "1970-01-01T00:00:01.250Z",
        "event": "adopted",
        "message": "adopted, ?[2J ",
        "pid": 42,
        "uid": 0,
        "command": "\x1b[2J\n\u202e",
    }
