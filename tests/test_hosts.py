"""What a list of hosts may hold, in which one way it is kept, and what grants what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_sandbox.hosts import exceeds, grants, lowered, parse_network


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("none", "none"),
        ("host", "host"),
        ([], "none"),
        (["a.org"], ("a.org",)),
        (("API.Example.org:443", "api.example.org:443"), ("api.example.org:443",)),
        (["*.example.net", "*.example.net:8443"], ("*.example.net", "*.example.net:8443")),
        (["localhost", "x", "a-b.c-d"], ("localhost", "x", "a-b.c-d")),
        (["xn--bcher-kva.example"], ("xn--bcher-kva.example",)),
        (["3com.com", "1.a"], ("3com.com", "1.a")),
        (["Test=127.0.0.1:9000"], ("test=127.0.0.1:9000",)),
        (["six=[::1]:80", "long=[2001:DB8:0:0::1]:65535"], ("six=[::1]:80", "long=[2001:db8::1]:65535")),
    ],
)
def test_what_can_be_written(written: object, kept: object) -> None:
    assert parse_network(written) == kept
    assert parse_network(kept) == kept


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ("*", "a star stands for whole names"),
        ("*.*.org", "a star"),
        ("a*.org", "a star"),
        ("a.*.org", "a star"),
        ("**.org", "a star"),
        ("http://a.org", "write its name alone"),
        ("a.org/path", "write its name alone"),
        ("10.0.0.0/8", "write its name alone"),
        ("", "is no host"),
        ("*.", "is no host"),
        (".a.org", "is no host"),
        ("a.org.", "is no host"),
        ("a..org", "is no host"),
        ("-a.org", "is no host"),
        ("a-.org", "is no host"),
        ("a_b.org", "is no host"),
        ("a b", "is no host"),
        (" a.org", "is no host"),
        ("a.org\n", "is no host"),
        ("user@a.org", "is no host"),
        ("x" * 64 + ".org", "is no host"),
        (".".join(["x" * 63] * 4), "is no host"),
        ("bücher.example", "xn--"),
        ("\N{KELVIN SIGN}.org", "xn--"),  # its lower case is an ASCII k
        ("127.0.0.1", "is an address"),
        ("127.1", "is an address"),
        ("2130706433", "is an address"),
        ("0x7f000001", "is an address"),
        ("1.2.3.0x4:80", "is an address"),
        ("*.1", "is an address"),
        ("[::1]:80", "is no host"),
        ("a.org:", "a port is a number"),
        ("a.org:0", "a port is a number"),
        ("a.org:65536", "a port is a number"),
        ("a.org:080", "a port is a number"),
        ("a.org:http", "a port is a number"),
        ("a.org:1:2", "a port is a number"),
        ("*.a.org:99999", "a port is a number"),
        ("t=127.0.0.1", "write name=address:port"),
        ("t=127.0.0.1:", "a port is a number"),
        ("t=b.org:80", "write name=address:port"),
        ("t=::1:80", "write name=address:port"),
        ("t=[127.0.0.1]:80", "write name=address:port"),
        ("t=[fe80::1%eth0]:80", "write name=address:port"),
        ("t=127.1:80", "write name=address:port"),
        ("*.t=127.0.0.1:80", "a star"),
        ("=127.0.0.1:80", "is no host"),
        ("t:80=127.0.0.1:80", "is no host"),
        ("none", "write it alone"),
        ("host", "write it alone"),
        (5, "is no host"),
        (None, "is no host"),
    ],
)
def test_what_is_no_host(item: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        parse_network(["a.org", item])


@pytest.mark.parametrize("value", ["all", "a.org", True, False, None, 1, {"a.org": 1}])
def test_what_is_no_network(value: object) -> None:
    with pytest.raises(ValueError, match='write "none", "host", or a list of hosts'):
        parse_network(value)


@pytest.mark.parametrize(
    ("granted", "item", "allowed"),
    [
        ("a.org", "a.org", True),
        ("a.org", "a.org:443", True),
        ("a.org:443", "a.org:443", True),
        ("a.org:443", "a.org", False),
        ("a.org:443", "a.org:80", False),
        ("a.org", "b.a.org", False),
        ("*.a.org", "b.a.org", True),
        ("*.a.org", "c.b.a.org:80", True),
        ("*.a.org", "*.b.a.org", True),
        ("*.a.org", "*.a.org:443", True),
        ("*.a.org", "a.org", False),
        ("*.a.org", "xa.org", False),
        ("*.b.a.org", "*.a.org", False),
        ("*.a.org:443", "b.a.org:443", True),
        ("*.a.org:443", "*.b.a.org:443", True),
        ("*.a.org:443", "b.a.org", False),
        ("*.a.org:443", "b.a.org:80", False),
        ("b.a.org", "*.a.org", False),
        ("t=127.0.0.1:80", "t=127.0.0.1:80", True),
        ("t=127.0.0.1:80", "t=127.0.0.1:81", False),
        ("t=127.0.0.1:80", "t", False),
        ("t=127.0.0.1:80", "t:80", False),
        ("t", "t=127.0.0.1:80", False),  # a name is not yet an address inside
        ("*.org", "t.org=127.0.0.1:80", False),
    ],
)
def test_what_grants_what(granted: str, item: str, allowed: bool) -> None:
    assert (granted, item) == (*(parse_network([granted])), *(parse_network([item])))
    assert grants([granted], item) is allowed
    assert exceeds((item,), (granted,)) is not allowed
    assert lowered((item,), (granted,)) == ((item,) if allowed else "none")


def test_nothing_is_less_than_hosts_and_hosts_are_less_than_all() -> None:
    order = ["none", ("a.org",), "host"]
    for i, asked in enumerate(order):
        for j, most in enumerate(order):
            assert exceeds(asked, most) is (i > j)
            assert lowered(asked, most) == order[min(i, j)]


NAMES = st.sampled_from(["a", "b.a", "c.b.a", "x.a", "*.a", "*.b.a"])
ITEMS = st.one_of(
    NAMES,
    st.builds("{}:{}".format, NAMES, st.sampled_from([80, 443])),
    st.just("t=127.0.0.1:80"),
    st.just("a=[::1]:80"),
)
NETWORKS = st.one_of(st.sampled_from(["none", "host"]), st.lists(ITEMS, max_size=3)).map(parse_network)


@given(NETWORKS, NETWORKS, NETWORKS)
def test_a_ceilings_ceiling_is_a_ceiling(asked: str, below: str, most: str) -> None:
    """What is within a ceiling that is within another is within that; what was lowered to one is within it."""
    assert not exceeds(asked, asked)
    if not exceeds(asked, below) and not exceeds(below, most):
        assert not exceeds(asked, most)
    assert not exceeds(lowered(asked, most), most)
    assert not exceeds(lowered(asked, most), asked)
