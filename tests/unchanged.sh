#!/usr/bin/env bash
# A check that its program alone decides (no clock, no chance, no file) is not run again while that program is the one
# that has passed: as the models are not searched again, nor a caught mutant.
#
#   tests/unchanged.sh PROGRAM [ARGUMENT...]    the arguments, and the libraries and mutants beside PROGRAM, count too
#
# A stamp lies beside the program, so that a fresh clone runs everything; `rm build/*/tests/*.passed` forgets them all.
set -uo pipefail

program=$1 folder=$(dirname "$1") name=$(basename "$1")
stamp=$folder/$name$(printf -- '-%s' "${@:2}").passed
libraries=$(ldd "$program") || exit
files=("$program")
mapfile -t -O 1 files < <(grep -oE '/[^ ]+' <<<"$libraries")
# The whole-process harness starts a program and loads a library a mutant.
if grep -q libcrash_code <<<"$libraries"; then
    files+=("$folder"/crash_mutant_* "$folder"/libcrash_code_*)
fi
sum=$(sha256sum "${files[@]}" | cut -d' ' -f1 | sha256sum)
if [ "$(cat "$stamp" 2>/dev/null)" = "$sum" ]; then
    echo "unchanged since it passed on $(date -r "$stamp" '+%F %T'): not run again"
    exit 0
fi
"$@" || exit
echo "$sum" >"$stamp"
