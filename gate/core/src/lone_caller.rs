//! How the threads of a server stay awake together while there is but one caller, who waits for each answer.
//!
//! ```text
//! a gate thread   polls its sockets between the words of the caller (`busy_poll`)
//! Python's loop   polls the inbox while it has nothing else to do (`linger`)
//! the idler       runs on the processor of Python's loop when nobody else wants it
//! ```
//!
//! A processor without work goes to sleep, and to wake it takes a virtual machine some 30 µs: as long as the
//! answer itself, twice or more in each call, and once more in each write that Python's loop waits for. The
//! idler, of the least priority, is what runs there meanwhile. Threads that poll are in the way where others
//! want the processors: when one gets its own back late, Python's loop and the idler sleep for a while, and if
//! that was not enough the gate thread, too. The while is short for what happens once, as a program that starts
//! or collects its garbage, and twice as long each time it happens again soon.

use crate::inbox::Inbox;
use std::num::NonZero;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, available_parallelism};
use std::time::{Duration, Instant};

/// Who is woken by an answer needs a tenth of it; a program that computes takes the processor for longer.
const LATE: Duration = Duration::from_millis(1);
/// The first rest after a thread that polled was found in the way of others.
const SHORTEST_REST: Duration = Duration::from_millis(32);
/// And the longest; whoever was not in the way for as long begins with the shortest again.
const LONGEST_REST: Duration = Duration::from_secs(1);

/// Shared by the threads of a gate and Python's.
pub(crate) struct LoneCaller {
    /// Gate threads that poll for one.
    callers: AtomicUsize,
    began: Instant,
    /// Microseconds after `began`.
    rests_until_us: AtomicU64,
    /// How long this rest, or the last one, is.
    rest_us: AtomicU64,
    is_over: AtomicBool,
    /// Where Python's loop was last seen.
    processor: AtomicUsize,
    idler: Mutex<Option<JoinHandle<()>>>,
    is_roomy: bool,
}

impl LoneCaller {
    pub(crate) fn new() -> Arc<Self> {
        Self::with_room(is_roomy())
    }

    fn with_room(is_roomy: bool) -> Arc<Self> {
        Arc::new(Self {
            callers: AtomicUsize::new(0),
            began: Instant::now(),
            rests_until_us: AtomicU64::new(0),
            rest_us: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            processor: AtomicUsize::new(0),
            idler: Mutex::new(None),
            is_roomy,
        })
    }

