#!/usr/bin/env bash
# Makes a fresh Debian machine able to run this project. Every step is done once and then skipped.
#
# As root, missing Debian packages are installed. Otherwise the exact command is printed and nothing is
# changed. Everything else lands in this folder: .venv (trainer), .venv-engine (vLLM), .toolchain.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# The interpreter is the machine's own; only the engine may fetch the exact version that it pins.
export UV_PYTHON_DOWNLOADS=never
export UV_LINK_MODE="${UV_LINK_MODE:-copy}"
export PIP_DISABLE_PIP_VERSION_CHECK=1
TOOLCHAIN="${WEBCODER_HOME:-$PWD/.toolchain}"
MIN_NODE=20

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# step STAMP_FILE INPUT... -- COMMAND...: runs the command unless the stamp names this very input.
step() {
    local stamp=$1 inputs=() key started=$SECONDS
    shift
    while [ "$1" != "--" ]; do inputs+=("$1"); shift; done
    shift
    # The folder is part of the key: an environment that was moved is made anew.
    key=$( (printf '%s\n' "$PWD" "$*"; find "${inputs[@]}" -type f -not -name '*.pyc' -print0 | LC_ALL=C sort -z | xargs -0 sha256sum) | sha256sum)
    if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$key" ]; then return; fi
    "$@" </dev/null
    mkdir -p "$(dirname "$stamp")"
    printf '%s\n' "$key" >"$stamp"
    say "done in $((SECONDS - started)) s: $*"
}

# --- Debian packages -------------------------------------------------------------------------------

has_library() { [ -n "$(find /lib /usr/lib -maxdepth 3 -name "$1*" -print -quit 2>/dev/null)" ]; }

# A usable interpreter: the first that is 3.11 (what the locks were compiled for), else any newer one.
find_python() {
    local candidate found
    for wanted in '== (3, 11)' '> (3, 11)'; do
        for candidate in "${PYTHON:-}" python3.11 python3.12 python3.13 python3.14 python3 python \
            "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.*/bin/python /usr/bin/python3 /usr/local/bin/python3; do
            [ -n "$candidate" ] || continue
            if found=$("$candidate" -c "import sys
if sys.version_info[:2] $wanted: print(sys.executable)" 2>/dev/null) && [ -n "$found" ]; then
                printf '%s\n' "$found"
                return
            fi
        done
    done
}

missing_packages() {
    command -v bwrap >/dev/null || echo bubblewrap
    command -v chromium >/dev/null || echo chromium
    command -v fc-list >/dev/null && [ -n "$(fc-list | head -n 1)" ] || echo fontconfig fonts-dejavu-core fonts-liberation
    has_library libseccomp.so.2 || echo libseccomp2
    command -v node >/dev/null || echo nodejs
    command -v npm >/dev/null || echo npm
    [ -n "$PYTHON_FOUND" ] || echo python3
    [ -x .venv/bin/python ] || has_uv || "${PYTHON_FOUND:-python3}" -c 'import ensurepip' 2>/dev/null || echo python3-venv
}

install_debian_packages() {
    local packages
    mapfile -t packages < <(missing_packages | tr ' ' '\n')
    if [ "${#packages[@]}" -gt 0 ]; then
        local command="apt-get install -y --no-install-recommends ${packages[*]}"
        if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
            fail "this machine lacks ${packages[*]}; run this, then try again:
    sudo apt-get update && sudo $command"
        fi
        say "installing ${packages[*]}"
        export DEBIAN_FRONTEND=noninteractive
        apt-get update -qq </dev/null
        $command </dev/null
        PYTHON_FOUND=$(find_python)
    fi
    [ -n "$PYTHON_FOUND" ] || fail "no Python 3.11 or newer found; install one, or name it: make setup PYTHON=/path/to/python3"
    local node
    node=$(node --version)
    node=${node#v}
    [ "${node%%.*}" -ge "$MIN_NODE" ] || fail "Node $MIN_NODE or newer is needed, found $node; install it from nodejs.org or your distribution's backports"
}

# --- Python environments ---------------------------------------------------------------------------

has_uv() { [ -x "$TOOLCHAIN/uv/bin/uv" ] || { command -v uv >/dev/null && uv --version >/dev/null 2>&1; }; }

# uv of the machine, or one of our own, installed by pip.
uv_command() {
    if [ -x "$TOOLCHAIN/uv/bin/uv" ]; then "$TOOLCHAIN/uv/bin/uv" "$@"; else uv "$@"; fi
}

bootstrap_uv() {
    has_uv && return
    say "installing uv into $TOOLCHAIN/uv"
    "$PYTHON_FOUND" -m venv "$TOOLCHAIN/uv"
    "$TOOLCHAIN/uv/bin/python" -m pip install --quiet uv </dev/null
}

trainer_environment() {
    bootstrap_uv
    # Scripts in an environment hold its path: one that was moved here from elsewhere is made anew.
    if ! grep -qsF "$PWD/.venv" .venv/bin/activate || ! .venv/bin/python -c '' 2>/dev/null; then
        uv_command venv --quiet --clear --python "$PYTHON_FOUND" .venv
    fi
    uv_command pip sync --quiet --python .venv/bin/python --require-hashes locks/trainer.txt
}

this_project() {
    bootstrap_uv
    uv_command pip install --quiet --python .venv/bin/python --no-deps --editable .
}

engine_environment() {
    bootstrap_uv
    UV_PYTHON_DOWNLOADS=automatic PATH="$TOOLCHAIN/uv/bin:$PATH" .venv/bin/python -m rollout.vllm_server install
}

template_packages() { .venv/bin/python -m rollout.sandbox install; }

PYTHON_FOUND=""
[ -x .venv/bin/python ] && PYTHON_FOUND=$(.venv/bin/python -c 'import sys; print(sys._base_executable)' 2>/dev/null || true)
[ -n "$PYTHON_FOUND" ] || PYTHON_FOUND=$(find_python)
install_debian_packages
step .venv/.done locks/trainer.txt -- trainer_environment
step .venv/.done-project pyproject.toml .venv/.done -- this_project
step "${WEBCODER_ENGINE:-.venv-engine}/.done" locks/engine.txt rollout/vllm_install.py rollout/vllm_plugin/pyproject.toml \
    rollout/vllm_plugin/webcoder_vllm -- engine_environment
step "$TOOLCHAIN/.templates-done" rollout/sandbox/templates/*/package-lock.json -- template_packages
