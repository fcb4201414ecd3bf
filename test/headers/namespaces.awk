# awk -f namespaces.awk HEADER...: every header includes what it needs before its first namespace, and opens none of its outermost
# namespaces a second time.
FNR == 1 { inside = first = 0; delete opened }
/^#include/ && first { print FILENAME ":" FNR ": it includes after the namespace of line " first; ++faults }
/^}  \/\/ namespace/ { --inside }
/^(inline )?namespace .*\{$/ {
  if (!inside++ && $0 in opened) { print FILENAME ":" FNR ": it opens this namespace again after line " opened[$0]; ++faults }
  opened[$0] = FNR
  if (!first) first = FNR
}
END {
  if (faults) exit 1
  print ARGC - 1 " headers open each namespace once, after their includes"
}