    /// A gate thread polls for a lone caller until this is dropped.
    pub(crate) fn serve(self: &Arc<Self>) -> Serving<'_> {
        self.callers.fetch_add(1, Release);
        if self.is_roomy {
            self.wake_idler();
        }
        Serving(self)
    }

    fn is_served(&self) -> bool {
        self.callers.load(Acquire) > 0
    }

    fn age_us(&self) -> u64 {
        microseconds(self.began.elapsed())
    }

    fn rests_for(&self) -> Duration {
        Duration::from_micros(self.rests_until_us.load(Relaxed).saturating_sub(self.age_us()))
    }

    fn is_resting(&self) -> bool {
        !self.rests_for().is_zero()
    }

    /// Others want the processors: Python's loop and the idler sleep for a while. How long the thread that
    /// says so should sleep, too: not at all if they had been awake until now.
    pub(crate) fn rest(&self) -> Duration {
        self.rest_at(self.age_us())
    }

    fn rest_at(&self, now_us: u64) -> Duration {
        let over_us = self.rests_until_us.load(Relaxed);
        let is_resting = now_us < over_us;
        let last_us = self.rest_us.load(Relaxed);
        let longest_us = microseconds(LONGEST_REST);
        let rest_us = if is_resting {
            last_us
        } else if now_us.saturating_sub(over_us) < longest_us {
            last_us.saturating_mul(2).clamp(microseconds(SHORTEST_REST), longest_us)
        } else {
            microseconds(SHORTEST_REST)
        };
        self.rest_us.store(rest_us, Relaxed);
        self.rests_until_us.store(now_us.saturating_add(rest_us), Relaxed);
        if is_resting { Duration::from_micros(rest_us) } else { Duration::ZERO }
    }

    /// Wait for the inbox without sleeping while a lone caller is served, `limit` at most; how long it was.
    pub(crate) fn linger(&self, inbox: &Inbox, limit: Duration) -> Duration {
        if !(self.is_roomy && self.is_served()) || self.is_resting() {
            return Duration::ZERO;
        }
        let began = Instant::now();
        self.processor.store(platform::processor(), Relaxed);
        while inbox.is_empty() && self.is_served() && began.elapsed() < limit {
            if !make_way() {
                self.rest();
                break;
            }
        }
        self.processor.store(platform::processor(), Relaxed);
        began.elapsed()
    }

    fn wake_idler(self: &Arc<Self>) {
        let mut idler = self.idler.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(idler) = &*idler {
            idler.thread().unpark();
        } else if platform::HAS_IDLER && !self.is_over.load(Acquire) {
            let own = self.clone();
            // Without it a call takes longer, nothing else.
            *idler = std::thread::Builder::new().name("gate-idle".into()).spawn(move || own.idle()).ok();
        }
    }

    fn idle(&self) {
        if !platform::take_least_priority() {
            // It would be in the way of everybody.
            return;
        }
        let mut pinned = None;
        while !self.is_over.load(Acquire) {
            if !self.is_served() {
                std::thread::park();
                continue;
            }
            if self.is_resting() {
                std::thread::park_timeout(self.rests_for());
                continue;
            }
            let processor = self.processor.load(Relaxed);
            if pinned.replace(processor) != Some(processor) {
                platform::pin(processor);
            }
            std::thread::yield_now();
        }
    }

    /// Tell the idler to end; it may be waited for.
    pub(crate) fn end(&self) -> Option<JoinHandle<()>> {
        let mut idler = self.idler.lock().unwrap_or_else(PoisonError::into_inner);
        self.is_over.store(true, Release);
        let ended = idler.take();
        if let Some(idler) = &ended {
            idler.thread().unpark();
        }
        ended
    }
}

/// That a gate thread polls for a lone caller.
pub(crate) struct Serving<'a>(&'a LoneCaller);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.callers.fetch_sub(1, Release);
    }
}

fn microseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Let others run who were put behind this thread. False if they took long.
pub(crate) fn make_way() -> bool {
    let began = Instant::now();
    std::thread::yield_now();
    began.elapsed() < LATE
}

/// Two threads poll at a time: they must not eat up what a container may use.
fn is_roomy() -> bool {
    let available = available_parallelism().map_or(1, NonZero::get);
    available > 2 || (available == 2 && platform::processors().is_none_or(|processors| processors == 2))
}

#[cfg(target_os = "linux")]
mod platform {
    use rustix::process::setpriority_process;
    use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

    pub(super) const HAS_IDLER: bool = true;
    const LEAST: i32 = 19;

    /// Processors this process may run on, whatever its share of them.
    pub(super) fn processors() -> Option<u32> {
        sched_getaffinity(None).ok().map(|set| set.count())
    }

    /// The one the caller runs on.
    pub(super) fn processor() -> usize {
        sched_getcpu()
    }

    /// Linux takes the id of a thread here. False where a sandbox refuses it.
    pub(super) fn take_least_priority() -> bool {
        setpriority_process(Some(gettid()), LEAST).is_ok()
    }

