#!/bin/bash
# What deploy/compose relies on of the entry point of postgres:18: an empty PGDATA becomes a cluster whose superuser has the
# password of POSTGRES_PASSWORD_FILE, reached with scram-sha-256 only; then the command runs.
set -euo pipefail
if [[ $1 == postgres && ! -s $PGDATA/PG_VERSION ]]; then
    mkdir -p -- "$PGDATA"
    chmod 700 -- "$PGDATA"
    initdb --username=postgres --pwfile="$POSTGRES_PASSWORD_FILE" --auth-local=trust --auth-host=scram-sha-256 --encoding=UTF8 --locale=C --no-instructions
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
fi
exec "$@"
