"""New content takes its place whole or not at all, for one file or for many.

Everything that may fail for want of space or rights is done first: the content lies complete and synced beside each
place, in a file whose name begins with TEMPORARY. Then it is renamed into place, one after the other. Whoever is killed
leaves old files, new files and temporary ones, but none that is cut. If a rename fails, those before it are undone.
"""

from __future__ import annotations

import errno
import os
import stat

from tools._textfile import Unusable, not_a_file

TEMPORARY = ".hermes-sandbox-"


class Change:
    """What a path shall hold. `data`: bytes, or None for no file. `before`: the bytes it holds now, or None; who
    changes one file alone need not say. `executable`: True or False sets the bits, None keeps them. `like`: a stat
    result whose mode and owner a new file gets."""

    def __init__(self, path, data, before=None, executable=None, like=None):
        self.path = path
        self.data = data
        self.before = before
        self.executable = executable
        self.like = like


def write_atomic(path, data):
    """Replace the file at `path`, or make it, with its parents. A symbolic link is followed. Raises Unusable."""
    place_all([Change(path, data)])


def place_all(changes):
    """Make all changes, or none and raise Unusable."""
    waiting, placed = [], []
    try:
        for change in changes:
            waiting.append(_Staged(change))
        while waiting:
            waiting[0].place()
            placed.append(waiting.pop(0))
    except BaseException as error:
        for staged in reversed(waiting):
            staged.drop()
        lost = [staged.change.path for staged in reversed(placed) if not staged.undo()]
        if not isinstance(error, Unusable):
            raise
        also = "; these were changed and could not be put back: %s" % ", ".join(lost) if lost else ""
        raise Unusable("%s%s" % (error, also)) from None


class _Staged:
    """A change that is ready: its content lies beside its place. Raises Unusable."""

    def __init__(self, change):
        self.change = change
        self.target = os.path.realpath(change.path)
        self.temporary = None
        self.made = []  # folders, the outermost first
        self.old = self.link = None
        try:
            if change.data is None and os.path.islink(change.path):
                self.link = os.readlink(change.path)
            else:
                self.old = _stat_of_file(self.target, change.path)
            if change.data is not None:
                self._make_folders()
                self._write()
        except BaseException as error:
            self.drop()
            if isinstance(error, OSError):
                raise _not_written(change.path, error) from None
            raise

    def _make_folders(self):
        missing, folder = [], os.path.dirname(self.target)
        while not os.path.lexists(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        for folder in reversed(missing):
            os.mkdir(folder)
            self.made.append(folder)

    def _write(self):
        name = os.path.join(os.path.dirname(self.target), TEMPORARY + os.urandom(8).hex())
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self.temporary = name
        try:
            view = memoryview(self.change.data)
            while view:
                view = view[os.write(fd, view) :]
            self._set_mode_and_owner(fd)
            os.fsync(fd)
        finally:
            os.close(fd)

    def _set_mode_and_owner(self, fd):
        fresh, like = os.fstat(fd), self.old or self.change.like
        mode = stat.S_IMODE(fresh.st_mode)
        if like is not None:
            # Without set-uid and set-gid: whoever could change the content must not gain the owner's rights by it.
            mode = stat.S_IMODE(like.st_mode) & 0o1777
            if (like.st_uid, like.st_gid) != (fresh.st_uid, fresh.st_gid):
                try:
                    os.fchown(fd, like.st_uid, like.st_gid)
                except OSError:
                    pass  # only root may give a file away; the content is what was asked for
        if self.change.executable is not None:
            readers = mode >> 2 & 0o111
            mode = mode | readers if self.change.executable else mode & ~0o111
        if mode != stat.S_IMODE(fresh.st_mode):
            os.fchmod(fd, mode)

    def place(self):
        try:
            if self.temporary is None:
                os.unlink(self.change.path)
            else:
                os.rename(self.temporary, self.target)
                self.temporary = None
        except OSError as error:
            raise _not_written(self.change.path, error) from None

    def drop(self):
        """Remove what was made to be ready."""
        try:
            if self.temporary is not None:
                os.unlink(self.temporary)
            for folder in reversed(self.made):
                os.rmdir(folder)
        except OSError:
            pass  # it is already gone, or somebody has put something into the folder

    def undo(self):
        """Put back what was there before `place`, and say whether that worked."""
        try:
            if self.link is not None:
                os.symlink(self.link, self.change.path)
            elif self.change.before is None:
                os.unlink(self.target)
                self.drop()
            else:
                _Staged(Change(self.change.path, self.change.before, like=self.old)).place()
        except (OSError, Unusable):
            return False
        return True


def _stat_of_file(target, path):
    """The stat result of the file that is there, or None. Raises Unusable for what must not be replaced."""
    try:
        old = os.stat(target)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise Unusable("%s cannot be made: a part of its path is a file, not a folder" % path) from None
    if not stat.S_ISREG(old.st_mode):
        raise not_a_file(path, stat.S_IFMT(old.st_mode))
    if not os.access(target, os.W_OK):
        raise Unusable("%s is read-only (mode %04o): nothing was written" % (path, stat.S_IMODE(old.st_mode)))
    return old


def _not_written(path, error):
    hint = ""
    if error.errno in (errno.EACCES, errno.EROFS, errno.EPERM, errno.EBUSY):
        hint = (
            "; a file is replaced whole, by a new one in the same folder, so it is the folder that must be writable: "
            "choose another place, or have it added to the policy's write paths"
        )
    return Unusable("%s cannot be written: %s%s" % (path, error.strerror, hint))
