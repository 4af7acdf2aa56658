"""Whose turn it is."""

from paddle_ernie.serve.engine.fairness import REMEMBERED, Fairness


def test_a_newcomer_starts_from_the_least_served():
    fairness = Fairness()
    fairness.enter("a")
    fairness.charge("a", 100)
    fairness.enter("b")
    fairness.charge("b", 40)
    fairness.enter("c")
    assert [fairness.served(client) for client in "abc"] == [100, 140, 100]


def test_leaving_and_coming_back_gains_nothing():
    fairness = Fairness()
    fairness.enter("a")
    fairness.charge("a", 100)
    fairness.enter("b")
    fairness.leave("a")
    fairness.enter("a")
    assert fairness.served("a") == 100


def test_gone_clients_are_forgotten_in_time():
    fairness = Fairness()
    fairness.enter("stays")
    fairness.charge("stays", 5)
    for number in range(3 * REMEMBERED):
        fairness.enter(str(number))
        fairness.leave(str(number))
    assert len(fairness._served) <= REMEMBERED + 2
    assert fairness.served("stays") == 5