    /// Run there and nowhere else. Where it may not, it stays where it is.
    pub(super) fn pin(processor: usize) {
        if processor < CpuSet::MAX_CPU {
            let mut set = CpuSet::new();
            set.set(processor);
            let _ = sched_setaffinity(None, &set);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod platform {
    /// A thread cannot be kept to a processor there.
    pub(super) const HAS_IDLER: bool = false;

    pub(super) fn processors() -> Option<u32> {
        None
    }

    pub(super) fn processor() -> usize {
        0
    }

    pub(super) fn take_least_priority() -> bool {
        false
    }

    pub(super) fn pin(_: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inbox::{Event, EventKind};
    use std::io;

    const LONG: Duration = Duration::from_secs(30);
    const SHORT: Duration = Duration::from_micros(50);

    impl LoneCaller {
        fn has_idler(&self) -> bool {
            self.idler.lock().unwrap_or_else(PoisonError::into_inner).is_some()
        }
    }

    #[test]
    fn nobody_lingers_without_a_lone_caller_or_without_room() -> io::Result<()> {
        let inbox = Inbox::new()?;
        assert_eq!(LoneCaller::with_room(true).linger(&inbox, LONG), Duration::ZERO);
        let rationed = LoneCaller::with_room(false);
        let _serving = rationed.serve();
        assert_eq!(rationed.linger(&inbox, LONG), Duration::ZERO);
        assert!(!rationed.has_idler());
        Ok(())
    }

    #[test]
    fn what_ends_a_wait_is_an_event_the_limit_or_the_end_of_serving() -> io::Result<()> {
        let alone = LoneCaller::with_room(true);
        let (empty, filled) = (Inbox::new()?, Inbox::new()?);
        filled.push(Event::new(EventKind::Drained, 0, 0));
        let serving = alone.serve();
        assert!(alone.linger(&filled, LONG) < LONG);
        assert!(alone.linger(&empty, SHORT) >= SHORT);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| alone.linger(&empty, LONG));
            drop(serving);
            assert!(waiting.join().is_ok_and(|waited| waited < LONG));
        });
        alone.end();
        Ok(())
    }

    #[test]
    fn nobody_lingers_while_others_want_the_processors() -> io::Result<()> {
        let alone = LoneCaller::with_room(true);
        let empty = Inbox::new()?;
        let _serving = alone.serve();
        let now_us = microseconds(LONG);
        assert_eq!(alone.rest_at(now_us), Duration::ZERO);
        assert_eq!(alone.rest_at(now_us), SHORTEST_REST, "that was not enough");
        assert_eq!(alone.linger(&empty, LONG), Duration::ZERO);
        alone.rests_until_us.store(0, Relaxed);
        assert!(alone.linger(&empty, SHORT) >= SHORT);
        alone.end();
        Ok(())
    }

    #[test]
    fn rests_grow_while_others_keep_wanting_the_processors() {
        let alone = LoneCaller::with_room(true);
        let mut now_us = microseconds(LONG);
        let mut rests = || {
            assert_eq!(alone.rest_at(now_us), Duration::ZERO);
            let rest_us = alone.rest_us.load(Relaxed);
            now_us += rest_us;
            Duration::from_micros(rest_us)
        };
        assert_eq!([rests(), rests(), rests()], [SHORTEST_REST, SHORTEST_REST * 2, SHORTEST_REST * 4]);
        assert_eq!([rests(), rests(), rests()], [SHORTEST_REST * 8, SHORTEST_REST * 16, LONGEST_REST]);
        assert_eq!(rests(), LONGEST_REST);
        now_us += microseconds(LONGEST_REST);
        assert_eq!(alone.rest_at(now_us), Duration::ZERO);
        assert_eq!(alone.rest_us.load(Relaxed), microseconds(SHORTEST_REST));
    }

    #[test]
    fn the_idler_is_there_from_the_first_lone_caller_to_the_end() {
        let alone = LoneCaller::with_room(true);
        assert!(!alone.has_idler());
        for _ in 0..2 {
            drop(alone.serve());
            assert_eq!(alone.has_idler(), platform::HAS_IDLER);
        }
        assert_eq!(alone.end().map(|idler| idler.join().is_ok()), platform::HAS_IDLER.then_some(true));
        drop(alone.serve());
        assert!(!alone.has_idler(), "ended once, ended for good");
    }
}
