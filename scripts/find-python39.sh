#!/bin/sh
# Prints the path of a real Python 3.9, the oldest that the worker runs on, or nothing. Nothing is fetched: no package of
# the Python index ships one, and uv's come from elsewhere.
WHO_AM_I='import os, sys; sys.version_info[:2] == (3, 9) or sys.exit(1); print(os.path.realpath(sys.executable))'

uv_python=$(uv python find --no-python-downloads 3.9 2>/dev/null)
for candidate in python3.9 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.9.*/bin/python3.9 "$uv_python"; do
    # Asked for its own name, since what stands on PATH may be a version manager's script for a version not installed.
    [ -n "$candidate" ] && "$candidate" -I -c "$WHO_AM_I" 2>/dev/null && exit 0
done
exit 0
