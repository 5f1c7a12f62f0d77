#!/usr/bin/env bash
# Installs the servers that the tests start, on Debian and its kin, unless they are there.
# The tests run private instances; nothing that this script installs is left running.
set -euo pipefail

POLICY=/usr/sbin/policy-rc.d
SUDO=()

have_postgres() {
    [[ -n "${LOOM_TEST_POSTGRES_BIN:-}" ]] ||
        compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null ||
        command -v postgres >/dev/null
}

have_rabbit() {
    [[ -n "${LOOM_TEST_RABBITMQ_BIN:-}" ]] ||
        [[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ]] ||
        command -v rabbitmq-server >/dev/null
}

have_pooler() {
    [[ -n "${LOOM_TEST_PGBOUNCER:-}" ]] || [[ -x /usr/sbin/pgbouncer ]] ||
        command -v pgbouncer >/dev/null
}

explain() {
    cat >&2 <<TEXT
Missing: ${missing[*]}. $1
The tests need RabbitMQ 3.10 or newer, PostgreSQL 15 or newer and PgBouncer, installed but
not running:
  Debian, Ubuntu:  sudo apt-get install rabbitmq-server postgresql pgbouncer
  elsewhere:       install them, then set LOOM_TEST_POSTGRES_BIN to the folder with initdb,
                   LOOM_TEST_RABBITMQ_BIN to the folder with rabbitmq-server and
                   LOOM_TEST_PGBOUNCER to the program
TEXT
    exit 1
}

apt() {
    "${SUDO[@]}" env DEBIAN_FRONTEND=noninteractive apt-get --quiet --quiet --yes \
        -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=300 "$@"
}

allow_services() {
    "${SUDO[@]}" rm -f "$POLICY"
}

# Debian asks this file before it starts a service; 101 means no.
forbid_services() {
    if [[ ! -e "$POLICY" ]]; then
        trap allow_services EXIT
        printf '#!/bin/sh\nexit 101\n' | "${SUDO[@]}" tee "$POLICY" >/dev/null
        "${SUDO[@]}" chmod 755 "$POLICY"
    fi
}

missing=()
have_postgres || missing+=(postgresql)
have_rabbit || missing+=(rabbitmq-server)
have_pooler || missing+=(pgbouncer)
if [[ ${#missing[@]} -eq 0 ]]; then
    exit 0
fi

command -v apt-get >/dev/null || explain "This script can install them with apt-get only."
if [[ $(id -u) -ne 0 ]]; then
    sudo -n true 2>/dev/null || explain "This script may not install them: not root, and no sudo."
    SUDO=(sudo -n)
fi

echo "Installing ${missing[*]} for the tests"
forbid_services
known=$(apt-cache policy "${missing[@]}" 2>/dev/null | grep -c 'Candidate: [^(]' || true)
[[ $known -eq ${#missing[@]} ]] || apt update
# Lists may be there and be too old for the mirror.
apt install --no-install-recommends "${missing[@]}" || {
    apt update
    apt install --no-install-recommends "${missing[@]}"
}
have_postgres && have_rabbit && have_pooler || explain "apt-get installed something else."
