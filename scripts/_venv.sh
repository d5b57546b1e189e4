# Sourced by the other scripts: makes .venv in the checkout when it is missing or out of date, with the extras asked for.
# Usage: . scripts/_venv.sh; ensure_venv EXTRAS

ensure_venv() {
    local extras="$1" python="${PYTHON:-python3}" mark=".venv/.toolscout-$1"
    command -v "$python" >/dev/null || { echo "expected Python 3.10 or newer, found no $python: install it" >&2; exit 1; }
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        { echo "expected Python 3.10 or newer, found $("$python" --version): set PYTHON to a newer one" >&2; exit 1; }
    if [ ! -x .venv/bin/python ] || ! .venv/bin/python -c 'import pip' 2>/dev/null; then
        echo "making .venv"
        "$python" -m venv .venv ||
            { echo "expected the modules venv and ensurepip, found none (on Debian: apt install python3-venv)" >&2; exit 1; }
    fi
    if [ ! -e "$mark" ] || [ pyproject.toml -nt "$mark" ] || [ constraints.txt -nt "$mark" ]; then
        echo "installing toolscout[$extras] into .venv"
        .venv/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e ".[$extras]"
        touch "$mark"
    fi
}
