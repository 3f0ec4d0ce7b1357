"""The real `quire certs` command: what it writes, and that it destroys nothing."""

from __future__ import annotations

import datetime
import os
import ssl
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID

from quire.errors import InvalidArgumentError
from quire.link import certs, tls
from quire.link.handshake import NodeIdentity


def quire(*arguments: str | Path, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from quire.cli import main; main()", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=cwd, env={**os.environ, **environment}
    )


def init(directory: Path, *nodes: str) -> subprocess.CompletedProcess[str]:
    chosen = [argument for node in nodes for argument in ("--node", node)]
    return quire("certs", "init", "--dir", directory, "--cluster-id", "c1", *chosen)


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def names(path: Path) -> list[str]:
    extension = certificate(path).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in extension.value]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    directory = tmp_path / "deep" / "certs"
    done = init(directory, "n1=localhost,127.0.0.1,::1", "n2")
    assert done.returncode == 0, done.stderr
    return directory


def test_files_and_what_is_said_about_them(tmp_path: Path) -> None:
    done = init(tmp_path / "certs", "n1", "n2")
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(contents(tmp_path / "certs")) == ["ca.key", "ca.pem", "n1.pem", "n2.pem"]
    for path in (tmp_path / "certs").iterdir():
        assert str(path) in done.stdout
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "certs").stat().st_mode) == 0o700
    assert "node 'n2', valid until 20" in done.stdout
    assert "Keep ca.key where no node runs" in done.stdout


def test_umask_opens_nothing(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        assert init(tmp_path, "n1").returncode == 0
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_certificate_names_the_node_and_serves_both_roles(made: Path) -> None:
    assert names(made / "n1.pem") == ["quire://c1/node/n1", "localhost", "127.0.0.1", "::1"]
    assert names(made / "n2.pem") == ["quire://c1/node/n2"]
    extensions = certificate(made / "n1.pem").extensions
    usages = extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(usages) == {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH}
    assert not extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    key = load_pem_private_key((made / "n1.pem").read_bytes(), password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.public_key() == certificate(made / "n1.pem").public_key()


def greet(made: Path, server: str, client: str) -> tuple[NodeIdentity, NodeIdentity]:
    """A TLS handshake in memory: whom each side has met."""
    contexts = [tls.load(tls.TlsFiles(made / "ca.pem", made / f"{node}.pem")) for node in (server, client)]
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    accepting = contexts[0].accepting.wrap_bio(there, back, server_side=True)
    dialing = contexts[1].dialing.wrap_bio(back, there, server_side=False)
    for side in (dialing, accepting, dialing, accepting):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert accepting.version() == dialing.version() == "TLSv1.3"
    return tls.identify(accepting.getpeercert()), tls.identify(dialing.getpeercert())


def test_nodes_recognise_each_other(made: Path) -> None:
    assert greet(made, "n1", "n2") == (NodeIdentity("c1", "n2"), NodeIdentity("c1", "n1"))


def test_added_node_belongs_to_the_same_cluster(made: Path) -> None:
    before = contents(made)
    done = quire("certs", "add", "--dir", made, "--node", "n3=10.0.0.3", "--days", "30")
    assert done.returncode == 0, done.stderr
    assert names(made / "n3.pem") == ["quire://c1/node/n3", "10.0.0.3"]
    assert greet(made, "n3", "n1") == (NodeIdentity("c1", "n1"), NodeIdentity("c1", "n3"))
    assert {name: content for name, content in contents(made).items() if name != "n3.pem"} == before
    left = certificate(made / "n3.pem").not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=29) < left <= datetime.timedelta(days=30)


def test_renewal_replaces_one_file(made: Path) -> None:
    before = contents(made)
    done = quire("certs", "add", "--renew", "--dir", made, "--node", "n2")
    assert done.returncode == 0, done.stderr
    changed = [name for name, content in contents(made).items() if content != before[name]]
    assert changed == ["n2.pem"]
    assert stat.S_IMODE((made / "n2.pem").stat().st_mode) == 0o600
    assert greet(made, "n2", "n1") == (NodeIdentity("c1", "n1"), NodeIdentity("c1", "n2"))


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["init", "--cluster-id", "c1", "--node", "n9"], "ca.key exists and is not overwritten"),
        (["add", "--node", "n9", "--node", "n1"], "n1.pem exists and is not overwritten; use --renew"),
        (["add", "--renew", "--node", "n9"], "n9.pem does not exist; leave out --renew"),
        (["add", "--node", "n9", "--node", "n9"], "node 'n9' is named twice"),
        (["add", "--node", "ca"], "'ca' is no name for a node"),
        (["add", "--node", "../n9"], "'../n9' is no node id"),
        (["add", "--node", "n9=bad host"], "'bad host' is neither a host name nor an IP address"),
        (["add", "--node", "n9="], "'' is neither a host name nor an IP address"),
    ],
)
def test_refusal_changes_nothing(made: Path, arguments: list[str], complaint: str) -> None:
    before = contents(made)
    done = quire("certs", arguments[0], "--dir", made, *arguments[1:])
    assert done.returncode != 0
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
    assert contents(made) == before


@pytest.mark.parametrize("broken", ["missing key", "missing certificate", "damaged", "another CA's key", "node's"])
def test_unusable_ca_is_named(made: Path, tmp_path: Path, broken: str) -> None:
    key, ca = made / "ca.key", made / "ca.pem"
    if broken == "missing key":
        key.unlink()
    elif broken == "missing certificate":
        ca.unlink()
    elif broken == "damaged":
        ca.write_bytes(ca.read_bytes()[:100])
    elif broken == "another CA's key":
        assert init(tmp_path / "other", "n1").returncode == 0
        key.write_bytes((tmp_path / "other" / "ca.key").read_bytes())
    else:
        key.write_bytes((made / "n1.pem").read_bytes())
        ca.write_bytes((made / "n1.pem").read_bytes())
    done = quire("certs", "add", "--dir", made, "--node", "n3")
    assert done.returncode == 1
    assert "ca." in done.stderr
    assert "Traceback" not in done.stderr
    assert not (made / "n3.pem").exists()


def test_expired_ca_signs_nothing(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    before = now - datetime.timedelta(days=certs.CA_DAYS + 1)
    certs.init(tmp_path, cluster_id="c1", nodes=[], days=1, now=before)
    with pytest.raises(InvalidArgumentError, match="the node CA expired on 20"):
        certs.add(tmp_path, nodes=[certs.NodeSpec("n1")], days=1, now=now)
    assert sorted(contents(tmp_path)) == ["ca.key", "ca.pem"]


def test_directory_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = init(tmp_path / "file" / "certs", "n1")
    assert done.returncode == 1
    assert "cannot be made" in done.stderr
    assert "Traceback" not in done.stderr


def test_help_of_everything() -> None:
    assert "certs" in quire("--help").stdout
    for verb in ([], ["init"], ["add"]):
        done = quire("certs", *verb, "--help")
        assert done.returncode == 0
        assert "Usage: quire certs" in done.stdout
    assert "--cluster-id" in quire("certs", "init", "--help").stdout
    assert "--renew" in quire("certs", "add", "--help").stdout


def test_without_cryptography_it_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "cryptography.py").write_text("raise ModuleNotFoundError('gone', name='cryptography')")
    done = quire("certs", "init", PYTHONPATH=str(tmp_path))
    assert done.returncode == 2
    assert (
        done.stderr == "quire certs: the module 'cryptography' is not installed; run: pip install 'quire[server]'\n"
    )
