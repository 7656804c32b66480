#!/usr/bin/env bash
# The CUDA IPC shim on a real GPU: tests/gpu/run.sh [PYTHON]
# PYTHON (default python3) must have torch 2.11 and see a GPU; nothing is installed into it and no network is used.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
python=${1:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

wheel=$(PYTHONPATH=$here/../../scripts "$python" -c \
    "import pathlib; from lockstep.runtime_wheel import build; print(build(pathlib.Path('$work')))")
torch=$("$python" -c 'import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])')

# Four environments: with and without the package, each with torch (for the handles) and bare (for the start-up time).
for name in with without with-bare without-bare; do
    "$python" -m venv --without-pip "$work/$name"
    site=$(echo "$work/$name"/lib/python3.*/site-packages)
    case $name in with | with-bare) "$python" -m zipfile -e "$wheel" "$site" ;; esac
    case $name in *-bare) ;; *) echo "$torch" >"$site/torch.pth" ;; esac
done

"$work/with-bare/bin/python" -m compileall -q "$work"/with*/lib # as an image has it

status=0
"$work/with/bin/python" "$here/check_ipc.py" --without "$work/without/bin/python" || status=1
"$work/with/bin/python" "$here/measure.py" --with-package "$work/with-bare/bin/python" \
    --without "$work/without-bare/bin/python" || status=1
"$work/with/bin/python" -m lockstep_runtime || status=1
exit $status
