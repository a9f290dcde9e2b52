"""`topics_where`: the same topics as a walk over all of them, without the walk."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from velaray.actors.catalog.state import (
    CLUSTER,
    Catalog,
    Scope,
    Topic,
    effective_policy,
    topics_where,
)
from velaray.events.ids import TopicName

NAMESPACES = (("a", "x"), ("a", "y"), ("b", "x"))
TOPICS = [
    TopicName.parse(f"persistent://{tenant}/{namespace}/t{number}")
    for tenant, namespace in NAMESPACES
    for number in range(3)
]
SCOPES = [CLUSTER, *(Scope(*each) for each in NAMESPACES), *map(Scope.of_topic, TOPICS)]


def catalog(policies: dict[Scope, dict[str, bytes]]) -> Catalog:
    """Three namespaces with three topics each."""
    state = Catalog(policies=policies)
    for number, topic in enumerate(TOPICS):
        inside = state.namespaces.setdefault((topic.tenant, topic.namespace), {})
        inside[str(topic)] = Topic(topic, 0, number)
    return state


@given(
    st.dictionaries(
        st.sampled_from(SCOPES),
        st.dictionaries(
            st.sampled_from(["messageTTL", "maxProducersPerTopic"]),
            st.sampled_from([b"0", b"5"]),
            min_size=1,
        ),
    )
)
def test_it_finds_what_a_walk_finds_in_the_same_order(
    policies: dict[Scope, dict[str, bytes]],
) -> None:
    state, asked = catalog(policies), []

    def expires(scope: Scope) -> bool:
        asked.append(scope)
        return bool(effective_policy(state, scope, "messageTTL"))

    found = [topic.name for topic in topics_where(state, {"messageTTL"}, expires)]
    own = [scope for scope, values in policies.items() if scope.topic and "messageTTL" in values]
    assert len(asked) == len(NAMESPACES) + len(own)
    assert found == [name for name in TOPICS if expires(Scope.of_topic(name))]
