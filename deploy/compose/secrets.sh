#!/usr/bin/env bash
# Makes every secret of compose.yaml that is missing, as files; none is ever overwritten.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: secrets.sh [FOLDER]

Makes in FOLDER (secrets, beside compose.yaml) what is missing: passwords, URLs with them, the pepper of API keys, the root
key, the deployment's id, and a certificate for localhost that signs itself (replace tls.pem by one of your own: chain
and key). Run it as root: the root key must belong to the containers' user, 10001, and the folder to nobody else.

Keep a copy apart from the machine. Without root.key nothing that is stored can be opened, without api-key-pepper no API
key verifies, without the id in stateroom.env no record does.
TEXT
}

case ${1-} in
-h | --help)
    usage
    exit
    ;;
-*)
    usage >&2
    exit 2
    ;;
esac

readonly uid=10001
folder=${1:-$(dirname -- "${BASH_SOURCE[0]}")/secrets}
((EUID == 0)) || { echo "secrets.sh: run it as root: root.key must belong to user $uid" >&2; exit 1; }
command -v openssl > /dev/null || { echo "secrets.sh: there is no openssl" >&2; exit 1; }
umask 077
# The folder keeps other users of the machine out; within their containers, files are read by whoever the service is.
mkdir -p -- "$folder"
cd -- "$folder"

# Writes standard input to a file that is not there yet, whole or not at all.
make() {
    local name=$1 mode=${2:-0444} text
    text=$(cat)
    [[ -n $text ]] || { echo "secrets.sh: $name would be empty" >&2; exit 1; }
    if [[ ! -e $name ]]; then
        printf '%s\n' "$text" > "$name.new"
        chmod "$mode" -- "$name.new"
        [[ $mode != 0400 ]] || chown "$uid:$uid" -- "$name.new"
        mv -n -- "$name.new" "$name"
        echo "made $name" >&2
    fi
}

password() { openssl rand -hex 24; }

for name in postgres-password gw-app-password gw-migrate-password s3-access-key s3-secret-key; do
    password | make "$name"
done
app=$(< gw-app-password) migrate=$(< gw-migrate-password) access=$(< s3-access-key) secret=$(< s3-secret-key)
printf 'postgresql://gw_app:%s@pgbouncer:6432/stateroom?statement_cache_size=0\n' "$app" | make database-url
printf 'postgresql://gw_migrate:%s@postgres:5432/stateroom\n' "$migrate" | make database-owner-url
printf '"gw_app" "%s"\n' "$app" | make pgbouncer-users
printf 's3://%s:%s@s3:8333/stateroom?endpoint=http&region=us-east-1\n' "$access" "$secret" | make s3-url
printf '{"identities": [{"name": "stateroom", "credentials": [{"accessKey": "%s", "secretKey": "%s"}], "actions": ["Read", "Write", "List", "Tagging"]}]}\n' \
    "$access" "$secret" | make s3-identities.json
openssl rand -hex 32 | make api-key-pepper
printf '{"format": "stateroom-root-key/1", "active": 1, "keys": {"1": "%s"}}\n' "$(openssl rand -base64 32)" | make root.key 0400
printf 'STATEROOM_DEPLOYMENT_ID=%s\n' "$(cat /proc/sys/kernel/random/uuid)" | make stateroom.env
if [[ ! -e tls.pem ]]; then
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -noenc -days 90 -subj /CN=localhost \
        -addext 'subjectAltName=DNS:localhost,IP:127.0.0.1' -keyout tls.key.new -out tls.crt.new 2> /dev/null
    cat tls.crt.new tls.key.new | make tls.pem
    make tls-ca.pem < tls.crt.new # for clients of this certificate
    rm -f -- tls.key.new tls.crt.new
fi
install -d -m 0700 -o "$uid" -g "$uid" operator
