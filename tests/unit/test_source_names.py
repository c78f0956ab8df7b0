"""How sources of workers are written, and what is said of one that is written wrongly."""

import pytest

from coordinator.config import CoordinatorSettings
from paceline.config import read_settings
from paceline.errors import InvalidConfig
from paceline.workers.discovery.source_names import (
    DnsSource,
    KubernetesSource,
    Source,
    StaticSource,
    parse_source,
)

BY_NAME = "kubernetes.io/service-name="


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("target:50051", StaticSource("target:50051")),
        ("[fd00::1]:50051", StaticSource("[fd00::1]:50051")),
        ("unix:/run/target", StaticSource("unix:/run/target")),
        ("unix:///run/target", StaticSource("unix:///run/target")),
        ("dns:///target.prod.svc:50051", DnsSource("target.prod.svc", 50051)),
        ("dns:///target.prod.svc.:50051", DnsSource("target.prod.svc.", 50051)),
        ("kubernetes://draft", KubernetesSource("", BY_NAME + "draft", "")),
        ("kubernetes://prod/draft", KubernetesSource("prod", BY_NAME + "draft", "")),
        ("kubernetes://prod/draft:grpc", KubernetesSource("prod", BY_NAME + "draft", "grpc")),
        ("kubernetes://draft:50051", KubernetesSource("", BY_NAME + "draft", "50051")),
        ("kubernetes://?selector=a.b/c=d", KubernetesSource("", "a.b/c=d", "")),
        ("kubernetes://prod:7?selector=a=b", KubernetesSource("prod", "a=b", "7")),
        ("kubernetes://?selector=a=b&selector=!c", KubernetesSource("", "a=b,!c", "")),
        ("kubernetes://?selector=a in (b%2Cc)", KubernetesSource("", "a in (b,c)", "")),
    ],
)
def test_a_source_is_what_it_is_written_as(text: str, meaning: Source) -> None:
    assert parse_source(text) == meaning


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("target", "should be host:port"),
        ("target:http", "should be host:port"),
        ("target:65536", "should be host:port"),
        ("http://target:80", "should be host:port"),
        ("dns://server/target:1", "should be dns:///name:port"),
        ("dns:///target", "with a number as the port"),
        ("dns:///target..svc:1", "parts of 1 to 63 letters behind dns:///, not 'target..svc'"),
        (f"dns:///{'x' * 64}.svc:1", "parts of 1 to 63 letters"),
        ("kubernetes://", "should name a Service, not ''"),
        ("kubernetes://a/b/c", "should name a namespace, not 'a/b'"),
        ("kubernetes://Draft", "should name a Service, not 'Draft'"),
        ("kubernetes://draft:", "should name a port of the Service or give its number, not ''"),
        ("kubernetes://draft:70000", "not '70000'"),
        ("kubernetes://a/b?selector=c", "should name a namespace, not 'a/b'"),
        ("kubernetes://?label=c", "should have selector=<label>=<value> behind the ?"),
        ("kubernetes://?selector=", "should have selector=<label>=<value> behind the ?"),
        ("kubernetes://?", "should have selector=<label>=<value> behind the ?"),
    ],
)
def test_what_is_no_source_is_refused_with_what_was_expected(text: str, expected: str) -> None:
    with pytest.raises(ValueError) as refusal:
        parse_source(text)
    assert expected in str(refusal.value)


def test_settings_hold_sources_of_all_kinds_and_name_the_wrong_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sources = ("a:1", "dns:///b:2", "kubernetes://?selector=c=d&selector=e=f")
    monkeypatch.setenv("PACELINE_TARGETS", ", ".join(sources))
    assert read_settings(CoordinatorSettings).targets == sources
    monkeypatch.setenv("PACELINE_TARGETS", "kubernetes://?selector=c=d,e=f")
    with pytest.raises(InvalidConfig) as refusal:
        read_settings(CoordinatorSettings)
    message = refusal.value.message
    assert "PACELINE_TARGETS is 'e=f', but should be" in message
    assert "more requirements: &selector=" in message
    assert "at least 1" not in message, "what is left of the list counts as well"
    monkeypatch.setenv("PACELINE_TARGETS", "")
    with pytest.raises(InvalidConfig, match="at least 1"):
        read_settings(CoordinatorSettings)
