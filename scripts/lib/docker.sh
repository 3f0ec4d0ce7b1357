# Sourced by the scripts that need containers: gets Docker where it may, and starts it where nobody has.
#
# It may install packages as root on a system with apt. A daemon that it starts lives on after the script, since the next
# one wants it, too; `stop_docker` ends it. Where there is no Docker to be had, `ensure_docker` fails and says why.

QUIRE_DOCKERD_PID=/run/quire-dockerd.pid
QUIRE_DOCKERD_LOG=/var/log/quire-dockerd.log
QUIRE_DOCKERD_LOCK=/run/lock/quire-docker.lock
QUIRE_DOCKERD_START_S_MAX=60

docker_answers() { command -v docker >/dev/null && timeout 20 docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

# Prints the command of Compose that there is, v2 before v1.
compose_command() {
  if docker compose version >/dev/null 2>&1; then
    echo "docker compose"
  elif command -v docker-compose >/dev/null; then
    echo "docker-compose"
  else
    return 1
  fi
}

ensure_docker() {
  if docker_answers && compose_command >/dev/null; then return; fi
  # Whoever names a daemon wants that one and no other.
  [[ -z ${DOCKER_HOST:-} ]] || docker_answers || { _docker_fail "nothing answers at DOCKER_HOST=$DOCKER_HOST"; return; }
  _docker_packages || return
  docker_answers || _docker_start || return
}

# Ends the daemon that ensure_docker has started, if it has; no other one.
stop_docker() {
  local pid
  if ! pid=$(_docker_own_pid); then
    echo "No Docker daemon is running that these scripts have started" >&2
    return
  fi
  kill "$pid"
  for _ in $(seq 300); do
    [[ -d /proc/$pid ]] || { rm -f "$QUIRE_DOCKERD_PID"; echo "Stopped the Docker daemon (process $pid)" >&2; return; }
    sleep 0.1
  done
  _docker_fail "the Docker daemon, process $pid, does not stop; see $QUIRE_DOCKERD_LOG"
}

_docker_fail() {
  echo "No Docker: $1" >&2
  return 1
}

# Installs what is missing of: the client, the daemon if none answers, Compose.
_docker_packages() {
  local wanted=()
  { command -v docker && { docker_answers || command -v dockerd; }; } >/dev/null || wanted+=(docker.io)
  compose_command >/dev/null || wanted+=(docker-compose)
  [[ ${#wanted[@]} -gt 0 ]] || return 0
  [[ $(id -u) == 0 ]] || { _docker_fail "${wanted[*]} is missing, or its daemon does not answer this user, who is not root"; return; }
  apt_install "${wanted[@]}"
}

# apt_install PACKAGE...: as root, on a system that has apt.
apt_install() {
  local log
  [[ $(id -u) == 0 ]] || { _docker_fail "$* cannot be installed without being root"; return; }
  command -v apt-get >/dev/null || { _docker_fail "$* is missing, and this system has no apt to install it with"; return; }
  echo "Installing $* (once) …" >&2
  log=$(mktemp)
  # The lock: packages are often being installed by somebody else at the very start of a machine.
  if apt-get update -qq >"$log" 2>&1 &&
    DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install -qq --yes --no-install-recommends "$@" \
      >>"$log" 2>&1; then
    rm -f "$log"
  else
    tail -n 20 "$log" >&2
    rm -f "$log"
    _docker_fail "$* cannot be installed; see above"
  fi
}

_docker_own_pid() {
  local pid
  pid=$(cat "$QUIRE_DOCKERD_PID" 2>/dev/null) && [[ $pid =~ ^[0-9]+$ ]] || return 1
  # Numbers are used again: only a dockerd counts.
  [[ $(cat "/proc/$pid/comm" 2>/dev/null) == dockerd ]] && echo "$pid"
}

_docker_start() {
  [[ $(id -u) == 0 ]] || { _docker_fail "no daemon answers this user, who is not root and cannot start one"; return; }
  command -v dockerd >/dev/null || { _docker_fail "no daemon answers, and there is no dockerd to start"; return; }
  (
    flock 9 # two scripts at once start one daemon
    docker_answers && exit 0
    echo "Starting the Docker daemon …" >&2
    if [[ -d /run/systemd/system ]]; then
      systemctl start docker 9>&- || exit 1
    else
      setsid dockerd </dev/null >"$QUIRE_DOCKERD_LOG" 2>&1 9>&- &
      echo $! >"$QUIRE_DOCKERD_PID"
    fi
    for ((i = 0; i < QUIRE_DOCKERD_START_S_MAX * 5; i++)); do
      docker_answers && exit 0
      [[ ! -f $QUIRE_DOCKERD_PID ]] || _docker_own_pid >/dev/null || [[ $i -lt 10 ]] || break
      sleep 0.2
    done
    [[ ! -f $QUIRE_DOCKERD_LOG ]] || tail -n 5 "$QUIRE_DOCKERD_LOG" >&2
    exit 1
  ) 9>"$QUIRE_DOCKERD_LOCK" || _docker_fail "the daemon does not start; $QUIRE_DOCKERD_LOG or the system's journal says why"
}
