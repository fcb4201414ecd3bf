# awk -f chains.awk -v tested="HEADER ..." -v bases="HEADER ..." ALL_HEADERS: how to compile each tested header alone without reading
# what it includes again and again. Prints lines `BASE HEADER ...`: the headers, each of which includes the one before it, follow one
# another in one source on top of BASE, which is `-` or a header that all of them include. Whatever lies before a header in that
# source is part of the header, and an include that the header lacks is missing there too.
/^# *include <convoy\// {
  split($0, parts, /[<>]/)
  includes[FILENAME] = includes[FILENAME] " " parts[2]
}
{ lines[FILENAME] = FNR }

# Lists what a header includes, itself too, in all[header], sums its lines in size[header].
function close_over(header, n, direct, i, m, far, j) {
  if (header in all) return
  all[header] = header
  has[header, header] = 1
  size[header] = lines[header]
  n = split(includes[header], direct, " ")
  for (i = 1; i <= n; ++i) {
    close_over(direct[i])
    m = split(all[direct[i]], far, " ")
    for (j = 1; j <= m; ++j)
      if (!((header, far[j]) in has)) {
        has[header, far[j]] = 1
        all[header] = all[header] " " far[j]
        size[header] += lines[far[j]]
      }
  }
}

# The longest of the headers `of` that is still to test on this base, or nothing.
function longest_open(of, base, n, names, i, best) {
  n = split(of, names, " ")
  best = ""
  for (i = 1; i <= n; ++i)
    if (names[i] in open && base_of[names[i]] == base && (best == "" || size[names[i]] > size[best])) best = names[i]
  return best
}

END {
  nb = split(bases, base, " ")
  nt = split(tested, header, " ")
  base[0] = "-"
  for (i = 1; i <= nb; ++i) {
    close_over(base[i])
    is_base[base[i]] = 1
  }
  for (i = 1; i <= nt; ++i) {
    h = header[i]
    close_over(h)
    if (h in is_base) continue  # compiled alone when it is precompiled
    base_of[h] = "-"
    for (j = 1; j <= nb; ++j)
      if ((h, base[j]) in has && (base_of[h] == "-" || size[base[j]] > size[base_of[h]])) base_of[h] = base[j]
    open[h] = 1
  }
  for (b = 0; b <= nb; ++b)
    while ((h = longest_open(tested, base[b])) != "") {
      chain = ""
      do {
        delete open[h]
        chain = " " h chain
      } while ((h = longest_open(all[h], base[b])) != "")
      print base[b] chain
    }
}
