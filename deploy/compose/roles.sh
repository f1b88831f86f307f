#!/usr/bin/env bash
# Makes the roles, the database and the passwords, where they are missing; whoever can log in then finds all the rest done.
set -euo pipefail

PGPASSWORD=$(< /run/secrets/postgres-password)
export PGPASSWORD PGUSER=postgres PGHOST=postgres PGDATABASE=postgres PGCONNECT_TIMEOUT=5
until pg_isready --quiet; do
    echo "roles: PostgreSQL does not answer yet" >&2
    sleep 1
done

run() { psql --quiet --no-psqlrc --set ON_ERROR_STOP=1 "$@"; }

run --file /roles.sql
run << 'SQL'
SELECT 'CREATE DATABASE stateroom OWNER gw_migrate' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'stateroom') \gexec
SQL
run --file /roles.sql # now for the rights on the database
run --file /pgbouncer_role.sql
# Not as arguments, which others of the machine could read; log_statement = none keeps them out of the server's log.
run << 'SQL'
\set app `cat /run/secrets/gw-app-password`
\set migrate `cat /run/secrets/gw-migrate-password`
ALTER ROLE gw_migrate PASSWORD :'migrate';
ALTER ROLE gw_app PASSWORD :'app';
SQL
echo "roles: done" >&2
