# To be sourced: the messages of a script, its installations, and the user's cache.
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

# Prints a field of [workspace.package], or the first item of a list there.
workspace_field() { # NAME
    sed -n "/^\[workspace.package\]/,/^$/s/^$1 = \[*\"\([^\"]*\)\".*/\1/p" Cargo.toml
}

# Announces an installation. With SETUP=no it fails instead.
installs() { # WHAT_IS_MISSING WHAT_IS_DONE
    [ "${SETUP:-}" != no ] || fail "$1 is missing, and SETUP=no prevents the installation"
    say "$2. SETUP=no prevents this."
}

# Installs a command of cargo that is missing. Not optimized: its build takes longer than its runs.
cargo_tool() { # NAME VERSION [OPTION]...
    cargo "${1#cargo-}" --version >/dev/null 2>&1 && return
    installs "$1" "installing $1 $2 with cargo (once, some minutes)"
    cargo install --debug --locked "$1" --version "${@:2}"
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        say "root is needed and sudo is missing; run as root: $*"
        return 1
    fi
}

install_debs() { # PACKAGE...
    as_root apt-get -q update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@"
}
