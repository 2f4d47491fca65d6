"""Server, account and TLS options from URLs, the environment and option files."""

from __future__ import annotations

import json
import pwd
import subprocess

import pytest

import schemaless
from schemaless import InvalidInput
from schemaless.local.binaries import environment
from schemaless.wire.option_file import read_option_file
from schemaless.wire.secret import Secret
from schemaless.wire.tls import TLS
from schemaless.wire.urls import parse_url


@pytest.mark.parametrize(
    ("text", "node", "database"),
    [
        ("mysql://app@db-1/trips", "db-1:3306", "trips"),
        ("mariadb://app@db-1:3307/trips", "db-1:3307", "trips"),
        ("mysql+pymysql://app@db-1", "db-1:3306", None),
        ("mysql://app@/trips?unix_socket=/run/my.sock", "/run/my.sock", "trips"),
    ],
)
def test_parse_url_forms(text, node, database):
    """All schemes mean the same; a socket is given in the query."""
    parsed = parse_url(text)

    assert (str(parsed.node), parsed.database) == (node, database)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "db-1",
        "postgresql://x:secret@db/trips",
        "mysql+asyncmy://x:secret@db",
        "mysql+mysqldb://x:secret@db",
        "mysql:///trips",
        "mysql://x:secret@db/trips?charset=latin1",
        "mysql://x:secret@db:port/",
    ],
)
def test_parse_url_error_does_not_contain_the_password(text):
    """Error messages end up in logs."""
    with pytest.raises(InvalidInput) as caught:
        parse_url(text)

    assert "secret" not in str(caught.value)


def test_parse_url_takes_the_password_from_the_environment(monkeypatch):
    """Passwords in a URL show up in ps; the environment does not."""
    monkeypatch.setenv("SCHEMALESS_PASSWORD", "from the environment")

    assert parse_url("mysql://app@db/trips").credentials.password == Secret("from the environment")
    assert parse_url("mysql://app:own@db/trips").credentials.password == Secret("own")
    assert "own" not in repr(parse_url("mysql://app:own@db/trips")) + str(parse_url("mysql://app:own@db/trips"))


@pytest.mark.parametrize("option", ["password", "passwd"])
def test_parse_url_password_as_an_option_is_used_and_never_shown(option):
    """A password in the query, which PyMySQL accepts, is hidden as well."""
    parsed = parse_url(f"mysql://app@db/trips?{option}=s3cret&ssl_key_password=t0psecret")

    assert parsed.credentials.password == Secret("s3cret")
    assert "s3cret" not in str(parsed)
    assert "t0psecret" not in str(parsed)


def test_parse_url_with_an_unescaped_at_sign_does_not_show_a_part_of_the_password():
    """Otherwise, part of the password would be taken for the host and shown."""
    with pytest.raises(InvalidInput, match="%40") as caught:
        parse_url("mysql://app:sec@ret@db-1/trips")

    assert "sec" not in str(caught.value)
    assert "ret" not in str(caught.value)


def test_for_database_keeps_options_and_leaves_passwords_out():
    """The URL that ``create`` prints can be stored in a configuration."""
    parsed = parse_url("mysql://app:s3cret@db-1/?ssl_ca=/etc/ca.pem&ssl_key_password=t0p")

    assert parsed.for_database("trips") == "mysql://app@db-1:3306/trips?ssl_ca=/etc/ca.pem"


# ---- TLS


