"""Where a session goes, how it is found again, and what of a failed run is kept beside it."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from perfwatch.errors import SessionUnreadable, SessionUnwritable
from perfwatch.recording.finding import find_session, find_sessions
from perfwatch.recording.session import choose_directory, filesystem_of, homes_of_sessions, is_local, session_name
from perfwatch.run.dumps import MOST_DUMP_BYTES, keep_dumps
from perfwatch_probes.deadline import Inline
from perfwatch_probes.probe import Unavailable

CREATED = 1_795_175_484.0


class DeadFor:
    """A child for which every path below ``place`` is on a mount that never answers."""

    def __init__(self, place: Path) -> None:
        """Remember the place."""
        self._place = str(place)

    def call(self, function, *arguments, deadline_seconds):  # type: ignore[no-untyped-def]
        """Like a killable child after its deadline."""
        if str(arguments[0]).startswith(self._place):
            raise Unavailable(f"{function.__name__} did not answer within {deadline_seconds:g} s")
        return function(*arguments)


def choose(explicit: Path | None, environ: dict[str, str], mounts: str | None = None, child: object = None) -> Path:
    """``choose_directory`` at a fixed time."""
    return choose_directory(explicit, environ, child or Inline(), created=CREATED, pid=42, mounts=mounts)  # type: ignore[arg-type]


def permissions(path: Path) -> int:
    """The permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


def test_the_first_home_takes_the_session(tmp_path: Path) -> None:
    """Here $PERFWATCH_DIR; and the folder is private."""
    folder = choose(None, {"PERFWATCH_DIR": str(tmp_path / "a"), "XDG_STATE_HOME": str(tmp_path / "b")})

    assert folder == tmp_path / "a" / session_name(CREATED, 42)
    assert permissions(folder) == 0o700


def test_homes_are_in_the_documented_order() -> None:
    """$PERFWATCH_DIR is the only one once it is set; the XDG default stands in for an unset $XDG_STATE_HOME."""
    assert homes_of_sessions({"PERFWATCH_DIR": "/p", "XDG_STATE_HOME": "/x", "HOME": "/h"}, 7) == ["/p"]
    assert homes_of_sessions({"XDG_STATE_HOME": "/x", "HOME": "/h"}, 7) == ["/x/perfwatch", "/var/tmp/perfwatch-7"]
    assert homes_of_sessions({"HOME": "/h"}, 7) == ["/h/.local/state/perfwatch", "/var/tmp/perfwatch-7"]
    assert homes_of_sessions({}, 7) == ["/var/tmp/perfwatch-7"]


@pytest.fixture
def shared() -> Iterator[Callable[[Path], bool]]:
    """True for a session in /var/tmp, which is removed again."""
    made: list[Path] = []

    def is_shared(folder: Path) -> bool:
        made.append(folder)
        return folder.parent.parent == Path("/var/tmp") and folder.parent.name.startswith("perfwatch-")

    yield is_shared
    for folder in made:
        folder.rmdir()


def test_where_perfwatch_dir_is_set_nothing_is_recorded_elsewhere(tmp_path: Path) -> None:
    """Whoever sets it looks for recordings there alone."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SessionUnwritable, match="file/x") as told:
        choose(None, {"PERFWATCH_DIR": str(tmp_path / "file" / "x"), "XDG_STATE_HOME": str(tmp_path / "local")})

    assert "local" not in told.value.message
    assert not (tmp_path / "local").exists()


def test_a_network_home_is_passed_over(tmp_path: Path, shared: Callable[[Path], bool]) -> None:
    """A dead NFS server must not silence the tool, so a living one is not trusted either."""
    mounts = f"/dev/vda / ext4 rw 0 0\nserver:/home {tmp_path}/nfs nfs4 rw 0 0\n"

    assert shared(choose(None, {"XDG_STATE_HOME": str(tmp_path / "nfs")}, mounts))


def test_a_home_that_does_not_answer_is_passed_over(tmp_path: Path, shared: Callable[[Path], bool]) -> None:
    """The look is given up at its deadline, and the next home is asked."""
    assert shared(choose(None, {"XDG_STATE_HOME": str(tmp_path / "dead")}, child=DeadFor(tmp_path / "dead")))


def test_a_home_that_cannot_be_written_is_passed_over(tmp_path: Path, shared: Callable[[Path], bool]) -> None:
    """A read-only home, here a file in the way (root may write anywhere else)."""
    (tmp_path / "home").write_text("")

    assert shared(choose(None, {"XDG_STATE_HOME": str(tmp_path / "home" / "x")}))


def test_a_home_of_somebody_else_is_passed_over(tmp_path: Path, shared: Callable[[Path], bool]) -> None:
    """A link that somebody planted is not followed."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "perfwatch").symlink_to(tmp_path / "elsewhere")

    assert shared(choose(None, {"XDG_STATE_HOME": str(tmp_path / "x")}))


