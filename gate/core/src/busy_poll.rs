//! A lone caller who sends its next call as soon as it has its answer: the thread stays awake for it.
//!
//! ```text
//! many callers    call call answer call answer …   sleeps when there is nothing, as ever
//! a lone caller   call ─ answer ─ call ─ answer …  each soon after the other: polls in between
//! ```
//!
//! Going to sleep and being woken, twice a call, is a sixth of the time of a durable send. Only strict turns
//! count, so that nobody pays for it under load; and one poll that was in vain ends it. Where there is but
//! one processor, whoever is waited for would need it; where others want the processors, it rests.

use crate::lone_caller::{LoneCaller, make_way};
use crate::statistics::{Statistics, up};
use std::cell::Cell;
use std::sync::Arc;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::yield_now;

/// Turns before it is believed that more follow.
const TURNS_BEFORE: u32 = 8;

/// Whether a thread should poll or sleep.
pub(crate) struct BusyPoll {
    budget: Duration,
    lone_caller: Arc<LoneCaller>,
    statistics: Arc<Statistics>,
    turns: Cell<u32>,
    open: Cell<Option<u64>>,
    last: Cell<Instant>,
    rests_until: Cell<Option<Instant>>,
    resumed: Notify,
}

impl BusyPoll {
    /// With a budget of zero, or one processor alone, it never polls.
    pub(crate) fn new(budget_us: u64, lone_caller: Arc<LoneCaller>, statistics: Arc<Statistics>) -> Self {
        let is_alone = available_parallelism().is_ok_and(|processors| processors.get() == 1);
        let budget = Duration::from_micros(if is_alone { 0 } else { budget_us });
        Self {
            budget,
            lone_caller,
            statistics,
            turns: Cell::new(0),
            open: Cell::new(None),
            last: Cell::new(Instant::now()),
            rests_until: Cell::new(None),
            resumed: Notify::new(),
        }
    }

    /// Python was given a call.
    pub(crate) fn called(&self, id: u64) {
        let is_alone = self.open.replace(Some(id)).is_none();
        self.turn(is_alone, Instant::now());
    }

    /// Python has answered one.
    pub(crate) fn answered(&self, id: u64) {
        let is_the_only = self.open.take() == Some(id);
        self.turn(is_the_only, Instant::now());
    }

    fn turn(&self, is_next: bool, now: Instant) {
        let is_soon = now.saturating_duration_since(self.last.replace(now)) < self.budget;
        let rests = self.rests_until.get().is_some_and(|until| now < until);
        let turns = if is_next && is_soon && !rests { self.turns.get().saturating_add(1) } else { 0 };
        self.turns.set(turns);
        if turns >= TURNS_BEFORE {
            self.resumed.notify_one();
        }
    }

    fn is_worth_it(&self, now: Instant) -> bool {
        self.turns.get() >= TURNS_BEFORE && now.saturating_duration_since(self.last.get()) < self.budget
    }

    fn rest(&self, now: Instant, duration: Duration) {
        if !duration.is_zero() {
            self.turns.set(0);
            self.rests_until.set(Some(now + duration));
        }
    }

    /// Keep the thread from sleeping while it is worth it: each yield looks at the sockets without waiting.
    pub(crate) async fn run(&self) {
        loop {
            self.resumed.notified().await;
            if !self.is_worth_it(Instant::now()) {
                continue;
            }
            up(&self.statistics.busy_polls);
            let _serving = self.lone_caller.serve();
            while self.is_worth_it(Instant::now()) {
                if !make_way() {
                    self.rest(Instant::now(), self.lone_caller.rest());
                }
                yield_now().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: Duration = Duration::from_micros(250);
    const SOON: Duration = Duration::from_micros(200);
    const LONG: Duration = Duration::from_secs(1);

    fn with_budget(budget: Duration) -> BusyPoll {
        let mut poll = BusyPoll::new(0, LoneCaller::new(), Arc::default());
        poll.budget = budget;
        poll
    }

    fn lone_caller(turns: u32) -> (BusyPoll, Instant) {
        let poll = with_budget(BUDGET);
        let mut now = poll.last.get();
        for _ in 0..turns {
            now += SOON;
            poll.turn(true, now);
        }
        (poll, now)
    }

    #[test]
    fn it_polls_after_some_turns_and_only_for_its_budget() {
        let (poll, now) = lone_caller(TURNS_BEFORE - 1);
        assert!(!poll.is_worth_it(now));
        let (poll, now) = lone_caller(TURNS_BEFORE);
        assert!(poll.is_worth_it(now + SOON));
        assert!(!poll.is_worth_it(now + BUDGET));
    }

    #[test]
    fn a_turn_that_comes_late_ends_it() {
        let (poll, now) = lone_caller(TURNS_BEFORE);
        poll.turn(true, now + BUDGET);
        assert!(!poll.is_worth_it(now + BUDGET));
    }

    #[test]
    fn a_second_caller_ends_it() {
        let (poll, _) = lone_caller(TURNS_BEFORE);
        poll.called(1);
        poll.called(2);
        assert_eq!(poll.turns.get(), 0);
        poll.answered(1);
        assert_eq!(poll.turns.get(), 0);
    }

    #[test]
    fn a_call_that_ended_without_an_answer_costs_a_few_turns() {
        let (poll, _) = lone_caller(0);
        poll.called(1);
        for id in 2..2 + u64::from(TURNS_BEFORE) {
            poll.called(id);
            poll.answered(id);
        }
        // The first of these only took the place of the one that never was answered.
        assert_eq!(poll.turns.get(), 2 * TURNS_BEFORE - 1);
    }

    #[test]
    fn where_others_want_the_processors_it_rests_and_begins_anew() {
        let (poll, mut now) = lone_caller(TURNS_BEFORE);
        poll.rest(now, Duration::ZERO);
        assert!(poll.is_worth_it(now));
        poll.rest(now, LONG);
        assert!(!poll.is_worth_it(now));
        let over = now + LONG;
        while now + SOON < over {
            now += SOON;
            poll.turn(true, now);
        }
        assert_eq!(poll.turns.get(), 0);
        for _ in 0..TURNS_BEFORE {
            now += SOON;
            poll.turn(true, now);
        }
        assert!(poll.is_worth_it(now));
    }

    #[test]
    fn a_budget_of_nothing_never_polls() {
        let poll = with_budget(Duration::ZERO);
        for id in 0..100 {
            poll.called(id);
            poll.answered(id);
        }
        assert_eq!(poll.turns.get(), 0);
    }
}
