#!/usr/bin/env bash
# promote.sh --old HOST:PORT [--force]: make a standby the primary, after the old one is gone.
#
#   --old HOST:PORT   where the old primary was; while it answers there, nothing is promoted: two primaries would both be saved to
#   --force           promote all the same
#
# The standby is libpq's (PGHOST, PGPORT, PGUSER, ...), as a superuser or a role that may call pg_promote. It says what the
# standby had received, promotes it, and says what is left to do. Fence the old primary before (stop it, cut its network):
# nothing here keeps it from coming back.
set -euo pipefail
# shellcheck source=archive.sh
. "$(dirname "$(readlink -f "$0")")/archive.sh"

old='' force=''
while [[ $# -gt 0 ]]; do
    case $1 in
        --help) help ;;
        --old)
            old=$(value "$1" "$@")
            shift
            ;;
        --force) force=yes ;;
        *) die "does not know $1; see --help" ;;
    esac
    shift
done
[[ $old == *:* ]] || die "--old HOST:PORT is needed"
ask() { psql --no-psqlrc --no-password --quiet --tuples-only --no-align --dbname=postgres --set=ON_ERROR_STOP=1 --command="$1"; }

[[ $(ask 'SELECT pg_is_in_recovery()') == t ]] || die "this server is no standby"
if pg_isready --quiet --timeout=3 --host="${old%:*}" --port="${old##*:}"; then
    [[ -n $force ]] || die "$old still answers: stop it first, or --force"
fi
echo "received $(ask "SELECT pg_last_wal_receive_lsn() || ', newest transaction ' || coalesce(pg_last_xact_replay_timestamp()::text, 'none seen')")"
[[ $(ask 'SELECT pg_promote(true, 60)') == t ]] || die "it was not promoted within 60 s; see its log"
echo "promoted, timeline $(ask 'SELECT substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8)')"

waits_for=$(ask 'SHOW synchronous_standby_names')
[[ -z $waits_for ]] || echo "commits wait for synchronous_standby_names = '$waits_for': start such a standby, or ALTER SYSTEM SET synchronous_standby_names = '' and reload"
echo "next     point the gateways here; stateroom doctor says whether the bucket knows of more than this server does (history)"