def test_without_any_place_every_refusal_is_named(tmp_path: Path) -> None:
    """The message says why for each, and the advice how to choose one."""
    with pytest.raises(SessionUnwritable) as caught:
        choose(tmp_path / "dead" / "s", {}, child=DeadFor(tmp_path / "dead"))

    assert "did not answer within 2 s" in caught.value.message
    assert "--session DIR" in caught.value.advice


def test_an_explicit_folder_that_is_new_becomes_the_session(tmp_path: Path) -> None:
    """``--session DIR``: DIR/session.json, and parents are made."""
    folder = choose(tmp_path / "a" / "b", {})

    assert folder == tmp_path / "a" / "b"
    assert permissions(folder) == 0o700


def test_an_explicit_folder_that_others_can_read_gets_a_private_one_inside(tmp_path: Path) -> None:
    """Permissions of a folder that was there before are not ours to change."""
    tmp_path.chmod(0o755)

    folder = choose(tmp_path, {})

    assert folder.parent == tmp_path
    assert (permissions(tmp_path), permissions(folder)) == (0o755, 0o700)


def test_an_explicit_folder_with_a_session_gets_another_inside(tmp_path: Path) -> None:
    """A job that is started again with the same command overwrites nothing."""
    first = choose(tmp_path / "s", {})
    (first / "session.json").write_text("{}")

    second = choose(tmp_path / "s", {})

    assert second.parent == first


def test_two_sessions_of_one_second_do_not_collide(tmp_path: Path) -> None:
    """Not even with the same pid, as in two containers that share a home."""
    environ = {"PERFWATCH_DIR": str(tmp_path)}

    assert choose(None, environ) != choose(None, environ)


def test_the_deepest_mount_holds_the_path() -> None:
    """Also where one mount lies inside another, and where a name only begins alike."""
    mounts = (
        "/dev/vda / ext4 rw 0 0\ns:/h /home nfs rw 0 0\ntmpfs /home/me/fast tmpfs rw 0 0\nx /mnt/a\\040b xfs rw 0 0\n"
    )

    assert filesystem_of("/home/me/x", mounts) == ("/home", "nfs")
    assert filesystem_of("/home/me/fast/s", mounts) == ("/home/me/fast", "tmpfs")
    assert filesystem_of("/homework", mounts) == ("/", "ext4")
    assert filesystem_of("/mnt/a b/c", mounts) == ("/mnt/a b", "xfs")


@pytest.mark.parametrize(
    "kind", ["nfs", "nfs4", "cifs", "lustre", "beegfs", "ceph", "gpfs", "fuse.sshfs", "fuse", "9p"]
)
def test_network_and_user_file_systems_are_not_local(kind: str) -> None:
    """They wait for somebody else."""
    assert not is_local(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "zfs", "tmpfs", "overlay", "fuse.fuse-overlayfs"])
def test_disks_and_container_roots_are_local(kind: str) -> None:
    """They answer, or the whole machine does not."""
    assert is_local(kind)


def make_session(folder: Path, age: float) -> Path:
    """A folder that looks like a session of that age."""
    folder.mkdir(parents=True)
    (folder / "session.json").write_text("{}")
    (folder / "events.jsonl").write_text('{"kind": "verdict", "verdict": {"state": "healthy"}}\n')
    os.utime(folder / "session.json", (age, age))
    return folder


def test_the_newest_session_is_found_without_an_argument(tmp_path: Path) -> None:
    """Over all homes."""
    make_session(tmp_path / "x" / "perfwatch" / "old", 1000)
    newest = make_session(tmp_path / "x" / "perfwatch" / "new", 2**33)  # newer than any real one of this machine

    found = find_session(None, {"XDG_STATE_HOME": str(tmp_path / "x")}, Inline())

    assert found == newest


