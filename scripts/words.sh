# To be sourced: the messages of a script, and what it needs of the user's cache.
cache=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/nccl-net-mpib

# Prints a line on stderr, after the script's name.
say() {
    local name=${0##*/}
    echo "${name%.sh}: $*" >&2
}

fail() {
    say "$*"
    exit 1
}

# Announces an installation. With SETUP=no it fails instead.
installs() { # WHAT_IS_MISSING WHAT_IS_DONE
    [ "${SETUP:-}" != no ] || fail "$1 is missing, and SETUP=no prevents the installation"
    say "$2. SETUP=no prevents this."
}
