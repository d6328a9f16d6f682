#!/bin/sh
# Shows that a llama-server answers one request differently when others run beside it.
# Needs curl and the usual tools. Against a server that you have started:
#   URL=http://127.0.0.1:8080 sh case.sh
# or let the script start one, on port ${PORT:-18080}, and end it:
#   LLAMA_SERVER=llama-server MODEL=model.gguf sh case.sh
# TRIES=20 sets the number of attempts (10), API_KEY a key of the server.
# The server's flags: -c 4096 --parallel 2 --slots --cache-ram 0 --no-kv-unified
set -u
cd "$(dirname "$0")" || exit 2
tries=${TRIES:-10}
slots=2
work=$(mktemp -d) || exit 2
server=
finish() {
    [ -n "$server" ] && kill "$server" 2>/dev/null && wait "$server" 2>/dev/null
    rm -rf "$work"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

get() { curl --noproxy '*' -sS -f -m 10 ${API_KEY:+-H "Authorization: Bearer $API_KEY"} "$@"; }

if [ -n "${LLAMA_SERVER:-}" ]; then
    port=${PORT:-18080}
    URL=http://127.0.0.1:$port
    "$LLAMA_SERVER" --model "${MODEL:?name a GGUF file}" \
        --host 127.0.0.1 --port "$port" -c 4096 --parallel 2 --slots --cache-ram 0 --no-kv-unified >"$work/log" 2>&1 &
    server=$!
    until get -o "$work/health" "$URL/health" 2>/dev/null; do
        kill -0 "$server" 2>/dev/null || { tail -n 20 "$work/log"; echo "no server"; exit 2; }
        sleep 1
    done
fi
: "${URL:?give URL of a running server, or LLAMA_SERVER and MODEL}"
if ! get "$URL/props" | grep -q '"total_slots": *'"$slots"'[,}]'; then
    echo "the server at $URL has not $slots slots, or does not say: start it with the flags above"
    exit 2
fi

ask() {
    curl --noproxy '*' -sS -o "$2" -H 'Content-Type: application/json' \
        ${API_KEY:+-H "Authorization: Bearer $API_KEY"} \
        --data-binary "@$1" "$URL/v1/chat/completions"
}
text() { grep -oE '"content": ?"([^"\\]|\\.)*"' "$1" | head -n 1; }
# One line for each generated token: its id.
entry='"id":[0-9]+,"token":"([^"\\]|\\.)*","bytes":\[[0-9,]*\],"logprob":[^,]*,"top_logprobs"'
tokens() { grep -oE "$entry" "$1" | sed -E 's/^"id":([0-9]+),.*/id \1/'; }
answer() { { text "$1"; tokens "$1"; } >"$2"; [ -s "$2" ]; }
no_answer() { echo "no answer to $1:"; head -c 600 "$2"; echo; exit 2; }
together() {
    ask requests/companion-1.json "$work/companion-1.json" &
    pid0=$!
    ask requests/target.json "$work/target.json" &
    pid1=$!
    wait "$pid0" "$pid1"
}

for n in 1 2; do
    ask requests/target.json "$work/alone.$n.json" || exit 2
    answer "$work/alone.$n.json" "$work/alone.$n" || no_answer target "$work/alone.$n.json"
done
echo "alone:      $(text "$work/alone.1.json")"
echo "alone:      $(text "$work/alone.2.json")"
cmp -s "$work/alone.1" "$work/alone.2" || { echo "the target alone has no one answer"; exit 2; }

shown=0
n=0
while [ "$n" -lt "$tries" ]; do
    n=$((n + 1))
    rm -f "$work/target.json"
    together
    [ -f "$work/target.json" ] || exit 2
    answer "$work/target.json" "$work/here" || no_answer target "$work/target.json"
    if ! cmp -s "$work/alone.1" "$work/here"; then
        shown=$((shown + 1))
        [ "$shown" -eq 1 ] || continue
        tokens "$work/alone.1.json" >"$work/a"
        tokens "$work/target.json" >"$work/b"
        at=$(cmp "$work/a" "$work/b" 2>/dev/null | sed -E 's/.*line ([0-9]+).*/\1/')
        echo "together:   $(text "$work/target.json")"
        echo "attempt $n beside 1 other request: another answer"
        if [ -n "$at" ]; then
            echo "at token $((at - 1)): $(sed -n "${at}p" "$work/a") alone," \
                "$(sed -n "${at}p" "$work/b") together"
        fi
    fi
done
echo "another answer in $shown of $n attempts (recorded: 5 of 10)"
[ "$shown" -gt 0 ]
