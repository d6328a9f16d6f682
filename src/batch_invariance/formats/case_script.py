"""The shell script of a case: curl, sed, grep and cmp, nothing of this tool.

It asks the target alone twice, then in the case's company again and again, and shows both answers
where they differ. Token ids are read from the `logprobs` of the answers, which llama-server sends
on one line. `case_script_endpoint` holds the script for a server of somebody else.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping

from batch_invariance.invariance_diff.attempts import attempts_to_see
from batch_invariance.invariance_diff.case import Case, CaseShape, DivergenceKind
from batch_invariance.invariance_diff.request import build_body
from batch_invariance.invariance_diff.schedule import DispatchKind

FOLDER = "requests"
SCRIPT = r"""#!/bin/sh
# Shows that a llama-server answers one request differently when others run beside it.
# Needs curl and the usual tools. Against a server that you have started:
#   URL=http://127.0.0.1:8080 sh case.sh
# or let the script start one, on port ${PORT:-18080}, and end it:
#   LLAMA_SERVER=llama-server MODEL=model.gguf sh case.sh
# TRIES=20 sets the number of attempts (@TRIES@), API_KEY a key of the server.
# The server's flags: @FLAGS_SHOWN@
set -u
cd "$(dirname "$0")" || exit 2
tries=${TRIES:-@TRIES@}
slots=@SLOTS@
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
@ENVIRONMENT@    "$LLAMA_SERVER" --model "${MODEL:?name a GGUF file}" \
        --host 127.0.0.1 --port "$port" @FLAGS@ >"$work/log" 2>&1 &
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
# One line for each generated token: @LINE_SAYS@.
entry='"id":[0-9]+,"token":"([^"\\]|\\.)*","bytes":\[[0-9,]*\],"logprob":[^,]*,"top_logprobs"'
tokens() { grep -oE "$entry" "$1" | sed -E '@SED@'; }
answer() { { text "$1"; tokens "$1"; } >"$2"; [ -s "$2" ]; }
"""

ATTEMPTS = r"""no_answer() { echo "no answer to $1:"; head -c 600 "$2"; echo; exit 2; }
@TOGETHER@
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
        echo "attempt $n beside @N_BESIDE@: another answer"
        if [ -n "$at" ]; then
            echo "at token $((at - 1)): $(sed -n "${at}p" "$work/a") alone," \
                "$(sed -n "${at}p" "$work/b") together"
        fi
    fi
done
echo "another answer in $shown of $n attempts (recorded: @RATE@)"
[ "$shown" -gt 0 ]
"""
"""What every script ends with: the target alone twice, then attempts together, by means of `ask`,
`text`, `tokens` and `answer`. An attempt without an answer ends it: the one before is not read
again."""

SATURATED = r"""# So many requests always in flight, in this order, on whichever slot is free.
together() {
    printf '%s\n' @NAMES@ |
        xargs -P "$slots" -I{} curl --noproxy '*' -sS -o "$work/{}.json" \
            -H 'Content-Type: application/json' \
            ${API_KEY:+-H "Authorization: Bearer $API_KEY"} \
            --data-binary "@requests/{}.json" "$URL/v1/chat/completions"
}
"""


def case_script(case: Case) -> str:
    """The script's text. Its exit status is 0 when it saw another answer, 1 when it did not, 2 when
    it could not ask."""
    shape = case.shape
    beside = len(shape.companions)
    logprobs = case.expected.kind is DivergenceKind.LOGPROB
    flags = shlex.join(case.ran.words)
    environment = "".join(
        f"    export {shlex.quote(f'{name}={value}')}\n"
        for name, value in case.cell.environment.items()
    )
    values = {
        "TRIES": str(max(case.rate.n, attempts_to_see(case.rate.cautious))),
        "SLOTS": str(shape.lanes),
        "FLAGS_SHOWN": flags.replace("\n", " "),
        "FLAGS": flags,
        "ENVIRONMENT": environment,
        "LINE_SAYS": "its id and logprob" if logprobs else "its id",
        "SED": (
            's/^"id":([0-9]+),.*"logprob":([^,]*),"top_logprobs"$/id \\1 logprob \\2/'
            if logprobs
            else 's/^"id":([0-9]+),.*/id \\1/'
        ),
        "TOGETHER": together(shape, SATURATED),
        "N_BESIDE": f"{beside} other request{'' if beside == 1 else 's'}",
        "RATE": str(case.rate),
    }
    return filled_in(SCRIPT + ATTEMPTS, values)


def filled_in(template: str, values: Mapping[str, str]) -> str:
    """The template with `@NAME@` replaced, in one go, so that what stands in a value is never taken
    for a place to fill in."""
    return re.sub(r"@([A-Z_]+)@", lambda found: values[found[1]], template)


def request_files(case: Case) -> dict[str, bytes]:
    """The bodies by file name: what is sent, to the byte, with the slot where it is pinned."""
    files = {}
    for name, request in zip(case.shape.names, case.shape.requests, strict=True):
        body = build_body(request.item, case.sampling)
        data = body.data if request.lane is None else body.for_slot(request.lane)
        files[f"{FOLDER}/{name}.json"] = data
    return files


def together(shape: CaseShape, saturated: str) -> str:
    """The shell function that sends the schedule once; `saturated` is that of a saturated one."""
    names = shape.names
    if shape.kind is DispatchKind.SATURATE:
        return saturated.replace("@NAMES@", " ".join(names))
    lines = ["together() {"]
    for group in shape.schedule().groups:
        pids: list[str] = []
        for index in group:
            name, delay = names[index], shape.requests[index].delay_ms
            ask = f'ask requests/{name}.json "$work/{name}.json"'
            lines.append(f"    {{ sleep {delay / 1000:g}; {ask}; }} &" if delay else f"    {ask} &")
            pids.append(f"pid{len(pids)}")
            lines.append(f"    {pids[-1]}=$!")
        lines.append("    wait " + " ".join(f'"${pid}"' for pid in pids))
    return "\n".join([*lines, "}"]) + "\n"
