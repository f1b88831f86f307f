# shellcheck shell=bash
# The WAL archive, a folder or a bucket, and what the scripts beside this file share. It is sourced, never run.
#
# STATEROOM_WAL_ARCHIVE says where the archive is; where it is not set, /etc/stateroom/backup.env (or the file that
# STATEROOM_BACKUP_SETTINGS names) is read first:
#   /srv/stateroom/wal                                            a folder, on another machine's disk
#   s3://BUCKET/PREFIX?region=REGION[&endpoint=https://HOST]      a bucket, with AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY
# A file is kept as NAME.gz, is never overwritten, and is durable before `archive_put` returns.

failed=1 # what a script that dies exits with

die() {
    printf '%s: %s\n' "${0##*/}" "$*" >&2
    exit "$failed"
}

# Prints the comment at the head of the script.
help() {
    sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"
    exit 0
}

# `value OPTION "$@"`: the value that follows an option.
value() {
    [[ $# -ge 3 ]] || die "$1 needs a value"
    printf '%s' "$3"
}

read_settings() {
    local file=${STATEROOM_BACKUP_SETTINGS:-/etc/stateroom/backup.env}
    if [[ -z ${STATEROOM_WAL_ARCHIVE:-} && -r $file ]]; then
        set -a
        # shellcheck disable=SC1090 # the operator's
        . "$file"
        set +a
    fi
    [[ -n ${STATEROOM_WAL_ARCHIVE:-} ]] || die "STATEROOM_WAL_ARCHIVE is not set, nor is it in $file"
    # It becomes part of a command in PostgreSQL's configuration.
    [[ $STATEROOM_WAL_ARCHIVE =~ ^[A-Za-z0-9_./:?=\&-]+$ ]] || die "STATEROOM_WAL_ARCHIVE has characters other than letters, digits and _./:?=&-"
    case $STATEROOM_WAL_ARCHIVE in
        s3://*) read_bucket ;;
        /*) [[ -d $STATEROOM_WAL_ARCHIVE ]] || die "the archive $STATEROOM_WAL_ARCHIVE is no folder; is it mounted?" ;;
        *) die "STATEROOM_WAL_ARCHIVE is neither a folder's full path nor s3://BUCKET/PREFIX?region=REGION" ;;
    esac
}

in_bucket() { [[ $STATEROOM_WAL_ARCHIVE == s3://* ]]; }

read_bucket() {
    local path=${STATEROOM_WAL_ARCHIVE#s3://} query='' endpoint='' option bucket
    if [[ $path == *\?* ]]; then query=${path#*\?} path=${path%%\?*}; fi
    s3_region=us-east-1
    for option in ${query//&/ }; do
        case $option in
            region=*) s3_region=${option#region=} ;;
            endpoint=http://* | endpoint=https://*) endpoint=${option#endpoint=} ;;
            *) die "the bucket's URL takes region=REGION and endpoint=https://HOST, not $option" ;;
        esac
    done
    bucket=${path%%/*}
    s3_prefix=${path#"$bucket"}
    s3_prefix=${s3_prefix#/}
    s3_prefix=${s3_prefix%/}${s3_prefix:+/}
    if [[ -n $endpoint ]]; then s3_url=${endpoint%/}/$bucket; else s3_url=https://$bucket.s3.$s3_region.amazonaws.com; fi
    [[ -n ${AWS_ACCESS_KEY_ID:-} && -n ${AWS_SECRET_ACCESS_KEY:-} ]] || die "a bucket needs AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
}

# `s3 OUTPUT URL [curl's options]`: one signed request; its status is printed. Credentials reach curl through its input.
s3() {
    local output=$1 url=$2
    shift 2
    {
        printf 'user = "%s:%s"\naws-sigv4 = "aws:amz:%s:s3"\n' "$AWS_ACCESS_KEY_ID" "$AWS_SECRET_ACCESS_KEY" "$s3_region"
        if [[ -n ${AWS_SESSION_TOKEN:-} ]]; then printf 'header = "x-amz-security-token: %s"\n' "$AWS_SESSION_TOKEN"; fi
    } | curl --config - --silent --show-error --max-time 300 --output "$output" --write-out '%{http_code}' "$@" "$url"
}

# `archive_put FILE NAME`: keep a file under a name; the same again is well, another one under that name is refused.
archive_put() {
    local file=$1 name=$2 packed there status
    if in_bucket; then
        packed=$(mktemp) there=$(mktemp)
        # shellcheck disable=SC2064 # the names of now
        trap "rm -f '$packed' '$there'" EXIT
        gzip --no-name --stdout "$file" >"$packed"
        status=$(s3 "$there" "$s3_url/$s3_prefix$name.gz" --upload-file "$packed" --header 'If-None-Match: *' \
            --header "x-amz-content-sha256: $(sha256sum "$packed" | cut -d ' ' -f 1)") || die "$name: the bucket does not answer"
        case $status in
            200) ;;
            412)
                archive_get "$name" "$there" || die "$name: what the archive has cannot be read"
                cmp --silent "$file" "$there" || die "$name is in the archive already, with other content"
                ;;
            *) die "$name: the bucket answers $status" ;;
        esac
        return
    fi
    packed=$(mktemp "$STATEROOM_WAL_ARCHIVE/.$name.XXXXXX")
    # shellcheck disable=SC2064
    trap "rm -f '$packed'" EXIT
    there=$STATEROOM_WAL_ARCHIVE/$name.gz
    if [[ ! -e $there ]]; then
        gzip --no-name --stdout "$file" >"$packed"
        chmod 0640 "$packed"
        sync "$packed"
        # A link is made whole or not at all, and never over another file.
        ln "$packed" "$there" 2>/dev/null || [[ -e $there ]] || die "$name: cannot link into the archive"
    fi
    gzip --decompress --stdout "$there" 2>/dev/null | cmp --silent - "$file" || die "$name is in the archive already, with other content"
    sync "$there" "$STATEROOM_WAL_ARCHIVE"
}

# `archive_get NAME FILE`: returns 1 where the archive has no such file, 2 where it is damaged.
archive_get() {
    local name=$1 file=$2 packed status
    if in_bucket; then
        packed=$file.gz
        status=$(s3 "$packed" "$s3_url/$s3_prefix$name.gz") || die "$name: the bucket does not answer"
        case $status in
            200) ;;
            404) rm -f "$packed" && return 1 ;;
            *) die "$name: the bucket answers $status" ;;
        esac
        gzip --decompress --stdout "$packed" >"$file" || return 2
        rm -f "$packed"
        return
    fi
    packed=$STATEROOM_WAL_ARCHIVE/$name.gz
    [[ -e $packed ]] || return 1
    gzip --decompress --stdout "$packed" >"$file" || return 2
}

# The names in the archive, sorted, without .gz.
archive_names() {
    if in_bucket; then
        local page after='' names status
        page=$(mktemp)
        while true; do
            status=$(s3 "$page" "$s3_url?list-type=2&prefix=${s3_prefix//\//%2F}${after:+&start-after=${after//\//%2F}}") || die "the bucket does not answer"
            [[ $status == 200 ]] || die "the bucket answers $status to a listing"
            names=$(grep --only-matching '<Key>[^<]*</Key>' "$page" | sed 's/<[^>]*>//g') || break
            sed --quiet "s#^$s3_prefix\([0-9A-F][^/]*\)\.gz\$#\1#p" <<<"$names"
            grep --quiet '<IsTruncated>true' "$page" || break
            after=$(tail --lines=1 <<<"$names")
        done
        rm -f "$page"
        return
    fi
    find "$STATEROOM_WAL_ARCHIVE" -maxdepth 1 -name '[0-9A-F]*.gz' -printf '%f\n' | sed 's/\.gz$//' | LC_ALL=C sort
}
