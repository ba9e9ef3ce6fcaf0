"""The stage: what a sandbox sees through an id map, who owns what it makes, and that nothing of it is left.

The sandboxes are real ones, of bubblewrap, started on the stage's thread as the local runner does. Other mounts that a
test needs are made in the private mount namespace of that thread, or of a child.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from hermes_sandbox import mounts
from hermes_sandbox.errors import Refused
from hermes_sandbox.process import Spawner
from tests.support import wait_until

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
needs_bwrap = pytest.mark.skipif(shutil.which("bwrap") is None, reason="no bwrap on PATH")

T = TypeVar("T")
ROOT = (0, 0)
STRANGER = 12345  # a uid that is neither the owner's nor the sandbox's
SYSTEM = (
    "--ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64"
    " --proc /proc --dev /dev"
)


class Theatre:
    """A stage on a thread of its own, and sandboxes that are started on it."""

    def __init__(self) -> None:
        self.spawner = Spawner()
        self.stage = mounts.Stage()
        uid = mounts.allocate_drop_id()
        self.drop = (uid, uid)
        self.on_thread(self.stage.enter)

    def on_thread(self, function: Callable[[], T]) -> T:
        return self.spawner.run(function).result(timeout=30)

    def shell(self, command: str) -> str:
        """Run a command of the system's in the thread's mount namespace."""
        argv = ["sh", "-ec", command]
        return self.on_thread(lambda: subprocess.run(argv, check=True, capture_output=True, encoding="utf-8")).stdout

    def idmapped(self, source: Path, owner: tuple[int, int] = ROOT) -> Path:
        return self.on_thread(lambda: self.stage.idmapped(source, owner, self.drop))

    def start(self, place: Path, script: str) -> subprocess.Popen[str]:
        """A sandbox with what is attached at `place` as /work, running `script`."""
        identity = "--unshare-user --uid 1000 --gid 1000 --unshare-pid --unshare-net --cap-drop ALL --die-with-parent"
        cwd = "/work" if self.on_thread(place.is_dir) else "/"
        view = ["--bind", str(place), "/work", "--chdir", cwd]
        argv = ["bwrap", *identity.split(), *SYSTEM.split(), *view, "sh", "-c", script]
        return self.on_thread(
            lambda: subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                encoding="utf-8",
                user=self.drop[0],
                group=self.drop[1],
                extra_groups=[],
                env={},
            )
        )

    def run(self, place: Path, script: str) -> str:
        with self.start(place, script) as sandbox:
            out, _ = sandbox.communicate(timeout=30)
        return out


@pytest.fixture
def theatre() -> Iterator[Theatre]:
    made = Theatre()
    try:
        yield made
    finally:
        made.on_thread(made.stage.forget_maps)
        made.spawner.close()


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """A workspace of root's below a folder that nobody else may pass."""
    folder = tmp_path / "closed" / "workspace"
    folder.mkdir(parents=True)
    folder.parent.chmod(0o700)
    return folder