def test_the_newest_session_tells_of_a_job(tmp_path: Path) -> None:
    """Not one that was begun and came to no verdict, nor files in which no end was found; those only where there is no other."""
    judged, earlier = make_session(tmp_path / "judged", 2000), make_session(tmp_path / "earlier", 1000)
    nothing, files = make_session(tmp_path / "nothing", 4000), make_session(tmp_path / "files", 3000)
    (nothing / "events.jsonl").unlink()
    (files / "session.json").write_text('{"mode": "autopsy"}')
    (files / "events.jsonl").write_text('{"kind": "verdict", "verdict": {"state": "inconclusive"}}\n')
    os.utime(files / "session.json", (3000, 3000))

    assert find_sessions(str(tmp_path), {}, Inline()) == [judged, earlier]
    for one in (judged, earlier):
        (one / "events.jsonl").unlink()
    assert find_session(str(tmp_path), {}, Inline()) == nothing


def test_a_look_for_another_host_is_meant_only_by_its_name(tmp_path: Path) -> None:
    """Whoever replays what happened here means what was recorded here on purpose, if there is anything."""
    look = make_session(tmp_path / "look", 2000)
    (look / "session.json").write_text('{"mode": "snapshot"}')
    os.utime(look / "session.json", (2000, 2000))
    alone = find_session(str(tmp_path), {}, Inline())
    ours = make_session(tmp_path / "ours", 1000)

    assert alone == look
    assert find_session(str(tmp_path), {}, Inline()) == ours
    assert find_session(str(look), {}, Inline()) == look


def test_a_folder_of_sessions_means_its_newest(tmp_path: Path) -> None:
    """And a session means itself."""
    old = make_session(tmp_path / "old", 1000)
    new = make_session(tmp_path / "new", 2000)

    assert find_session(str(tmp_path), {}, Inline()) == new
    assert find_session(str(old), {}, Inline()) == old


def test_a_session_is_found_by_its_name(tmp_path: Path) -> None:
    """As a verdict prints it, below the default folders; what lies here goes first."""
    environ = {"PERFWATCH_DIR": str(tmp_path / "a"), "XDG_STATE_HOME": str(tmp_path / "x")}
    old = make_session(tmp_path / "a" / "20261125-031756-12", 1000)
    make_session(tmp_path / "a" / "20261125-031757-13", 2000)

    assert find_session("20261125-031756-12", environ, Inline()) == old


def test_where_no_session_has_that_name_the_newest_are_offered(tmp_path: Path) -> None:
    """Nobody knows the names by heart."""
    for number in range(7):
        make_session(tmp_path / f"session-{number}", 2**33 + number)

    with pytest.raises(SessionUnreadable, match="typo is not a perfwatch session") as error:
        find_session("typo", {"PERFWATCH_DIR": str(tmp_path)}, Inline())

    assert error.value.advice.splitlines()[1:] == [f"session-{number}" for number in (6, 5, 4, 3, 2)]


def test_what_is_no_session_is_said_to_be_none(tmp_path: Path) -> None:
    """With the name that was given."""
    with pytest.raises(SessionUnreadable, match="is not a perfwatch session"):
        find_session(str(tmp_path), {}, Inline())


def test_a_session_on_a_dead_mount_is_said_to_be_unreachable(tmp_path: Path) -> None:
    """Instead of hanging there."""
    with pytest.raises(SessionUnreadable, match="does not answer"):
        find_session(str(tmp_path), {}, DeadFor(tmp_path))


def test_the_dumps_of_the_ranks_are_kept_as_they_are(tmp_path: Path) -> None:
    """For torch's own analyzer; links, pipes and giants stay where they are."""
    place, session = tmp_path / "place", tmp_path / "session"
    place.mkdir()
    session.mkdir()
    (place / "fr_rank_0").write_bytes(b"dump")
    (place / "fr_rank_1").symlink_to("/etc/hostname")
    os.mkfifo(place / "fr_rank_2")
    with (place / "fr_rank_3").open("wb") as giant:
        giant.truncate(MOST_DUMP_BYTES + 1)
    (place / "steps-7").write_bytes(b"other")

    kept = keep_dumps(place, session)

    assert [path.relative_to(session).as_posix() for path in kept] == ["flight_recorder/fr_rank_0"]
    assert kept[0].read_bytes() == b"dump"
    assert keep_dumps(tmp_path / "nowhere", session) == []
