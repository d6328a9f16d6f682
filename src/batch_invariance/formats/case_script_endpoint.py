"""The shell script of a case on a server that somebody else runs; see `case_script`.

It launches nothing. The key goes to curl as a line of its configuration on standard input, so that
no list of processes shows it. Tokens are read from the `logprobs` of the answers, by id or by their
spelling, whichever the server sends; where it sends none, texts are compared.
"""

from __future__ import annotations

import shlex

from batch_invariance.formats.case_script import ATTEMPTS, FOLDER, filled_in, together
from batch_invariance.invariance_diff.attempts import attempts_to_see
from batch_invariance.invariance_diff.case import Case, DivergenceKind

SCRIPT = r"""#!/bin/sh
# Shows that a server answers one request differently when others run beside it.
# Needs curl and the usual tools, and a server that runs; it starts and stops none:
#   URL=https://host:port sh case.sh
# MODEL is the model's name in the requests (@MODEL_SHOWN@), API_KEY a key of the server,
# TRIES the number of attempts (@TRIES@).
set -u
cd "$(dirname "$0")" || exit 2
: "${URL:?give URL of a running server, such as http://127.0.0.1:8000}"
URL=${URL%/}
URL=${URL%/v1}
model=${MODEL:-@MODEL@}
tries=${TRIES:-@TRIES@}
slots=@SLOTS@
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM HUP

case $model in
*[\"\\]*)
    echo "MODEL: a name without quotes and backslashes"
    exit 2
    ;;
esac
mkdir "$work/@FOLDER@" || exit 2
name=$(printf '%s' "$model" | sed 's/[&#]/\\&/g')
for file in @FOLDER@/*.json; do
    sed -E 's#"model":"([^"\\]|\\.)*"#"model":"'"$name"'"#' "$file" >"$work/$file" || exit 2
done

# What curl reads on its standard input, where nobody else sees it.
config=
case $URL in
http://127.0.0.1[:/]* | http://localhost[:/]* | 'http://[::1]'*) config='noproxy = "*"' ;;
esac
if [ -n "${API_KEY:-}" ]; then
    key=$(printf '%s' "$API_KEY" | sed 's/[\\"]/\\&/g')
    config="$config
header = \"Authorization: Bearer $key\""
fi
unset API_KEY

ask() {
    printf '%s\n' "$config" | curl -K - -sS -o "$2" -H 'Content-Type: application/json' \
        --data-binary "@$work/$1" "$URL/v1/chat/completions"
}
text() { tr '\n' ' ' <"$1" | grep -oE '"content": *"([^"\\]|\\.)*"' | head -n 1; }
# One line for each generated token: @LINE_SAYS@.
entry='("id": *[0-9]+, *)?"token": *"([^"\\]|\\.)*"[^{}]*"top_logprobs"'
tokens() { tr '\n' ' ' <"$1" | grep -oE "$entry" | sed -E '@SED@'; }
answer() { { text "$1"; tokens "$1"; } >"$2"; [ -s "$2" ]; }
"""

SATURATED = r"""# So many requests always in flight, in this order.
export config work URL
together() {
    printf '%s\n' @NAMES@ | xargs -P "$slots" -I{} sh -c 'printf "%s\n" "$config" |
        curl -K - -sS -o "$work/$1.json" -H "Content-Type: application/json" \
            --data-binary "@$work/requests/$1.json" "$URL/v1/chat/completions"' sh {}
}
"""
TOKEN = r'(("id": *[0-9]+, *)?"token": *"([^"\\]|\\.)*")'


def endpoint_script(case: Case) -> str:
    """The script's text. Its exit status is 0 when it saw another answer, 1 when it did not, 2 when
    it could not ask."""
    shape, dialect = case.shape, case.sampling.dialect
    beside = len(shape.companions)
    logprobs = case.expected.kind is DivergenceKind.LOGPROB
    model = "" if dialect is None else dialect.model
    values = {
        "FOLDER": FOLDER,
        "MODEL": shlex.quote(model),
        "MODEL_SHOWN": "".join(c for c in model if c.isprintable()),
        "TRIES": str(max(case.rate.n, attempts_to_see(case.rate.cautious))),
        "SLOTS": str(shape.lanes),
        "LINE_SAYS": "what it is and its logprob" if logprobs else "what it is",
        "SED": (
            rf's/^{TOKEN}.*"logprob": *([-+.0-9eE]+).*/\1 logprob \4/'
            if logprobs
            else rf"s/^{TOKEN}.*/\1/"
        ),
        "TOGETHER": together(shape, SATURATED),
        "N_BESIDE": f"{beside} other request{'' if beside == 1 else 's'}",
        "RATE": str(case.rate),
    }
    return filled_in(SCRIPT + ATTEMPTS, values)
