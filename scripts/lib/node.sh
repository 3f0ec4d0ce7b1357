# Sourced by scripts/test: gets Node.js, which nothing but the test of examples/node needs. Where it cannot be had that
# test fails, and says so.

ensure_node() {
  command -v node >/dev/null && command -v npm >/dev/null && return
  [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null || return 0
  echo "Installing Node.js and npm for the test of examples/node (once) …" >&2
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq --yes --no-install-recommends nodejs npm; } \
    >/dev/null || echo "Node.js could not be installed; see above" >&2
}
