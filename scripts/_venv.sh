# Sourced by the other scripts: makes .venv in the checkout when it is missing or out of date, with the extras asked for.
# Usage: . scripts/_venv.sh; ensure_venv EXTRAS
#
# `demo` is installed by uv, in a tenth of pip's processor time: the one on PATH, else one that pip puts into .venv.
# pip installs the rest, and takes over where uv cannot: it knows the indexes and wheels that are set for it.

ensure_venv() {
    local extras="$1" python="${PYTHON:-python3}" mark=".venv/.toolscout-$1"
    local requirement=(-c constraints.txt -e ".[$extras]")
    # The packages beside the core. Not `compact`: it would become the encoder of every test.
    if [ "$extras" != demo ]; then
        for package in packages/*/; do [ "$package" = packages/compact/ ] || requirement+=(-e "$package"); done
    fi
    command -v "$python" >/dev/null || { echo "expected Python 3.10 or newer, found no $python: install it" >&2; exit 1; }
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        { echo "expected Python 3.10 or newer, found $("$python" --version): set PYTHON to a newer one" >&2; exit 1; }
    if [ -e "$mark" ] && [ ! pyproject.toml -nt "$mark" ] && [ ! constraints.txt -nt "$mark" ]; then
        .venv/bin/python -c '' && return
    fi
    echo "installing toolscout[$extras] into .venv"
    if [ "$extras" != demo ] || ! install_with_uv "$python" "${requirement[@]}"; then
        if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
            "$python" -m venv .venv ||
                { echo "expected the modules venv and ensurepip, found none (on Debian: apt install python3-venv)" >&2; exit 1; }
        fi
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile "${requirement[@]}"
    fi
    touch "$mark"
}

# install_with_uv PYTHON REQUIREMENT...: fails, and says nothing, where there is no uv or it finds not all packages
install_with_uv() {
    local python="$1" uv=uv
    shift
    { [ -x .venv/bin/python ] || "$python" -m venv --without-pip .venv; } 2>/dev/null || return 1
    if ! command -v uv >/dev/null; then
        uv=.venv/bin/uv
        [ -x "$uv" ] || "$python" -m pip --python .venv/bin/python install --quiet --disable-pip-version-check \
            --no-compile --no-deps --only-binary :all: uv 2>/dev/null || return 1
    fi
    "$uv" pip install --quiet --python .venv/bin/python "$@" 2>/dev/null
}
