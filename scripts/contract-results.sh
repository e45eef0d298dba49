#!/usr/bin/env bash
# Makes the table "line of the contract, test, result" out of what runs of the conformance program
# printed, one column a run, named after its log:
#
#   scripts/contract-results.sh LOG... >FILE      (FOLDER/contract-NAME.log)
set -euo pipefail

cat <<'END'
# Contract results

Made by `scripts/test.sh` from what the conformance program printed. Each line of the contract that
fi_rstream(7) gives has its test in `ffi-tests/conformance`, and each column is one run of all of them through
stock libfabric.
END
awk '
    FNR == 1 {
        run = FILENAME
        gsub(/.*contract-|\.log$/, "", run)
        runs[++columns] = run
    }
    /^== / { section = substr($0, 4); next }
    /^(ok|skipped|FAILED) .* - / {
        result = $1
        test = $2
        line = substr($0, index($0, " - ") + 3)
        key = section "/" test
        if (!(key in lines)) {
            order[++tests] = key
            lines[key] = line
            sections[key] = section
            names[key] = test
        }
        results[key, run] = result
        total[run, result]++
    }
    END {
        for (t = 1; t <= tests; t++) {
            key = order[t]
            if (sections[key] != last) {
                last = sections[key]
                printf "\n## %s\n\n| line of the contract | test |", toupper(substr(last, 1, 1)) substr(last, 2)
                for (c = 1; c <= columns; c++) printf " %s |", runs[c]
                printf "\n|---|---|"
                for (c = 1; c <= columns; c++) printf "---|"
                print ""
            }
            printf "| %s | `%s` |", lines[key], names[key]
            for (c = 1; c <= columns; c++) {
                result = results[key, runs[c]]
                printf " %s |", result == "" ? "not run" : result
            }
            print ""
        }
        printf "\n## Sums\n\n| run | ok | failed | skipped |\n|---|---|---|---|\n"
        for (c = 1; c <= columns; c++) {
            run = runs[c]
            printf "| %s | %d | %d | %d |\n", run, total[run, "ok"], total[run, "FAILED"], total[run, "skipped"]
        }
    }
' "$@"
