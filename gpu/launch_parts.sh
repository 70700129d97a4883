# shellcheck shell=bash disable=SC2034  # POD is read by the scripts that source this one
# What the launchers in gpu/ and tpu/ share. Sourced by them from the project's folder, never run.

# fail MESSAGE: what was wrong and what to type instead; exit code 2, as for any bad input.
fail() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

# needs_value FLAG ARGUMENTS_LEFT
needs_value() { [ "$2" -ge 2 ] || fail "$1 needs a value after it"; }

# check FLAG VALUE PATTERN EXAMPLE: VALUE is there and looks right as a whole.
check() {
    [ -n "$2" ] || fail "$1 is missing; write for example $1 $4"
    [[ "$2" =~ ^($3)$ ]] || fail "$1 $2 does not look right; write for example $1 $4"
}

declare -A POD
# read_pod ARGUMENT...: fills POD with what `python -m wc_jax.pod ARGUMENT...` found; leaves with its exit code.
read_pod() {
    local python found key value
    python=${WEBCODER_PYTHON:-.venv/bin/python}
    command -v "$python" >/dev/null || fail "there is no $python; run make setup, or name one: WEBCODER_PYTHON=PATH"
    found=$("$python" -m wc_jax.pod "$@") || exit $?
    while IFS='=' read -r key value; do POD[$key]=$value; done <<<"$found"
}

# fill TEMPLATE NAME VALUE...: the file's text with each @NAME@ replaced by its value.
fill() {
    local text
    text=$(<"$1")
    shift
    while [ "$#" -gt 0 ]; do
        text=${text//"@$1@"/"$2"}
        shift 2
    done
    printf '%s\n' "$text"
}

# quoted WORD...: one line that a shell reads back as these words.
quoted() {
    local line
    printf -v line '%q ' "$@"
    printf '%s\n' "${line% }"
}
