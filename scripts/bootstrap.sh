#!/bin/bash
# Make the virtual environment of the host program from hash-locked requirements.
# usage: scripts/bootstrap.sh VENV
# pip installs uv alone, by the hash in requirements.txt, because pip is what every Python has; uv then installs the
# rest in a few seconds. The stamp is written last, so that an interrupted run is done again.
# Bytecode is compiled here: where PYTHONDONTWRITEBYTECODE is set, as many images and CI machines have it, each command
# would otherwise compile some 700 modules before it starts.
set -euo pipefail
venv=${1:?usage: scripts/bootstrap.sh VENV}
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}

if ! "$python" -c 'import sys, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "error: $python is not Python 3.11 or newer with ensurepip; install python3-venv or name one with PYTHON=" >&2
  exit 1
fi
echo "making $venv from requirements.txt" >&2
rm -f "$venv/ready"
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
pins=$(mktemp)
trap 'rm -f "$pins"' EXIT
# The block of one requirement: its line and the --hash lines that follow.
awk '/^uv==/ {on=1} on {print} on && !/\\$/ {exit}' "$root/requirements.txt" > "$pins"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes -r "$pins"
"$venv/bin/uv" pip sync --quiet --compile-bytecode --python "$venv/bin/python" --require-hashes "$root/requirements.txt"
"$venv/bin/uv" pip install --quiet --python "$venv/bin/python" --no-deps --no-build-isolation -e "$root"
"$venv/bin/python" -m compileall -q "$root/scripts/lockstep"
touch "$venv/ready"
