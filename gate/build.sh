#!/usr/bin/env bash
# build.sh PYTHON   puts the native front into that Python's environment: built once per state of the
# sources, kept in the user's cache. Without cargo it says so and leaves everything as it is: the broker
# then serves with grpcio. GATE_REQUIRED=1 makes that an error.
set -euo pipefail
python=${1:?which Python?}
here=$(cd "$(dirname "$0")" && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/cosmodrome
[[ $python == /* ]] || python=$PWD/$python

give_up() {
    echo "gate: $1; the broker serves with the slower grpcio front instead"
    exit "${GATE_REQUIRED:-0}"
}

sources=$(cd "$here" && find . -type f \( -name '*.rs' -o -name '*.toml' -o -name '*.lock' -o -name '*.pyi' \) | LC_ALL=C sort | xargs cat | cksum | tr ' ' '-')
installed=$("$python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')/.cosmodrome-gate
if [[ -f $installed && $(<"$installed") == "$sources" ]] && "$python" -c 'import cosmodrome_gate' 2>/dev/null; then
    exit 0
fi

wheels=$cache/gate-wheels/$sources
if ! compgen -G "$wheels/*.whl" >/dev/null; then
    command -v cargo >/dev/null || give_up "not built, no cargo here (https://rustup.rs, 1.88 or newer)"
    "$python" -m maturin --version >/dev/null 2>&1 || "$python" -m pip install --quiet 'maturin>=1.9,<2' ||
        give_up "not built, maturin cannot be installed"
    echo "gate: building (a minute or two the first time)"
    mkdir -p "$cache/gate-wheels"
    find "$cache/gate-wheels" -mindepth 1 -maxdepth 1 -mtime +30 -exec rm -rf {} +
    # A build that is interrupted leaves no half wheel where the next one looks.
    building=$(mktemp -d "$cache/gate-wheels/building.XXXXXX")
    trap 'rm -rf "$building"' EXIT
    CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$cache/gate-target} "$python" -m maturin build --quiet --release --locked \
        --manifest-path "$here/py/Cargo.toml" --interpreter "$python" --out "$building" >"$cache/gate-build.log" 2>&1 ||
        give_up "not built, see $cache/gate-build.log"
    mkdir -p "$wheels"
    mv "$building"/*.whl "$wheels"
fi
"$python" -m pip install --quiet --no-deps --no-index --force-reinstall "$wheels"/*.whl
echo "$sources" >"$installed"
