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
    local first=${1%%[,[]*} inside
    if [ "${1:${#first}:1}" = "[" ]; then
        inside=${1#*\[}
        first+=${inside%%[],-]*}
    fi
    printf '%s' "$first"
}

[ "$#" -ge 1 ] || fail "no config; write gpu/start.sh CONFIG [key=value ...]"
python=${WEBCODER_PYTHON:-.venv-plan-gpu/bin/python}
command -v "$python" >/dev/null || fail "there is no $python; run make setup .venv-plan-gpu/.done, or name one: WEBCODER_PYTHON=PATH"
port=${WEBCODER_PORT:-8476}
[[ "$port" =~ ^[0-9]+$ ]] || fail "WEBCODER_PORT=$port is no port; leave it out, or write WEBCODER_PORT=8476"

if [ -n "${SLURM_PROCID:-}" ]; then
    index=$SLURM_PROCID
    count=${SLURM_NTASKS:?"SLURM_PROCID without SLURM_NTASKS; start this with srun"}
    [ "${SLURM_LOCALID:-0}" = 0 ] ||
        fail "task $index is not alone on its node: one process has all GPUs of a host; write --ntasks-per-node=1"
    leader=$(first_host "${SLURM_STEP_NODELIST:?"SLURM_PROCID without SLURM_STEP_NODELIST; start this with srun"}")
elif [ -n "${JOB_COMPLETION_INDEX:-}" ]; then
    index=$JOB_COMPLETION_INDEX
    count=${WEBCODER_HOSTS:?"JOB_COMPLETION_INDEX without WEBCODER_HOSTS; the manifest must set it"}
    leader=${WEBCODER_LEADER:?"JOB_COMPLETION_INDEX without WEBCODER_LEADER; the manifest must set it"}
else
    index=0 count=1 leader=
fi

together=()
if [ "$count" -gt 1 ]; then
    together=("distributed.coordinator=$leader:$port" "distributed.num_processes=$count" "distributed.process_id=$index")
fi
exec "$python" -m wc_jax.train "$@" ${together[@]+"${together[@]}"}
