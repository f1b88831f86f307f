#!/usr/bin/env bash
# restore.sh --from FOLDER --to DATA [--at TIME] [--owner USER]: make a data folder that recovers from a base backup and the archive.
#
#   --from FOLDER   where base_backup.sh keeps backups, or one of them
#   --to DATA       the new server's data folder; missing or empty, and never one that a server runs on
#   --at TIME       the last moment to restore, with its offset: '2026-11-25 03:00:00+00'; without: all that is archived
#   --pg-wal FOLDER what is left of the old server's pg_wal: it has what was not archived yet
#   --owner USER    who runs the server, where root runs this (postgres)
#
# Before anything is copied the backup is verified and the archive is looked through: a segment that is missing between
# the first that is needed and the newest, or damaged, is named, and nothing is restored. Then start the server: it
# recovers, and ends recovery by itself. It is another history from then on, so afterwards: stateroom restore accept.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source=archive.sh
. "$here/archive.sh"

from='' to='' at='' pg_wal='' owner=postgres
while [[ $# -gt 0 ]]; do
    case $1 in
        --help) help ;;
        --from) from=$(value "$1" "$@") ;;
        --to) to=$(value "$1" "$@") ;;
        --at) at=$(value "$1" "$@") ;;
        --pg-wal) pg_wal=$(value "$1" "$@") ;;
        --owner) owner=$(value "$1" "$@") ;;
        *) die "does not know $1; see --help" ;;
    esac
    shift 2
done
[[ -d $from ]] || die "--from FOLDER must be there: ${from:-none was named}"
[[ -n $to ]] || die "--to DATA is needed"
[[ ! -e $to/postmaster.pid ]] || die "a server runs on $to, or did until it was killed"
[[ ! -e $to || (-d $to && -z $(ls -A "$to")) ]] || die "$to is not empty: move it away first"
[[ -z $pg_wal || -d $pg_wal ]] || die "--pg-wal FOLDER must be there: $pg_wal"
if [[ -n $at ]]; then
    [[ $at =~ (Z|[+-][0-9]{2}(:?[0-9]{2})?)$ ]] || die "--at needs an offset, such as '$at+00'"
    at=$(date --utc --date="$at" '+%Y-%m-%d %H:%M:%S.%6N+00') || die "--at is no time"
fi
read_settings

# Which backup.
backup=$from
if [[ ! -e $from/backup_manifest ]]; then
    newest=99991231T000000Z
    [[ -z $at ]] || newest=$(date --utc --date="$at" +%Y%m%dT%H%M%SZ)
    backup=''
    while read -r each; do
        [[ $each > $newest ]] || backup=$from/$each
    done < <(find "$from" -maxdepth 1 -type d -name '[0-9]*T[0-9]*Z' -printf '%f\n' | sort)
    [[ -n $backup ]] || die "no backup in $from ended before ${at:-now}"
fi
echo "backup   $backup"
pg_verifybackup --quiet "$backup" || die "$backup is damaged; take an older one"

# Whether the archive has what follows it: each number of a segment, on the newest timeline or one that it came from.
first=$(sed --quiet 's/^START WAL LOCATION: .* (file \([0-9A-F]\{24\}\))$/\1/p' "$backup/backup_label")
[[ -n $first ]] || die "$backup has no backup_label"
bytes=$(pg_controldata --pgdata="$backup" | sed --quiet 's/^Bytes per WAL segment: *//p')
names=$(archive_names)
look=$(mktemp)
trap 'rm -f "$look"' EXIT
timeline=${first:0:8}
while read -r each; do
    if [[ $each > $timeline.history ]]; then timeline=${each%.history}; fi
done < <(grep '^[0-9A-F]\{8\}\.history$' <<<"$names")
timelines=$timeline
if [[ $timeline != "${first:0:8}" ]]; then
    archive_get "$timeline.history" "$look" || die "$timeline.history is damaged in the archive"
    timelines+=$(awk '/^[0-9]/ { printf "|%08X", $1 }' "$look")
    [[ $timelines == *"${first:0:8}"* ]] || die "the newest timeline in the archive, $timeline, did not begin in this backup's, ${first:0:8}"
fi
# A segment's name is its timeline, and its number in two parts, whose second counts to 4 GiB.
number() { echo $((16#${1:8:8} * (0x100000000 / bytes) + 16#${1:16:8})); }
expected=$(number "$first") checked=0
while read -r each; do
    [[ $(number "$each") -ge $expected ]] || continue
    [[ $(number "$each") -eq $expected ]] || die "the archive lacks the segment before $each"
    if ! in_bucket; then # of one in a bucket, fetch_wal.sh says it
        archive_get "$each" "$look" || die "$each is damaged in the archive"
        [[ $(stat --format=%s "$look") -eq $bytes ]] || die "$each is damaged in the archive"
    fi
    expected=$((expected + 1)) checked=$((checked + 1))
done < <(grep --extended-regexp "^($timelines)[0-9A-F]{16}$" <<<"$names" | sort --key=1.9,1.24 --key=1.1,1.8r | awk '!seen[substr($0, 9)]++')
echo "archive  $checked segments from $first on, timeline $timeline"

# The copy, and what the server shall do with it.
parent=$(dirname "$to")
[[ -d $parent ]] || die "$parent is not there"
needed=$(du --summarize --block-size=1 "$backup" | cut --fields=1)
free=$(df --output=avail --block-size=1 "$parent" | tail --lines=1)
[[ $free -gt $needed ]] || die "$parent has $free bytes free, and the backup takes $needed"
mkdir -p "$to"
chmod 0700 "$to"
cp --archive --reflink=auto "$backup/." "$to/"
if [[ -n $pg_wal ]]; then # looked for where the archive has nothing
    find "$pg_wal" -maxdepth 1 -type f -regextype posix-extended -regex '.*/[0-9A-F]{24}' -exec cp --target-directory="$to/pg_wal" {} +
fi
touch "$to/recovery.signal"
rm -f "$to/standby.signal"
{
    echo "# restore.sh, $(date --utc '+%Y-%m-%d %H:%M:%S+00')"
    echo "restore_command = 'STATEROOM_WAL_ARCHIVE=\"$STATEROOM_WAL_ARCHIVE\" \"$here/fetch_wal.sh\" \"%f\" \"%p\"'"
    echo "recovery_target_timeline = 'latest'"
    echo "recovery_target_time = '$at'"
    echo "recovery_target_action = 'promote'"
    echo "primary_conninfo = ''"
} >>"$to/postgresql.auto.conf"
if [[ $EUID -eq 0 ]]; then chown --recursive --no-dereference "$owner:" "$to"; fi
sync --file-system "$to"
echo "restored $to, to ${at:-the end of the archive}, once its server runs"
