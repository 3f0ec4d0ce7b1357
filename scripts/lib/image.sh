# Sourced by the scripts that need the container image, after venv.sh and docker.sh: makes it, from wheels that pip makes
# here, and a base that is made of Debian's packages where none can be pulled.

QUIRE_IMAGE_WHEELS=build/image
QUIRE_IMAGE_DEBIAN=bookworm
QUIRE_IMAGE_DEBIAN_PYTHON=3.11
QUIRE_IMAGE_PULL_S_MAX=300

# make_image TAG [BASE]
make_image() {
  local tag=$1 base=${2:-} python before said
  python=$(.venv/bin/python -c 'import sys; print("{}.{}".format(*sys.version_info))')
  [[ -n $base ]] || base=$(_image_base "$python") || return
  _image_wheels "$base" || return
  before=$(docker image inspect --format '{{.Id}}' "$tag" 2>/dev/null || true)
  echo "Building $tag on $base …" >&2
  # BuildKit is not everywhere where Docker is, and has nothing that is needed here.
  said=$(DOCKER_BUILDKIT=0 docker build --quiet --file deploy/Dockerfile --build-arg BASE="$base" --tag "$tag" . 2>&1) || {
    echo "$said" >&2
    echo "No image: it cannot be built; see above" >&2
    return 1
  }
  _image_tidy "$before"
  docker run --rm --network none "$tag" python3 -c "import sys; sys.exit(sys.version_info[:2] != tuple(map(int, '$python'.split('.'))))" || {
    echo "No image: the Python of $base is not $python, which made the wheels; set PYTHON to one of that version, and remove .venv" >&2
    return 1
  }
  echo "$tag: $(docker run --rm --network none "$tag" quire --version), $(docker image inspect --format '{{.Size}}' "$tag" | awk '{printf "%d MB", $1 / 1e6}')" >&2
}

# What builds have left without a name. What other names stand for stays.
_image_tidy() {
  local before=$1
  # By its id Docker removes an image along with the name that it has, if it is one alone.
  if [[ -n $before && $(docker image inspect --format '{{len .RepoTags}}' "$before" 2>/dev/null) == 0 ]]; then
    # Fails while a container of it runs, and that is as it should be.
    docker image rm "$before" >/dev/null 2>&1 || true
  fi
  # Of the first stages the newest is what makes the next build quick.
  docker images --quiet --filter dangling=true --filter label=quire.stage=build | tail -n +2 |
    xargs --no-run-if-empty docker image rm >/dev/null 2>&1 || true
}

# --- wheels --------------------------------------------------------------------------------------------------------

_image_wheels() {
  local base=$1 key
  mkdir -p "$QUIRE_IMAGE_WHEELS"
  key=$({ cat pyproject.toml scripts/lib/constraints.txt && .venv/bin/python -VV; } | sha256sum)
  if [[ $(cat "$QUIRE_IMAGE_WHEELS/dependencies.key" 2>/dev/null) != "$key" ]]; then
    echo "Making the wheels of what Quire needs …" >&2
    _image_pip dependencies '.[server]' || return
    rm -f "$QUIRE_IMAGE_WHEELS"/dependencies/quire-*.whl
    echo "$key" >"$QUIRE_IMAGE_WHEELS/dependencies.key"
  fi
  key=$({ cat pyproject.toml README.md LICENSE && find client broker controller -type f -not -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum; } | sha256sum)
  if [[ $(cat "$QUIRE_IMAGE_WHEELS/quire.key" 2>/dev/null) != "$key" ]]; then
    echo "Making the wheel of Quire …" >&2
    _image_pip quire --no-deps . || return
    echo "$key" >"$QUIRE_IMAGE_WHEELS/quire.key"
  fi
}

# _image_pip FOLDER ARGUMENT...: all or nothing, since what is half there would be built in without a word.
_image_pip() {
  local folder=$QUIRE_IMAGE_WHEELS/$1
  shift
  rm -rf "$folder.new" "$folder.key"
  .venv/bin/python -m pip wheel -qq --disable-pip-version-check --constraint scripts/lib/constraints.txt \
    --wheel-dir "$folder.new" "$@" || return
  rm -rf "$folder"
  mv "$folder.new" "$folder"
}

# --- base ----------------------------------------------------------------------------------------------------------

# _image_base PYTHON: prints the name of a base with this Python; what it does is said on standard error.
_image_base() {
  local python=$1 public made
  public=python:$python-slim-$QUIRE_IMAGE_DEBIAN
  made=quire-base:$QUIRE_IMAGE_DEBIAN
  if docker image inspect "$public" >/dev/null 2>&1; then
    echo "$public"
  elif [[ $python == "$QUIRE_IMAGE_DEBIAN_PYTHON" ]] && docker image inspect "$made" >/dev/null 2>&1; then
    echo "$made" # made before, and so no registry was reachable; remove it to try again
  elif echo "Pulling $public …" >&2 && timeout "$QUIRE_IMAGE_PULL_S_MAX" docker pull --quiet "$public" >/dev/null; then
    echo "$public"
  elif [[ $python != "$QUIRE_IMAGE_DEBIAN_PYTHON" ]]; then
    echo "No image: $public cannot be pulled, and Debian's packages have Python $QUIRE_IMAGE_DEBIAN_PYTHON; set PYTHON to one of that version and remove .venv, or name a --base" >&2
    return 1
  else
    _image_debian "$made" && echo "$made"
  fi
}

# A base of Debian's own packages. It has what the release had, without the security updates since: for tests.
_image_debian() (
  [[ $(id -u) == 0 ]] || { echo "No image: no base can be pulled, and making one takes root" >&2; exit 1; }
  keys=/usr/share/keyrings/debian-archive-keyring.gpg
  { command -v debootstrap >/dev/null && [[ -f $keys ]]; } || apt_install debootstrap debian-archive-keyring || exit
  root=$(mktemp -d)
  trap 'rm -rf "$root"' EXIT
  echo "It cannot be pulled: making a base of Debian's packages instead (once; about a minute) …" >&2
  debootstrap --force-check-gpg --keyring="$keys" --variant=minbase --include=python3,python3-venv,ca-certificates \
    "$QUIRE_IMAGE_DEBIAN" "$root/base" >"$root/log" 2>&1 || { tail -n 20 "$root/log" >&2; echo "No image: no base can be pulled, and Debian's packages cannot be had; see above" >&2; exit 1; }
  tar -C "$root/base" --exclude='./var/cache/apt/*' --exclude='./var/lib/apt/lists/*' --exclude='./usr/share/doc/*' \
    --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*' --exclude='./var/log/*' -c . |
    docker import --message "Debian $QUIRE_IMAGE_DEBIAN with Python" - "$1" >/dev/null
)