@needs_bwrap
class TestInASandbox:
    def test_what_it_makes_below_a_closed_folder_is_roots(self, theatre: Theatre, closed: Path) -> None:
        script = "id -u; echo new > new; mkdir folder; ln -s new link; mkfifo fifo; ls -ln new | cut -d' ' -f3"
        assert theatre.run(theatre.idmapped(closed), script).split() == ["1000", "1000"]
        made = {path.name: path.lstat() for path in closed.iterdir()}
        assert set(made) == {"new", "folder", "link", "fifo"}
        assert {(found.st_uid, found.st_gid) for found in made.values()} == {ROOT}

    def test_what_is_roots_is_its_own(self, theatre: Theatre, closed: Path) -> None:
        old = closed / "old"
        old.write_text("secret\n", encoding="utf-8")
        old.chmod(0o600)
        script = "cat old; chmod 640 old && echo more >> old && touch -d 2001-01-01 old && mv old renamed && echo done"
        assert theatre.run(theatre.idmapped(closed), script).split() == ["secret", "done"]
        found = (closed / "renamed").stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, 0, 0o640)

    def test_the_owner_may_be_another_than_root(self, theatre: Theatre, closed: Path) -> None:
        os.chown(closed, STRANGER, STRANGER + 1)
        theatre.run(theatre.idmapped(closed, (STRANGER, STRANGER + 1)), "echo new > new")
        assert ((closed / "new").stat().st_uid, (closed / "new").stat().st_gid) == (STRANGER, STRANGER + 1)

    def test_third_parties_files_stay_what_they_are(self, theatre: Theatre, closed: Path) -> None:
        for name, mode in (("private", 0o600), ("public", 0o644)):
            path = closed / name
            path.write_text(f"{name}\n", encoding="utf-8")
            os.chown(path, STRANGER, STRANGER)
            path.chmod(mode)
        script = """
            cat public; cat private 2>/dev/null || echo closed
            (echo x >> public) 2>/dev/null || echo read-only
            chmod 666 public 2>/dev/null || echo foreign
        """
        assert theatre.run(theatre.idmapped(closed), script).split() == ["public", "closed", "read-only", "foreign"]
        for name, mode in (("private", 0o600), ("public", 0o644)):
            found = (closed / name).stat()
            assert (found.st_uid, stat.S_IMODE(found.st_mode), found.st_size) == (STRANGER, mode, len(name) + 1)

    def test_files_of_the_throw_away_ids_are_nobodys(self, theatre: Theatre, closed: Path) -> None:
        """On disk there should be none; if there are, the sandbox that got the id by chance has no right to them."""
        path = closed / "file"
        path.write_text("x", encoding="utf-8")
        os.chown(path, *theatre.drop)
        path.chmod(0o600)
        assert theatre.run(theatre.idmapped(closed), "cat file 2>/dev/null || echo closed") == "closed\n"

    def test_a_single_file_can_be_mapped(self, theatre: Theatre, closed: Path) -> None:
        path = closed / "file"
        path.write_text("old\n", encoding="utf-8")
        path.chmod(0o600)
        assert theatre.run(theatre.idmapped(path), "cat /work; echo new > /work") == "old\n"
        assert path.read_text(encoding="utf-8") == "new\n"
        assert path.stat().st_uid == 0

    def test_what_is_only_bound_keeps_its_owners(self, theatre: Theatre, closed: Path) -> None:
        path = closed / "private"
        path.write_text("x", encoding="utf-8")
        path.chmod(0o600)
        script = "ls; cat private 2>/dev/null || echo closed; (echo x > new) 2>/dev/null || echo read-only"
        place = theatre.on_thread(lambda: theatre.stage.bind(closed))
        assert theatre.run(place, script).split() == ["private", "closed", "read-only"]

    def test_a_sandbox_keeps_what_is_released(self, theatre: Theatre, closed: Path) -> None:
        place = theatre.idmapped(closed)
        with theatre.start(place, "echo ready; read line; echo $line > after") as sandbox:
            assert sandbox.stdin is not None
            assert sandbox.stdout is not None
            assert sandbox.stdout.readline() == "ready\n"
            theatre.on_thread(lambda: theatre.stage.release(place))
            assert not theatre.on_thread(place.exists)
            sandbox.communicate("released\n", timeout=30)
        assert (closed / "after").read_text(encoding="utf-8") == "released\n"

    def test_what_is_mounted_below_is_there_with_its_owners_mapped(self, theatre: Theatre, closed: Path) -> None:
        (closed / "below").mkdir()
        theatre.shell(f"mount -t tmpfs below {closed}/below; umask 077; echo inner > {closed}/below/file")
        place = theatre.idmapped(closed)
        assert theatre.run(place, "cat below/file; echo new > below/new") == "inner\n"
        assert theatre.shell(f"cd {closed}/below; stat -c %u new") == "0\n"
        assert not list((closed / "below").iterdir())  # not in the folder that the mount hides

    def test_two_sandboxes_of_one_workspace_are_two_users_with_one_owner(self, theatre: Theatre, closed: Path) -> None:
        theatre.run(theatre.idmapped(closed), "umask 077; echo one > file")
        uid = mounts.allocate_drop_id()
        theatre.drop = (uid, uid)
        assert theatre.run(theatre.idmapped(closed), "cat file") == "one\n"


