#!/bin/sh
# Installs what the client and its tests need, unless it is there, and builds the client.
set -eu
cd "$(dirname "$0")"
command -v npm >/dev/null || {
	echo "npm is missing: install Node 20 or newer, with npm" >&2
	exit 1
}
for folder in . test; do
	[ "$folder/node_modules/.package-lock.json" -nt "$folder/package-lock.json" ] ||
		npm ci --prefix "$folder" --ignore-scripts --no-audit --no-fund --silent
done
npm run --silent build
