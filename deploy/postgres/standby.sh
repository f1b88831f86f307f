#!/usr/bin/env bash
# standby.sh --to DATA --name NAME [--owner USER]: make a data folder that follows a primary by streaming.
#
#   --to DATA       the standby's data folder; missing or empty
#   --name NAME     its replication slot on the primary, and what synchronous_standby_names calls it
#   --owner USER    who runs the server, where root runs this (postgres)
#
# The primary is libpq's (PGHOST, PGPORT, PGUSER, PGPASSFILE, ...), as a role with REPLICATION. Start the server on DATA, then on
# the primary, where no acknowledged save may be lost with it: synchronous_standby_names = 'NAME'.
set -euo pipefail
# shellcheck source=archive.sh
. "$(dirname "$(readlink -f "$0")")/archive.sh"

to='' name='' owner=postgres
while [[ $# -gt 0 ]]; do
    case $1 in
        --help) help ;;
        --to) to=$(value "$1" "$@") ;;
        --name) name=$(value "$1" "$@") ;;
        --owner) owner=$(value "$1" "$@") ;;
        *) die "does not know $1; see --help" ;;
    esac
    shift 2
done
[[ -n $to ]] || die "--to DATA is needed"
[[ ! -e $to || (-d $to && -z $(ls -A "$to")) ]] || die "$to is not empty"
[[ $name =~ ^[a-z][a-z0-9_]{0,62}$ ]] || die "--name takes small letters, digits and _"

PGAPPNAME=$name pg_basebackup --pgdata="$to" --format=plain --wal-method=stream --checkpoint=fast --write-recovery-conf \
    --create-slot --slot="$name" --manifest-checksums=SHA256 --no-password
pg_verifybackup --quiet "$to"
if [[ $EUID -eq 0 ]]; then chown --recursive --no-dereference "$owner:" "$to"; fi
echo "$to follows ${PGHOST:-the primary} as $name, once its server runs"
