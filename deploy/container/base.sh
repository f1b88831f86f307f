#!/usr/bin/env bash
# Makes a base image from Debian packages alone, where no registry is reachable.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: base.sh IMAGE [PACKAGE...]

Makes IMAGE of Debian 12's essential packages, python3 with venv, CA certificates, libstdc++ and the PACKAGEs named, without a package
manager, manuals or translations. Debian's python3 is built with profile-guided and link-time optimisation. Needs root, mmdebstrap, and a
mirror of Debian; takes a minute or two.

ENGINE  podman or docker (podman where it is there)
MIRROR  Debian's mirror, as in sources.list (the one of mmdebstrap)
TEXT
}

case ${1-} in
-h | --help)
    usage
    exit
    ;;
'' | -*)
    usage >&2
    exit 2
    ;;
esac

image=$1
shift
engine=${ENGINE:-$(command -v podman > /dev/null && echo podman || echo docker)}
for program in "$engine" mmdebstrap; do
    command -v "$program" > /dev/null || { echo "base.sh: there is no $program" >&2; exit 1; }
done
packages=$(IFS=,; echo "python3-venv,ca-certificates,libstdc++6,usr-is-merged${*:+,$*}")

work=$(mktemp -d)
trap 'rm -rf -- "$work"' EXIT
left_out=(--dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright')
for folder in man locale info; do
    left_out+=("--dpkgopt=path-exclude=/usr/share/$folder/*")
done
# usr-is-merged instead of usrmerge, which would bring all of Perl.
mmdebstrap --quiet --variant=essential --include="$packages" "${left_out[@]}" \
    --hook-dir=/usr/share/mmdebstrap/hooks/maybe-merged-usr bookworm "$work/base.tar" ${MIRROR:+"$MIRROR"}
"$engine" import --change 'CMD ["python3"]' "$work/base.tar" "$image" > /dev/null
echo "$image ($(($(stat --format %s "$work/base.tar") / 1000000)) MB)"
