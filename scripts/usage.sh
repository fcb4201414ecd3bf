# shellcheck shell=bash
# usage.sh: the other scripts source it first, with their arguments. With -h or --help, a script prints the comment at its top and ends.
about() { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; }
# Ends a script that has been called wrongly.
usage() {
  about >&2
  exit 2
}
case "${1:-}" in
  -h | --help)
    about
    exit
    ;;
esac