class TestRefusals:
    def test_overlayfs_takes_no_id_map(self, theatre: Theatre, tmp_path: Path) -> None:
        mount_overlay(theatre, tmp_path)
        with pytest.raises(mounts.MountRefused, match="an id map for"):
            theatre.idmapped(tmp_path / "merged")
        assert theatre.on_thread(lambda: list(mounts.STAGE.iterdir())) == []
        theatre.on_thread(lambda: theatre.stage.bind(tmp_path / "merged"))  # the other way is open

    def test_nor_does_a_folder_with_one_below(self, theatre: Theatre, tmp_path: Path) -> None:
        mount_overlay(theatre, tmp_path)
        with pytest.raises(mounts.MountRefused):
            theatre.idmapped(tmp_path)

    def test_what_is_not_there_is_no_matter_of_id_maps(self, theatre: Theatre, tmp_path: Path) -> None:
        missing = tmp_path / "missing"
        with pytest.raises(FileNotFoundError):
            theatre.idmapped(missing)
        with pytest.raises(FileNotFoundError):
            theatre.on_thread(lambda: theatre.stage.bind(missing))
        assert theatre.on_thread(lambda: list(mounts.STAGE.iterdir())) == []

    def test_a_plain_user_has_no_stage(self) -> None:
        program = f"""
import os, sys
sys.path.insert(0, {str(Path(mounts.__file__).parent.parent)!r})
from hermes_sandbox import mounts
from hermes_sandbox.errors import Refused
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
try:
    mounts.Stage().enter()
except Refused as error:
    print(error.message, "/", error.hint)
"""
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
        assert done.stdout.startswith("root may not mount here: ")
        assert "--tier process" in done.stdout

    def test_the_stage_must_be_a_folder_that_only_root_may_write(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place = tmp_path / "stage"
        monkeypatch.setattr(mounts, "STAGE", place)

        def refused() -> None:
            with pytest.raises(Refused, match="not a folder that only root may write"):
                mounts.Stage().enter()  # on the test's own thread: it must not get as far as a namespace

        place.symlink_to(tmp_path)
        refused()
        place.unlink()
        place.mkdir()
        os.chown(place, STRANGER, STRANGER)
        refused()
        os.chown(place, 0, 0)
        place.chmod(0o775)
        refused()
        place.rmdir()
        theatre = Theatre()  # it is made where it is missing
        theatre.spawner.close()
        assert stat.S_IMODE(place.stat().st_mode) == 0o755

    def test_without_unshare_the_hint_says_what_to_do(
        self, theatre: Theatre, closed: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "defpath", "/nowhere")
        with pytest.raises(Refused, match="user namespaces are refused here"):
            theatre.idmapped(closed)


def mount_overlay(theatre: Theatre, folder: Path) -> None:
    for name in ("lower", "upper", "merged"):
        (folder / name).mkdir()
    layers = folder / "upper"
    options = f"lowerdir={folder}/lower,upperdir={layers}/upper,workdir={layers}/work"
    try:
        theatre.shell(
            f"mount -t tmpfs layers {layers}; mkdir {layers}/upper {layers}/work; "
            f"mount -t overlay overlay -o {options} {folder}/merged"
        )
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no overlayfs here: {error.stderr}")


class TestNothingIsLeft:
    def test_the_host_sees_none_of_it(self, closed: Path) -> None:
        before = mount_table()
        theatre = Theatre()
        place = theatre.idmapped(closed)
        assert "idmapped" in theatre.shell(f"grep ' {place} ' /proc/self/mountinfo")
        assert mount_table() == before
        theatre.spawner.close()
        assert mount_table() == before

    def test_set_uid_programs_and_devices_have_no_force_on_it(self, theatre: Theatre, closed: Path) -> None:
        place = theatre.idmapped(closed)
        options = theatre.shell(f"grep ' {place} ' /proc/self/mountinfo").split()[5].split(",")
        assert {"nosuid", "nodev"} <= set(options)

    def test_the_end_of_the_thread_frees_the_namespace(self, closed: Path) -> None:
        theatre = Theatre()
        theatre.idmapped(closed)
        own = theatre.on_thread(lambda: os.readlink("/proc/thread-self/ns/mnt"))
        assert own != os.readlink("/proc/self/ns/mnt")
        assert own in mount_namespaces()
        theatre.spawner.close()
        # The kernel lets go of a thread a moment after it counts as joined.
        assert wait_until(lambda: own not in mount_namespaces())

    def test_what_is_prepared_is_the_next_ones_and_outlives_the_others(self, theatre: Theatre, closed: Path) -> None:
        before = len(os.listdir("/proc/self/fd"))

        def opened() -> int:
            return len(os.listdir("/proc/self/fd")) - before

        theatre.on_thread(theatre.stage.prepare)
        theatre.on_thread(theatre.stage.prepare)
        theatre.on_thread(theatre.stage.forget_maps)
        assert opened() == 1  # one, and for the next
        uid = theatre.stage.drop_id()
        place = theatre.on_thread(lambda: theatre.stage.idmapped(closed, ROOT, (uid, uid)))
        assert opened() == 1  # nothing had to be made
        theatre.on_thread(lambda: theatre.stage.release(place))
        theatre.on_thread(theatre.stage.forget_maps)
        assert opened() == 0
        assert theatre.stage.drop_id() != uid
        theatre.on_thread(theatre.stage.prepare)
        theatre.on_thread(theatre.stage.close)
        assert opened() == 0

    def test_no_descriptor_process_or_place(self, theatre: Theatre, closed: Path) -> None:
        def once() -> None:
            uid = mounts.allocate_drop_id()
            places = [theatre.stage.idmapped(closed, ROOT, (uid, uid)), theatre.stage.bind(closed)]
            for place in places:
                theatre.stage.release(place)
            theatre.stage.forget_maps()

        theatre.on_thread(once)
        before = os.listdir("/proc/self/fd")
        for _ in range(20):
            theatre.on_thread(once)
        assert os.listdir("/proc/self/fd") == before
        assert theatre.on_thread(lambda: list(mounts.STAGE.iterdir())) == []
        with pytest.raises(ChildProcessError):
            os.waitpid(-1, os.WNOHANG)

    def test_one_helper_serves_all_sources_of_a_sandbox(self, theatre: Theatre, closed: Path) -> None:
        before = len(os.listdir("/proc/self/fd"))
        theatre.idmapped(closed)
        theatre.idmapped(closed.parent)
        assert len(os.listdir("/proc/self/fd")) == before + 1

    def test_a_disk_that_is_mounted_later_is_there_and_one_that_is_unmounted_is_not_held(self, tmp_path: Path) -> None:
        """In a child with a mount namespace of its own, whose mounts are shared as a host's are."""
        program = f"""
import subprocess, sys, threading
sys.path.insert(0, {str(Path(mounts.__file__).parent.parent)!r})
from pathlib import Path
from hermes_sandbox import mounts
from hermes_sandbox.process import Spawner
from tests.support import wait_until
disk = Path({str(tmp_path)!r})
spawner, stage = Spawner(), mounts.Stage()
def on_thread(function):
    return spawner.run(function).result()
on_thread(stage.enter)
before = Path("/proc/self/mountinfo").read_bytes()
subprocess.run(["mount", "-t", "tmpfs", "late", disk], check=True)
(disk / "file").write_bytes(b"there")
print(on_thread(lambda: (stage.bind(disk) / "file").read_bytes().decode()))
print(on_thread(lambda: (stage.idmapped(disk, (0, 0), (2_100_000_000,) * 2) / "file").read_bytes().decode()))
subprocess.run(["umount", disk], check=True)
print(on_thread(lambda: (disk / "file").exists()), Path("/proc/self/mountinfo").read_bytes() == before)
spawner.close()
"""
        argv = ["unshare", "--mount", "--propagation", "shared", sys.executable, "-c", program]
        done = subprocess.run(argv, capture_output=True, encoding="utf-8", check=False, timeout=30)
        assert done.stderr == ""
        assert done.stdout.split() == ["there", "there", "False", "True"]


def test_throw_away_ids_are_never_given_twice() -> None:
    ids = [mounts.allocate_drop_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(2_000_200_000 < uid < 2_147_352_576 for uid in ids)
    program = "from hermes_sandbox import mounts; print(mounts.allocate_drop_id())"
    here = Path(mounts.__file__).parent.parent
    other = subprocess.run([sys.executable, "-c", program], cwd=here, capture_output=True, encoding="utf-8", check=True)
    assert int(other.stdout) not in range(ids[0] - 1000, ids[-1] + 1000)  # 1 in 47,000 that it is by chance


def mount_table() -> str:
    return Path(f"/proc/{os.getpid()}/task/{threading.main_thread().native_id}/mountinfo").read_text(encoding="utf-8")


def mount_namespaces() -> set[str]:
    """The mount namespaces of every thread of the machine."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/task/*/ns/mnt"):
        try:
            found.add(os.readlink(entry))
        except OSError:
            continue  # it ended while we looked
    return found