@pytest.mark.parametrize(
    ("options", "mode"),
    [
        ("", None),
        ("?ssl_mode=REQUIRED", "required"),
        ("?ssl_mode=disabled", "disabled"),
        ("?ssl_ca=/ca.pem", "verify_identity"),
        ("?ssl_capath=/ca", "verify_identity"),
        ("?ssl_ca=/ca.pem&ssl_verify_identity=false", "verify_ca"),
        ("?ssl_ca=/ca.pem&ssl_verify_cert=true", "verify_ca"),
        ("?ssl_ca=/ca.pem&ssl_mode=verify_ca", "verify_ca"),
        ("?ssl_verify_cert=1", "verify_ca"),
        ("?ssl_verify_identity=1", "verify_identity"),
        ("?ssl_ca=/ca.pem&ssl_verify_cert=false", "required"),
        ("?ssl_cert=/cert.pem&ssl_key=/key.pem", "required"),
    ],
)
def test_tls_mode_follows_from_the_options(options, mode):
    """A given CA implies verification of certificate and host name, unless another option limits it."""
    assert parse_url(f"mysql://app@db-1/trips{options}").credentials.tls.mode == mode


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ("ssl_mode=on", "ssl_mode must be one of disabled, "),
        ("ssl_mode=required&ssl_verify_cert=true", "ssl_verify_cert cannot be combined with ssl_mode"),
        ("ssl_verify_identity=maybe", "must be true or false"),
        ("ssl_check_hostname=true", "unknown TLS option 'ssl_check_hostname'"),
        ("ssl=true", "unknown TLS option 'ssl'; choose from ssl_mode"),
        ("ssl_key=/key.pem", "needs ssl_cert"),
        ("ssl_ca=/a&ssl_ca=/b", "twice"),
    ],
)
def test_unknown_or_contradictory_tls_option_is_refused(options, complaint):
    """An ignored option would leave a connection less secure than intended."""
    with pytest.raises(InvalidInput, match=complaint):
        parse_url(f"mysql://app@db-1/trips?{options}")


@pytest.mark.parametrize("name", ["ca", "cert"])
def test_missing_or_invalid_tls_file_is_named(tmp_path, name):
    """The error comes before any connection."""
    path = tmp_path / "file.pem"
    tls = TLS("verify_ca", **{name: str(path)})

    with pytest.raises(InvalidInput, match=f"ssl_{name}: '{path}' does not exist"):
        tls.context()
    path.write_text("no certificate")
    with pytest.raises(InvalidInput, match=f"ssl_{name} '{path}' cannot be used for TLS: "):
        tls.context()


# ---- option files


