# Prints the places in comments and Markdown that use a word or phrase of the style's list (CONTRIBUTING.md), and Markdown
# lines over 100 columns outside of tables and code. Fails if there are any. usage: LC_ALL=C awk -f prose.awk FILE...

# Words of the list that are terms of the field in some files.
function is_term(word) {
    # The lanes of an InfiniBand or Ethernet link.
    return word ~ /^lanes?$/ && FILENAME ~ /(src\/verbs|api\/query)\/port\.rs$/
}

BEGIN {
    banned = "told|tells?|telling|in vain|as (it|they) (is|are)|so that|of which|of (its|their) own|where that is so|" \
        "it is so|whoever|whatever|elsewhere|owed|gone|lanes?"
}

function report(what) {
    printf "%s:%d: %s\n", FILENAME, FNR, what
    found++
}

FNR == 1 {
    fenced = 0
    markdown = FILENAME ~ /\.md$/
    mark = FILENAME ~ /\.(rs|c|h)$/ ? "(^|[^:\"])//" : "(^|[ \t])#"
}
markdown && /^ *```/ { fenced = !fenced; next }
markdown && (fenced || /^    /) { next }
markdown && !/^\|/ {
    line = $0
    # Bytes that continue a character are no column.
    gsub(/[\200-\277]/, "", line)
    if (length(line) > 100) report(length(line) " columns")
}
{
    text = $0
    gsub(/`[^`]*`/, "", text)
}
!markdown {
    if (!match(text, mark)) next
    text = substr(text, RSTART)
}
{
    text = " " tolower(text) " "
    while (match(text, "[^a-z](" banned ")[^a-z]")) {
        word = substr(text, RSTART + 1, RLENGTH - 2)
        if (!is_term(word)) report("\"" word "\"")
        text = substr(text, RSTART + RLENGTH - 1)
    }
}
END {
    if (found) printf "%d places\n", found
    exit found > 0
}
