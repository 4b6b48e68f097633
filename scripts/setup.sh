#!/usr/bin/env bash
# Makes the development environment: bash scripts/setup.sh FOLDER
# Names what is missing, and how to get it, before it starts anything.
set -euo pipefail
folder=$1

fail() { printf '\nfirstbad: %s\n' "$1" >&2; exit 1; }

python=""
for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3; do
  [ -n "$candidate" ] && command -v "$candidate" >/dev/null 2>&1 || continue
  if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
    python=$candidate
    break
  fi
done
[ -n "$python" ] || fail "Python 3.11, 3.12 or 3.13 is needed, and none is on the PATH.
  Debian, Ubuntu: apt-get install python3.11 python3.11-venv    macOS: brew install python@3.12
  Another place:  make setup PYTHON=/path/to/python3.12"
command -v git >/dev/null 2>&1 || fail "git is needed. Debian, Ubuntu: apt-get install git    macOS: xcode-select --install"
"$python" -c 'import ensurepip, venv' 2>/dev/null || fail "$python has no venv module.
  Debian, Ubuntu: apt-get install $("$python" -c 'import sys; print("python3.%d-venv" % sys.version_info[1])')"
[ "$(uname -s)" = Linux ] || printf 'firstbad: the worker needs Linux (it owns processes through prctl); on %s only the service and the library work\n' "$(uname -s)" >&2

if [ ! -x "$folder/bin/python" ]; then
  printf 'firstbad: making %s with %s\n' "$folder" "$("$python" --version)"
  "$python" -m venv "$folder"
fi
# uv itself as it is locked, with its hashes.
sed -n '/^uv==/,/^[^ ]/{/^uv==/p;/^ /p}' requirements.lock > "$folder/uv.lock.txt"
"$folder/bin/python" -m pip install -q --disable-pip-version-check --require-hashes -r "$folder/uv.lock.txt" ||
  fail "uv could not be installed from the package index; check the network, or pip's configuration (pip config list)"
printf 'firstbad: installing what requirements.lock names\n'
"$folder/bin/uv" pip install -q --python "$folder/bin/python" --require-hashes -r requirements.lock &&
  "$folder/bin/uv" pip install -q --python "$folder/bin/python" --no-deps -e . ||
  fail "the development environment could not be made; the lines above say why. 'make clean' starts afresh"
