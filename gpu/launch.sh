#!/usr/bin/env bash
# Starts a run on nodes with GPUs, one process a node.
#   gpu/launch.sh slurm CONFIG --topology h100:8x2 [--name NAME] [--partition P] [--time T] [--dry-run] [key=value ...]
#   gpu/launch.sh kubernetes CONFIG --topology h100:8x2 --image IMAGE --volume CLAIM [--name NAME] [--dry-run] [key=value ...]
# --topology: GPUs in a node x nodes. --dry-run prints what would run. README.md says what must be there before.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=gpu/launch_parts.sh
source gpu/launch_parts.sh

usage() { sed -n 's/^# \{0,1\}//p' gpu/launch.sh | sed -n '2,5p'; }

kind=${1:-} config='' topology='' name=webcoder image='' volume='' partition='' time='' is_dry=''
arguments=()
case $kind in
slurm | kubernetes) shift ;;
-h | --help) usage && exit 0 ;;
*) usage >&2 && fail "the first argument must be slurm or kubernetes, got '${kind}'" ;;
esac
while [ "$#" -gt 0 ]; do
    case $1 in
    --topology | --name | --image | --volume | --partition | --time)
        needs_value "$1" "$#"
        declare "${1#--}=$2"
        shift
        ;;
    --dry-run) is_dry=yes ;;
    -*) fail "unknown option $1; gpu/launch.sh --help lists them" ;;
    *=*) arguments+=("$1") ;;
    *)
        [ -z "$config" ] || fail "two configs, $config and $1; settings are key=value"
        config=$1
        ;;
    esac
    shift
done
[ -n "$config" ] || fail "no config; write for example gpu/launch.sh $kind configs/webgrader_8b.yaml --topology h100:8x1"
check --topology "$topology" '[a-z0-9]+:[0-9x]+' h100:8x1
# Also what follows it in the names of pods must fit into 63 letters.
check --name "$name" '[a-z]([-a-z0-9]{0,38}[a-z0-9])?' webcoder
# With an image, paths are those of the containers.
where=()
[ "$kind" = slurm ] || where=(--in-image)
read_pod "$config" "${arguments[@]}" --topology "$topology" "${where[@]}"
[ "${POD[platform]}" = gpu ] || fail "--topology $topology is no cluster of GPUs; write for example h100:8x1, or use tpu/launch.sh"

if [ "$kind" = slurm ]; then
    [ -z "$image$volume" ] || fail "--image and --volume belong to kubernetes; SLURM runs this checkout, which all nodes must see"
    command=(sbatch "--job-name=$name" "--nodes=${POD[hosts]}" --ntasks-per-node=1 "--gpus-per-node=${POD[chips]}" --exclusive)
    # Two minutes before the time is up, processes are asked to end. The log grows over restarts.
    command+=(--requeue --signal=TERM@120 --open-mode=append "--output=$name-%j.log")
    if [ -n "$partition" ]; then
        check --partition "$partition" '[A-Za-z0-9_.,-]+' gpu
        command+=("--partition=$partition")
    fi
    if [ -n "$time" ]; then
        check --time "$time" '[0-9:-]+' 24:00:00
        command+=("--time=$time")
    fi
    command+=(gpu/job.sbatch "$config" "${arguments[@]}")
    [ -z "$is_dry" ] || { quoted "${command[@]}" && exit 0; }
    command -v sbatch >/dev/null || fail "there is no sbatch here; run this on a login node, or add --dry-run"
    mkdir -p runs
    exec "${command[@]}"
fi

[ -z "$partition$time" ] || fail "--partition and --time belong to slurm"
check --image "$image" '[A-Za-z0-9][-A-Za-z0-9_./:@]*' REGISTRY/webcoder-gpu:1
check --volume "$volume" '[a-z0-9]([-a-z0-9.]*[a-z0-9])?' webcoder-runs
# Kubernetes would put variables where it reads $(NAME); a doubled $ is one that it leaves alone.
manifest=$(fill gpu/jobset.yaml NAME "$name" IMAGE "$image" VOLUME "$volume" HOSTS "${POD[hosts]}" CHIPS "${POD[chips]}" \
    ARGUMENTS "${POD[arguments]//\$/\$\$}")
if [ -n "$is_dry" ]; then
    echo "# kubectl create -f -"
    printf '%s\n' "$manifest"
    exit 0
fi
command -v kubectl >/dev/null || fail "there is no kubectl here; install it, or add --dry-run"
kubectl create -f - <<<"$manifest"
