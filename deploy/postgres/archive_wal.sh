#!/usr/bin/env bash
# archive_wal.sh PATH NAME: PostgreSQL's archive_command. It keeps one file of WAL in the archive, durably.
#
#   archive_command = '/opt/stateroom/deploy/postgres/archive_wal.sh "%p" "%f"'
#
# A segment that is not as long as it says is refused, and so is another file under a name that is there; the same file
# again is well. PostgreSQL keeps what was refused and tries again: see pg_stat_archiver. Where the archive is: archive.sh.
set -euo pipefail
# shellcheck source=archive.sh
. "$(dirname "$(readlink -f "$0")")/archive.sh"
[[ ${1:-} != --help ]] || help
[[ $# -eq 2 ]] || die "needs PATH and NAME; see --help"
path=$1 name=$2

[[ $name =~ ^([0-9A-F]{24}(\.partial|\.[0-9A-F]{8}\.backup)?|[0-9A-F]{8}\.history)$ ]] || die "$name is no name of a file of WAL"
[[ -f $path ]] || die "$path is no file"
if [[ $name =~ ^[0-9A-F]{24}(\.partial)?$ ]]; then
    # Its first page says how long it is (XLogLongPageHeaderData: xlp_seg_size at 32).
    said=$(od --address-radix=n --format=u4 --skip-bytes=32 --read-bytes=4 "$path" 2>/dev/null | tr -d ' ') || said=0
    [[ ${said:-0} -gt 0 && $said -eq $(stat --format=%s "$path") ]] || die "$name is not a whole segment"
fi
read_settings
archive_put "$path" "$name"
