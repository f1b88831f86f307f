#!/usr/bin/env bash
# Makes the files of a release: two wheels, the versions that they were tested with, a bill of materials, checksums.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: release.sh [FOLDER]

Writes into FOLDER (dist), whose older content of the same names is replaced:

  stateroom_gateway-VERSION-py3-none-any.whl   the application
  stateroom-VERSION-py3-none-any.whl           the SDK, which the application needs, too
  requirements.txt                             everything else, locked, with hashes (the extra `vault` included)
  stateroom-gateway.cdx.json                   what is installed with it and under which licence (CycloneDX)
  SHA256SUMS                                   of these files

Equal commits give equal bytes: times come from the commit (or from SOURCE_DATE_EPOCH), the build's tools from the lock.

UV      the program uv (uv)
PYTHON  the interpreter that the bill of materials is made for (3.11)
TEXT
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

folder=$(realpath -m -- "${1:-dist}")
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."
uv=${UV:-uv}
command -v "$uv" > /dev/null || { echo "release.sh: there is no $uv; set UV, or run make release" >&2; exit 1; }
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
export SOURCE_DATE_EPOCH

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
made=$work/made

# Wheels, by the build backend of the lock: another version of it would write another byte or two.
"$uv" export --frozen --quiet --no-header --only-group release --output-file "$work/build.txt" > /dev/null
"$uv" build --quiet --all-packages --wheel --build-constraints "$work/build.txt" --require-hashes --out-dir "$made"
rm -f -- "$made/.gitignore"

"$uv" export --frozen --quiet --no-header --no-dev --no-emit-workspace --extra vault \
    --output-file "$made/requirements.txt" > /dev/null

# The bill of materials is of what such an installation has, so that it can name licences.
"$uv" venv --quiet --python "${PYTHON:-3.11}" "$work/venv"
"$uv" pip sync --quiet --python "$work/venv" --require-hashes "$made/requirements.txt"
"$uv" pip install --quiet --python "$work/venv" --no-deps --no-index --find-links "$made" stateroom-gateway stateroom
"$uv" run --quiet --isolated --frozen --only-group release \
    cyclonedx-py environment --output-reproducible --output-format JSON --pyproject pyproject.toml \
    --mc-type application --output-file "$made/stateroom-gateway.cdx.json" "$work/venv"

(cd -- "$made" && sha256sum -- * > "$work/SHA256SUMS" && mv -- "$work/SHA256SUMS" .)
chmod 644 -- "$made"/*
mkdir -p -- "$folder"
rm -f -- "$folder"/stateroom_gateway-*.whl "$folder"/stateroom-*.whl
mv -f -- "$made"/* "$folder"
cat -- "$folder/SHA256SUMS"