@pytest.fixture
def my_cnf(tmp_path, monkeypatch):
    """Write ``~/.my.cnf`` in a temporary home directory, and return its path."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SCHEMALESS_PASSWORD", raising=False)

    def write(text):
        path = tmp_path / ".my.cnf"
        path.write_text(text)
        path.chmod(0o600)
        return path

    return write


def test_option_file_fills_in_what_the_url_lacks(my_cnf):
    """User, password, host, port and TLS; the group [schemaless] overrides [client]."""
    my_cnf(
        '[client]\nuser=app\npassword = "of # the file"  # a comment\nhost=db-1\nport=3307\nssl-ca=~/ca.pem\n'
        "[mysql]\nuser=wrong\n[schemaless]\nhost=db-2\n"
    )

    parsed = parse_url("mysql:///trips?read_default_file=~/.my.cnf")
    assert (str(parsed.node), parsed.database) == ("db-2:3307", "trips")
    assert (parsed.credentials.username, parsed.credentials.password) == ("app", Secret("of # the file"))
    assert parsed.credentials.tls.mode == "verify_identity"
    assert not parsed.credentials.tls.ca.startswith("~")
    assert parsed == parse_url("mysql://app@db-2:3307/trips?read_default_file=~/.my.cnf")
    assert "of # the file" not in f"{parsed} {parsed!r}"


def test_url_takes_precedence_over_environment_and_option_file(my_cnf, monkeypatch):
    """The same order applies to all parts."""
    my_cnf("[client]\nuser=file\npassword=file\nhost=file\nport=1\nssl-mode=disabled\n")
    url = "mysql://url:url@url:2/trips?read_default_file=~/.my.cnf&ssl_mode=required"
    monkeypatch.setenv("SCHEMALESS_PASSWORD", "environment")

    parsed = parse_url(url)
    assert (str(parsed.node), parsed.credentials.username, parsed.credentials.password) == (
        "url:2",
        "url",
        Secret("url"),
    )
    assert parsed.credentials.tls.mode == "required"
    assert parse_url(url.replace(":url@", "@")).credentials.password == Secret("environment")
    monkeypatch.delenv("SCHEMALESS_PASSWORD")
    assert parse_url(url.replace(":url@", "@")).credentials.password == Secret("file")


def test_option_file_is_read_only_when_the_url_names_it(my_cnf):
    """A password for another server would break accounts without one."""
    my_cnf("[client]\npassword=file\n[mine]\nuser=me\n")

    assert parse_url("mysql://app@db-1/trips").credentials.password is None
    assert parse_url("mysql://db-1/trips?read_default_group=mine").credentials.username == "me"
    assert parse_url("mysql://db-1/trips?read_default_group=mine").credentials.password == Secret("file")


def test_option_file_socket_is_for_its_own_server_only(my_cnf):
    """A host in the URL overrides the file's socket."""
    my_cnf("[client]\nsocket=/run/my.sock\nuser=app\n")

    assert str(parse_url("mysql:///trips?read_default_group=client").node) == "/run/my.sock"
    assert str(parse_url("mysql://db-1/trips?read_default_group=client").node) == "db-1:3306"


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("ssl", "required"),
        ("skip-ssl", "disabled"),
        ("ssl\nssl_ca=/ca.pem", "verify_identity"),
        ("ssl=0\nssl_ca=/ca.pem", "disabled"),
        ("ssl-ca=/ca.pem\nssl-verify-server-cert=0", "verify_ca"),
        ("ssl-verify-server-cert", "verify_identity"),
        ("loose-ssl-mode=VERIFY_CA", "verify_ca"),
    ],
)
def test_option_file_accepts_tls_options_of_both_clients(my_cnf, text, mode):
    """The clients of MySQL and MariaDB have different option names."""
    my_cnf(f"[client]\n{text}\n")

    assert parse_url("mysql://db-1/trips?read_default_group=client").credentials.tls.mode == mode


@pytest.mark.parametrize(
    ("text", "mode", "complaint"),
    [
        ("!includedir /etc/mysql", 0o600, "line 1: includes are not supported"),
        ("user=me", 0o600, r"line 1: an option before the first \[group\]"),
        ("[client]\npassword=s3cret", 0o606, "is world-writable"),
        ("[client]\nssl-crl=s3cret", 0o600, "unknown TLS option 'ssl_crl'"),
        ("[client]\nport=s3", 0o600, "port must be a number"),
    ],
)
def test_unusable_option_file_is_refused(my_cnf, text, mode, complaint):
    """The error names the place and never contains a password."""
    my_cnf(text).chmod(mode)

    with pytest.raises(InvalidInput, match=complaint) as caught:
        parse_url("mysql://db-1/trips?read_default_group=client")
    assert "s3cret" not in str(caught.value)


def test_missing_option_file_is_refused(tmp_path):
    """A file that the URL names must exist."""
    with pytest.raises(InvalidInput, match="No such file"):
        parse_url(f"mysql://db-1/trips?read_default_file={tmp_path}/my.cnf")


def test_option_file_may_begin_with_a_byte_order_mark(my_cnf):
    """Editors on Windows write one."""
    my_cnf("\ufeff[client]\nuser=ann")

    assert parse_url("mysql://db-1/trips?read_default_group=client").credentials.username == "ann"


@pytest.mark.parametrize("option", ["read_default_file=~/my.cnf", "read_default_group=trips", "ssl_ca=~/ca.pem"])
def test_a_path_in_a_home_folder_that_does_not_exist_is_refused(option, monkeypatch):
    """In a container, HOME may be unset, and the user may not be in the passwd database."""
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)

    with pytest.raises(InvalidInput, match=r"cannot expand the ~ in ~/.*give an absolute path, or set HOME"):
        parse_url(f"mysql://db-1/trips?{option}")


