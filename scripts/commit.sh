# To be sourced: the commit that "mpib --version" and the plugin name. Sources without git set
# MPIB_COMMIT themselves. All builds of one profile need the same value, or each compiles again what
# another one has compiled.
export MPIB_COMMIT=${MPIB_COMMIT:-$(git rev-parse --short=12 HEAD 2>/dev/null || true)}
