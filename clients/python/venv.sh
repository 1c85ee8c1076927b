#!/bin/sh
# Prints the python of a virtual environment that has requirements.txt. It makes the
# environment in the user's cache if it is not there, which takes a minute, once for all clones.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
command -v python3 >/dev/null || {
	echo "python3 is missing: install it with pip, on Debian: apt-get install python3-pip" >&2
	exit 1
}
of=$({ cat "$here/requirements.txt"; python3 --version; } | cksum | tr ' ' -)
venv=${XDG_CACHE_HOME:-$HOME/.cache}/semel/python/$of
if ! [ -d "$venv" ]; then
	mkdir -p "$(dirname "$venv")"
	made=$(mktemp -d "$(dirname "$venv")/make-XXXXXX")
	trap 'rm -rf "$made"' EXIT
	echo "installing clients/python/requirements.txt into $venv" >&2
	# Without pip of its own, it needs no ensurepip, which Debian has in another package.
	python3 -m venv --without-pip "$made" >&2
	python3 -m pip --python "$made/bin/python" install -q --disable-pip-version-check --no-deps -r "$here/requirements.txt" >&2 || {
		echo "pip failed: on Debian: apt-get install python3-pip" >&2
		exit 1
	}
	python3 -c 'import os, sys; os.rename(*sys.argv[1:])' "$made" "$venv" 2>/dev/null ||
		[ -d "$venv" ] # another run was faster
fi
echo "$venv/bin/python"
