"""What every strategy promises, whatever it decides; inherit it and name the strategy."""

import math
from typing import ClassVar

import pytest

from cloudtune.engine.resume import replay
from cloudtune.model.commands import Launch, StartTrial
from cloudtune.model.events import EpochDone
from cloudtune.model.plans import Limits
from cloudtune.model.trial import EndReason
from cloudtune.strategies.base import Sampler, Strategy
from tests.builders import LINEAR, Played, Setting, by_name, gone, level, offer, play, profile

CAPS = {1: 2, 4: 5, 7: 1, 9: 40}
SHAKY = profile(LINEAR, spread=0.2)
LIMITS = [
    Limits(10.0, 100.0),  # no instance is up by then
    Limits(150.0, 0.5),
    Limits(None, 1.7),
    Limits(120.0, None),
    Limits(400.0, 3.0),
    Limits(0.0, 1.0),
    Limits(100.0, 0.0),
]


def sometimes(trial: str, session: int, epoch: int) -> bool:
    """Whether trouble comes to a trial at an epoch of its first session."""
    return session == 1 and (int(trial[1:]) * 7 + epoch * 3) % 5 == 0


class StrategyContract:
    """The suite of a strategy; its jobs are of twelve trials and of nine epochs at most."""

    name: ClassVar[str]
    max_epochs: ClassVar[int] = 9
    wide: ClassVar[int] = 12
    """How many trials it runs at once where there is room for all."""

    def build(self, sampler: Sampler, game: Setting) -> Strategy:
        build = by_name(self.name, max_epochs=self.max_epochs, trials=game.trials or None)
        return build(sampler, game)

    def play(self, game: Setting) -> Played:
        return play(game, self.build)

    @pytest.fixture(params=[False, True], ids=["constant", "naive"])
    def game(self, request: pytest.FixtureRequest) -> Setting:
        return Setting(12, naive=request.param)

    def test_it_is_called_by_its_name(self) -> None:
        game = Setting(12)
        assert game.policy(self.build).strategy.name == self.name

    # ---- to the end ----------------------------------------------------------------------

    def test_sampler_end_ends_the_run(self, game: Setting) -> None:
        played = self.play(game)
        assert played.policy.ending is EndReason.DONE
        assert set(played.epochs) == {trial.id for trial in game.given}
        assert not played.policy.state.running
        first = {start.trial: start.start_epoch for start in reversed(played.starts)}
        for trial, last in played.epochs.items():
            result = [epoch for name, epoch in played.sampler.reported if name == trial]
            assert result == list(range(first[trial] + 1, last + 1)), "once and in order"

    def test_without_a_trial_nothing_is_rented(self, game: Setting) -> None:
        played = self.play(game.but(trials=0))
        assert played.policy.ending is EndReason.FAILED
        assert not any(isinstance(c, Launch) for said in played.commands for c in said)

    def test_a_single_trial_is_enough(self, game: Setting) -> None:
        played = self.play(game.but(trials=1))
        assert played.policy.ending is EndReason.DONE
        assert played.epochs["t00"] >= 1

    def test_no_trial_trains_past_its_last_epoch(self, game: Setting) -> None:
        played = self.play(game.but(trials=12, caps=CAPS))
        assert played.policy.ending is EndReason.DONE
        for trial in played.setting.given:
            assert played.epochs[trial.id] <= min(trial.epochs or 99, self.max_epochs)
        for start in played.starts:
            assert start.start_epoch < start.until_epoch <= self.max_epochs

    # ---- the same again ------------------------------------------------------------------

    def test_equal_seeds_are_equal_and_min_mirrors_max(self, game: Setting) -> None:
        shaky = game.but(profile=SHAKY, seed=3)
        commands = self.play(shaky).commands
        assert commands == self.play(shaky).commands == self.play(shaky.mirrored()).commands

    def test_a_recorded_run_is_decided_the_same_again(self, game: Setting) -> None:
        played = self.play(game.but(profile=SHAKY, saves_every=2, trouble=gone({"i000": 70.0})))
        replay(played.setting.policy(), played.entries)

    # ---- trouble -------------------------------------------------------------------------

    def test_trials_that_fail_hold_none_up(self, game: Setting) -> None:
        played = self.play(game.but(mishap=lambda *at: "failed" if sometimes(*at) else ""))
        failed = [t.id for t in played.policy.trials.values() if t.status == "failed"]
        assert failed
        assert sorted(played.sampler.failed) == sorted(failed)
        assert played.policy.ending is EndReason.DONE

    def test_scripts_that_end_by_themselves_hold_none_up(self, game: Setting) -> None:
        played = self.play(game.but(mishap=lambda *at: "ended" if sometimes(*at) else ""))
        assert not any(trial.error for trial in played.policy.trials.values())
        assert not played.sampler.failed
        early = [
            trial
            for trial in played.policy.trials.values()
            if trial.status == "finished" and sometimes(trial.id, 1, trial.epoch)
        ]
        assert early
        assert played.policy.ending is EndReason.DONE

    def test_epochs_without_a_report_are_passed(self, game: Setting) -> None:
        played = self.play(game.but(reports_every=3))
        assert played.policy.ending is EndReason.DONE
        best = played.policy.state.record.seen
        assert best is not None
        assert best.epoch % 3 == 0, "it is that of a report"
        number = int(best.trial[1:])
        assert best.metric == played.setting.reaches(number, best.epoch)

    def test_nan_ends_a_trial(self, game: Setting) -> None:
        def metric(number: int, epoch: int) -> float:
            diverges = number % 2 and (number + epoch) % 6 == 0
            return math.nan if diverges else level(number, epoch)

        played = self.play(game.but(metric=metric))
        failed = {t.id: t for t in played.policy.trials.values() if t.status == "diverged"}
        assert "was nan" in failed["t05"].error
        assert played.policy.ending is EndReason.DONE
        assert all(not math.isnan(value or 0.0) for value in played.sampler.reported.values())

    def test_a_run_in_which_all_fail_has_failed(self, game: Setting) -> None:
        played = self.play(game.but(metric=lambda _number, _epoch: math.nan))
        assert played.policy.ending is EndReason.FAILED
        assert len(played.policy.trials) == game.trials

    @pytest.mark.parametrize("saves_every", [1, 4])
    def test_lost_trials_go_on_from_their_checkpoint(self, game: Setting, saves_every: int) -> None:
        """The sampler checks that no epoch is reported twice."""
        played = self.play(
            game.but(mishap=lambda *at: "lost" if sometimes(*at) else "", saves_every=saves_every)
        )
        assert played.policy.ending is EndReason.DONE
        assert not played.sampler.failed
        assert any(trial.sessions > 1 for trial in played.policy.trials.values())
        for start in played.starts:
            assert start.start_epoch % saves_every == 0
            if start.start_epoch:
                assert start.checkpoint is not None  # its own, or that of what it is cloned from
                assert start.checkpoint.endswith(f"/{start.start_epoch}")

    def test_instances_that_vanish_are_made_good(self, game: Setting) -> None:
        played = self.play(game.but(trouble=gone({"i000": 60.0, "i001": 62.0}), saves_every=3))
        assert played.policy.ending is EndReason.DONE
        assert not played.sampler.failed
        assert set(played.epochs) == {trial.id for trial in game.given}

    # ---- limits --------------------------------------------------------------------------

    @pytest.mark.parametrize("most", [1, 3])
    def test_no_more_trials_at_once_than_allowed(self, game: Setting, most: int) -> None:
        """Not where an instance vanishes, either."""
        lost = game.but(max_concurrent=most, trouble=gone({"i000": 90.0}), saves_every=4)
        played = self.play(lost)
        assert played.max_at_once() == min(most, self.wide)
        assert played.policy.ending is EndReason.DONE

    def test_a_reached_target_ends_the_run(self, game: Setting) -> None:
        scores = sorted(level(n, e) for n in range(12) for e in (1, 2))
        target = scores[-6]
        played = self.play(game.but(target=target))
        assert played.policy.ending is EndReason.DONE
        at = [e.event.at for e in played.entries if self._reaches(e.event, target)]
        begun = [
            e.event.at for e in played.entries if any(isinstance(c, StartTrial) for c in e.commands)
        ]
        assert at
        assert max(begun) <= at[0]

    @staticmethod
    def _reaches(event: object, target: float) -> bool:
        return isinstance(event, EpochDone) and event.metrics["score"] >= target

    @pytest.mark.parametrize("limits", LIMITS, ids=str)
    def test_neither_deadline_nor_budget_is_passed(self, game: Setting, limits: Limits) -> None:
        played = self.play(game.but(limits=limits, profile=SHAKY, trials=30))
        seconds, dollars = played.bill()
        assert limits.deadline is None or seconds <= limits.deadline
        assert limits.budget is None or dollars <= limits.budget + 1e-9
        assert dollars == pytest.approx(played.policy.spent(played.policy.now))


class OrderedContract(StrategyContract):
    """The suite of a strategy that decides by results and their order alone, not by the time."""

    def test_a_vanished_fleet_changes_nothing_but_time(self, game: Setting) -> None:
        """One trial at a time, so that nothing else can depend on the order of arrival."""
        single = game.but(offer=offer(1), max_instances=1)
        lost = self.play(single.but(trouble=gone({"i000": 100.0}), saves_every=2))
        assert lost.epochs == self.play(single).epochs

    def test_every_trial_begins_at_its_first_epoch(self, game: Setting) -> None:
        result = self.play(game).sampler.reported
        assert {name for name, epoch in result if epoch == 1} == {trial.id for trial in game.given}
