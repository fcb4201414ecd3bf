# awk -f std.awk std.txt HEADER...: every header itself includes the standard headers of the names in std:: that it uses. std.txt
# lists these names.
FNR == NR {
  if ($1 != "#") for (i = 2; i <= NF; ++i) from[$i] = from[$i] " " $1
  next
}
FNR == 1 { finish(); file = FILENAME }
/^#include </ { split($2, part, /[<>]/); included[part[2]] = 1 }
{
  sub(/\/\/.*/, "")
  while (match($0, /std::[a-z_0-9]+/)) {
    named[substr($0, RSTART + 5, RLENGTH - 5)] = 1
    $0 = substr($0, RSTART + RLENGTH)
  }
}
function finish(    name, n, i, headers, found) {
  for (name in named) {
    n = split(from[name], headers, " ")
    found = n == 0
    for (i = 1; i <= n; ++i) found = found || headers[i] in included
    if (!found) { print file " names std::" name " and does not include <" headers[1] ">"; ++missing }
  }
  delete named
  delete included
}
END {
  finish()
  if (missing) exit 1
  print ARGC - 2 " headers include what of the standard library they name"
}
