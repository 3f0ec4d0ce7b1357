# Sourced by the scripts: makes .venv and installs the project into it, once for each state of its dependencies.

ensure_venv() {
  local python=${PYTHON:-python3} stamp=.venv/.installed want
  want=$(cat pyproject.toml scripts/lib/constraints.txt | sha256sum)
  [[ -f $stamp && $(cat "$stamp") == "$want" ]] && return
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "Quire needs Python 3.11 or newer; set PYTHON to one ($python is $("$python" --version 2>&1))" >&2
    return 1
  }
  [[ -x .venv/bin/python ]] || "$python" -m venv .venv
  echo "Installing Quire and its tools into .venv (once; about a minute) …" >&2
  .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --constraint scripts/lib/constraints.txt --editable '.[dev]'
  echo "$want" >"$stamp"
}

# What only some scripts need on top: ensure_extra bench
ensure_extra() {
  local stamp=.venv/.installed-$1 want
  want=$(cat pyproject.toml scripts/lib/constraints.txt | sha256sum)
  [[ -f $stamp && $(cat "$stamp") == "$want" ]] && return
  echo "Installing what 'quire[$1]' adds into .venv …" >&2
  .venv/bin/python -m pip install --quiet --disable-pip-version-check \
    --constraint scripts/lib/constraints.txt --editable ".[$1]"
  echo "$want" >"$stamp"
}
