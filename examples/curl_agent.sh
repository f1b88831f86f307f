#!/usr/bin/env bash
# The whole story through curl: save, load, patch, lose a race, fork, and be nobody to somebody else.
#   set -a; . .stateroom/env; set +a
#   examples/curl_agent.sh [THREAD]
set -euo pipefail
: "${STATEROOM_URL:?set it, for example with: set -a; . .stateroom/env; set +a}" "${STATEROOM_API_KEY:?}"
thread=${1:-trip-$$}
answer=$(mktemp)
trap 'rm -f "$answer"' EXIT

# call STATUS METHOD PATH [curl options]: sends a request, and fails unless the status is as expected.
call() {
    local expected=$1 method=$2 path=$3 status
    shift 3
    # The key goes in through a file descriptor: arguments can be read by other users of the machine.
    status=$(curl --silent --show-error --output "$answer" --write-out '%{http_code}' --request "$method" \
        --config <(printf 'header = "Authorization: Bearer %s"\n' "$STATEROOM_API_KEY") \
        --header "Stateroom-Subject: ${subject:-user-42}" --header 'Content-Type: application/json' \
        "$@" "$STATEROOM_URL/v1$path")
    echo "$method $path -> $status"
    [ "$status" = "$expected" ] || { cat "$answer" >&2; exit 1; }
}
id() { sed -n 's/.*"checkpoint_id":"\([^"]*\)".*/\1/p' "$answer"; }
holds() { grep -qF "$1" "$answer" || { echo "expected $1 in:" >&2; cat "$answer" >&2; exit 1; }; }

# The first save creates the thread; If-None-Match says that it must be new.
call 201 POST "/threads/$thread/checkpoints" --header 'If-None-Match: *' \
    --data '{"state": {"plan": ["flight", "hotel"], "done": []}, "agent": "curl"}'
first=$(id)

# Only what changes is sent: an element is appended, the rest stays. If-Match names what the change is based on.
call 201 POST "/threads/$thread/checkpoints" --header "If-Match: \"$first\"" \
    --data '{"changes": {"append": {"done": ["flight"]}}}'
second=$(id)

call 200 GET "/threads/$thread/checkpoints/latest"
holds '"done":["flight"]'

# Somebody who saw only the first checkpoint is told so, with the head that is there now.
call 412 POST "/threads/$thread/checkpoints" --header "If-Match: \"$first\"" \
    --data '{"changes": {"append": {"done": ["hotel"]}}}'
holds "\"head_id\":\"$second\""

# A save may be repeated when its answer was lost: the same id with the same content is the same checkpoint.
again='{"checkpoint_id": "1f0e0000-0000-6000-8000-000000000000", "namespace": "notes", "state": {"note": "window seat"}}'
call 201 POST "/threads/$thread/checkpoints" --data "$again"
call 200 POST "/threads/$thread/checkpoints" --data "$again"
call 409 POST "/threads/$thread/checkpoints" --data "${again/window/aisle}"

# Another future from the first checkpoint; the second one stays as it is.
call 201 POST "/threads/$thread/checkpoints" \
    --data "{\"parent_id\": \"$first\", \"fork\": true, \"state\": {\"plan\": [\"train\"], \"done\": [\"train\"]}, \"status\": \"done\"}"
call 200 GET "/threads/$thread/checkpoints/$second"
holds '"done":["flight"]'
call 200 GET "/threads/$thread/checkpoints?status=done"
holds "\"parent_id\":\"$first\""

# For another user of the same tenant there is no such thread.
subject=user-43 call 404 GET "/threads/$thread/checkpoints/latest"

call 204 DELETE "/threads/$thread"
call 404 GET "/threads/$thread"
