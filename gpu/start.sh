#!/usr/bin/env bash
# Starts this host's process of a run and becomes it, so that signals reach it.
#   gpu/start.sh CONFIG [key=value ...]
#
# Who it is comes from the environment: SLURM's (srun), an indexed job's (Kubernetes), or none of both: a run alone.
# JAX could find out by itself, but takes SLURM's tasks for one a GPU and would hide all GPUs but one.
#   WEBCODER_PYTHON   the interpreter                            .venv-plan-gpu/bin/python
#   WEBCODER_PORT     where process 0 listens                    8476
#   WEBCODER_HOSTS    Kubernetes: number of pods of the job
#   WEBCODER_LEADER   Kubernetes: name of the pod with index 0, as others reach it
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

fail() {
    printf 'error: %s\n' "$*" >&2
    exit 2
}

# The first host of a SLURM list, such as node[07-09,12],other3 (node07).
first_host() {
    local rest=$1 first='' plain inside
    while [ -n "$rest" ]; do
        plain=${rest%%[,[]*}
        first+=$plain
        rest=${rest#"$plain"}
        [ "${rest:0:1}" = "[" ] || break
        inside=${rest#\[}
        first+=${inside%%[],-]*}
        rest=${rest#*]}
    done
    printf '%s' "$first"
}

# told NAME: its value, from who started us.
told() {
    [ -n "${!1:-}" ] || fail "$1 is not set; start this with gpu/launch.sh, or without any of SLURM's and JobSet's variables"
    printf '%s' "${!1}"
}

[ "$#" -ge 1 ] || fail "no config; write gpu/start.sh CONFIG [key=value ...]"
python=${WEBCODER_PYTHON:-.venv-plan-gpu/bin/python}
command -v "$python" >/dev/null || fail "there is no $python; run make setup && make .venv-plan-gpu/.done, or name one: WEBCODER_PYTHON=PATH"
port=${WEBCODER_PORT:-8476}
[[ "$port" =~ ^[0-9]+$ ]] || fail "WEBCODER_PORT=$port is no port; leave it out, or write WEBCODER_PORT=8476"

if [ -n "${SLURM_PROCID:-}" ]; then
    index=$SLURM_PROCID
    count=$(told SLURM_NTASKS)
    [ "${SLURM_LOCALID:-0}" = 0 ] ||
        fail "task $index is not alone on its node: one process has all GPUs of a host; write --ntasks-per-node=1"
    nodes=$(told SLURM_STEP_NODELIST)
    leader=$(first_host "$nodes")
elif [ -n "${JOB_COMPLETION_INDEX:-}" ]; then
    index=$JOB_COMPLETION_INDEX
    count=$(told WEBCODER_HOSTS)
    leader=$(told WEBCODER_LEADER)
else
    index=0 count=1 leader=
fi

together=()
if [ "$count" -gt 1 ]; then
    together=("distributed.coordinator=$leader:$port" "distributed.num_processes=$count" "distributed.process_id=$index")
fi
exec "$python" -m wc_jax.train "$@" ${together[@]+"${together[@]}"}
