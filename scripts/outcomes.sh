#!/usr/bin/env bash
# What tests of others gave, a file for each run: lines "RESULT SECONDS TEST", where the result is pass, fail,
# absent (what is tested says that it lacks something) or excluded (left out by a list of ours).
#
#   scripts/outcomes.sh table FILE...           a table with a column for each run, named after its file
#   scripts/outcomes.sh column TABLE NAME       that column of such a table, as such lines
#   scripts/outcomes.sh compare BASELINE FILE   fails, and says why, if the file has something worse than the
#                                               baseline: what passes there has to pass, and what fails has to
#                                               fail there. Ends with the line "N passed, N failed"
set -euo pipefail

table() {
    awk '
        FNR == 1 {
            run = FILENAME
            gsub(/.*\//, "", run)
            runs[++columns] = run
        }
        {
            result = $1
            sub(/^[^ ]+ [^ ]+ /, "")
            results[$0, run] = result
            if (result != "excluded" && !($0 in known)) {
                known[$0]
                tests[++rows] = $0
            }
            total[run, result]++
        }
        END {
            printf "| test |"
            for (c = 1; c <= columns; c++) printf " %s |", runs[c]
            printf "\n|---|"
            for (c = 1; c <= columns; c++) printf "---|"
            print ""
            for (t = 1; t <= rows; t++) {
                printf "| `%s` |", tests[t]
                for (c = 1; c <= columns; c++) printf " %s |", results[tests[t], runs[c]]
                print ""
            }
            printf "| passed |"
            for (c = 1; c <= columns; c++)
                printf " %d of %d |", total[runs[c], "pass"],
                    total[runs[c], "pass"] + total[runs[c], "fail"] + total[runs[c], "absent"]
            print ""
        }
    ' "$@"
}

column() {
    awk -F ' *[|] *' -v name="$2" '
        $2 == "test" {
            at = 0
            for (i = 3; i < NF; i++) if ($i == name) at = i
        }
        at && $2 ~ /^`/ && $at != "" {
            print $at, 0, substr($2, 2, length($2) - 2)
            found++
        }
        END { exit !found }
    ' "$1" || { echo "error: $1 has nothing of $2" >&2; return 1; }
}

compare() {
    [[ -s $1 ]] || { echo "error: $1 is empty" >&2; return 1; }
    awk '
        { result = $1; sub(/^[^ ]+ [^ ]+ /, "") }
        NR == FNR { baseline[$0] = result; next }
        { ran[$0] = result }
        result == "pass" { passed++ }
        result == "fail" && baseline[$0] != "fail" && baseline[$0] != "pass" {
            printf "FAILED %s, which is new\n", $0
            failed++
        }
        END {
            for (test in baseline) if (baseline[test] == "pass" && ran[test] != "pass") {
                printf "FAILED %s: %s\n", test, ran[test] ? ran[test] : "not run"
                failed++
            }
            printf "%d passed, %d failed\n", passed, failed
            exit failed > 0
        }
    ' "$1" "$2"
}

case ${1-} in
    table | column | compare) "$@" ;;
    *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac
