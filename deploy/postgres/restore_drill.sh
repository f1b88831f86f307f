#!/usr/bin/env bash
# restore_drill.sh --from FOLDER --work FOLDER [options]: restore the newest backup into a scratch server, and look whether it serves.
#
#   --from FOLDER           where base_backup.sh keeps backups
#   --work FOLDER           missing or empty, with room for the database; it is removed at the end
#   --at TIME               restore to this moment; without: all that is archived
#   --bucket-url-file FILE  the STATEROOM_S3_URL of a copy of the gateways' bucket, made for this drill; needed where they have one
#   --subject ID --thread ID  a thread that must load
#   --lag-max SECONDS       how old the newest transaction may be: an archive that stopped is one that does not restore
#   --archive-url-file FILE the same for STATEROOM_ARCHIVE_URL
#   --port PORT             where the scratch server listens, on 127.0.0.1 (54329)
#   --timeout SECONDS       how long recovery and verification may take, each (3600)
#   --owner USER            who runs the scratch server, where root runs this (postgres)
#
# It takes the gateways' settings from the environment, STATEROOM_OPERATOR_KEY or STATEROOM_OPERATOR_KEY_FILE, and for a thread
# STATEROOM_API_KEY or STATEROOM_API_KEY_FILE. The copy is needed because accepting a restore signs new anchors: in the
# bucket that is served from they would contradict the gateways. The scratch server archives nothing and listens on loopback.
# Saves that were anchored after the newest transaction are counted, and no damage. A line a step, then the verdict; the exit code is 0 when the backup can be restored and served from.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source=archive.sh
. "$here/archive.sh"

from='' work='' at='' bucket_file='' archive_file='' port=54329 subject='' thread='' lag_max='' timeout=3600 owner=postgres
while [[ $# -gt 0 ]]; do
    case $1 in
        --help) help ;;
        --from) from=$(value "$1" "$@") ;;
        --work) work=$(value "$1" "$@") ;;
        --at) at=$(value "$1" "$@") ;;
        --bucket-url-file) bucket_file=$(value "$1" "$@") ;;
        --archive-url-file) archive_file=$(value "$1" "$@") ;;
        --port) port=$(value "$1" "$@") ;;
        --subject) subject=$(value "$1" "$@") ;;
        --thread) thread=$(value "$1" "$@") ;;
        --lag-max) lag_max=$(value "$1" "$@") ;;
        --timeout) timeout=$(value "$1" "$@") ;;
        --owner) owner=$(value "$1" "$@") ;;
        *) die "does not know $1; see --help" ;;
    esac
    shift 2
done
[[ -n $from && -n $work ]] || die "--from and --work are needed; see --help"
[[ ! -e $work || (-d $work && -z $(ls -A "$work")) ]] || die "$work is not empty"
[[ -z $thread || -n $subject ]] || die "--thread needs the --subject whose it is"

# `setting NAME`: from the environment, or from the file that NAME_FILE names.
setting() {
    local file=${1}_FILE
    if [[ -n ${!1:-} ]]; then printf '%s' "${!1}"; elif [[ -n ${!file:-} ]]; then cat "${!file}"; fi
}
database_url=$(setting STATEROOM_DATABASE_URL)
[[ -n $database_url ]] || die "the gateways' settings are not set: STATEROOM_DATABASE_URL"
[[ -n $(setting STATEROOM_OPERATOR_KEY) ]] || die "STATEROOM_OPERATOR_KEY is not set: verification needs it"
# `copied SETTING FILE OPTION`: where the gateways have such a bucket, FILE names another one.
bucket_of() { sed 's#^s3://\([^/?]*@\)\{0,1\}##; s#[?].*##; s#/*$##' <<<"$1"; }
copied() {
    local served
    served=$(setting "$1")
    [[ -n $served ]] || return 0
    [[ -n $2 ]] || die "$3 is needed: a copy of the bucket, made for this drill"
    [[ $(bucket_of "$(cat "$2")") != "$(bucket_of "$served")" ]] || die "$3 names the bucket that is served from"
}
copied STATEROOM_S3_URL "$bucket_file" --bucket-url-file
copied STATEROOM_ARCHIVE_URL "$archive_file" --archive-url-file

mkdir -p "$work"
chmod 0711 "$work"
work=$(readlink -f "$work")
mkdir -m 0700 "$work/socket" "$work/secrets"
as_owner=()
if [[ $EUID -eq 0 ]]; then
    as_owner=(setpriv --reuid "$owner" --regid "$(id --group "$owner")" --init-groups)
    chown "$owner:" "$work/socket"
fi
server='' gateway='' verdict='this backup does NOT restore'
finish() {
    # The gateway before its database; each by its own process id.
    if [[ -n $gateway ]] && kill -TERM "$gateway" 2>/dev/null; then wait "$gateway" || true; fi
    if [[ -n $server ]] && kill -INT "$server" 2>/dev/null; then wait "$server" || true; fi
    rm -rf "$work"
    echo "verdict  $verdict, $SECONDS s"
}
trap finish EXIT
trap 'exit 1' INT TERM

# `step NAME COMMAND...`: one line; what failed shows the end of what it said.
step() {
    local name=$1 begun=$EPOCHREALTIME outcome=ok
    shift
    "$@" >"$work/log" 2>&1 || outcome=FAILED
    printf '%-8s %-15s %6.1f s  %s\n' "$outcome" "$name" "$(awk "BEGIN { print $EPOCHREALTIME - $begun }")" "$(tail --lines=1 "$work/log")"
    if [[ $outcome == FAILED ]]; then
        tail --lines=20 "$work/log" | sed 's/^/    /'
        exit 1
    fi
}

