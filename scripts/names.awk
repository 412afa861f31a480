# Prints the places in Rust where an identifier or a string has a word of the style's list
# (CONTRIBUTING.md). Fails if there are any. usage: LC_ALL=C awk -f names.awk FILE...
# prose.awk reads comments.

BEGIN { banned = "told|tells|whoever|whatever|gone|anew" }
{
    text = $0
    # Comments, unless the slashes are inside a string, as in an address.
    sub(/(^|[^:"])\/\/.*/, "", text)
    # CamelCase has its words apart.
    gsub(/[A-Z]/, " &", text)
    text = " " tolower(text) " "
    while (match(text, "[^a-z](" banned ")[^a-z]")) {
        printf "%s:%d: \"%s\" in a name or a string\n", FILENAME, FNR, substr(text, RSTART + 1, RLENGTH - 2)
        found++
        text = substr(text, RSTART + RLENGTH - 1)
    }
}
END {
    if (found) printf "%d places\n", found
    exit found > 0
}
