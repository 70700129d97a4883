#!/usr/bin/env bash
# What a TPU VM of a queued resource does at boot, with IMAGE NFS CONFIG [key=value ...] set before it by launch.sh.
#
# When a process fails, those of all hosts end within minutes; each host starts its own again, and they go on together
# from the newest checkpoint. Bad input (2) and bugs (1) are not tried again. Progress: journalctl -u google-startup-scripts
set -euo pipefail
image=$1 nfs=$2
shift 2

folders=()
for folder in runs models; do
    options="volume-driver=local,volume-opt=type=nfs,\"volume-opt=o=addr=${nfs%%:*},rw\",volume-opt=device=:${nfs#*:}/$folder"
    folders+=(--mount "type=volume,src=webcoder-$folder,dst=/webcoder/$folder,$options")
done
until docker pull "$image"; do sleep 15; done
for ((restart = 0; restart <= 20; restart++)); do
    code=0
    # Privileged: the TPU's devices, and sandboxes, which are namespaces, mounts and control groups of their own.
    docker run --rm --name webcoder --privileged --network host --ipc host --stop-timeout 120 "${folders[@]}" \
        "$image" "$@" distributed.auto=true || code=$?
    case $code in
    0 | 1 | 2) exit "$code" ;;
    esac
    echo "exit code $code: started again in 30 s, to go on from the newest checkpoint" >&2
    sleep 30
done
exit "$code"