restore() {
    local options=(--from "$from" --to "$work/data" --owner "$owner")
    [[ -z $at ]] || options+=(--at "$at")
    "$here/restore.sh" "${options[@]}"
}

# Options given here win over postgresql.auto.conf, which came with the backup.
start_server() {
    printf 'local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n' >"$work/pg_hba.conf"
    : >"$work/pg_ident.conf"
    : >"$work/postgresql.conf"
    : >"$work/server.log"
    chmod 0644 "$work"/*.conf
    local option options=()
    for option in "config_file=$work/postgresql.conf" "hba_file=$work/pg_hba.conf" "ident_file=$work/pg_ident.conf" \
        listen_addresses=127.0.0.1 "port=$port" "unix_socket_directories=$work/socket" archive_mode=off hot_standby=off \
        synchronous_standby_names= primary_conninfo= ssl=off max_connections=50 logging_collector=off log_destination=stderr \
        log_min_error_statement=panic log_parameter_max_length=0 log_parameter_max_length_on_error=0 log_error_verbosity=terse; do
        options+=(-c "$option")
    done
    "${as_owner[@]}" postgres -D "$work/data" "${options[@]}" >"$work/server.log" 2>&1 &
    server=$!
}

recover() {
    local until=$((SECONDS + timeout))
    until "${as_owner[@]}" pg_isready --quiet --host="$work/socket" --port="$port" --username=postgres; do
        if ! kill -0 "$server" 2>/dev/null; then
            grep --extended-regexp 'FATAL|PANIC|fetch_wal' "$work/server.log" || tail --lines=5 "$work/server.log"
            return 1
        fi
        [[ $SECONDS -lt $until ]] || { echo "not within $timeout s" && return 1; }
        sleep 0.2
    done
    # As PostgreSQL logs it; where the archive had nothing more, when the backup was begun.
    local newest lag
    newest=$(sed --quiet 's/.*last completed transaction was at log time //p' "$work/server.log" | tail --lines=1)
    newest=${newest:-$(sed --quiet 's/^START TIME: //p' "$work/data/backup_label.old")}
    lag=$(($(date +%s) - $(date --date="$newest" +%s)))
    echo "newest transaction: $newest, $lag s ago"
    [[ -z $lag_max || $lag -le $lag_max ]]
}

serve() {
    : >"$work/gateway.log"
    stateroom serve --listen 127.0.0.1:0 >"$work/gateway.log" 2>&1 &
    gateway=$!
    until STATEROOM_URL=http://$(sed --quiet 's/.*"listen":"\([^"]*\)".*/\1/p' "$work/gateway.log" | grep .); do
        kill -0 "$gateway" 2>/dev/null || { tail --lines=5 "$work/gateway.log" && return 1; }
        sleep 0.2
    done
    export STATEROOM_URL
    echo "at $STATEROOM_URL"
}

load() {
    stateroom checkpoint show --subject "$subject" "$thread" >"$work/state" && echo "$thread"
}

# What was anchored after the archive's end is lost, which --lag-max bounds, and no damage of the backup.
verify() {
    local code=0 job found
    stateroom verify all --timeout "$timeout" || code=$?
    [[ $code -ne 0 ]] || return 0
    job=$(sed --quiet 's/^Job //p' "$work/log")
    found=$(stateroom job show "$job" --operator --json | grep --only-matching '"found":{[^}]*}' | grep --only-matching '"[a-z-]*":[0-9][0-9]*') || return "$code"
    if grep --invert-match --extended-regexp '"(missing-since-anchor|older-than-anchor|subject-missing|tenant-missing)":' <<<"$found"; then return 1; fi
    echo "$(awk -F : '{ sum += $2 } END { print sum }' <<<"$found") threads, subjects or tenants lack what the archive did not have yet"
}

step restore restore
start_server
step recovery recover

# The gateways' settings, with the scratch server and the copied bucket in their places.
database_url=${database_url%%\?*} # what it asks of TLS is not for loopback
credentials=${database_url#*://}
(umask 077 && printf 'postgresql://%s@127.0.0.1:%s/%s' "${credentials%@*}" "$port" "${database_url##*/}" >"$work/secrets/database")
unset STATEROOM_DATABASE_URL STATEROOM_S3_URL STATEROOM_S3_URL_FILE STATEROOM_ARCHIVE_URL STATEROOM_ARCHIVE_URL_FILE
unset STATEROOM_DATABASE_OWNER_URL STATEROOM_DATABASE_OWNER_URL_FILE STATEROOM_PUBLIC_URL
export STATEROOM_DATABASE_URL_FILE=$work/secrets/database STATEROOM_METRICS_LISTEN=off STATEROOM_DRAIN_SECONDS=0 STATEROOM_LOG_LEVEL=info
if [[ -n $archive_file ]]; then export STATEROOM_ARCHIVE_URL_FILE=$archive_file; fi
if [[ -n $bucket_file ]]; then
    export STATEROOM_S3_URL_FILE=$bucket_file
    step 'restore accept' stateroom restore accept
fi
step doctor stateroom doctor
step serve serve
step 'verify all' verify
if [[ -n $thread ]]; then
    step 'known thread' load
fi
verdict='this backup restores and serves'
