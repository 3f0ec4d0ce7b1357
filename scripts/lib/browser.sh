# Sourced by scripts/soak: a browser that makes a picture of a page.

ensure_browser() {
  command -v chromium >/dev/null && return
  if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then
    echo "Installing chromium, which makes the report's picture …" >&2
    apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core >/dev/null && return
  fi
  echo "There is no chromium, and it cannot be installed here: the report gets no picture" >&2
}
