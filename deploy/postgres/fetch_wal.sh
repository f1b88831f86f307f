#!/usr/bin/env bash
# fetch_wal.sh NAME PATH: PostgreSQL's restore_command, which restore.sh writes down. It brings one file of the archive.
#
# It exits with 1 where the archive has no such file, which ends recovery, and with 200 where the file is damaged or the
# archive does not answer: PostgreSQL then stops, instead of ending recovery too early. Where the archive is: archive.sh.
set -euo pipefail
# shellcheck source=archive.sh
. "$(dirname "$(readlink -f "$0")")/archive.sh"
[[ ${1:-} != --help ]] || help
# shellcheck disable=SC2034 # `die` exits with it
failed=200
[[ $# -eq 2 ]] || die "needs NAME and PATH; see --help"

read_settings
found=0
archive_get "$1" "$2" || found=$?
case $found in
    0) ;;
    1) exit 1 ;;
    *) die "$1 is damaged in the archive" ;;
esac
