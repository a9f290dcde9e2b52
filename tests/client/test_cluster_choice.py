"""Which cluster a client uses, by what probes tell; and what the public types refuse."""

import pytest

import velaray
from velaray.client.cluster_choice import ClusterChoice

URLS = ["pulsar://a:1", "pulsar://b:2", "pulsar://c:3"]
A, B, C = map(velaray.ServiceInfo, URLS)


def probed(choice, *up):
    """One round in which these clusters answer: those that were probed, in order."""
    asked, probes = [], choice.round()
    try:
        number = next(probes)
        while True:
            asked.append(number)
            number = probes.send(number in up)
    except StopIteration:
        return asked


def test_while_the_primary_answers_no_other_cluster_is_probed():
    choice = ClusterChoice(3, 1, 1)
    assert [probed(choice, 0) for _ in range(3)] == [[0]] * 3
    assert choice.current == 0


def test_only_consecutive_failures_count():
    choice = ClusterChoice(3, 3, 1)
    for up in ((), (), (0,), (), ()):
        assert probed(choice, *up) == [0]
    assert (probed(choice, 2), choice.current) == ([0, 1, 2], 2)


def test_without_any_answer_the_choice_is_kept_and_all_are_probed():
    choice = ClusterChoice(3, 2, 1)
    assert probed(choice) == [0]
    assert [probed(choice), probed(choice)] == [[0, 1, 2]] * 2
    assert choice.current == 0
    assert (probed(choice, 1, 2), choice.current) == ([0, 1], 1)


def test_only_consecutive_answers_of_the_primary_count():
    choice = ClusterChoice(2, 1, 3)
    probed(choice, 1)
    for up in ((0, 1), (0, 1), (1,), (0, 1), (0, 1)):
        assert (probed(choice, *up), choice.current) == ([1, 0], 1)
    assert (probed(choice, 0, 1), choice.current) == ([1, 0], 0)
    assert probed(choice, 0, 1) == [0]


def test_a_failed_secondary_switches_back_after_one_answer_of_the_primary():
    choice = ClusterChoice(3, 2, 5)
    probed(choice)
    probed(choice, 1)
    assert (probed(choice, 0), choice.current) == ([1, 0], 1)
    assert (probed(choice, 0), choice.current) == ([1, 0], 0)


def test_a_failed_secondary_switches_to_the_next_one():
    choice = ClusterChoice(3, 1, 1)
    probed(choice, 1)
    assert (probed(choice, 2), choice.current) == ([1, 0, 2], 2)
    assert (probed(choice, 1), choice.current) == ([2, 0, 1], 1)


# -- the public types --------------------------------------------------------------


def test_arguments_can_be_read_back():
    token = velaray.AuthenticationToken("x")
    info = velaray.ServiceInfo(URLS[0], token)
    assert (info.service_url, info.authentication) == (URLS[0], token)
    assert (info.use_tls, info.tls_trust_certs_file_path) == (False, None)
    info = velaray.ServiceInfo("pulsar+ssl://a", None, "/etc/ca.pem")
    assert (info.use_tls, info.tls_trust_certs_file_path) == (True, "/etc/ca.pem")
    chosen = velaray.AutoClusterFailover(A, [B, C], 10, 2, 3)
    assert (chosen.primary, chosen.secondary) == (A, [B, C])
    numbers = (chosen.check_interval_ms, chosen.failover_threshold, chosen.switch_back_threshold)
    assert numbers == (10, 2, 3)
    assert URLS[2] in repr(chosen)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("http://a:1",), velaray.InvalidUrl),
        ((5,), velaray.InvalidUrl),
        ((URLS[0], "token"), velaray.InvalidConfiguration),
    ],
)
def test_invalid_service_infos_are_refused(arguments, error):
    with pytest.raises(error):
        velaray.ServiceInfo(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        (URLS[0], [B]), (A, []), (A, B), (A, [URLS[1]]), (A, [B], 0), (A, [B], True),
        (A, [B], 1.5), (A, [B], 1, 0), (A, [B], 1, 1, 0),
    ],
)  # fmt: skip
def test_invalid_failover_arguments_are_refused(arguments):
    with pytest.raises(velaray.InvalidConfiguration):
        velaray.AutoClusterFailover(*arguments)


def test_credentials_belong_to_their_cluster():
    for client in (velaray.Client, velaray.aio.Client):
        with pytest.raises(velaray.InvalidConfiguration, match="give each ServiceInfo its own"):
            client(velaray.AutoClusterFailover(A, [B]), velaray.AuthenticationToken("x"))


def test_a_provider_must_return_service_infos():
    class Wrong(velaray.ServiceInfoProvider):
        def initial_service_info(self):
            return URLS[0]

    for client in (velaray.Client, velaray.aio.Client):
        with pytest.raises(velaray.InvalidConfiguration, match="ServiceInfo"):
            client(Wrong())
        with pytest.raises(NotImplementedError):
            client(velaray.ServiceInfoProvider())
