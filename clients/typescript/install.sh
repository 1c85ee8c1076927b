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
# Other tests may run the client, so it is built only if it has changed, and each file is replaced
# as a whole.
stamp=node_modules/.built
if ! [ -e "$stamp" ] || ! [ -e dist ] || [ -n "$(find src package.json package-lock.json tsconfig.json -newer "$stamp")" ]; then
	built=$(mktemp -d node_modules/.build-XXXXXX)
	trap 'rm -rf "$built"' EXIT
	touch "$built/.stamp"
	npm run --silent build -- --outDir "$built"
	mkdir -p dist
	mv -f "$built"/* dist/
	mv -f "$built/.stamp" "$stamp"
fi
