#!/usr/bin/env bash
# Starts a run on a slice of TPUs, one process a host.
#   tpu/launch.sh gke CONFIG --topology v5p:2x2x4 --image IMAGE --volume CLAIM [--name NAME] [--dry-run] [key=value ...]
#   tpu/launch.sh queued CONFIG --topology v5p:2x2x4 --image IMAGE --nfs HOST:/PATH --project P --zone Z [--spot] [--name NAME] [--dry-run] [key=value ...]
# --dry-run prints what would run. README.md says what must be there before.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
# shellcheck source=gpu/launch_parts.sh
source gpu/launch_parts.sh

usage() { sed -n 's/^# \{0,1\}//p' tpu/launch.sh | sed -n '2,5p'; }

kind=${1:-} config='' topology='' name=webcoder image='' volume='' nfs='' project='' zone='' is_spot='' is_dry=''
arguments=()
case $kind in
gke | queued) shift ;;
-h | --help) usage && exit 0 ;;
*) usage >&2 && fail "the first argument must be gke or queued, got '${kind}'" ;;
esac
while [ "$#" -gt 0 ]; do
    case $1 in
    --topology | --name | --image | --volume | --nfs | --project | --zone)
        needs_value "$1" "$#"
        declare "${1#--}=$2"
        shift
        ;;
    --spot) is_spot=yes ;;
    --dry-run) is_dry=yes ;;
    -*) fail "unknown option $1; tpu/launch.sh --help lists them" ;;
    *=*) arguments+=("$1") ;;
    *)
        [ -z "$config" ] || fail "two configs, $config and $1; settings are key=value"
        config=$1
        ;;
    esac
    shift
done
[ -n "$config" ] || fail "no config; write for example tpu/launch.sh $kind configs/webcoder_27b.yaml --topology v5p:2x2x4"
check --topology "$topology" '[a-z0-9]+:[0-9x]+' v5p:2x2x4
# Also what follows it in the names of pods must fit into 63 letters.
check --name "$name" '[a-z]([-a-z0-9]{0,38}[a-z0-9])?' webcoder
check --image "$image" '[A-Za-z0-9][-A-Za-z0-9_./:@]*' REGISTRY/webcoder-tpu:1
read_pod "$config" "${arguments[@]}" --topology "$topology" --in-image
[ "${POD[platform]}" = tpu ] || fail "--topology $topology is no slice of TPUs; write for example v5p:2x2x4, or use gpu/launch.sh"

if [ "$kind" = gke ]; then
    [ -z "$nfs$project$zone$is_spot" ] || fail "--nfs, --project, --zone and --spot belong to queued; a GKE cluster has its own"
    check --volume "$volume" '[a-z0-9]([-a-z0-9.]*[a-z0-9])?' webcoder-runs
    # Who is who is read from the environment. A doubled $ is one that Kubernetes leaves alone in $(NAME).
    words="${POD[arguments]%]}, \"distributed.auto=true\"]"
    manifest=$(fill tpu/jobset.yaml NAME "$name" IMAGE "$image" VOLUME "$volume" HOSTS "${POD[hosts]}" CHIPS "${POD[chips]}" \
        ACCELERATOR "${POD[gke_accelerator]}" TOPOLOGY "${POD[gke_topology]}" ARGUMENTS "${words//\$/\$\$}")
    if [ -n "$is_dry" ]; then
        echo "# kubectl create -f -"
        printf '%s\n' "$manifest"
        exit 0
    fi
    command -v kubectl >/dev/null || fail "there is no kubectl here; install it, or add --dry-run"
    kubectl create -f - <<<"$manifest"
    exit 0
fi

[ -z "$volume" ] || fail "--volume belongs to gke; write --nfs HOST:/PATH"
check --nfs "$nfs" '[A-Za-z0-9.-]+:/[A-Za-z0-9_./-]*' 10.0.0.2:/webcoder
check --project "$project" '[a-z][-a-z0-9:.]*' my-project
check --zone "$zone" '[a-z]+-[a-z]+[0-9]+-[a-z]' us-east5-a
# What each host runs when it boots: the values, then worker.sh.
startup=$(
    echo '#!/usr/bin/env bash'
    quoted set -- "$image" "$nfs" "$config" "${arguments[@]}"
    sed 1d tpu/worker.sh
)
command=(gcloud compute tpus queued-resources create "$name" "--node-id=$name" "--project=$project" "--zone=$zone")
command+=("--accelerator-type=${POD[accelerator_type]}" "--runtime-version=${POD[runtime_version]}")
[ -z "$is_spot" ] || command+=(--spot)
if [ -n "$is_dry" ]; then
    quoted "${command[@]}" --metadata-from-file=startup-script=STARTUP
    printf '\n# STARTUP:\n%s\n' "$startup"
    exit 0
fi
command -v gcloud >/dev/null || fail "there is no gcloud here; install it, or add --dry-run"
file=$(mktemp)
trap 'rm -f "$file"' EXIT
printf '%s\n' "$startup" >"$file"
"${command[@]}" "--metadata-from-file=startup-script=$file"
