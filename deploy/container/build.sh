#!/usr/bin/env bash
# Builds the image: a release (release.sh), installed by its hashes on a base.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: build.sh [IMAGE]

Builds IMAGE (stateroom-gateway:VERSION) from this clone. All settings are environment variables:

ENGINE      podman or docker (podman where it is there)
BASE        the image to stand on (docker.io/library/python:3.11-slim-bookworm); where no registry is reachable: base.sh
DIST        a folder that release.sh has written; without it, one is made
WHEELHOUSE  a folder of the wheels that requirements.txt names: the build then needs no network at all
                pip download --require-hashes --only-binary :all: -r DIST/requirements.txt -d WHEELHOUSE
PIP_CONF    a pip.conf for the build, which the image does not get: another index, a proxy
CA          a file of certificates for the build, which the image does not get: a proxy's own CA
TEXT
}

fail() {
    echo "build.sh: $1" >&2
    exit 1
}

case ${1-} in
-h | --help)
    usage
    exit
    ;;
-*)
    usage >&2
    exit 2
    ;;
esac

here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
engine=${ENGINE:-$(command -v podman > /dev/null && echo podman || echo docker)}
command -v "$engine" > /dev/null || fail "there is no $engine; set ENGINE to podman or docker"
case ${engine##*/} in
podman) format=(--format docker) ;; # else the health check gets lost
docker) format=() ;;
*) fail "ENGINE is podman or docker, not $engine" ;;
esac

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
mkdir -- "$work/context" "$work/context/wheelhouse"
if [[ -n ${DIST-} ]]; then
    cp -r -- "$DIST" "$work/context/dist"
else
    "$here/release.sh" "$work/context/dist" > /dev/null
fi
options=("${format[@]}")
if [[ -n ${WHEELHOUSE-} ]]; then
    cp -- "$WHEELHOUSE"/*.whl "$work/context/wheelhouse"
    options+=(--network none)
fi
[[ -z ${PIP_CONF-} ]] || options+=(--secret "id=pip,src=$PIP_CONF")
[[ -z ${CA-} ]] || options+=(--secret "id=ca,src=$CA")
[[ -z ${BASE-} ]] || options+=(--build-arg "BASE=$BASE")

wheel=$(basename -- "$work"/context/dist/stateroom_gateway-*.whl)
version=${wheel#stateroom_gateway-}
version=${version%%-*}
image=${1:-stateroom-gateway:$version}
options+=(
    --build-arg "VERSION=$version"
    --build-arg "REVISION=$(git -C "$here" rev-parse HEAD 2> /dev/null || echo unknown)"
    --build-arg "CREATED=$(date -u -d "@${SOURCE_DATE_EPOCH:-$(date +%s)}" +%Y-%m-%dT%H:%M:%SZ)"
)
"$engine" build "${options[@]}" --file "$here/Containerfile" --tag "$image" "$work/context" >&2
bytes=$("$engine" image inspect --format '{{.Size}}' "$image")
echo "$image ($((bytes / 1000000)) MB)"
