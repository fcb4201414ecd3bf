#!/usr/bin/env bash
# errors.sh ROOT: every piece of an error that docs/errors.md quotes below "convoy says" is in the headers.
set -euo pipefail
cd "$1"
# One line, in which a literal that goes on after a line break or a value is one text with a bar at each value.
sources=$(find include -name '*.hpp' -exec cat {} + | tr '\n' ' ' | sed -E 's/"[[:space:]]*"//g')
quoted=$(awk '/^\| convoy says / { on = 1; next } !/^\|/ { on = 0 } on' docs/errors.md | sed 's/^| //; s/ | .*//' |
  grep -oE '`[^`]+`' | tr -d '`' | sed 's/ \.\.\..*//')
[ -n "$quoted" ] || { echo "docs/errors.md quotes nothing" >&2; exit 1; }
missing=0
while IFS= read -r piece; do
  grep -qF -- "$piece" <<<"$sources" || { echo "docs/errors.md quotes '$piece', which no header says" >&2; missing=1; }
done <<<"$quoted"
[ $missing -eq 0 ] && echo "every error that docs/errors.md quotes can be raised"
exit $missing
