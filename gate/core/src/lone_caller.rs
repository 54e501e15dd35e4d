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
//! that was not enough the gate thread, too.

use crate::inbox::Inbox;
use std::num::NonZero;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, available_parallelism};
use std::time::{Duration, Instant};

/// Who is woken by an answer needs a tenth of it; a program that computes takes the processor for longer.
const LATE: Duration = Duration::from_millis(1);
/// After a thread that polled was found in the way of others.
pub(crate) const REST: Duration = Duration::from_secs(1);

/// Shared by the threads of a gate and Python's.
pub(crate) struct LoneCaller {
    /// Gate threads that poll for one.
    callers: AtomicUsize,
    began: Instant,
    /// Microseconds after `began`.
    rests_until_us: AtomicU64,
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
        u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX)
    }

    fn is_resting(&self) -> bool {
        self.age_us() < self.rests_until_us.load(Relaxed)
    }

    /// Others want the processors: Python's loop and the idler sleep for a while. False if they did already.
    pub(crate) fn rest(&self) -> bool {
        let is_new = !self.is_resting();
        let rest_us = u64::try_from(REST.as_micros()).unwrap_or(u64::MAX);
        self.rests_until_us.store(self.age_us().saturating_add(rest_us), Relaxed);
        is_new
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
                std::thread::park_timeout(REST);
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
        assert!(alone.rest());
        assert!(!alone.rest(), "it did already");
        assert_eq!(alone.linger(&empty, LONG), Duration::ZERO);
        alone.rests_until_us.store(0, Relaxed);
        assert!(alone.linger(&empty, SHORT) >= SHORT);
        alone.end();
        Ok(())
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
