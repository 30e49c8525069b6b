#!/bin/bash
# A client program (docs/client-protocol.md) that needs nothing but bash: a lock on the first server, which is a Redis.
# `--without-nx` plants a bug: an attempt takes the lock of its holder away. `--forgets` plants another one: the program
# knows only its last attempt.
bug=$1
last=
nx="'nx',"
[ "$1" = --without-nx ] && nx=
acquire="if redis.call('set',KEYS[1],ARGV[1],${nx}'px',ARGV[2]) then return redis.call('incr','fence:'..KEYS[1]) end return 0"
owns="if redis.call('get',KEYS[1])==ARGV[1] then return redis.call("
renew="${owns}'pexpire',KEYS[1],ARGV[2]) end return 0"
release="${owns}'del',KEYS[1]) end return 0"
is_open=

field() { # a field of the request, a text or a number
    local rest=${line#*\""$1"\":}
    rest=${rest#\"}
    value=${rest%%[\",\}]*}
}

say() { printf '{"id":%s,%s}\n' "$id" "$1"; }

# Runs a script with the key and two arguments; its number is in `value`.
run() {
    if [ -z "$is_open" ]; then
        { exec 3<>"/dev/tcp/$host/$port"; } 2>/dev/null || { say '"ok":false,"error":"refused"'; return 1; }
        is_open=1
    fi
    local word command="*6"$'\r\n'
    for word in EVAL "$1" 1 "$2" "$3" "$4"; do command+="\$${#word}"$'\r\n'"$word"$'\r\n'; done
    value=
    if printf %s "$command" >&3 2>/dev/null && read -r -t "$patience" value <&3 && [[ $value == :* ]]; then
        value=${value%$'\r'}
        value=${value#:}
        return 0
    fi
    # A late answer must not be taken for the next one.
    exec 3>&- 3<&-
    is_open=
    say '"ok":false,"error":"timeout"'
    return 1
}

while read -r line; do
    field id; id=$value
    field op; op=$value
    field key; key=$value
    field owner; owner=$value
    field lease_ms; lease=$value
    case $op in
    init)
        field host; host=$value
        field port; port=$value
        patience=$((lease / 4000)).$(printf %03d $((lease / 4 % 1000)))
        say '"ok":true' ;;
    acquire)
        last=$owner
        run "$acquire" "$key" "$owner" "$lease" || continue
        if [ "$value" != 0 ]; then say "\"ok\":true,\"token\":$value"; else say '"ok":false,"error":"held"'; fi ;;
    renew | release | cancel)
        if [ "$bug" = --forgets ] && [ "$owner" != "$last" ]; then
            say '"ok":false,"error":"lost"'
            continue
        fi
        if [ "$op" = renew ]; then script=$renew; else script=$release; fi
        run "$script" "$key" "$owner" "$lease" || continue
        if [ "$value" = 1 ]; then say '"ok":true'; else say '"ok":false,"error":"lost"'; fi ;;
    *) say '"ok":false,"error":"unsupported"' ;;
    esac
done