def test_an_unknown_option_is_named():
    """Before any connection, and not in the words of a TypeError."""
    with pytest.raises(InvalidInput, match="the URL has the unknown option 'foo'; correct or remove it"):
        schemaless.connect("mysql://app@127.0.0.1:1/trips?foo=1")


@pytest.mark.parametrize("url", [None, b"mysql://app:s3cret@db-1/trips", 5])
def test_a_url_that_is_no_text_is_refused(url):
    """By its type, because bytes may contain a password. Without a URL, ``connect`` takes it from the environment."""
    for use in (
        *([schemaless.connect] if url is not None else []),
        lambda given: schemaless.create("trips", 1, [given]),
        parse_url,
    ):
        with pytest.raises(InvalidInput, match=r"a URL must be a str, .* got (NoneType|bytes|int)$"):
            use(url)


@pytest.mark.mysql
def test_option_file_is_parsed_as_the_server_parses_it(servers, tmp_path):
    """Quotes, escapes, comments and spaces give the same values as in the server itself."""
    lines = [
        "a=plain",
        "b=  two words  ",
        'c="a # in quotes" # and a comment',
        "d=cut # here",
        "e=cut#here",
        r"f=tab\tnewline\nbackslash\\quote\"end",
        r"g=unknown\q",
        r"h=trailing\\",
        'i="it\'s"',
        "j='unfinished",
        "k=a=b=c",
        "l=;semicolon",
        'm=""',
        "n=end\\",
        r'o="in \" quotes"',
        'p=" spaces "',
        "q = around",
    ]
    path = tmp_path / "my.cnf"
    text = ["# comment", "; comment", "[ client ]", "loose-other=1", "[server]", *(f"loose-{line}" for line in lines)]
    path.write_text("\n".join(text) + "\n")
    path.chmod(0o600)
    program = json.loads((servers[0].folder / "server.json").read_text())["binary"]["command"]
    command = [*program, f"--defaults-file={path}", "--print-defaults"]
    said = subprocess.run(command, capture_output=True, text=True, env=environment(), check=True).stdout

    ours = read_option_file(str(path), ("server",))
    assert list(ours) == [line[0] for line in lines]
    assert said.partition("arguments:\n")[2].strip() == " ".join(f"--loose-{name}={ours[name]}" for name in ours)


@pytest.mark.parametrize(
    ("text", "nodes", "shown"),
    [
        (
            "mysql://app:s3cret@db-1:3307,db-2,[::1]:3308/trips?read_timeout=5",
            ["db-1:3307", "db-2:3306", "::1:3308"],
            "mysql://app@db-1:3307,db-2:3306,[::1]:3308/trips?read_timeout=5",
        ),
        (
            "mysql://app@/trips?unix_socket=/run/a.sock,/run/b.sock",
            ["/run/a.sock", "/run/b.sock"],
            "mysql://app@/trips?unix_socket=/run/a.sock%2C/run/b.sock",
        ),
    ],
)
def test_several_servers_are_separated_by_commas(text, nodes, shown):
    """This is for the catalog of a datastore only; the displayed URL can be used again."""
    parsed = parse_url(text, several=True)

    assert [str(node) for node in parsed.nodes] == nodes
    assert parsed.for_database("trips") == shown
    assert parse_url(shown, several=True).nodes == parsed.nodes
    assert "s3cret" not in str(parsed)
    assert nodes[1] in str(parsed).replace("%2F", "/")
    with pytest.raises(InvalidInput, match="several servers"):
        parse_url(text)


@pytest.mark.parametrize(
    "text", ["mysql://app@db-1,/trips", "mysql://app@,db-1/trips", "mysql://app@/t?unix_socket=/a,"]
)
def test_an_empty_one_of_several_servers_is_refused(text):
    """A surplus comma is an error."""
    with pytest.raises(InvalidInput, match="one of them is empty"):
        parse_url(text, several=True)
