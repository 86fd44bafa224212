#!/bin/bash
# mutants.sh NAME:CHECKER:COMMAND...: runs each and prints a table. A mutant must fail its checker (exit status 1, or
# ThreadSanitizer's 66); "none" must pass. The exit status says whether all of that held. A mutant whose program is the one
# that was caught before is not run again: beside each program lies the checksum of what was caught.
survivors=0
printf '%-26s %-10s %-8s %s\n' mutant checker result 'first finding'
for entry in "$@"; do
    name=${entry%%:*} rest=${entry#*:}
    checker=${rest%%:*} command=${rest#*:}
    program=${command%% *} sum=$(sha256sum <"${command%% *}")
    if [[ $name != none_* && "$(cat "$program.caught" 2>/dev/null)" == "$sum $command" ]]; then
        printf '%-26s %-10s %-8s %s\n' "$name" "$checker" caught '(before; the program is unchanged)'
        continue
    fi
    # Unquoted: the command and its arguments. ThreadSanitizer stops at its first finding.
    output=$(TSAN_OPTIONS="halt_on_error=1 exitcode=66" timeout 1000 $command 2>&1)
    status=$?
    finding=$(grep -m1 -E 'FAILED|instruction [0-9]+:|SUMMARY: ThreadSanitizer' <<<"$output" | cut -c1-110)
    if [[ $name == none_* ]]; then
        [[ $status == 0 ]] && result=passes || result=FAILS
    else
        [[ $status == 1 || $status == 66 ]] && result=caught || result=SURVIVES
    fi
    [[ $result == caught ]] && echo "$sum $command" >"$program.caught"
    [[ $result == passes || $result == caught ]] || survivors=$((survivors + 1))
    printf '%-26s %-10s %-8s %s\n' "$name" "$checker" "$result" "${finding#"${finding%%[![:space:]]*}"}"
done
echo "$survivors of $# did not do as they must"
exit $((survivors > 0))
