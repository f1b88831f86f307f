#!/usr/bin/env bash
# base_backup.sh --to FOLDER [--keep-days DAYS]: take a base backup, verify it, and remove what is too old.
#
#   --to FOLDER        holds one folder a backup, named by when it ended: 20261125T030000Z
#   --keep-days DAYS   how far back a point in time can be restored (28); the backup before that moment is kept, too
#
# The server is libpq's (PGHOST, PGPORT, PGUSER, PGPASSFILE, ...), as a role with REPLICATION. A backup stands under its
# name only once pg_verifybackup found it whole. With an archive that is a folder, WAL that no kept backup needs is removed;
# of one in a bucket, let a lifecycle rule do it, later than DAYS and the time between two backups. DAYS is never more than
# the gateways' STATEROOM_BACKUP_RETENTION_DAYS (30): large values that a backup names may be gone after that.
set -euo pipefail
# shellcheck source=archive.sh
. "$(dirname "$(readlink -f "$0")")/archive.sh"

to='' keep_days=28
while [[ $# -gt 0 ]]; do
    case $1 in
        --help) help ;;
        --to) to=$(value "$1" "$@") ;;
        --keep-days) keep_days=$(value "$1" "$@") ;;
        *) die "does not know $1; see --help" ;;
    esac
    shift 2
done
[[ -d $to ]] || die "--to FOLDER must be there: ${to:-none was named}"
[[ $keep_days =~ ^[1-9][0-9]{0,3}$ ]] || die "--keep-days takes a number of days"
read_settings
[[ $keep_days -le ${STATEROOM_BACKUP_RETENTION_DAYS:-30} ]] || die "--keep-days is more than STATEROOM_BACKUP_RETENTION_DAYS (${STATEROOM_BACKUP_RETENTION_DAYS:-30}): values in the bucket would be gone"
exec {lock}>"$to/.lock"
flock --nonblock "$lock" || die "another backup to $to is under way"
rm -rf "$to"/.incomplete.* "$to"/.removed.*

fresh=$(mktemp --directory "$to/.incomplete.XXXXXX")
trap 'rm -rf "$fresh"' EXIT
pg_basebackup --pgdata="$fresh" --format=plain --wal-method=stream --checkpoint=fast --manifest-checksums=SHA256 \
    --label=stateroom --no-password
pg_verifybackup --quiet "$fresh"
name=$(date --utc +%Y%m%dT%H%M%SZ)
[[ ! -e $to/$name ]] || die "$to/$name is there already"
mv --no-target-directory "$fresh" "$to/$name"
sync "$to"
echo "$to/$name: $(du --summarize --human-readable "$to/$name" | cut --fields=1), verified"

# The newest backup from before the oldest moment that is wanted, and all since.
oldest=$(date --utc --date="$keep_days days ago" +%Y%m%dT%H%M%SZ)
kept=''
while read -r each; do
    if [[ -n $kept && $kept < $oldest ]]; then
        mv "$to/$each" "$to/.removed.$each"
        rm -rf "$to/.removed.$each"
        echo "$to/$each: removed"
    else
        kept=$each
    fi
done < <(find "$to" -maxdepth 1 -type d -name '[0-9]*T[0-9]*Z' -printf '%f\n' | sort --reverse)

first=$(sed --quiet 's/^START WAL LOCATION: .* (file \([0-9A-F]\{24\}\))$/\1/p' "$to/$kept/backup_label")
[[ -n $first ]] || die "$to/$kept has no backup_label"
if ! in_bucket; then
    find "$STATEROOM_WAL_ARCHIVE" -maxdepth 1 -name '.*.??????' -mtime +1 -delete # of copies that were cut off
    pg_archivecleanup --strip-extension=.gz --clean-backup-history "$STATEROOM_WAL_ARCHIVE" "$first"
fi
